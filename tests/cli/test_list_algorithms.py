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
