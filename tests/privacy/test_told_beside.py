"""What a run tells beside what its epsilon is of, by its settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import fedloom as fl
from fedloom.privacy.told_beside import told_beside
from tiny import LOCAL, federation, linear

PARTS = {"local_test": None, "local_val": None}


def told(*, losses: bool = True, held: Any = None, table: Any = None, classes: bool = True, **more: Any) -> list[str]:
    """Return what is told beside the training losses and what is told always."""
    beside = {"task": more.pop("task", None), "new": more.pop("new", None)}
    train = SimpleNamespace(has_classes=classes, preparation=table)
    there = SimpleNamespace(train=train, **PARTS | dict.fromkeys(held or (), 1))
    job: Any = SimpleNamespace(federation=there, settings=fl.RunSettings(**more), **beside)
    said = told_beside(job, losses=losses)
    first = f"not of what this run tells beside them (who was asked, how many examples{' of each class' * classes} cl"
    last = ", training losses" * losses
    assert said.startswith(f"{first}ients have{last}")
    assert said.endswith("), nor of other runs on these clients, such as those of a sweep")
    return said.removeprefix(f"{first}ients have{last}").rpartition("), nor")[0].split(", ")[1:]


def test_what_every_run_tells() -> None:
    assert told() == told(losses=False) == told(classes=False) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"held": ["local_test"]}, ["numbers of personal models on held-out examples"]),
        ({"held": ["local_val"]}, ["numbers on validation examples"]),
        ({"keep_best": True}, ["the round that was kept by them"]),
        ({"monitor": "val_accuracy", "patience": 2}, ["when val_accuracy ended the run"]),
        ({"monitor": "train_loss", "target": 0.5}, ["when train_loss ended the run"]),
        ({"monitor": "train_loss"}, []),
        ({"target": 0.5}, []),
        ({"evaluate_training": True}, ["losses of personal models on training examples"]),
        ({"per_client": True}, ["numbers of each client (clients.jsonl)"]),
        ({"task": fl.tasks.Binary(threshold="validation")}, ["a threshold that they chose"]),
        ({"task": fl.tasks.Binary()}, []),
        ({"new": fl.NewClients(2)}, ["numbers of new clients"]),
        ({"table": object()}, ["the statistics that prepared the tables"]),
    ],
)
def test_what_settings_tell_more(more: dict[str, Any], said: list[str]) -> None:
    assert told(**more) == said


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "privacy", [f"{kind}:noise=2,delta=1e-5,clip=0.5" for kind in ("central", "examples", "local")]
)
def test_it_stands_beside_epsilon(privacy: str) -> None:
    settings = fl.RunSettings(rounds=2, cohort_size=2, engine="loop", threads=1, privacy=privacy, per_client=True)
    meaning = fl.run(fl.FedAvg(local=LOCAL), federation(), linear, settings).measures["epsilon"].meaning
    assert ", training losses, numbers of personal models on held-out examples, numbers of each client (cl" in meaning
    assert ". " not in meaning  # tables print what stands before the first one
