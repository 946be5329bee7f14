"""What records hold is declared where it is computed, by one part, and what is declared is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom import Distill
from fedloom.algorithms import FedDF
from fedloom.coordinator.part import ALWAYS
from fedloom.coordinator.record_entries import DECLARING, columns_for, lower_is_better, measures_for, named
from fedloom.data import Examples, by_lists
from fedloom.evaluate.measure import VALIDATION, Entry
from tiny import LOCAL, examples, federation, linear, mlp

LOGS = ("metrics.jsonl", "timing.jsonl", "clients.jsonl")
SETTINGS = fl.RunSettings(rounds=2, cohort_size=3, threads=1, engine="loop")
EVERYTHING = replace(SETTINGS, per_client=True, evaluate_training=True)
MEASURES = measures_for(fl.Classification().measures[0])
TUNABLE = [name for name, measure in MEASURES.items() if measure.tunable]


@dataclass(frozen=True, kw_only=True)
class Notes(fl.PFedSD):
    """Note numbers, have a model evaluated, and ask twice."""

    def round(self, server: Any, cohort: Any) -> Any:
        cohort.note(agree=torch.tensor(0.5), third=1 / 3)
        model, w = cohort.model, server
        cohort.evaluate("upload", lambda x: model(w, x))
        super().round(server, cohort)
        return super().round(server, cohort)


@dataclass(frozen=True, kw_only=True)
class Tells(fl.FedAvg):
    """FedAvg whose clients note how many examples they have."""

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        client.note(rows=client.num_examples)
        return super().local_update(client, sent)


@dataclass(frozen=True, kw_only=True)
class OfMany(fl.PFedSD):
    """Let no round of fewer than three clients count."""

    def round(self, server: Any, cohort: Any) -> Any:
        return cohort.reduce(self.local_update, server, scatter=(), at_least=3).mean


class Refuses(fl.Part):
    """Takes nobody's upload."""

    class _Link(fl.Link):
        def refuse(self, question: Any, asked: Any) -> dict[int, str]:
            return dict.fromkeys(asked[0].clients, "refused")

    links = (_Link(),)


