"""Problems: which runs are compared, and that nothing pairs, ranks or marks best across data sets and their like."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import made_run, methods
from rich.console import Console
from torch import nn

import fedloom as fl
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError
from fedloom.data import Growing
from fedloom.experiments.problem import of_problem
from fedloom.experiments.settings_sections import ClientSettings, DataSettings
from fedloom.report import sentences, summary, write_report
from fedloom.report.grouping import by_problem
from fedloom.report.over_seeds import paired_difference
from fedloom.report.problems import data_name, facts_of
from fedloom.report.several_seeds import Summary
from fedloom.report.sweeps import sweeps

DATA = {"source": "cifar10:data", "partition": "shards:2", "clients": 6}
# what makes another problem, beside DATA and a cohort of 2
OTHERS: list[dict[str, Any]] = [
    {"data": {**DATA, "source": "mnist:data"}},
    {"data": {**DATA, "partition": "iid"}},
    {"data": {**DATA, "clients": 5}},
    {"data": {**DATA, "test_fraction": 0.5}},
    {"data": {**DATA, "public": 100}},
    {"data": {**DATA, "classes": 5}},
    {"data": {**DATA, "arrives": "growing:0.2:4"}},
    {"data": DATA, "task": "hinge"},
    {"data": DATA, "clients": {"lost": 0.5}},
    {"data": DATA, "clients": {"attack": "labels", "attackers": "0.25"}},
    {"data": DATA, "run": {"rounds": 4, "cohort_size": 3, "seed": 0}},
]
# what is the method
SAME: list[dict[str, Any]] = [
    {"data": {**DATA, "source": "cifar10:/elsewhere"}},  # the same files in another folder
    {"data": {**DATA, "augment": "flip"}},
    {"data": {**DATA, "test_fraction": 0.2, "merge": False}},  # defaults, which the other leaves out
    {"data": {**DATA, "partition_seed": 7}},
    {"data": DATA, "model": "lenet"},
    {"data": DATA, "local": {"lr": 3.0}},
    {"data": DATA, "run": {"rounds": 4, "cohort_size": 2, "seed": 0, "aggregator": "median"}},
    {"data": DATA, "run": {"rounds": 9, "cohort_size": 2, "seed": 0}},
]


def two(folder: Path, levels: dict[str, float] | None = None, **more: Any) -> Path:
    """Three methods with two seeds on two data sets; one is easier, so that all there are better than all here."""
    for source, level in (levels or {"hard": 0.3, "easy": 0.9}).items():
        for place, name in enumerate(("fedavg", "fedprox", "fedntd")):
            for seed in (0, 1):
                settings = {"data": {**DATA, "source": f"{source}.csv?label=y&drop=a,b"}, **more}
                made_run(
                    folder / source / name / f"seed-{seed}", name, seed, level=level + place / 50, settings=settings
                )
    return folder


UNSEEN = ("class_accuracy", "forgetting", "in_local_accuracy", "out_local_accuracy", "federation.json", "timing.jsonl")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for source, level in (("easy", 0.9), ("hard", 0.3)):
        for more, name in enumerate(("fedavg", "fedprox")):
            for seed in (0, 1):
                own = {"data": {**DATA, "source": f"{source}.csv?label=y"}}
                place = folder / source / name / f"seed-{seed}"
                made_run(place, name, seed, level=level + more / 50, rounds=2, without=UNSEEN, settings=own)
    write_report(folder, names={"fedavg": "FedAvg <b>", "hard.csv": "Hard & $x$"})
    return folder


def shown(found: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(found)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_other_data_clients_cohorts_and_tasks_are_other_problems(other: dict[str, Any], tmp_path: Path) -> None:
    for seed in (0, 1):
        made_run(tmp_path / f"a/seed-{seed}", "fedavg", seed, settings={"data": DATA})
        changed = json.loads(json.dumps(other))
        changed.setdefault("run", {"rounds": 4, "cohort_size": 2})["seed"] = seed
        made_run(tmp_path / f"b/seed-{seed}", "fedprox", seed, level=0.9, settings=changed)
    found = summary(tmp_path)
    assert len(found.by_problem()) == 2
    assert found.differences() is None
    assert paired_difference(found.methods[0], found.methods[1], "global_accuracy", "last", 1) is None
    assert "**" not in found.markdown()  # one method on each: none is the best
    assert r"\textbf" not in found.latex()
    assert not any(row["difference"] for row in csv.DictReader(io.StringIO(found.csv())))


@pytest.mark.parametrize("same", SAME, ids=str)
def test_networks_rates_rounds_and_seeds_are_methods_on_one_problem(same: dict[str, Any], tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fedavg", settings={"data": DATA})
    made_run(tmp_path / "b", "fedprox", settings=same)
    assert len(summary(tmp_path).by_problem()) == 1


def test_every_setting_is_of_the_problem_or_of_the_method() -> None:
    """As docs/report.md has it: a new setting has to be put on one side."""
    known = {"data": DataSettings, "clients": ClientSettings, "run": RunSettings}
    mine = {f"{section}.{f.name}" for section, of in known.items() for f in fields(of)}
    assert {name for name in mine if of_problem(name)} == {
        *(f"data.{name}" for name in ("source", "merge", "classes", "examples", "normalise", "partition", "clients")),
        *(f"data.{name}" for name in ("test_fraction", "val_fraction", "public", "public_source", "public_labels")),
        *(f"data.{name}" for name in ("arrives", "drift")),
        *(f"clients.{f.name}" for f in fields(ClientSettings)),
        *(f"run.{name}" for name in ("cohort_size", "spares", "panel")),
    }
    assert of_problem("task")
    assert not any(map(of_problem, ("model", "start", "algorithm", "local.lr", "mu", "shared")))


def test_the_same_words_with_another_file_are_another_problem(tmp_path: Path) -> None:
    """A file that was changed between two runs: its fingerprint at the same seed tells."""
    for name, print_ in (("fedavg", "aaaa"), ("fedprox", "aaaa"), ("fedntd", "bbbb")):
        folder = made_run(tmp_path / name, name, settings={"data": {**DATA, "source": "mine.csv"}})
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["federation"]["parts"] = {"train": print_, "test": "cccc"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert [[m.label for m in of] for _, of in by_problem(methods(tmp_path))] == [["fedavg", "fedprox"], ["fedntd"]]


def test_pairs_have_the_same_clients(tmp_path: Path) -> None:
    """Seeds that share their numbers and not their partitions are no pairs; another draw makes no other method."""
    for seed in (0, 1):
        made_run(tmp_path / f"a/{seed}", "fedavg", seed, settings={"data": DATA})
        for chosen in (5, 6):
            data = {**DATA, "partition_seed": chosen}
            made_run(tmp_path / f"b/{seed}-{chosen}", "fedprox", seed, settings={"data": data})
        made_run(tmp_path / f"c/{seed}", "fedntd", seed, settings={"data": DATA})
        held = tmp_path / f"c/{seed}/federation.json"
        held.write_text(held.read_text().replace('"train": [[', '"train": [[1'))
    fedavg, fedprox, fedntd = methods(tmp_path)
    assert len(fedprox.runs) == 4
    assert [paired_difference(m, fedavg, "global_accuracy", "last", 1) for m in (fedprox, fedntd)] == [None, None]
    assert paired_difference(fedavg, fedavg, "global_accuracy", "last", 1) is not None


def test_a_summary_has_methods_by_data_sets_and_a_section_for_each(tmp_path: Path) -> None:
    found = summary(two(tmp_path))
    by_problem_table, *own = found.tables()
    assert [c.heading for c in by_problem_table.columns] == ["method", "easy.csv", "hard.csv"]
    assert [row[0] for row in by_problem_table.rows] == ["fedavg", "fedntd", "fedprox"]
    assert [len(by_problem_table.winners(i)) for i in (1, 2)] == [1, 0]  # of each column; at hard, none is above 1 / 3
    by_hand = [fl.History.read(tmp_path / "hard/fedavg" / f"seed-{s}").last("global_accuracy") for s in (0, 1)]
    assert by_problem_table.rows[0][2].mean == pytest.approx(np.mean(by_hand))
    assert [table.name for table in own].count("differences") == 2
    text = shown(found)
    assert "easy.csv: Differences in points" in text
    assert "less easy.csv" not in text
    markdown = found.markdown()
    assert re.findall("^## .*", markdown, re.MULTILINE) == ["## easy.csv", "## hard.csv"]
    assert "data.source (easy.csv?label=y&drop=a,b, hard.csv?label=y&drop=a,b)" in markdown
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert {row["problem"] for row in rows} == {"hard.csv", "easy.csv"}
    hard = {
        row["method"]: float(row["mean"]) for row in rows if row["problem"] == "hard.csv" and row["reading"] == "last"
    }
    for row in rows:  # a difference is one to the method of its own data set
        if row["difference"] and (row["problem"], row["reading"], row["metric"]) == (
            "hard.csv",
            "last",
            "global_accuracy",
        ):
            gap = float(row["mean"]) - next(
                float(r["mean"]) for r in rows if r["method"] == row["against"] and r["problem"] == "hard.csv"
            )
            assert float(row["difference"]) == pytest.approx(gap)
    assert len(hard) == 3
    assert repr(found) == "Summary(fedavg, fedntd, fedprox on easy.csv, hard.csv; 2 seeds)"


def test_no_data_set_is_lost_on_a_narrow_terminal(tmp_path: Path) -> None:
    found = summary(two(tmp_path, {f"a_long_name_of_data_{i}": 0.3 for i in range(4)}))
    text = shown(found, 50)
    assert all(text.count(f"algorithm  a_long_name_of_data_{i}.csv") == 2 for i in range(4))  # global, personal
    assert max(map(len, text.splitlines())) <= 50


def test_a_setting_that_was_tuned_on_each_data_set_tells_no_methods_apart(tmp_path: Path) -> None:
    for source, lr, mu in (("one", 0.1, 0.5), ("two", 0.01, 2.0)):
        data = {**DATA, "source": source}
        made_run(tmp_path / source / "fedavg", "fedavg", settings={"data": data, "local": {"lr": lr}})
        own = {"data": data, "local": {"lr": lr}, "fedprox": {"mu": mu, "shared": "*"}}
        made_run(tmp_path / source / "fedprox", "fedprox", settings=own)
    found = summary(tmp_path)
    by_problem_table = found.tables()[0]
    assert [row[0] for row in by_problem_table.rows] == ["fedavg", "fedprox mu=0.5", "fedprox mu=2.0"]
    assert [[cell is None for cell in row[1:]] for row in by_problem_table.rows] == [
        [False] * 2,
        [False, True],
        [True, False],
    ]
    assert "local.lr (0.1, 0.01)" in found.markdown()
    assert len({m.number for m in found.methods if m.label == "fedavg"}) == 1  # one colour on all


def test_histories_of_two_data_sets_under_one_name_are_no_mean() -> None:
    """Runs from Python, without a directory: what they say of their data tells these apart."""
    runs: list[fl.History] = []
    for kind in (0, 1):
        y = np.arange(40) % 4
        x = np.random.default_rng(kind).normal(size=(40, 5)).astype(np.float32)
        train = fl.from_arrays(x, y, name=f"set {kind} train")
        federation = fl.federate(train, fl.iid(train.y, num_clients=4, seed=0), test=train)
        for seed in (0, 1):
            settings = fl.RunSettings(rounds=1, cohort_size=4, seed=seed, threads=1, compilation="none")
            runs.append(fl.run(fl.FedAvg(), federation, nn.Linear(5, 4), settings))
    for found in (summary({"mine": runs}), summary(*runs)):
        assert [len(m.runs) for m in found.methods] == [2, 2]
        assert [problem.title.split(",")[0] for problem, _ in found.by_problem()] == ["set 0", "set 1"]
    assert facts_of(runs[0]).keys() >= {"sampler", "faults", "task", "run.cohort_size", "federation.partition"}


def test_data_that_change_otherwise_are_another_problem() -> None:
    """Of runs from Python too; by another seed, the rule is the same."""
    train = fl.from_arrays(np.eye(4, 5, dtype=np.float32).repeat(10, 0), np.arange(40) % 4)
    runs = []
    for arrives in (None, Growing(0.5, 2), Growing(0.5, 2, seed=1), Growing(0.5, 3)):
        federation = fl.federate(train, fl.iid(train.y, num_clients=4, seed=0), test=train, arrives=arrives)
        settings = fl.RunSettings(rounds=1, cohort_size=4, threads=1, compilation="none")
        runs.append(facts_of(fl.run(fl.FedAvg(), federation, nn.Linear(5, 4), settings)))
    assert [runs[0] == run for run in runs[1:]] == [False] * 3
    assert [runs[1] == run for run in runs[2:]] == [True, False]


def test_another_attack_is_another_problem_and_another_aggregator_another_method() -> None:
    train = fl.from_arrays(np.eye(4, 5, dtype=np.float32).repeat(10, 0), np.arange(40) % 4)
    federation = fl.federate(train, fl.iid(train.y, num_clients=4, seed=0), test=train)
    runs = []
    for attack, rule in (
        (None, "mean"),
        (fl.Scale(-1.0, share=0.5), "mean"),
        (fl.Scale(-1.0, share=0.5, seed=1), "median"),
        (fl.Scale(-2.0, share=0.5), "mean"),
    ):
        settings = fl.RunSettings(rounds=1, cohort_size=4, threads=1, compilation="none", aggregator=rule)
        runs.append(fl.run(fl.FedAvg(), federation, nn.Linear(5, 4), settings, attack=attack))
    facts = [facts_of(run) for run in runs]
    assert [facts[0] == other for other in facts[1:]] == [False] * 3
    assert [facts[1] == other for other in facts[2:]] == [True, False]
    two = summary({"mean": runs[1], "median": runs[2]})
    assert len(two.by_problem()) == 1
    assert "run.aggregator" in two.methods[1].first.facts or two.methods[1].label == "median"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("tables/all.csv?label=readmitted&client=hospital&prepare=standard", "all.csv"),
        ("cifar10:/srv/data", "cifar10"),
        ("leaf:/srv/shakespeare/", "leaf:shakespeare"),
        ("own:data", "own:data"),
        ('trained-elsewhere:{"shape": [1, 8, 8]}', "models trained elsewhere"),
        ("fashion_mnist_small", "fashion_mnist_small"),
        ("clinics/*.csv?label=ill", "clinics"),
        ("*.csv?label=ill", "site files"),
        ("./*.csv", "site files"),
        ("data/hospital-*.csv?label=ill", "hospital"),
        (r"data\site_[0-9]*.parquet", "site"),
        ("years/*/all.csv", "all.csv"),
        ("years/*/*.tsv", "years"),
        ("a/kiel.csv,a/hamburg.csv,a/bonn.csv?label=ill", "kiel.csv and 2 more"),
    ],
)
def test_data_are_called_without_folders_and_queries(source: str, name: str) -> None:
    assert data_name(fl.History("A", settings={"data": {"source": source}})) == name


def test_the_page_of_one_table_is_called_by_its_file(tmp_path: Path) -> None:
    two(tmp_path, {"folder": 0.5})
    assert sentences.title(methods(tmp_path)) == "3 methods on folder.csv"


@pytest.mark.slow
def test_the_page_has_a_part_for_each_data_set_and_compares_within_it(reported: Path) -> None:
    raw = (reported / "report/report.html").read_text(encoding="utf-8")
    assert "<h1>2 methods on easy.csv and Hard &amp; $x$</h1>" in raw
    assert re.findall(r'<section id="(p\d-part)" class="begins"', raw) == ["p1-part", "p2-part"]
    ids = re.findall(r' id="([^"]*)"', raw)
    assert len(ids) == len(set(ids))
    easy, hard = raw.split('id="p1-part"')[1].split('id="p2-part"')
    for prefix, part_ in (("p1", easy), ("p2", hard.split('id="runs"')[0])):
        assert f'id="table-{prefix}-standing"' in part_
        assert ": not established" in part_ or ": established" in part_
        assert f'id="figure-{prefix}-global_accuracy"' in part_
    bold = re.findall(r"<td[^>]*><b>([\d.]+)", raw.split('id="problems"')[1].split("</section>")[0])
    assert len(bold) == 4  # one of each column, global and personal
    assert "<b>b" not in raw
    assert "FedAvg &lt;b&gt;" in raw
    tables = {path.name for path in (reported / "report/tables").iterdir()}
    assert {
        "p1-summary.csv",
        "p2-summary.csv",
        "rounds.csv",
        "settings.csv",
        "global_accuracy_by_problem.csv",
    } <= tables
    figures = {path.name for path in (reported / "report/figures").iterdir()}
    assert {f"p{i}-global_accuracy.{kind}" for i in (1, 2) for kind in ("svg", "png", "pdf")} <= figures
    assert "FedAvg &lt;b" in (reported / "report/figures/p1-global_accuracy.svg").read_text()


def test_names_stand_in_every_form(tmp_path: Path) -> None:
    found = summary(two(tmp_path), names={"fedavg": "FedAvg & co", "hard.csv": "Hard"}, against="FedAvg & co")
    assert r"FedAvg \& co" in found.latex()
    assert "| FedAvg & co |" in found.markdown()
    assert {"FedAvg & co", "fedprox"} <= {row["method"] for row in csv.DictReader(io.StringIO(found.csv()))}
    assert "Hard: Differences" in shown(found)
    assert found.against == "FedAvg & co"
    assert summary(tmp_path, names={"fedavg": "A"}, against="fedavg").against == "A"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"fedavgg": "A"},
            r"there is no 'fedavgg' to rename to 'A': there are fedavg, fedntd, fedprox, easy.csv, hard.csv",
        ),
        ({"fedavg": "fedprox"}, r"names must be unique, got 'fedprox' 2 times"),
        ({"hard.csv": "easy.csv"}, r"names must be unique, got 'easy.csv' 2 times"),
        ({"fedavg": " "}, r"names must be unique, got ' ' 1 times"),
    ],
)
def test_names_that_tell_nothing_apart_are_refused(names: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=message):
        summary(two(tmp_path), names=names)


def test_columns_are_chosen_and_in_the_order_of_the_choice(tmp_path: Path) -> None:
    two(tmp_path, {"folder": 0.5})
    found = summary(tmp_path, columns=["best", "last"])
    assert [[c.name for c in table.columns] for table in found.tables()] == [
        ["method", f"{kind}_accuracy_best", f"{kind}_accuracy_last"] for kind in ("global", "personal")
    ]
    assert [t.name for t in summary(tmp_path, columns=["last", "differences"]).tables()][-1] == "differences"
    with pytest.raises(SettingError, match=r"columns are seeds, last, .*, got 'lsat' \(did you mean 'last'\?\)"):
        summary(tmp_path, columns=["lsat"])
    with pytest.raises(SettingError, match=r"columns need at least one of the readings last, .*, got 'seeds'"):
        summary(tmp_path, columns=["seeds"])


def test_a_sweep_over_the_partition_has_its_figure_and_no_best(tmp_path: Path) -> None:
    for place, partition in enumerate(("shards:2", "iid", "dirichlet:1")):
        data = {**DATA, "partition": partition}
        made_run(tmp_path / partition.replace(":", "-"), "fedavg", level=0.3 + place / 5, settings={"data": data})
    every = methods(tmp_path)
    (found,) = sweeps(every)
    assert found.problems == ("data.partition",)
    assert [t.settings["data.partition"] for t in found.trials] == ["dirichlet:1", "iid", "shards:2"]
    table = found.table(1)
    assert not any(table.winners(i) for i in range(len(table.columns)))
    assert "there is no best trial" in sentences.describe_choice(found)
    assert sum(len(sweeps(of)) for _, of in by_problem(every)) == 0


def test_long_settings_that_begin_alike_are_not_the_same(tmp_path: Path) -> None:
    for name, end in (("a", "1"), ("b", "2")):
        made_run(tmp_path / name, settings={"data": {**DATA, "source": f"{'x' * 200}{end}:data"}})
    assert len(summary(tmp_path).by_problem()) == 2


def test_a_summary_of_one_problem_is_what_it_was(tmp_path: Path) -> None:
    found = summary(two(tmp_path, {"folder": 0.5}))
    assert isinstance(found, Summary)
    assert [t.name for t in found.tables()] == ["global_accuracy", "personal_accuracy", "differences"]
    assert "folder.csv" not in found.markdown()
