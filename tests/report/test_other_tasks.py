"""Runs whose targets are no classes, and measures beside the headline, in every form of results."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedloom as fl
from fedloom.coordinator.history import History
from fedloom.report import comparison_table, figures, readings_table, summary, write_report
from fedloom.report.comparison import gains, gains_table, headline, targets
from fedloom.report.grouping import group_by_problem, read_methods
from fedloom.report.methods import Method, Run
from fedloom.report.standings import standing_table, standings, verdict
from targets_made import LOCAL, TASKS, federation, linear

ASKED = {"numbers": ("r2",), "labels": ("auc",)}
ALGORITHMS: dict[str, Any] = {"fedavg": fl.FedAvg(local=LOCAL), "local_only": fl.LocalOnly(local=LOCAL)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms with two seeds on numbers and on labels."""
    out = tmp_path_factory.mktemp("runs")
    for kind, task in TASKS.items():
        data = federation(kind)
        for name, algorithm in ALGORITHMS.items():
            for seed in (0, 1):
                settings = fl.RunSettings(rounds=4, cohort_size=5, seed=seed, measures=ASKED[kind])
                fl.run(algorithm, data, linear, settings, task=task, directory=out / kind / name / f"seed-{seed}")
    return out


def text_of(page: Path) -> str:
    text = re.sub(r"<(script|style|svg).*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def terminal(shown: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.slow
def test_a_summary_of_a_regression_is_in_its_unit_and_the_lowest_is_bold(runs: Path) -> None:
    found = summary(runs / "numbers")
    text, rows = found.markdown(), list(csv.DictReader(io.StringIO(found.csv())))
    assert "Global RMSE, mean ± standard deviation over 2 seeds" in text
    assert "Personal R², mean over clients, mean ± standard deviation" in text
    assert "Differences in RMSE (last round)" in text
    assert "%" not in text.replace("95 %", "")
    assert "accuracy" not in text
    mean = {(row["method"], row["metric"]): float(row["mean"]) for row in rows if row["reading"] == "last"}
    histories = [History.read(runs / "numbers" / "fedavg" / f"seed-{seed}") for seed in (0, 1)]
    assert mean["FedAvg", "personal_rmse"] == np.mean([h.metrics[-1]["personal_rmse"] for h in histories])
    assert mean["FedAvg", "personal_rmse"] < mean["LocalOnly", "personal_rmse"]
    for name in ("personal_rmse", "personal_r2"):
        table = next(t for t in found.tables() if t.name == name)
        assert table.winners(2) == set()  # one method beside a reference
        both = replace(table, references=frozenset())
        assert [both.rows[k][0] for k in both.winners(2)] == ["FedAvg"]
        assert r"\textbf{" in both.latex("")


@pytest.mark.slow
def test_the_best_round_of_an_error_is_the_lowest(runs: Path) -> None:
    history = History.read(runs / "numbers" / "fedavg" / "seed-0")
    assert history.summaries("global_rmse").best == history.series("global_rmse").min()
    assert history.validated_round == int(np.argmin(history.series("val_rmse")))


@pytest.mark.slow
def test_shares_of_another_task_are_percentages(runs: Path) -> None:
    found = summary(runs / "labels")
    assert "Global label accuracy in %, mean ± standard deviation" in found.markdown()
    table = next(t for t in found.tables() if t.name == "global_label_accuracy")
    value = History.read(runs / "labels" / "fedavg" / "seed-0").last("global_label_accuracy")
    assert 50 < 100 * value < 100
    assert float(table.texts()[0][2].split()[0]) == pytest.approx(100 * value, abs=5)


@pytest.mark.slow
def test_a_page_of_a_regression_has_no_classes_and_no_accuracy(runs: Path) -> None:
    text = text_of(write_report(runs / "numbers", runs / "page"))
    for part in (
        "Cost of reaching an RMSE", "RMSE by cost", "RMSE of each client's model", "A tail to the right shows",
        "Lowest at the end: FedAvg", "gain in RMSE", "lower quartile", "Personal RMSE",
        "validation RMSE",
    ):  # fmt: skip
        assert part in text.replace("&#39;", "'"), part
    assert "accuracy" not in text.replace("global_accuracy", "").lower()
    assert "forg" not in text.lower()
    assert "Classes" not in text
    names = {path.name for path in (runs / "page" / "tables").iterdir()}
    assert {"targets_global_rmse.csv", "personal.csv", "targets.csv"} <= names


def test_a_terminal_names_the_headline_and_what_is_beside_it(runs: Path) -> None:
    results = [(name, History.read(runs / "numbers" / name / "seed-0")) for name in ALGORITHMS]
    shown = terminal(comparison_table(results))
    assert "RMSE after the last round" in shown
    assert "R²" in shown
    assert f"{results[0][1].last('global_rmse'):.4f}" in shown
    assert f"{results[0][1].summaries('global_rmse').best:.4f}" in terminal(readings_table(results))


def test_lines_of_errors_are_named_where_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[tuple[float, float]] = []
    monkeypatch.setattr(figures, "label_ends", lambda _, ends: named.extend((y, x) for x, y, *_ in ends))
    method = of_errors("a", {"0": 1.5})
    series = {"global_rmse": "global", "personal_rmse": "personal"}
    drawn = figures.together(method, series, "RMSE", percent=False)
    assert drawn is not None
    ends = [float(line.get_ydata()[-1]) for line in drawn.axes[0].lines]
    assert [y for y, _ in named] == ends == [1.5, 1.5]


def test_other_tasks_are_other_problems(runs: Path) -> None:
    """On a page with both, each has its own part, and the tables of all have a column for each measure."""
    found = summary(runs)
    assert [len(part.methods) for _, part in found.by_problem()] == [2, 2]
    captions = [caption.partition(" (")[0] for caption, _ in found.tables_by_problem()]
    assert {"Global RMSE", "Personal RMSE", "Global label accuracy in %", "Personal label accuracy in %"} <= {*captions}


def test_runs_from_python_with_other_headlines_are_no_one_problem() -> None:
    """Nothing else tells them apart where settings and data are not recorded."""
    other = History("FedAvg", metrics=[{"round": 1, "global_accuracy": 0.5, "clients": [], "failed": {}}])
    found = group_by_problem([of_errors("a", {"0": 1.0}).runs[0], Run("b", other)])
    assert [len(group) for group in found] == [1, 1]


def of_errors(name: str, errors: dict[str, float], algorithm: str = "FedAvg") -> Method:
    """A method of one run whose clients end with these errors, after 9 each."""
    described = {"name": "rmse", "title": "RMSE", "meaning": "Error.", "better": "low", "unit": ""}
    start = dict.fromkeys(errors, 9.0)
    records = [
        {"round": t, "clients": [], "failed": {}, "global_rmse": float(np.mean([*each.values()])),
         "personal_by_client": each, "personal_rmse": float(np.mean([*each.values()])), "bytes_up": 1, "bytes_down": 1}
        for t, each in enumerate((start, errors))
    ]  # fmt: skip
    history = History(algorithm, metrics=records, manifest={"measures": [described]})
    history.settings = {"run": {"seed": 0, "rounds": 1}}
    return Method(name, 0, (Run(name, history),))


def test_a_gain_over_training_alone_is_how_much_lower_an_error_is() -> None:
    methods = [of_errors("a", {"0": 1.0, "1": 4.0}), of_errors("alone", {"0": 2.0, "1": 3.5}, "LocalOnly")]
    assert gains(methods[0].runs[0], methods) == [-0.5, 1.0]
    table = gains_table(methods)
    assert table is not None
    assert table.texts()[0][1:] == ["50.0", "50.0", "+0.250", "-0.500", "+1.00", "2"]
    assert table.columns[3].group == "gain in RMSE"


def test_targets_of_an_error_are_reached_from_above() -> None:
    methods = [of_errors("a", {"0": 1.0}), of_errors("b", {"0": 4.0})]
    table = targets(methods, "global_rmse")
    assert table is not None
    groups = [float(c.group) for c in table.columns[1::3]]
    assert groups == sorted(groups, reverse=True)
    assert groups[0] >= 4.0 > groups[1] > groups[2] >= 1.0
    assert [row[1:4:3] + row[4::3] for row in table.rows] == [[1.0, 1.0, 1.0], [1.0, None, None]]
    assert targets([of_errors("a", {"0": 9.5})], "global_rmse") is None


def test_the_lowest_error_is_the_best_in_sentences_and_in_the_table() -> None:
    methods = [of_errors("a", {"0": 1.0}), of_errors("b", {"0": 4.0})]
    standing = standing_table(methods, standings(methods))
    assert standing is not None
    assert [str(cell) for cell in standing[0].rows[0][:5]] == ["Global RMSE", "a", "1.00", "b", "4.00"]
    assert next(verdict(methods, standings(methods))) == "Global RMSE: a has the lowest value, 1.00, 3.00 below b."
    table = headline(methods)
    assert table.winners(1) == {0}
    assert table.columns[1].group == "RMSE"


def test_clients_without_a_measure_are_counted_wherever_it_stands(tmp_path: Path) -> None:
    """A client whose examples are of one class has no area under the curve."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 0, 1], 20)
    y[20:40] = [0, 1] * 10
    x = rng.normal(size=(80, 3)).astype(np.float32) + y[:, None]
    examples = fl.Examples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), 2)
    data = fl.federate(examples, fl.data.by_lists(np.array_split(np.arange(80), 4)), test=examples, test_fraction=0.5)
    settings = fl.RunSettings(rounds=1, cohort_size=4, measures=("auc",))
    for name in ALGORITHMS:
        fl.run(ALGORITHMS[name], data, lambda: torch.nn.Linear(3, 2), settings, directory=tmp_path / name)
    history = History.read(tmp_path / "fedavg")
    assert history.metrics[-1]["personal_auc_undefined"] == 3
    said = "Undefined for up to 3 clients of a run, which its mean leaves out."
    assert said in summary(tmp_path).captions()["personal_auc"]
    methods, _ = read_methods([tmp_path])
    table = headline(methods)
    column = next(i for i, c in enumerate(table.columns) if c.name == "personal_auc_undefined")
    assert [row[column] for row in table.texts()] == ["3", "3"]
    shown = terminal(comparison_table([("fedavg", history)]))
    assert "without" in shown
    assert "Accuracy after the last round" in shown
