"""Tables and progress: what a person sees, at 80 columns and at 120."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fedloom import ALGORITHMS
from fedloom.coordinator import History
from fedloom.report import algorithm_table, comparison_table, progress


def shown(table: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def history(engine: str = "stacked", rounds: int = 2, lost: int = 0, **last: Any) -> History:
    """As of a run: the metrics of the last round are `last`."""
    start: dict[str, Any] = {"round": 0, "global_accuracy": 0.1}
    moved = {"bytes_down": 3_000_000, "bytes_up": 1_000_000, "failed": {str(k): "gone" for k in range(lost)}}
    metrics = [start, *({"round": t + 1, **moved} for t in range(rounds))]
    metrics[-1].update(last)
    timing = [{"round": t, "seconds": {"train": 2.0, "evaluate": 0.5}} for t in range(rounds + 1)]
    return History(algorithm="A", engine=engine, metrics=metrics, timing=timing)


FULL = {
    "global_accuracy": 0.71234,
    "forgetting": -0.0512,
    "personal_accuracy": 0.8,
    "personal_worst_tenth": 0.33333,
}


def test_a_row_tells_where_a_run_ended_and_what_it_cost() -> None:
    row = shown(comparison_table([("fedavg", history(**FULL))])).splitlines()[-1]
    assert row.split() == ["fedavg", "0.7123", "-0.0512", "0.8000", "0.3333", "4.00", "2.50", "stacked"]


def test_what_was_not_measured_is_a_dash() -> None:
    kt_pfl = history(personal_accuracy=0.5)
    del kt_pfl.metrics[0]["global_accuracy"]
    row = shown(comparison_table([("kt_pfl", kt_pfl)])).splitlines()[-1]
    assert row.split()[:5] == ["kt_pfl", "-", "-", "0.5000", "-"]


def test_lost_clients_have_a_column_where_there_are_any() -> None:
    clean, lossy = history(**FULL), history(lost=2, **FULL)
    assert "lost" not in shown(comparison_table([("a", clean)]))
    out = shown(comparison_table([("a", clean), ("b", lossy)])).splitlines()
    assert any("lost" in line for line in out)
    assert [line.split()[-2] for line in out[-2:]] == ["0", "4"]  # 2 in each of 2 rounds


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("lost", [0, 3])
def test_nothing_is_cut_off(width: int, lost: int) -> None:
    runs = [(name, history(lost=lost, **FULL)) for name in ALGORITHMS]
    out = shown(comparison_table(runs), width)
    assert "…" not in out
    words = out.split()
    for word in (
        "algorithm",
        "global",
        "forgetting",
        "personal",
        "worst",
        "10th",
        "MB",
        "round",
        "engine",
        *ALGORITHMS,
    ):
        assert word in words
    assert words.count("stacked") == len(ALGORITHMS)
    assert words.count("-0.0512") == len(ALGORITHMS)
    algorithms = shown(algorithm_table(), width)
    assert "…" not in algorithms
    for name in (*ALGORITHMS, "coefficient_steps=1", "aggregation=uniform", "distill.batch_size=256"):
        assert name in algorithms.split()


def test_labels_are_not_markup() -> None:
    assert "[red]x[/]" in shown(comparison_table([("[red]x[/]", history(**FULL))]))


def test_progress_shows_round_accuracy_and_time_left() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with progress(console, "centralised", 100) as on_round:
        for rounds in (1, 2, 100):
            on_round(history(rounds=rounds, global_accuracy=0.5 + rounds / 1000))
    frames = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in frames.replace("\r", "\n").splitlines() if "centralised" in line]
    assert any("100/100" in line and "left 0:00:00" in line and "global 0.6000" in line for line in lines)
    assert "…" not in frames


def test_progress_follows_personal_models_where_there_is_no_global_one() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    local_only = history(personal_accuracy=0.25)
    del local_only.metrics[0]["global_accuracy"]
    with progress(console, "local_only", 2) as on_round:
        on_round(local_only)
    assert "personal 0.2500" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_log_file_gets_a_line_now_and_then() -> None:
    console = Console(file=io.StringIO(), width=80)
    now = iter([0.0, 10.0, 31.0, 40.0, 62.0, 3000.0])
    with progress(console, "fedavg", 5, every=30.0, clock=lambda: next(now)) as on_round:
        for done in range(1, 6):
            on_round(history(rounds=done, global_accuracy=done / 10))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "fedavg: round 2 of 5, global 0.2000, 0:00:46 left",
        "fedavg: round 4 of 5, global 0.4000, 0:00:16 left",
    ]
