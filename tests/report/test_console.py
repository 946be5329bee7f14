"""Tables and progress: what a person sees, at 80 columns and at 120."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from made import made_run
from rich.console import Console

from fedloom import ALGORITHMS
from fedloom.coordinator import History
from fedloom.coordinator.job import showing
from fedloom.display.progress import progress
from fedloom.report import comparison_table, readings_table
from fedloom.report.comparison import evaluation, headline
from fedloom.report.grouping import read_methods


def shown(table: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def rows(table: Any, width: int = 100) -> list[list[str]]:
    """The words of each line above the caption."""
    return [line.split() for line in shown(table, width).splitlines() if ": " not in line]


def history(engine: str = "stacked", rounds: int = 2, lost: int = 0, **last: Any) -> History:
    """As of a run: the metrics of the last round are `last`."""
    start: dict[str, Any] = {"round": 0, "global_accuracy": 0.1}
    moved = {"bytes_down": 3_000_000, "bytes_up": 1_000_000, "failed": {str(k): "gone" for k in range(lost)}}
    metrics = [start, *({"round": t + 1, **moved} for t in range(rounds))]
    metrics[-1].update(last)
    timing = [{"round": t, "seconds": {"train": 2.0 * (t > 0), "evaluate": 0.5}} for t in range(rounds + 1)]
    return History(algorithm="A", engine=engine, metrics=metrics, timing=timing)


FULL = {
    "global_accuracy": 0.71234,
    "forgetting": -0.0512,
    "personal_accuracy": 0.8,
    "personal_worst_tenth": 0.33333,
}


def test_a_row_tells_where_a_run_ended_and_what_it_cost() -> None:
    row = rows(comparison_table([("fedavg", history(**FULL))]))[-1]
    assert row == ["fedavg", "0.7123", "-0.0512", "0.8000", "0.3333", "4.00", "2.00", "0.50", "stacked"]


def test_the_mean_of_the_last_rounds_stands_beside_the_last() -> None:
    swings = history(rounds=25, **FULL)
    for t, record in enumerate(swings.metrics):
        record["global_accuracy"] = 0.5 + 0.1 * (-1) ** t
    out = shown(comparison_table([("scaffold", swings)]))
    assert rows(comparison_table([("scaffold", swings)]))[-1][:3] == ["scaffold", "0.4000", "0.5000"]
    heads = [" ".join(line.split()[:3]) for line in out.splitlines()[1:3]]
    assert heads == ["global global forget-", "algorithm last mean"]
    assert out.startswith("Accuracy after the last round; mean 10: over the last 10")
    assert "mean" not in shown(comparison_table([("short", history(rounds=3, **FULL))]))


def test_columns_of_parts_are_explained_in_one_sentence() -> None:
    run = history(**FULL, epsilon=1.0, gap=2.0)
    texts = {"epsilon": "Of all so far. More of it.", "gap": "Between two."}
    run.manifest["columns"] = [
        {"name": name, "title": name, "label": name, "meaning": text, "unit": "", "better": None}
        for name, text in texts.items()
    ]
    title = " ".join(shown(comparison_table([("fedavg", run)]), 180).splitlines()[0].split())
    assert title == "Accuracy after the last round; epsilon: Of all so far; gap: Between two"


def test_no_measure_that_was_asked_for_is_lost_on_a_narrow_terminal() -> None:
    asked = {"accuracy": "accuracy", "auc": "AUC", "average_precision": "average precision", "recall": "recall"}
    measured = {f"{whose}_{name}": 0.5 for whose in ("global", "personal") for name in asked}
    run = history(**FULL | measured, threshold=0.2)
    run.manifest["measures"] = [{"name": name, "title": title, "meaning": ""} for name, title in asked.items()]
    for width in (60, 80, 180):
        out = shown(comparison_table([("fedavg", run)]), width)
        for title in [*asked.values()][1:]:
            assert out.count(title) == 2
        assert "thresh-" in out
        assert ("engine" in out) == (width == 180)


def test_seconds_mean_the_same_as_in_a_report(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    (method,), _ = read_methods([folder])
    page = headline([method])
    found = dict(zip((c.name for c in page.columns), page.rows[0], strict=True))
    row = rows(comparison_table([("fedavg", History.read(folder))]), 120)[-1]
    assert row[-3:-1] == ["0.50", "0.25"]
    assert found["seconds_per_round"].mean == pytest.approx(0.501)
    assert evaluation(method.first) == pytest.approx(0.25)
    (folder / "timing.jsonl").write_text((folder / "timing.jsonl").read_text().partition("\n")[0] + "\n")
    assert "a round" not in shown(comparison_table([("fedavg", History.read(folder))]), 120).partition("MB")[2][8:]
    both = [("fedavg", History.read(folder)), ("timed", history(**FULL))]
    assert rows(comparison_table(both), 120)[-2][-3:-1] == ["-", "-"]


def test_what_was_not_measured_is_a_dash() -> None:
    kt_pfl = history(personal_accuracy=0.5)
    del kt_pfl.metrics[0]["global_accuracy"]
    both = [("kt_pfl", kt_pfl), ("fedavg", history(**FULL))]
    assert rows(comparison_table(both))[-2][:5] == ["kt_pfl", "-", "-", "0.5000", "-"]


def test_columns_of_dashes_alone_are_left_out() -> None:
    kt_pfl = history(personal_accuracy=0.5)
    del kt_pfl.metrics[0]["global_accuracy"]
    out = comparison_table([("kt_pfl", kt_pfl)])
    assert rows(out)[-1][:2] == ["kt_pfl", "0.5000"]
    assert not {"global", "forget-", "worst"} & {word for row in rows(out) for word in row}


def test_lost_clients_have_a_column_where_there_are_any() -> None:
    clean, lossy = history(**FULL), history(lost=2, **FULL)
    assert "lost" not in shown(comparison_table([("a", clean)]))
    out = comparison_table([("a", clean), ("b", lossy)])
    assert "lost" in shown(out)
    assert [row[-2] for row in rows(out)[-2:]] == ["0", "4"]  # 2 in each of 2 rounds


NUMBERS = ["0.7123", "0.0712", "-0.0512", "0.8000", "0.3333"]


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (120, [*NUMBERS, "4.00", "2.00", "0.50", "stacked"]),
        (80, [*NUMBERS, "4.00", "2.00"]),
        (66, [*NUMBERS, "2.00"]),
        (60, NUMBERS),
        (40, ["0.7123", "0.0712", "0.8000"]),
        (30, ["0.7123", "0.0712"]),
    ],
)
def test_whole_columns_go_where_there_is_no_room(width: int, kept: list[str]) -> None:
    short = [name for name in ALGORITHMS if len(name) <= 13]
    runs = [(name, history(rounds=25, **FULL)) for name in short]
    for _, run in runs:
        run.metrics[0]["global_accuracy"] = None
        for record in run.metrics[1:-1]:
            record["global_accuracy"] = 0.0
    out = comparison_table(runs)
    assert "…" not in shown(out, width)
    assert max(map(len, shown(out, width).splitlines())) <= width
    body = [row for row in rows(out, width) if row and row[0] in ALGORITHMS]
    assert body == [[name, *kept] for name in short]


def test_labels_that_are_too_long_are_folded_before_a_number_is() -> None:
    out = shown(comparison_table([("a_very_long_name_of_a_method/seed-0", history(**FULL))]), 40)
    assert "0.7123" in out
    assert "…" not in out


def test_new_clients_have_columns_where_there_are_any() -> None:
    new = {"new_global_accuracy": 0.61, "new_fine_tuned_accuracy": 0.72}
    assert "tuned" not in shown(comparison_table([("fedavg", history(**FULL))]), 100)
    row = rows(comparison_table([("fedavg", history(**FULL, **new))]), 120)[-1]
    assert row == [
        "fedavg",
        "0.7123",
        "-0.0512",
        "0.8000",
        "0.3333",
        "0.6100",
        "0.7200",
        "4.00",
        "2.00",
        "0.50",
        "stacked",
    ]


def test_the_same_accuracy_is_read_in_five_ways() -> None:
    swings = history(rounds=4)
    for t, record in enumerate(swings.metrics):
        record |= {"global_accuracy": (0.1, 0.5, 0.9, 0.3, 0.7)[t], "val_accuracy": (0.1, 0.8, 0.2, 0.3, 0.4)[t]}
    out = shown(readings_table([("fedavg", swings)]), 100)
    assert " ".join(out.split()).startswith(
        "Which number: last round; mean of the last 2; chosen by validation; *best on test, which is optimistic; mean"
    )
    assert [line.split() for line in out.splitlines()][-1] == [
        *["fedavg", "0.7000", "0.5000", "0.5000", "0.9000", "0.5000"],
        *["1", "0.8000"],  # the round that validation chooses, and its accuracy there
    ]
    swings.metrics[-1]["personal_accuracy"] = 0.8
    narrow = [line.split() for line in shown(readings_table([("fedavg", swings)]), 40).splitlines()]
    first, *below = [cells for cells in narrow if cells[:1] == ["fedavg"]]
    assert first[:2] == ["fedavg", "0.7000"]
    assert "0.8000" in first
    assert below  # the other ways, of which none is lost
    assert {"0.5000", "0.9000", "1"} <= {cell for cells in below for cell in cells}


def test_a_caption_names_the_readings_that_are_shown() -> None:
    caption = " ".join(shown(readings_table([("fedavg", history(rounds=1, global_accuracy=0.5))]), 100).split())
    assert caption.startswith("Which number: last round; *best on test, which is optimistic; mean of all rounds ")


def test_the_mean_by_samples_stands_beside_the_mean_over_clients() -> None:
    """As PFLlib prints it; a run that has not measured it has a dash."""
    one = history(rounds=1, global_accuracy=0.5, personal_accuracy=0.75, personal_accuracy_by_samples=0.625)
    out = shown(readings_table([("fedavg", one), ("other", history(rounds=1, personal_accuracy=0.7))]), 100)
    assert "samples: last round, by samples (others: mean over clients)" in " ".join(out.split())
    assert [line.split()[-1] for line in out.splitlines()[-2:]] == ["0.6250", "-"]


def test_labels_are_not_markup() -> None:
    assert "[red]x[/]" in shown(comparison_table([("[red]x[/]", history(**FULL))]))


def test_progress_shows_round_accuracy_and_time_left() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with progress(console, "centralised", 100) as show:
        for rounds in (1, 2, 100):
            showing(show)(history(rounds=rounds, global_accuracy=0.5 + rounds / 1000))
    frames = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in frames.replace("\r", "\n").splitlines() if "centralised" in line]
    assert any("100/100" in line and "0:00:00 left" in line and "global 0.6000" in line for line in lines)
    assert "…" not in frames


def test_progress_follows_personal_models_where_there_is_no_global_one() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    local_only = history(personal_accuracy=0.25)
    del local_only.metrics[0]["global_accuracy"]
    with progress(console, "local_only", 2) as show:
        showing(show)(local_only)
    assert "personal 0.2500" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_log_file_gets_a_line_now_and_then() -> None:
    console = Console(file=io.StringIO(), width=80)
    now = 0.0

    def clock() -> float:
        return now

    with progress(console, "fedavg", 5, interval=30.0, clock=clock) as show:
        for done, seconds in enumerate((10.0, 31.0, 40.0, 62.0, 3000.0), 1):
            now = seconds
            showing(show)(history(rounds=done, global_accuracy=done / 10))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "fedavg: round 2 of 5, global 0.2000, 0:00:46 left",
        "fedavg: round 4 of 5, global 0.4000, 0:00:16 left",
    ]
