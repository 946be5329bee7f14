"""Tables: numbers by hand, how they are written, and that a CSV gives them back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from made import made_run

from fedloom.coordinator import History
from fedloom.report import comparison, figures, write_report
from fedloom.report.class_maps import describe_weakest
from fedloom.report.grouping import read_methods
from fedloom.report.methods import Method
from fedloom.report.over_seeds import readings


def run_of(folder: Path, accuracies: list[float], algorithm: str = "fedavg", seed: int = 0) -> None:
    made_run(folder, algorithm, seed, rounds=len(accuracies) - 1)
    lines = [
        {"round": t, "global_accuracy": a, **({"bytes_up": 1_000_000} if t else {})} for t, a in enumerate(accuracies)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def methods(folder: Path) -> list[Method]:
    return read_methods([folder])[0]


def test_the_headline_by_hand(tmp_path: Path) -> None:
    run_of(tmp_path / "0", [0.1, 0.5], seed=0)
    run_of(tmp_path / "1", [0.1, 0.7], seed=1)
    table = comparison.headline(methods(tmp_path))
    ((label, accuracy, down, up, seconds),) = table.rows
    costs = ["mb_down_per_round", "mb_up_per_round", "seconds_per_round"]
    assert [c.name for c in table.columns] == ["method", "global_accuracy", *costs]
    assert label == "fedavg"
    assert (accuracy.mean, accuracy.std) == (pytest.approx(0.6), pytest.approx(math.sqrt(0.02)))
    assert (down.mean, up.mean, seconds.mean) == (0.0, 1.0, pytest.approx(0.501))
    run_of(tmp_path / "2", [0.1, 0.7], "fedntd")
    table = comparison.headline(methods(tmp_path))
    assert [row[-1] for row in table.rows] == [2, 1]  # runs, where methods have not the same number of them


def test_long_runs_also_have_the_mean_of_their_last_rounds(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [0.1] + [0.2] * 16 + [0.4, 0.6] * 2)
    table = comparison.headline(methods(tmp_path))
    row = dict(zip([c.name for c in table.columns], table.rows[0], strict=True))
    assert row["global_accuracy"].mean == 0.6
    assert row["global_accuracy_last_10"].mean == pytest.approx(0.32)


def test_targets_are_what_all_reach_and_what_the_best_reaches(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [0.1, 0.3, 0.52, 0.4], "fedavg")
    run_of(tmp_path / "b", [0.1, 0.55, 0.6, 0.83], "fedntd")
    table = comparison.targets(methods(tmp_path), "global_accuracy")
    assert table is not None
    assert [c.name for c in table.columns[1::3]] == ["rounds_to_50", "rounds_to_65", "rounds_to_80"]
    assert table.rows[0] == ["fedavg", 2, 2.0, pytest.approx(1.002), *[None] * 6]
    assert table.rows[1][:6] == ["fedntd", 1, 1.0, pytest.approx(0.501), 3, 3.0]


def test_a_target_is_one_that_is_really_reached(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [0.1, 0.3, 0.8 - 1e-12])
    table = comparison.targets(methods(tmp_path), "global_accuracy")
    assert table is not None
    assert table.columns[-1].name == "seconds_to_75"
    assert None not in table.rows[0]


def test_a_method_reaches_a_target_when_all_of_its_runs_do(tmp_path: Path) -> None:
    for seed, end in enumerate((0.5, 0.9)):
        run_of(tmp_path / f"a{seed}", [0.1, end], "fedavg", seed)
        run_of(tmp_path / f"b{seed}", [0.1, 0.7], "fedntd", seed)
    table = comparison.targets(methods(tmp_path), "global_accuracy")
    assert table is not None
    assert [c.name for c in table.columns[1::3]] == ["rounds_to_50", "rounds_to_60", "rounds_to_70"]
    assert [row[4] for row in table.rows] == [None, 1.0]


def test_close_methods_are_told_apart_by_finer_targets(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [0.1, 0.91], "fedavg")
    run_of(tmp_path / "b", [0.1, 0.94], "fedntd")
    table = comparison.targets(methods(tmp_path), "global_accuracy")
    assert table is not None
    assert [c.name for c in table.columns[1::3]] == ["rounds_to_91", "rounds_to_92", "rounds_to_94"]


def test_no_target_is_one_that_a_method_began_above(tmp_path: Path) -> None:
    """The other never comes as far as where the first began: what it reached, that one had for nothing."""
    run_of(tmp_path / "a", [0.3, 0.6], "fedavg")
    run_of(tmp_path / "b", [0.1, 0.2], "fedntd")
    table = comparison.targets(methods(tmp_path), "global_accuracy")
    assert table is not None
    assert [c.name for c in table.columns[1::3]] == ["rounds_to_35", "rounds_to_45", "rounds_to_60"]


def test_no_target_where_nothing_was_learned(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [0.5, 0.3])
    assert comparison.targets(methods(tmp_path), "global_accuracy") is None
    assert comparison.targets(methods(tmp_path), "personal_accuracy") is None


def test_failures_are_counted_by_reason(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fedavg", rounds=3, failed={"1": "battery"})
    made_run(tmp_path / "b", "fedntd", rounds=2)
    table = comparison.failures(methods(tmp_path))
    assert table is not None
    assert table.rows == [["fedavg", "battery", 3, 0.5, 1]]  # of 2 clients in each of 3 rounds
    assert comparison.failures(methods(tmp_path / "b")) is None


def test_reasons_that_differ_in_their_numbers_are_one(tmp_path: Path) -> None:
    """Norms of uploads are never the same twice; what all clients say with the same number keeps it."""
    for seed, norm in enumerate(("1.193", "3e+07")):
        large = f"the upload has a norm of {norm}, and at most 1.05 times that of what was sent is taken"
        failed = {"0": large, "1": "no answer within 30 s"}
        made_run(tmp_path / f"a-{seed}", "fedavg", seed, rounds=2, failed=failed)
    table = comparison.failures(methods(tmp_path))
    assert table is not None
    alike = "the upload has a norm of …, and at most … times that of what was sent is taken"
    assert table.rows == [["fedavg", "no answer within 30 s", 4, 0.5, 1], ["fedavg", alike, 4, 0.5, 1]]


def test_versions_are_said_once_where_they_are_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made_run(tmp_path / name, name)
    table, versions = comparison.facts(methods(tmp_path))
    assert versions == "fedloom 0.1.0, torch 2.8"
    assert "versions" not in [c.name for c in table.columns]
    assert table.rows[0] == [
        "a",
        "a",
        0,
        "4 of 4",
        pytest.approx(3.254),
        pytest.approx(0.25),
        504.0,
        "loop: it was asked for",
    ]
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    (tmp_path / "b/manifest.json").write_text(json.dumps({**manifest, "versions": {"torch": "3"}}))
    table, versions = comparison.facts(methods(tmp_path))
    assert versions == ""
    assert [row[-1] for row in table.rows] == ["fedloom 0.1.0, torch 2.8", "torch 3"]


def test_accuracies_are_read_in_five_ways(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fedavg", 0)
    made_run(tmp_path / "b", "fedntd", 0, without=("personal_accuracy",))
    found = readings(methods(tmp_path), ["global_accuracy", "personal_accuracy"])
    assert found is not None
    names = [c.name for c in found.columns]
    assert names == [
        "method",
        *(f"{kind}_accuracy_{way}" for kind in ("global", "personal") for way in ("last", "tail", "best", "mean")),
    ]
    assert "optimistic" in found.columns[3].heading
    assert (found.columns[2].heading, found.columns[2].group) == ("mean of last 2", "global accuracy, %")
    assert found.groups == [("", 1), ("global accuracy, %", 4), ("personal accuracy, %", 4)]
    assert found.begins == [1, 5]
    history = History.read(tmp_path / "a")
    for name in names[1:]:
        kind, _, way = name.rpartition("_")
        assert found.rows[0][names.index(name)].mean == getattr(history.summaries(kind), way)
    assert found.rows[1][-1] is None


def test_the_round_that_validation_chooses_stands_beside_what_it_gives(tmp_path: Path) -> None:
    for seed, chosen in ((0, 1), (1, 3)):
        log = made_run(tmp_path / f"{seed}", "fedavg", seed) / "metrics.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        for t, record in enumerate(records):
            record["val_accuracy"] = 0.75 if t >= chosen else 0.5  # the first of equals
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = readings(methods(tmp_path), ["global_accuracy", "personal_accuracy"])
    assert found is not None
    assert found.groups[-1] == ("chosen on validation", 2)
    row = dict(zip([c.name for c in found.columns], found.rows[0], strict=True))
    assert (row["validated_round"].mean, row["validated_round"].count) == (2, 2)
    assert (row["val_accuracy_validated"].mean, row["val_accuracy_validated"].std) == (0.75, 0)
    assert [found.texts()[0][-2][:1], found.texts()[0][-1]] == ["2", "75.0 ± 0.0"]
    alone = readings(methods(tmp_path), ["global_accuracy"])  # as of a summary, whose tables are narrow
    assert alone is not None
    assert "validated_round" not in [c.name for c in alone.columns]


def test_the_mean_by_samples_stands_with_the_readings(tmp_path: Path) -> None:
    """At the end of those of personal models; a method that has not measured it has none."""
    for name in ("a", "b"):
        log = made_run(tmp_path / name, {"a": "fedavg", "b": "fedntd"}[name], 0) / "metrics.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        records[-1] |= {"personal_accuracy_by_samples": 0.625} if name == "a" else {}
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = readings(methods(tmp_path), ["global_accuracy", "personal_accuracy"])
    assert found is not None
    assert (found.columns[-1].heading, found.groups[-1]) == ("last round, by samples", ("personal accuracy, %", 5))
    assert found.texts()[0][-1] == "62.5"
    assert found.rows[1][-1] is None
    assert "by_samples" not in str(readings(methods(tmp_path), ["personal_accuracy"]))


def test_the_share_of_clients_that_are_better_off_than_alone(tmp_path: Path) -> None:
    for seed in (0, 1):
        made_run(tmp_path / f"fedavg/{seed}", "fedavg", seed)
        made_run(tmp_path / f"local/{seed}", "local_only", seed)
    made_run(tmp_path / "fedntd/5", "fedntd", 5)  # no local-only run of this seed
    found = comparison.headline(methods(tmp_path))
    column = [c.name for c in found.columns].index("better_than_local_only")
    shares = []
    for seed in (0, 1):
        mine, alone = (
            History.read(tmp_path / f"{name}/{seed}").metrics[-1]["personal_by_client"] for name in ("fedavg", "local")
        )
        shares.append(np.mean([mine[k] > alone[k] for k in mine]))
    by_method = {row[0]: row[column] for row in found.rows}
    assert by_method["fedavg"].mean == pytest.approx(np.mean(shares))
    assert by_method["fedntd"] is None
    assert by_method["local_only"] is None
    table = comparison.personal(methods(tmp_path))
    assert table is not None
    assert [c.name for c in table.columns][-1] == "local_only"
    rows = [row for row in table.rows if row[0] == "fedavg" and row[2] == 1]
    alone = History.read(tmp_path / "local/1").metrics[-1]["personal_by_client"]
    assert {row[4]: row[-1] for row in rows} == alone
    assert all(row[-1] is None for row in table.rows if row[0] in ("fedntd", "local_only"))


@pytest.mark.slow
def test_names_of_classes_and_clients_are_on_the_page(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", clients=2, classes=3)
    federation = json.loads((folder / "federation.json").read_text())
    federation |= {"class_names": ["cat", "$dog", "emu"], "client_names": ["north", "south\n"]}
    (folder / "federation.json").write_text(json.dumps(federation))
    (method,) = methods(tmp_path)
    held = comparison.examples("federation", method.first.history.federation)
    assert [c.name for c in held.columns] == ["client", "class_cat", "class_$dog", "class_emu"]
    assert [row[0] for row in held.rows] == ["north", "south\ufffd"]
    personal = comparison.personal([method])
    assert personal is not None
    assert [row[4:6] for row in personal.rows] == [["0", "north"], ["1", "south\ufffd"]]
    named = comparison.named_clients([method])
    assert named is not None
    own = History.read(folder).metrics[-1]["personal_by_client"]
    assert [(row[0], row[1].mean) for row in named.rows] == [("north", own["0"]), ("south\ufffd", own["1"])]
    assert [c.name for c in named.columns] == ["client", f"personal_accuracy_{method.label}"]
    assert "class cat" in describe_weakest(method) or "class $dog" in describe_weakest(method)
    page = write_report(tmp_path, tmp_path / "page").read_text(encoding="utf-8")
    assert "north" in page
    assert "Each client by its name" in page
    assert "$dog" in page


def test_alone_is_alone_on_the_same_data(tmp_path: Path) -> None:
    for source in ("one", "two"):
        data = {"source": source, "partition": "shards:2", "clients": 6}
        made_run(tmp_path / source / "fedavg", "fedavg", settings={"data": data})
        made_run(
            tmp_path / source / "local", "local_only", settings={"data": {**data, "newer": 1}}, level=len(source) / 9
        )
        evaluated = tmp_path / source / "local/metrics.jsonl"
        evaluated.write_text(evaluated.read_text().replace('"0": ', f'"{source}": '))  # a client that the other has not
    found = {
        run.folder: (comparison.local_only_values(run, all_), run)
        for all_ in [methods(tmp_path)]
        for m in all_
        for run in m.runs
    }
    assert "one" in found["one/fedavg"][0]
    assert "two" in found["two/fedavg"][0]
    assert found["one/local"][0] == found["two/local"][0] == {}
    assert comparison.gains(found["one/fedavg"][1], methods(tmp_path / "two")) == []


def test_what_clients_gain_over_training_alone_by_hand(tmp_path: Path) -> None:
    for name, by_client in {"pfedsd": [0.9, 0.5, 0.7, 0.2], "local_only": [0.5, 0.5, 0.6, 0.5]}.items():
        folder = made_run(tmp_path / name, name)
        record = {"round": 0, "personal_by_client": {str(k): a for k, a in enumerate(by_client)}}
        (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    every = methods(tmp_path)
    (own,) = (m for m in every if not m.is_local_only)
    assert comparison.gains(own.first, every) == pytest.approx([-0.3, 0.0, 0.1, 0.4])
    table = comparison.gains_table(every)
    assert table is not None
    assert table.texts() == [["pfedsd", "50.0", "25.0", "+5.0", "-30.0", "+40.0", "4"]]
    assert comparison.gains_table([own]) is None
    figure = figures.gain(every)
    assert figure is not None
    axes = figure.axes[0]
    dots = {line.get_gid(): line.get_xdata() for line in axes.lines}
    np.testing.assert_allclose(dots[f"dots.{own.number}"], [-30, 0, 10, 40], atol=1e-9)
    np.testing.assert_allclose(dots[f"median.{own.number}"], [5])
    np.testing.assert_allclose(dots[None], [0, 0])
    assert [t.get_text() for t in axes.get_yticklabels()] == ["pfedsd"]
    low, high = axes.get_xlim()
    assert low < -30 < 40 < high < 60
    assert figures.gain([own]) is None


def test_a_client_is_the_same_by_its_name_whatever_its_number(tmp_path: Path) -> None:
    """Seeds that draw the examples number clients as they come."""
    of = {0: {"north": 0.2, "south": 0.4}, 1: {"south": 0.6, "north": 0.8}}
    for seed, names in of.items():
        folder = made_run(tmp_path / str(seed), seed=seed, clients=2, classes=3)
        federation = json.loads((folder / "federation.json").read_text())
        (folder / "federation.json").write_text(json.dumps(federation | {"client_names": list(names)}))
        record = {"round": 0, "personal_by_client": {str(k): value for k, value in enumerate(names.values())}}
        (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    table = comparison.named_clients(methods(tmp_path))
    assert table is not None
    assert [(row[0], row[1].mean) for row in table.rows] == [
        ("north", pytest.approx(0.5)),
        ("south", pytest.approx(0.5)),
    ]
    assert table.rows[0][1].std == pytest.approx(np.std([0.2, 0.8], ddof=1))
    assert table.rows[1][1].std == pytest.approx(np.std([0.4, 0.6], ddof=1))
    named = "personal_accuracy_fedavg"  # the measure is said
    assert table.csv().splitlines()[0] == f"client,{named},{named}_std,{named}_runs"


def test_only_few_clients_with_names_are_a_table(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", clients=2, classes=3)
    assert comparison.named_clients(methods(tmp_path)) is None  # numbers alone
    federation = json.loads((folder / "federation.json").read_text())
    everybody = list(range(41))
    federation |= {"clients": 41, "shown": everybody, "client_names": [f"c{k}" for k in everybody]}
    federation |= {"train": [[1, 1, 1]] * 41, "test": None}
    (folder / "federation.json").write_text(json.dumps(federation))
    record = {"round": 0, "personal_by_client": {str(k): 0.5 for k in everybody}}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert comparison.named_clients(methods(tmp_path)) is None
    record["personal_by_client"] = {str(k): k / 40 for k in (2, 0)}  # of those that were evaluated
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    table = comparison.named_clients(methods(tmp_path))
    assert table is not None
    assert [(row[0], row[1].mean) for row in table.rows] == [("c0", 0.0), ("c2", 0.05)]
