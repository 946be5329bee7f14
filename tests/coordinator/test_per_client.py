"""What is written down of each client: examples, right answers and losses, and accuracy around local training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom import Centralised, FedAvg, KTpFL, LocalOnly, PFedSD, RunSettings, Weights
from fedloom.coordinator import FixedList, History, Job, verify
from fedloom.core.errors import SettingError
from fedloom.data import by_lists
from fedloom.engines.engine import Engine
from tiny import LOCAL, examples, federation, linear, mlp

ASKED = FixedList(((0, 1, 2), (1, 2, 3), (1, 4, 5)))
SETTINGS = RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1, per_client=True)


class Tells(PFedSD):
    """pFedSD, whose clients without a teacher are said to have no model of their own."""

    def has_personal(self, state: Any) -> Tensor:
        return state.v.present  # type: ignore[no-any-return]


def measured(weights: Weights, rows: Any) -> tuple[int, float]:
    """(right, mean loss) of a linear model on rows of `federation`, by hand."""
    train = federation().train
    logits = train.x[rows] @ weights.params["weight"].mT + weights.params["bias"]
    y = train.y[rows]
    return int((logits.argmax(1) == y).sum()), float(F.cross_entropy(logits, y))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_numbers_of_each_client_are_those_by_hand(engine: Any) -> None:
    data = federation()
    found = fl.run(
        Tells(local=LOCAL), data, linear, replace(SETTINGS, engine=engine), sampler=FixedList(((0, 1, 2),) * 3)
    )
    server, evaluated = found.server["Linear"], found.per_client[-1]["judged"]
    assert evaluated["clients"] == list(range(6))
    assert evaluated["own"] == [True, True, True, False, False, False]
    better = []
    for k in range(6):
        mine = found.clients[k].v.value if k < 3 else server
        test, train = data.local_test.rows(k).copy(), data.partition.rows(k).copy()  # type: ignore[union-attr]
        assert (evaluated["examples"][k], evaluated["train_examples"][k]) == (len(test), len(train))
        for name, weights in (("personal", mine), ("global", server)):
            right, loss = measured(weights, test)
            assert evaluated[f"{name}_right"][k] == right
            assert evaluated[f"{name}_loss"][k] == pytest.approx(loss, rel=1e-5)
            assert evaluated[f"{name}_train_loss"][k] == pytest.approx(measured(weights, train)[1], rel=1e-5)
        better.append(evaluated["personal_right"][k] > evaluated["global_right"][k])
    last, sizes = found.metrics[-1], np.array(evaluated["examples"])
    assert last["better_than_global"] == np.mean(better) > 0
    assert last["without_personal"] == 3
    for name, kind in (("personal_accuracy", "personal"), ("global_on_clients", "global")):
        right = np.array(evaluated[f"{kind}_right"])
        assert last[name] == pytest.approx(np.mean(right / sizes))
        assert last[f"{name}_by_samples"] == right.sum() / sizes.sum()


def test_who_is_judged_by_the_global_model_has_none_of_its_own() -> None:
    found = fl.run(FedAvg(local=LOCAL), federation(), linear, replace(SETTINGS, rounds=1))
    assert [record["judged"]["own"] for record in found.per_client] == [[False] * 6] * 2


def test_the_two_means_differ_where_clients_hold_unequal_numbers() -> None:
    data = examples(24)
    parts = fl.Federation(data, by_lists([[0, 1], [2, 3]]), data, by_lists([[4, 5, 6, 7, 8, 9, 10, 11, 12], [13]]))
    record = fl.run(FedAvg(local=LOCAL), parts, linear, RunSettings(rounds=1, cohort_size=2, engine="loop")).metrics[-1]
    a, b = record["personal_by_client"]["0"], record["personal_by_client"]["1"]
    assert a != b
    assert record["personal_accuracy"] == (a + b) / 2
    assert record["personal_accuracy_by_samples"] == pytest.approx((9 * a + b) / 10)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_accuracy_before_and_after_local_training(engine: Any) -> None:
    data = federation()
    job = Job(
        algorithm=PFedSD(local=LOCAL), federation=data, model=linear,
        settings=replace(SETTINGS, engine=engine, rounds=4),
        sampler=FixedList(((0, 1, 2), (3, 4, 5), (0, 1, 4), (0, 4, 5))),  # client 0 comes back twice
    )  # fmt: skip
    servers, trained = list[Any](), list[dict[int, Any]]()

    def keep(history: History) -> None:
        servers.append(history.server["Linear"])
        trained.append({k: s.v.value for k, s in dict(history.clients).items()})

    found = job.run(on_round=keep)
    assert "trained" not in found.per_client[0]
    for t in (1, 2, 3, 4):
        part, clients = found.per_client[t]["trained"], found.metrics[t]["clients"]
        assert part["clients"] == clients
        drops = []
        for i, k in enumerate(clients):
            test = data.local_test.rows(k).copy()  # type: ignore[union-attr]
            assert part["examples"][i] == len(test)
            assert part["trained"][i] == measured(trained[t - 1][k], test)[0]  # what it trained is its teacher now
            if t > 1:
                assert part["received"][i] == measured(servers[t - 2], test)[0]
            before = trained[t - 2].get(k) if t > 1 else None
            assert part["previous"][i] == (None if before is None else measured(before, test)[0])
            if before is not None:
                drops.append((part["previous"][i] - part["received"][i]) / len(test))
        assert found.metrics[t]["drop"] == (pytest.approx(np.mean(drops)) if drops else None)
        assert found.metrics[t]["trained_accuracy"] == pytest.approx(
            np.mean(np.array(part["trained"]) / part["examples"])
        )
        assert found.metrics[t]["received_accuracy"] == pytest.approx(
            np.mean(np.array(part["received"]) / part["examples"])
        )
    assert found.metrics[3]["drop"] > 0  # what others trained is worse for those who come back


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(local=LOCAL), FedAvg(local=LOCAL, shared="* !bias"), LocalOnly(local=LOCAL), Centralised(local=LOCAL)],
    ids=["fedavg", "fedper", "local_only", "centralised"],
)
def test_it_changes_nothing_that_is_measured_otherwise(algorithm: Any) -> None:
    plain, full = (
        fl.run(algorithm, federation(), linear, replace(SETTINGS, per_client=on), sampler=None) for on in (False, True)
    )
    assert not plain.per_client
    for without, with_ in zip(plain.metrics, full.metrics, strict=True):
        assert {name: with_[name] for name in without} == without
    if isinstance(algorithm, Centralised):  # one client, which holds everything
        assert full.per_client == [{"round": t} for t in range(4)]
        return
    each = full.per_client[-1]["judged"]
    whole = algorithm == FedAvg(local=LOCAL)
    assert ("global_right" in each) == ("better_than_global" in full.metrics[-1]) == whole
    if whole:
        assert each["personal_right"] == each["global_right"]
        assert full.metrics[-1]["better_than_global"] == 0
    assert full.per_client[-1]["trained"]["clients"] == sorted(full.metrics[-1]["clients"])


@pytest.mark.slow
def test_clients_that_hold_nothing_out_have_no_accuracy() -> None:
    found = fl.run(FedAvg(local=LOCAL), federation(test_fraction=0.0), linear, SETTINGS)
    last = found.metrics[-1]
    assert [last[name] for name in ("global_on_clients", "global_on_clients_by_samples")] == [None, None]
    assert set(found.per_client[-1]["judged"]["global_right"]) == {0}


@pytest.mark.slow
def test_a_mixture_of_architectures_and_exchanges() -> None:
    algorithm = KTpFL(local=LOCAL, num_public=8)
    data = federation(public=examples(24, seed=5))
    settings = replace(SETTINGS, cohort_size=4)
    found = fl.run(algorithm, data, {"linear": linear, "mlp": mlp}, settings)
    assert [len(r["trained"]["clients"]) for r in found.per_client[1:]] == [4] * 3
    assert "global_right" not in found.per_client[-1]["judged"]


@pytest.mark.slow
def test_between_evaluations_only_local_training_is_written_down(tmp_path: Path) -> None:
    settings = replace(SETTINGS, eval_every=2, panel=4)
    found = fl.run(PFedSD(local=LOCAL), federation(), linear, settings, directory=tmp_path / "run")
    assert ["judged" in r for r in found.per_client] == [True, False, True, True]
    assert all(len(r["judged"]["clients"]) == 4 for r in found.per_client if "judged" in r)
    assert History.read(tmp_path / "run").per_client == found.per_client
    lines = (tmp_path / "run/clients.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found.per_client


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_a_resumed_run_has_the_same_bytes(engine: Any, tmp_path: Path) -> None:
    settings = replace(SETTINGS, rounds=6, engine=engine, checkpoint_every=2, seed=3)
    job = Job(algorithm=Tells(local=LOCAL), federation=federation(), model=linear, settings=settings)
    whole = job.run(tmp_path / "whole")

    def stop(history: History) -> None:
        if len(history.metrics) == 6:  # round 5, behind the checkpoint of round 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(tmp_path / "cut", on_round=stop)
    assert len((tmp_path / "cut/clients.jsonl").read_text().splitlines()) == 6
    again = job.run(tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "clients.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert again.per_client == whole.per_client
    assert verify(tmp_path / "cut").whole


@pytest.mark.slow
def test_damage_is_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
    job.run(run)
    path = run / "clients.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"examples": [3', b'"examples": [4', 1))
    assert "clients.jsonl was changed" in verify(run).problems[0]
    path.unlink()
    assert "clients.jsonl" in verify(run).problems[0]
    for old, new, words in (
        (b'"own": [false', b'"own": [0', r"line 1: judged.own must be a list"),
        (
            b'"personal_right": [',
            b'"personal_right": [1, ',
            r"line 1: judged.personal_right must be as long as clients",
        ),
        (b'"clients": [0', b'"clients": ["0"', r"line 1: judged.clients must be a list of client numbers"),
    ):
        path.write_bytes(data.replace(old, new, 1))
        with pytest.raises(SettingError, match=words):
            History.read(run)


def test_it_cannot_be_asked_for_later(tmp_path: Path) -> None:
    plain = replace(SETTINGS, per_client=False)
    Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=plain).run(tmp_path / "run")
    assert not (tmp_path / "run/clients.jsonl").exists()
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
    with pytest.raises(SettingError, match=r"run\.per_client was false and is true"):
        job.run(tmp_path / "run", resume=True)


@pytest.mark.slow
def test_who_has_a_model_of_its_own_is_counted_without_records() -> None:
    settings = replace(SETTINGS, per_client=False)
    found = fl.run(Tells(local=LOCAL), federation(), linear, settings, sampler=ASKED)
    assert [m["without_personal"] for m in found.metrics] == [6, 3, 2, 0]
    assert "without_personal" not in fl.run(LocalOnly(local=LOCAL), federation(), linear, settings).metrics[-1]
    assert torch.equal(LocalOnly().has_personal(()), torch.tensor(True))


def test_the_panel_is_asked_once_for_all_who_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, Any]] = []
    evaluate = Engine._evaluate

    def noted(self: Engine, server: Any, clients: Any, round: int, split: Any, method: str = "personal") -> Any:
        if len(clients) == 6 and method == "personal":  # all, and not who takes part
            asked.append((round, split))
        return evaluate(self, server, clients, round, split, method)

    monkeypatch.setattr(Engine, "_evaluate", noted)
    settings = RunSettings(rounds=2, cohort_size=3, engine="loop", threads=1, per_client=True, evaluate_training=True)
    found = fl.run(PFedSD(local=LOCAL), federation(), linear, settings)
    assert asked == [(0, "all"), (0, "all"), (1, "all")]  # before the first round, and after each
    assert len({record["personal_train_loss"] for record in found.metrics}) == 3
