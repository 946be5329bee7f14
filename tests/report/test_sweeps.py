"""Sweeps: which methods are trials of one, their order by what they were chosen by, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import made_run, methods

from fedloom.experiments.trials import LAST
from fedloom.report import figures, sentences, write_report
from fedloom.report.sweeps import SweepResult, order, sweeps


def trial(folder: Path, mu: float, lr: float, end: float, seed: int = 0, source: str = "made_up", **more: Any) -> None:
    """A run of FedProx whose validation accuracy ends around `end`, the mean of its last three."""
    settings = {"data": {"source": source}, "local": {"lr": lr}, "fedprox": {"mu": mu}, **more}
    made_run(folder, "fedprox", seed, settings=settings)
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, value in zip(records[-LAST:], (end - 0.1, end, end + 0.1), strict=True):
        record["val_accuracy"] = value
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def grid(folder: Path) -> list[SweepResult]:
    """mu 0.01, 0.1 by lr 0.1, 1, two seeds: mu=0.1 lr=1 is best."""
    ends = {(0.01, 0.1): 0.3, (0.01, 1.0): 0.4, (0.1, 0.1): 0.5, (0.1, 1.0): 0.6}
    for (mu, lr), end in ends.items():
        for seed in (0, 1):
            trial(folder / f"{mu}-{lr}/seed-{seed}", mu, lr, end + 0.02 * seed, seed)
    return sweeps(methods(folder))


def test_trials_are_ordered_by_validation(tmp_path: Path) -> None:
    made_run(tmp_path / "other", "fedavg")
    (found,) = grid(tmp_path)
    assert found.measure == "val_accuracy"
    assert found.names == ["local.lr", "mu"]
    assert [(own["mu"], own["local.lr"]) for _, own, _ in found.trials] == [
        ("0.1", "1.0"), ("0.1", "0.1"), ("0.01", "1.0"), ("0.01", "0.1")
    ]  # fmt: skip
    assert [t.result.mean for t in found.trials] == pytest.approx([0.61, 0.51, 0.41, 0.31])
    table = found.table(1)
    assert [c.heading for c in table.columns[:4]] == ["trial", "lr", "mu", "validation accuracy, %"]
    assert [row[1:3] for row in table.rows][:2] == [["1.0", "0.1"], ["0.1", "0.1"]]
    said = sentences.describe_choice(found)
    assert said.startswith(
        "Best of 4 by validation accuracy (mean of the last 3): fedprox lr=1.0 mu=0.1, 61.0 ± 1.4 %;"
    )
    assert "optimistic" not in said


def test_what_was_measured_before_training_is_no_result(tmp_path: Path) -> None:
    """As `fedloom sweep` takes it, also where a run has few measurements."""
    for mu in (0.01, 0.1, 1.0):
        folder = made_run(tmp_path / str(mu), "fedprox", settings={"fedprox": {"mu": mu}})
        records = [{"round": t, "val_accuracy": value} for t, value in enumerate((0.1, 0.5, mu / 2))]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = sweeps(methods(tmp_path))
    assert [t.result.mean for t in found.trials] == pytest.approx([0.5, 0.275, 0.2525])
    column = [c.name for c in found.table(1).columns].index("val_accuracy")
    assert [row[column].mean for row in found.table(1).rows] == pytest.approx([0.5, 0.275, 0.2525])


def test_trials_that_end_undefined_have_no_result(tmp_path: Path) -> None:
    """As `fedloom sweep` has it: the values before do not stand for a model that diverged."""
    for mu, last in ((0.01, 0.4), (0.1, 0.6), (1.0, None)):
        folder = made_run(tmp_path / str(mu), "fedprox", settings={"fedprox": {"mu": mu}})
        records = [{"round": t, "val_accuracy": value} for t, value in enumerate((0.1, 0.9, last))]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = sweeps(methods(tmp_path))
    assert [t.settings["mu"] for t in found.trials] == ["0.1", "0.01"]
    said = sentences.describe_choice(found)
    assert said.startswith("Best of 2 by validation accuracy")
    assert said.endswith("Undefined at the end, so without a result: fedprox mu=1.0.")


def test_other_measures_are_of_the_rounds_that_the_choice_is_of(tmp_path: Path) -> None:
    """Validation is measured every other round, the test set in each: both are read in rounds 2 and 4."""
    for mu in (0.01, 0.1, 1.0):
        folder = made_run(tmp_path / str(mu), "fedprox", settings={"fedprox": {"mu": mu}})
        records = [
            {"round": t, "global_accuracy": t * t / 100, **({} if t % 2 else {"val_accuracy": mu / 2})}
            for t in range(5)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = sweeps(methods(tmp_path))
    column = [c.name for c in found.table(1).columns].index("global_accuracy")
    assert [row[column].mean for row in found.table(1).rows] == pytest.approx([0.1] * 3)


def test_what_was_chosen_on_test_examples_is_marked(tmp_path: Path) -> None:
    for mu in (0.01, 0.1, 1.0):
        made_run(tmp_path / str(mu), "fedprox", settings={"fedprox": {"mu": mu}})
    (found,) = sweeps(methods(tmp_path))
    assert found.measure == "global_accuracy"
    assert "This was chosen by test examples, which is optimistic." in sentences.describe_choice(found)


def test_two_methods_and_other_data_are_no_sweep(tmp_path: Path) -> None:
    for i, mu in enumerate((0.01, 0.1, 1.0)):
        trial(tmp_path / "few" / str(min(i, 1)) / str(i), min(mu, 0.1), 0.1, 0.5, seed=i)
        trial(tmp_path / "data" / str(i), mu, 0.1, 0.5, source=f"set_{i}")
        trial(tmp_path / "versions" / str(i), 0.1, 0.1, 0.5, **{f"new_{i}": 1})  # settings that others do not know
    assert [sweeps(methods(tmp_path / name)) for name in ("few", "data", "versions")] == [[], [], []]


def test_values_are_in_the_order_of_numbers() -> None:
    assert sorted(["10", "words", "9", "1e-05", "a", "0.1"], key=order) == ["1e-05", "0.1", "9", "10", "a", "words"]


def test_the_figure_has_a_dot_for_each_trial_where_it_belongs(tmp_path: Path) -> None:
    (found,) = grid(tmp_path)
    axes = figures.sweep(found, "mu").axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.01", "0.1"]
    dots = {line.get_gid(): line.get_xydata()[0] for line in axes.lines if str(line.get_gid()).startswith("dots")}
    for m, own, result in found.trials:
        x, y = dots[f"dots.{m.number}"]
        assert abs(x - ["0.01", "0.1"].index(own["mu"])) <= 0.1
        assert y == pytest.approx(100 * result.mean)
        half = [line for line in axes.lines if line.get_gid() == f"half.{m.number}"]
        assert [np.ptp(line.get_ydata()) for line in half] == pytest.approx([200 * result.std] * bool(result.std >= 0))
    joined = [line for line in axes.lines if str(line.get_gid()).startswith("_") or line.get_gid() is None]
    assert sorted(np.round(line.get_ydata()).tolist() for line in joined) == [[31, 51], [41, 61]]
    assert {t.get_text() for t in axes.texts} == {"lr=0.1", "lr=1.0"}


@pytest.mark.slow
def test_the_page_has_a_section_with_a_figure_for_each_setting(tmp_path: Path) -> None:
    grid(tmp_path)
    raw = write_report(tmp_path).read_text(encoding="utf-8")
    assert '<section id="sweep"' in raw
    assert all(f'id="figure-{name}"' in raw for name in ("sweep_1_local_lr", "sweep_1_mu"))
    assert (tmp_path / "report/tables/sweep.csv").read_text().startswith("trial,local.lr,mu,val_accuracy,")
