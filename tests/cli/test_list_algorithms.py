"""The list of algorithms."""

from __future__ import annotations

import argparse
import io

import pytest
from rich.console import Console

from fedloom import ALGORITHMS
from fedloom.cli.list_algorithms import show


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    everything = argparse.Namespace(names=[], whose=None, one_shot=False, needs=[])
    assert show(everything, console) == 0
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in out
    for name in (
        *ALGORITHMS,
        "coefficient_steps=1",
        "aggregation=uniform",
        "distill.batch_size=256",
        "distill.optimiser=adam",
        "distill.betas=0.9,0.999",
    ):
        assert name in out.split()


def listed(**asked: object) -> list[str]:
    """The names in the list of those that are asked for."""
    console = Console(file=io.StringIO(), width=120)
    show(argparse.Namespace(**{"names": [], "whose": None, "one_shot": False, "needs": [], **asked}), console)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    return [name for name in ALGORITHMS if any(line.split()[:1] == [name] for line in out.splitlines())]


def test_algorithms_are_picked_by_their_facts() -> None:
    assert {"pfedsd", "ditto"} <= set(listed(whose="personal"))
    assert not {"fedavg", "fedntd"} & set(listed(whose="personal"))
    assert {*listed(whose="personal"), *listed(whose="global")} == set(ALGORITHMS)
    assert {"dense", "feddf"} >= set(listed(one_shot=True)) & {"dense", "feddf", "fedavg", "scaffold"} != set()
    assert not {"fedavg", "scaffold"} & set(listed(one_shot=True))
    both = listed(needs=["public", "state"])
    assert both == [name for name in listed(needs=["public"]) if name in listed(needs=["state"])]
    assert "fedavg" in listed(needs=["nothing"])
    assert "scaffold" not in listed(needs=["nothing"])


def test_facts_say_for_which_tasks_a_method_is() -> None:
    for name, tasks in (("fedavg", "any"), ("fedntd", "classification")):
        console = Console(file=io.StringIO(), width=120)
        show(argparse.Namespace(names=[name], whose=None, one_shot=False, needs=[]), console)
        (line,) = (one for one in console.file.getvalue().splitlines() if one.split()[:1] == ["tasks"])  # type: ignore[attr-defined]
        assert line.split() == ["tasks", tasks]