def with_some_of_one_class() -> fl.Federation:
    """Five clients of two classes; the last two have one of them alone."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(np.concatenate([np.arange(90) % 2, np.zeros(60, int)]))
    x = torch.from_numpy(rng.normal(size=(150, 4)).astype(np.float32)) + y[:, None]
    lists = [range(k, k + 30) for k in range(0, 150, 30)]
    test = Examples(x[:40], y[:40], 2)
    return fl.federate(
        Examples(x, y, 2), by_lists(lists), test=test, test_fraction=0.3, val_fraction=0.3, seed=0
    )  # fmt: skip


def runs() -> Iterator[fl.History]:
    """Runs that have together all that records may hold."""
    new, data, plain = fl.NewClients(1), federation(val_fraction=0.2), fl.FedAvg(local=LOCAL)
    yield fl.run(plain, data, linear, EVERYTHING, new=new)
    yield fl.run(Tells(local=LOCAL), data, linear, EVERYTHING)
    yield fl.run(Notes(local=LOCAL), data, linear, replace(EVERYTHING, cohort_size=2, spares=3), new=new, faults=faults)
    yield fl.run(OfMany(local=LOCAL), data, linear, SETTINGS, new=new)
    yield fl.run(plain, data, linear, SETTINGS, parts=[Refuses()])
    for decay in (0.0, 1.0):
        distill = Distill(batch_size=8, optimiser=fl.SGD(lr=1e30 if decay else 0.1, weight_decay=decay))
        algorithm = FedDF(local=LOCAL, steps=5, distill=distill)
        yield fl.run(algorithm, federation(public=examples(20, 2)), mlp, replace(SETTINGS, on_nonfinite="refuse"))
    task, network = fl.Binary(threshold="validation"), lambda: torch.nn.Linear(4, 1)
    for one in (plain, fl.FedPer(local=LOCAL, personal_layers="bias")):
        yield fl.run(one, with_some_of_one_class(), network, replace(SETTINGS, measures=("auc",)), task=task, new=new)


def faults(round: int, exchange: int, client: int) -> str | None:
    return {(0, 0): "declined", (1, 1): "late", (1, 2): "late"}.get((exchange, client))


@pytest.mark.slow
def test_what_is_recorded_is_declared_and_what_is_declared_is_recorded() -> None:
    recorded, declared = set[tuple[str, str]](), set[tuple[str, str]]()
    for history in runs():
        for log, records in zip(LOGS, (history.metrics, history.timing, history.per_client), strict=True):
            names = {name for record in records for name in record}
            inner = {
                f"{part}.{name}" for one in records for part, of in one.items() if isinstance(of, dict) for name in of
            }
            recorded |= {(log, name) for name in (names if log != LOGS[2] else inner)}
        main, *others = history.task_measures
        declared |= {(c.log if isinstance(c, Entry) else LOGS[0], c.name) for c in columns_for(main, others)}
    exact = {one for one in declared if "*" not in one[1]}
    loose = recorded - exact
    patterns = {one for one in declared - exact if any(one[0] == log and fnmatchcase(n, one[1]) for log, n in loose)}
    assert exact - recorded == set()
    assert patterns == declared - exact
    assert {(log, n) for log, n in loose if not any(log == one[0] and fnmatchcase(n, one[1]) for one in patterns)} == {
        ("timing.jsonl", "round")
    }


def test_each_name_is_declared_by_one_part_and_all_parts_are_asked() -> None:
    for task in (fl.Classification(), fl.Binary(), fl.MultiLabel(), fl.Regression()):
        for count in (1, len(task.measures)):
            main, *others = task.measures[:count]
            assert max(Counter(column.name for column in columns_for(main, others)).values()) == 1
    settings = [f.metadata["part"] for f in fields(fl.RunSettings) if f.metadata.get("part")]
    declaring = [w for w in dict.fromkeys([*ALWAYS, *settings]) if named(w).columns_for is not fl.Part.columns_for]
    assert set(declaring) == {where for where in DECLARING if issubclass_of_part(where)}


def issubclass_of_part(where: str) -> bool:
    found = named(where)
    return isinstance(found, type) and issubclass(found, fl.Part)


def test_directions_and_what_sweeps_choose_by() -> None:
    assert [name for name in TUNABLE if lower_is_better(name)] == [
        "train_loss", "global_loss", "forgetting", "personal_std",
    ]  # fmt: skip
    assert lower_is_better("drop")
    assert lower_is_better("server_ce_loss")
    assert not lower_is_better("server_agree")
    assert TUNABLE[0] == VALIDATION
    assert [m.caption for m in MEASURES.values() if m.caption != m.meaning] == [
        f"{MEASURES[name].meaning} Lower is better." for name in ("forgetting", "personal_std", "drop")
    ]


def test_ranges_follow_units() -> None:
    ranges = {name: MEASURES[name].range for name in ("global_accuracy", "drop", "train_loss", "personal_std")}
    assert ranges == {
        "global_accuracy": (0.0, 1.0), "drop": (-1.0, 1.0), "train_loss": (None, None), "personal_std": (0.0, 1.0),
    }  # fmt: skip
    of_rmse = measures_for(fl.Regression().measures[0])
    assert (of_rmse["personal_std"].range, of_rmse["global_rmse"].range) == ((0.0, None), (None, None))


def test_a_number_of_the_server_is_kept_as_it_is() -> None:
    """It alone notices a plain number that becomes a float32 on its way, or is refused."""
    history = fl.run(Notes(local=LOCAL), federation(6), linear(), SETTINGS)
    assert (history.metrics[-1]["server_third"], history.metrics[-1]["server_agree"]) == (1 / 3, 0.5)
