"""Recall by class: on the page, in the summary, on the terminal and in the warning before a run."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import made_run, methods

from commands import call
from fedloom.report import summary, write_report
from fedloom.report.class_recall import class_recall
from fedloom.report.number_table import Column
from hospitals import write_table


def with_counts(run: Path, counts: list[list[int]], names: list[str] | None = None, last: Any = None) -> Path:
    """A made run with these training examples by client and class, and these last accuracies by class."""
    file = run / "federation.json"
    federation = json.loads(file.read_text())
    more: dict[str, Any] = {} if names is None else {"class_names": names}
    more |= {"train": counts, "train_by_class": np.sum(counts, 0).tolist(), "shown": list(range(len(counts)))}
    file.write_text(json.dumps(federation | more))
    if last is not None:
        log = run / "metrics.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        records[-1]["class_accuracy"] = last
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


COUNTS = [[480, 15, 5], [400, 95, 5]]  # shares 88 %, 11 % and 1 %; a tenth of an equal share is 3.3 %


def made(folder: Path, counts: list[list[int]] = COUNTS) -> None:
    for seed, lasts in ((0, [0.9, 0.5, 0.1]), (1, [0.9, 0.7, 0.3])):
        with_counts(made_run(folder / f"a-{seed}", seed=seed), counts, ["no", "mild", "severe"], lasts)
    for seed in (0, 1):
        run = made_run(folder / f"b-{seed}", "fedprox", seed=seed)
        with_counts(run, counts, ["no", "mild", "severe"], [0.8, 0.6, None])


def test_methods_have_their_last_recall_of_each_class_over_seeds(tmp_path: Path) -> None:
    made(tmp_path)
    found = class_recall(methods(tmp_path))
    assert found is not None
    caption, table = found
    assert [(c.heading, c.group) for c in table.columns[1:]] == [
        ("no (88.0 %)", ""), ("mild (11.0 %)", ""), ("severe (1.0 %)", "rare"),
    ]  # fmt: skip
    (_, no, mild, severe), (_, *others) = table.rows
    assert (no.mean, mild.mean, severe.mean, severe.count) == pytest.approx((0.9, 0.6, 0.2, 2))
    assert others[2] is None  # without test examples
    assert "Rare: below a tenth of an equal share, severe (1.0 %)." in caption


@pytest.mark.slow
def test_the_page_has_recall_by_class(tmp_path: Path) -> None:
    made(tmp_path / "runs")
    page = write_report(tmp_path / "runs", tmp_path / "report")
    text = page.read_text()
    assert "how many test examples of a class the global model finds" in text
    assert "severe (1.0 %)" in text
    (first, _) = csv.DictReader((tmp_path / "report/tables/recall_by_class.csv").read_text().splitlines())
    assert float(first["recall_2"]) == pytest.approx(0.2)


def test_the_summary_has_it_where_a_class_is_rare(tmp_path: Path) -> None:
    made(tmp_path / "rare")
    found = summary(tmp_path / "rare")
    assert found.tables()[-1].name == "recall_by_class"
    assert "severe (1.0 %)" in found.markdown()
    assert "severe (1.0" in found.latex()
    made(tmp_path / "even", [[10, 10, 10]] * 2)
    even = tmp_path / "even"
    assert all(table.name != "recall_by_class" for table in summary(even).tables())
    assert class_recall(methods(even)) is not None  # the page has it all the same


def test_of_many_classes_the_rare_ones_are_shown(tmp_path: Path) -> None:
    counts = [100] * 12
    counts[3], counts[7] = 2, 8
    run = with_counts(made_run(tmp_path / "many", classes=12), [counts], None, np.linspace(0, 1, 12).tolist())
    found = class_recall(methods(run))
    assert found is not None
    assert [c.name for c in found[1].columns] == ["method", "recall_3", "recall_7"]
    with_counts(run, [[100] * 12])
    assert class_recall(methods(run)) is None


def test_shares_are_of_the_examples_of_all_clients(tmp_path: Path) -> None:
    """The third class is at clients that federation.json does not show; older ones have no sums of all."""
    run = with_counts(made_run(tmp_path / "a"), [[500, 300, 0]])
    file = run / "federation.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "train_by_class": [500, 300, 200]}))
    assert [c.heading for c in recalls(run)] == ["0 (50.0 %)", "1 (30.0 %)", "2 (20.0 %)"]
    del facts["train_by_class"]
    file.write_text(json.dumps(facts))
    assert [c.heading for c in recalls(run)] == ["0", "1", "2"]


def recalls(run: Path) -> list[Column]:
    found = class_recall(methods(run))
    assert found is not None
    return found[1].columns[1:]


def test_a_run_without_recall_by_class_or_federation(tmp_path: Path) -> None:
    assert class_recall(methods(made_run(tmp_path / "a", without=("class_accuracy",)))) is None
    found = class_recall(methods(made_run(tmp_path / "b", without=("federation.json",))))
    assert found is not None
    assert [c.heading for c in found[1].columns] == ["method", "0", "1", "2"]


def test_a_run_warns_of_a_rare_class_and_prints_its_recall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    ill = np.where(np.arange(600) % 40 == 0, "severe", np.where(np.arange(600) % 2, "mild", "no"))
    rows = [
        {"client": f"s{k % 3}", "a": f"{rng.normal():.4f}", "b": f"{rng.normal():.4f}", "ill": of}
        for k, of in enumerate(ill)
    ]
    source = f"{write_table(tmp_path / 'all.csv', rows)}?label=ill&client=client"
    shared = ("--partition", "natural", "--cohort", "2", "--rounds", "1", "--model", "logistic", "--threads", "1")
    status, out, err = call(capsys, "run", "fedavg", "--data", source, *shared)
    assert status == 0
    warning = r"fewer than 3\.33% of the training examples .* class severe \(2\.\d+%\): let it count for more"
    assert re.search(warning, err)
    assert "Rare: below a tenth of an equal share, severe (2.3 %)" in " ".join(out.split())
