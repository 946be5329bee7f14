"""What a run writes down of its models: forgetting by a model whose accuracies are given, and held-out accuracies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import (
    Algorithm,
    Centralised,
    Examples,
    FedAvg,
    Federation,
    Local,
    LocalOnly,
    Model,
    RunSettings,
    Weights,
    federate,
    run,
)
from fedloom.core.random import derive
from fedloom.data import by_lists
from tiny import LOCAL, examples, federation as clouds, linear

# Accuracy of each class after rounds 0 to 4, in quarters. Class 0 is at its best in the first round, class 1 before
# training began, class 2 in the second, class 3 in the last.
QUARTERS = np.array([[0, 4, 1, 0], [4, 1, 1, 0], [1, 2, 3, 1], [2, 0, 1, 2], [3, 1, 0, 3]])
CLASSES, EACH = 4, 4


def told(round: int) -> Weights:
    """A linear model that gets so many of the four examples of each class right: example i is the i-th unit vector."""
    weight = torch.zeros(CLASSES, CLASSES * EACH)
    for c, right in enumerate(QUARTERS[round]):
        for i in range(EACH):
            weight[c if i < right else (c + 1) % CLASSES, c * EACH + i] = 1.0
    return Weights(params={"weight": weight})


@dataclass(frozen=True, kw_only=True)
class Told(Algorithm[Any, tuple[()]]):
    """Its models are those of the table above, whatever clients do."""

    def init(self, model: Model, key: int, *, num_clients: int) -> Any:
        return {"done": torch.tensor(0), "w": told(0)}

    def round(self, server: Any, cohort: Any) -> Any:
        done = int(server["done"]) + 1
        return {"done": torch.tensor(done), "w": told(done)}

    def global_weights(self, server: Any) -> Weights:
        return server["w"]  # type: ignore[no-any-return]


def records() -> Any:
    y = torch.arange(CLASSES).repeat_interleave(EACH)
    data = Examples(torch.eye(CLASSES * EACH), y, CLASSES)
    # Client 0 holds class 0 alone, client 1 classes 1, 2 and 3 in the ratio 1 : 2 : 1.
    lists = by_lists([[0, 1, 2], [4, 8, 9, 12]])
    federation = federate(data, lists, test=data, test_fraction=0.0)
    model = Model(lambda: nn.Linear(CLASSES * EACH, CLASSES, bias=False), name="table")
    algorithm = Told(local=Local(epochs=1, batch_size=4))
    return run(algorithm, federation, model, RunSettings(rounds=4, cohort_size=2, engine="loop"))


def test_forgetting_counts_from_the_first_round_on() -> None:
    found = records()
    accuracy = QUARTERS / EACH
    for t, record in enumerate(found):
        assert record["class_accuracy"] == accuracy[t].tolist()
        assert record["global_accuracy"] == accuracy[t].mean()
    assert "forgetting" not in found.metrics[0]
    assert found.metrics[1]["forgetting"] is None
    # The best of rounds 1 to t - 1 (the model before training does not count) less round t, by class, in quarters:
    by_hand = {2: [4 - 1, 1 - 2, 1 - 3, 0 - 1], 3: [4 - 2, 2 - 0, 3 - 1, 1 - 2], 4: [4 - 3, 2 - 1, 3 - 0, 2 - 3]}
    for t, quarters in by_hand.items():
        assert found.metrics[t]["forgetting"] == pytest.approx(np.mean(quarters) / EACH, abs=1e-15)


def test_the_worst_tenth_of_many_clients_are_several() -> None:
    settings = RunSettings(rounds=2, cohort_size=2, engine="loop", eval_every=2)
    parts = clouds(clients=45, per_client=15, test_fraction=0.4)
    last = run(FedAvg(local=LOCAL), parts, linear, settings).metrics[-1]
    worst = sorted(last["personal_by_client"].values())[:4]
    assert worst[0] < worst[-1]
    assert last["personal_worst_tenth"] == pytest.approx(np.mean(worst))


def test_local_accuracies_follow_the_classes_of_the_cohort() -> None:
    record = records().metrics[2]
    a = QUARTERS[2] / EACH
    inside = [a[0], (a[1] + 2 * a[2] + a[3]) / 4]
    outside = [(a[1] + a[2] + a[3]) / 3, (a[0] + 0.75 * a[1] + 0.5 * a[2] + 0.75 * a[3]) / 3]
    assert record["in_local_accuracy"] == pytest.approx(np.mean(inside), abs=1e-12)
    assert record["out_local_accuracy"] == pytest.approx(np.mean(outside), abs=1e-12)


@pytest.mark.some(3)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("algorithm", [FedAvg, LocalOnly, Centralised])
def test_clients_are_judged_on_their_own_held_out_rows(algorithm: Any, engine: Any) -> None:
    # Unequal numbers; client 2 holds nothing out. Labels of held-out rows are drawn: right answers differ by client.
    data = examples(60)
    data = Examples(data.x, torch.where(torch.arange(60) % 4 == 0, (data.y + 1) % 3, data.y), 3)
    train = [[0, 1, 2], [3, 4, 6, 7], [5, 8], [9, 10, 11, 12, 15]]
    test, val = [[13, 14], [16, 17, 18, 20, 21], [], [22, 24, 28]], [[30, 31, 32, 36, 40], [33], [], [34, 35, 44, 48]]
    federation = Federation(data, by_lists(train), data, by_lists(test), by_lists(val))
    settings = RunSettings(rounds=2, cohort_size=3, engine=engine)
    model = Model(linear, name="linear")
    found = run(algorithm(local=LOCAL), federation, model, settings)

    initial = model.init(derive(settings.seed, "init"))

    def rate(k: int, rows: list[int]) -> float:
        w = (found.clients.get(k, initial) if algorithm is LocalOnly else found.server["linear"]).params
        return float(((data.x[rows] @ w["weight"].mT + w["bias"]).argmax(1) == data.y[rows]).double().mean())

    last = found.metrics[-1]
    assert last["personal_by_client"] == {str(k): rate(k, rows) for k, rows in enumerate(test) if rows}
    assert last["val_accuracy"] == pytest.approx(np.mean([rate(k, rows) for k, rows in enumerate(val) if rows]))
    if algorithm is not LocalOnly:  # whose clients have no model in common
        members = range(4) if algorithm is Centralised else last["clients"]
        shares = [np.bincount(data.y[train[k]], minlength=3) / len(train[k]) for k in members]
        assert last["in_local_accuracy"] == pytest.approx(np.mean([p @ last["class_accuracy"] for p in shares]))
