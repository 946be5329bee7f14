"""Works on what clients have trained: functions of a user's, by name, done where it was trained on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_personal_evaluation import evaluated
from torch import Tensor

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import CodecError, StackingError
from fedloom.core.fold import fold
from fedloom.core.naming import forbid_imports
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATION
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import LOCAL, federation, linear

NORMS, WRONG = f"{__name__}:norms", f"{__name__}:wrong"


def norms(client: fl.Client[Any], w: fl.Weights, held_out: fl.Batches, train: fl.Batches) -> dict[str, Tensor]:
    """Length of the weights, rows, and the sum of the largest logits over the client's training rows."""
    model = client.model

    def step(total: Tensor, batch: fl.Batch, w: fl.Weights) -> Tensor:
        return total + (model(w, batch.x).amax(1) * batch.mask).sum()

    largest = fold(step, torch.zeros((), dtype=torch.float64), train, w)
    rows = torch.stack([held_out.num_examples, train.num_examples])
    return {"length": w.params.sq_norm().sqrt(), "rows": rows, "largest": largest}


def wrong(client: fl.Client[Any], w: fl.Weights, held_out: fl.Batches, train: fl.Batches) -> Any:
    return w.params.sq_norm()


@pytest.mark.parametrize(
    "engine", [Loop, Stacked, Messages, DevicesInProcess, pytest.param(Workers, marks=pytest.mark.slow)]
)
def test_a_work_is_done_on_what_each_client_has_trained(engine: Any) -> None:
    p, algorithm = evaluated(), fl.PFedSD(local=LOCAL)
    run, watched = engine(p, algorithm, Options(works=(EVALUATION, NORMS))), Loop(p, algorithm)
    seen: list[Exchange] = []
    watched.watch = seen.append
    server, beside = run.init(), watched.init()
    for round, cohort in enumerate(((0, 1, 2), (1, 3))):
        seen.clear()
        server, beside = run.round(server, cohort, round), watched.round(beside, cohort, round)
        assert {name: sorted(found) for name, found in run.traffic.after.items()} == {
            EVALUATION: [*cohort],
            NORMS: [*cohort],
        }
        for exchange in seen:
            found, trained, k = run.traffic.after[NORMS][exchange.client], exchange.trained, exchange.client
            assert trained is not None
            rows = [p.federation.local_test.rows(k), p.federation.partition.rows(k)]  # type: ignore[union-attr]
            assert found["rows"].tolist() == [*map(len, rows)]
            logits = p.models["mlp"](trained, p.federation.train.x[rows[1].copy()].double())
            np.testing.assert_allclose(found["largest"], logits.amax(1).sum(), rtol=1e-9)
            np.testing.assert_allclose(found["length"], trained.params.sq_norm().sqrt(), rtol=1e-9)
    for a, b in zip(tree.leaves(server), tree.leaves(beside), strict=True):
        assert torch.allclose(a, b, rtol=1e-9)  # nothing of the run changes
    run.close()


def test_a_part_wants_works_by_name_and_has_what_they_find() -> None:
    class Length(fl.Part):
        wants = fl.Wants(trained=(NORMS,))
        columns = (fl.Measure("mean_length", "Length", "length", "Mean length of trained weights.", unit=""),)

        def after(self, run: fl.Running) -> dict[str, Any]:
            assert not run.trained()
            found = run.trained(NORMS)
            assert sorted(found) == (sorted(run.clients) if run.done else [])
            return {"mean_length": float(np.mean([float(one["length"]) for one in found.values()]))} if found else {}

    ends = [
        fl.Job(
            algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=linear, parts=[Length()],
            settings=fl.RunSettings(rounds=2, cohort_size=3, engine=engine, threads=1),
        ).run().series("mean_length")
        for engine in ("loop", "stacked")
    ]  # fmt: skip
    np.testing.assert_allclose(*ends, rtol=1e-6)
    assert (fl.Wants(trained=("a", "b")) | fl.Wants(trained=("b", "c"), states=True)) == fl.Wants(("a", "b", "c"), True)


def test_works_that_are_none_are_refused_before_clients_are_asked() -> None:
    p, algorithm = evaluated(), fl.FedAvg(local=LOCAL)
    with pytest.raises(fl.SettingError, match=f"a work on trained models '{__name__}:nroms': .* has no 'nroms'"):
        Loop(p, algorithm, Options(works=(f"{__name__}:nroms",)))
    with pytest.raises(fl.SettingError, match=r"a work on trained models is module:name, .* got 'norms'"):
        Loop(p, algorithm, Options(works=("norms",)))
    run = Loop(p, algorithm, Options(works=(WRONG,)))
    with pytest.raises(StackingError, match=f"{WRONG} must return numbers by name, a dict of tensors, got Tensor"):
        run.round(run.init(), (0,), 0)


def test_a_device_imports_no_work_that_a_server_names() -> None:
    run = DevicesInProcess(evaluated(), fl.FedAvg(local=LOCAL), Options(works=(NORMS,)))
    begun, made = run.init(), run.controller(0)
    run.controllers[0] = made
    answer = made.__call__

    class Forbidding:
        models = made.models

        def __call__(self, data: bytes) -> bytes:
            with forbid_imports("a device imports no code that a server names"):
                return answer(data)

    run.controllers[0] = Forbidding()  # type: ignore[assignment]
    run.round(begun, (0, 1), 0)
    (failure,) = run.traffic.failed
    assert failure.client == 0
    assert "is code, and a device imports no code" in failure.reason


@pytest.mark.parametrize("works", ["evaluation", [1], ["w"] * 21, {"w": 1}])
def test_names_of_works_are_a_short_list_of_texts(works: Any) -> None:
    engine = Messages(evaluated(), fl.FedAvg(local=LOCAL))
    service = engine.service()
    message = type("Message", (), {
        "head": {"clients": [0], "broadcast": 0, "exchange": 0, "works": works, "number": 1}, "parts": {}
    })  # fmt: skip
    with pytest.raises(CodecError, match="works must be at most 20 names, got"):
        service._request(message)  # type: ignore[arg-type]
