"""Bytes by what they are: the counters of a run equal the papers' formulas, on a model of d parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch

import fedloom as fl
from fedloom import (
    APFLNi,
    FedAvg,
    FedCurv,
    FedCurvNi,
    FedDyn,
    FedMD,
    FedMDKT,
    FedMeta,
    FedNova,
    FedNTD,
    FedProx,
    KTpFL,
    KTpFLWeights,
    LocalOnly,
    PerFedAvg,
    PFedSD,
    RunSettings,
    Scaffold,
    SimPFL,
    TopKPFL,
)
from fedloom.coordinator import FixedList
from fedloom.core.client import Client, on_client
from fedloom.core.errors import StackingError
from fedloom.core.tree import leaves
from fedloom.core.types import Maybe, Params, Weighted, Weights, state
from fedloom.engines.accounting import KINDS, PayloadSize, of_states
from tiny import LOCAL, examples, federation, linear

D = 4 * (4 * 3 + 3)  # bytes of the linear model's 15 parameters, in float32
ASKED = FixedList(((0, 1, 2), (1, 2, 3), (1, 4, 5)))  # clients 1 and 2 come back, client 1 twice
HEAD = "* !bias"  # shares the 12 weights of that model, and leaves the 3 biases to each client


def bytes_of(algorithm: Any, engine: str = "loop", **more: Any) -> list[dict[str, int]]:
    """The counters of each round, by their names without `bytes_`, those that are 0 left out."""
    settings = RunSettings(rounds=3, cohort_size=3, engine=engine, threads=1, **more)  # type: ignore[arg-type]
    found = fl.run(algorithm, federation(public=examples(24, seed=5)), linear, settings, sampler=ASKED)
    out = []
    for record in found.metrics[1:]:
        kinds = {k.removeprefix("bytes_"): n for k, n in record.items() if k.startswith("bytes_")}
        down, up = kinds.pop("down"), kinds.pop("up")
        assert down == sum(n for k, n in kinds.items() if k.startswith("down_"))
        assert up == sum(n for k, n in kinds.items() if k.startswith("up_"))
        out.append(kinds)
    return out


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        (FedAvg(local=LOCAL), {"model": D}, {"model": D}),
        (FedProx(local=LOCAL, mu=0.1), {"model": D}, {"model": D}),
        (FedNTD(local=LOCAL), {"model": D}, {"model": D}),
        (FedDyn(local=LOCAL), {"model": D}, {"model": D}),
        (PFedSD(local=LOCAL), {"model": D}, {"model": D}),
        (LocalOnly(local=LOCAL), {}, {}),
        (KTpFLWeights(local=LOCAL), {"model": D}, {"model": D}),
        (FedAvg(local=LOCAL, shared=HEAD), {"model": 48}, {"model": 48}),  # FedPer: d_base each way
        (Scaffold(local=LOCAL), {"model": D, "control": D}, {"model": D, "control": D}),
        (FedCurv(local=LOCAL), {"model": D, "fisher": 2 * D}, {"model": D, "fisher": 2 * D}),  # 3d each way
        (FedCurvNi(local=LOCAL), {"model": D, "fisher": D}, {"model": D, "fisher": D}),  # 2d each way
        (FedMeta(local=LOCAL), {"model": D}, {"gradient": D}),
        (PerFedAvg(local=LOCAL), {"model": D}, {"model": D}),
        (FedNova(local=LOCAL), {"model": D}, {"gradient": D, "control": 8}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fl.Algorithm) else "",
)
def test_counters_equal_the_formulas(algorithm: Any, down: Any, up: Any, engine: str) -> None:
    want = {f"down_{k}": 3 * n for k, n in down.items()} | {f"up_{k}": 3 * n for k, n in up.items()}
    assert bytes_of(algorithm, engine) == [want] * 3  # of the three clients of a round


FEDMD = FedMD(local=LOCAL, num_public=8, public_epochs=0, private_passes=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [*(of(local=LOCAL, num_public=8) for of in (KTpFL, SimPFL, TopKPFL, FedMDKT)), FEDMD]
)
def test_knowledge_travels_as_predictions(algorithm: Any) -> None:
    P, C = 8, 3
    found = bytes_of(algorithm)
    predictions = 3 * P * C * 4
    control = 3 * 2 * P * 8  # the numbers of the public examples, with both exchanges
    want = {"down_control": control, "down_predictions": predictions, "up_predictions": predictions}
    assert found == [want] * 3


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_a_stateless_device_is_sent_its_state_once_it_has_one(engine: str) -> None:
    algorithm = PFedSD(local=LOCAL)
    plain = {"down_model": 3 * D, "up_model": 3 * D}
    assert bytes_of(algorithm, engine) == [plain] * 3
    # Section 6: d down the first time, then 2d; d up, since the new teacher is what was uploaded. In round 2 two of
    # the three come back, in round 3 one.
    teachers = ({}, {"down_personal": 2 * D}, {"down_personal": D})
    assert bytes_of(algorithm, engine, stateless=True) == [plain | more for more in teachers]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_apfl_sends_importance_to_those_who_have_an_older_one(engine: str) -> None:
    """Section 6: d down and d more where F is stale, d up and d more where it is measured; flags and losses beside."""
    plain = {"down_model": 3 * D, "down_control": 3, "up_model": 3 * D, "up_control": 3 * 4}
    stale = (0, 3, 3)  # F is measured in round 0 and in round 1, and everybody in round 2 has none or the first
    found = bytes_of(APFLNi(local=LOCAL, forced_rounds=(0, 1), z=1), engine)
    for got, sent, measured in zip(found, stale, (3, 3, 0), strict=True):
        more = {"down_fisher": sent * D, "up_fisher": measured * D}
        assert got == plain | {kind: n for kind, n in more.items() if n}
    assert bytes_of(APFLNi(local=LOCAL, forced_rounds=(0,)), engine)[2]["down_fisher"] == 2 * D  # client 1 has it
    assert bytes_of(APFLNi(local=LOCAL, mu=0.0), engine) == [plain] * 3


def test_a_state_has_the_counters_of_its_buffers() -> None:
    weights = torch.nn.BatchNorm1d(2).state_dict()  # 4 x 2 floats, and the number of batches
    v = Weights(params={n: weights.pop(n) for n in ("weight", "bias")}, buffers=weights)
    assert of_states([v, Maybe.some(v), Maybe.none(v), (v, torch.tensor(3)), torch.ones(())]) == [40, 40, 0, 40, 4]


@pytest.mark.slow
def test_what_a_stateless_device_has_uploaded_is_not_sent_again() -> None:
    # SCAFFOLD's c_i is not what is uploaded, which is its change, but where a client begins with c_i = 0.
    found = bytes_of(Scaffold(local=LOCAL), stateless=True)
    assert found[0] == {"down_model": 3 * D, "down_control": 3 * D, "up_model": 3 * D, "up_control": 3 * D}
    assert (found[1]["down_personal"], found[1]["up_personal"]) == (2 * D, 2 * D)
    # A local model is nothing else but the state.
    assert bytes_of(LocalOnly(local=LOCAL), stateless=True)[1] == {"down_personal": 2 * D, "up_personal": 3 * D}
    # A client that keeps its biases sends them beside the weights.
    found = bytes_of(FedAvg(local=LOCAL, shared=HEAD), stateless=True)
    assert (found[1]["down_personal"], found[1]["up_personal"]) == (2 * 12, 3 * 12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PFedSD(local=LOCAL), Scaffold(local=LOCAL)])
def test_stateless_changes_no_result(algorithm: Any) -> None:
    def run(stateless: bool) -> Any:
        settings = RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1, stateless=stateless)
        return fl.run(algorithm, federation(), linear, settings, sampler=ASKED)

    a, b = run(False), run(True)
    for x, y in zip(a.metrics, b.metrics, strict=True):
        assert [(k, v) for k, v in x.items() if "bytes" not in k] == [(k, v) for k, v in y.items() if "bytes" not in k]
    assert all(torch.equal(t, u) for t, u in zip(leaves(a.server), leaves(b.server), strict=True))


@state
class Both:
    w: Weights
    g: Annotated[Params, "gradient"]


W = Weights(params={"a": torch.zeros(5)})


@dataclass(frozen=True)
class Sends:
    @on_client
    def marked(
        self, client: Client[Any], first: Weights, both: Both
    ) -> tuple[Any, tuple[Both, Annotated[Any, "control"]]]:
        raise NotImplementedError

    @on_client
    def unmarked(self, client, first, *rest):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    @on_client
    def misspelt(self, client: Client[Any], first: Annotated[Weights, "modell"]) -> tuple[Any, Any]:
        raise NotImplementedError


def test_a_field_of_a_state_says_what_it_is() -> None:
    both = Both(w=W, g=Params({"a": torch.zeros(7)}))
    bill = PayloadSize(Sends().marked)
    assert bill.of_request((W, both), (), 2) == [{"model": 40, "gradient": 28}] * 2
    stacked = Both(w=Weights(params={"a": torch.zeros(2, 5)}), g=Params({"a": torch.zeros(2, 7)}))
    weighed = Weighted(value=torch.zeros(2, 3), weight=torch.ones(2))
    assert bill.of_uploads((stacked, weighed), 2) == [{"model": 20, "gradient": 28, "control": 12}] * 2


def test_what_nothing_says_is_model_and_an_absent_maybe_is_its_flag() -> None:
    bill = PayloadSize(Sends().unmarked)
    assert bill.of_request((W, Maybe.none(W)), (torch.zeros(2, 3),), 2) == [{"model": 20 + 1 + 12}] * 2
    assert bill.of_uploads({"a": Weighted(value=torch.zeros(1, 3), weight=torch.ones(1))}, 1) == [{"model": 12}]


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(StackingError, match=f"one of {', '.join(KINDS)}, got the annotation 'modell': name one"):
        PayloadSize(Sends().misspelt).of_request((W,), (), 1)
