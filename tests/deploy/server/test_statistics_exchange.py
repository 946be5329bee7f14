"""Devices exchange statistics, and prepare their tables and targets by those of all: with the bits of a simulation."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedloom.coordinator.history import History
from fedloom.core.errors import RefusedError, SettingError
from fedloom.deploy.device import Membership
from fedloom.deploy.device_statistics import FirstStatistics
from fedloom.deploy.registration import versions
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.statistics_exchange import aligned, exchange_statistics
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict
from fedloom.tables.statistics import Summary
from fedloom.testing.compare import same
from fedloom.testing.in_process import InProcess
from hospitals import SIZES
from site_devices import (
    audit,
    check_same_run,
    members,
    members_of,
    serve,
    served,
    settings,
    simulated,
    source_of_server,
    write_sites,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*'creatinine' with nothing here")


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("algorithm", "model"),
    [("fedper", "mlp"), ("fedper", "category_mlp"), ("fedavg", "category_mlp"), ("scaffold", "mlp")],
)
def test_five_devices_have_the_bits_of_the_simulation_of_their_tables(
    algorithm: str, model: str, tmp_path: Path
) -> None:
    """Columns stand in another order on each, one has none of a column, and targets are standardised."""
    write_sites(tmp_path)
    words = settings(algorithm, model=model)
    want, got = simulated(tmp_path, words), served(tmp_path, words)
    same(want.server, got.server, "the server state")
    check_same_run(tmp_path / "out", tmp_path / "simulated", exactly=algorithm == "fedper")


def write_numbers(folder: Path) -> None:
    """Write tables without gaps, whose columns stand in one order: features, numbers and labels to predict."""
    (folder / "sites").mkdir()
    for k, site in enumerate(SIZES):
        rng = np.random.default_rng(k)
        parts = rng.choice(["test", "train", "train"], 10 + 12 * k)
        rows = [
            f"{a:.3f},{b:.3f},{a - b + rng.normal():.3f},{int(a > 0)},{int(b > 1)},{parts[i]}"
            for i, (a, b) in enumerate(rng.normal(size=(len(parts), 2)))
        ]
        lines = ["a,b,days,up,far,part", *rows]
        (folder / "sites" / f"{site}.csv").write_text("\n".join(lines))


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore:.*holds 0 and 1 alone", "ignore:.*each table is prepared by its own rows alone")
@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("regression?standardise=false", "target=days&drop=up,far"),
        ("regression", "target=days&drop=up,far"),
        ("multi_label", "target=up,far&drop=days"),
    ],
)
def test_targets_that_are_no_classes_need_no_prepared_table(task: str, columns: str, tmp_path: Path) -> None:
    write_numbers(tmp_path)
    source, measures = f"?{columns}&split=part", ["macro_f1", "auc"] if task == "multi_label" else ["r2"]
    words = settings("fedper", **{"task": task, "run.measures": measures, "run.rounds": 2, "local.lr": 0.01})
    of_sites = {"run.engine": "loop", "run.threads": 1, "data.source": f"{tmp_path}/sites/*.csv{source}"}
    want = Experiment().with_all(words | of_sites).job().run()
    ours = members_of(tmp_path, [f"{tmp_path}/sites/{site}.csv{source}" for site in SIZES])
    tested = [line for site in SIZES for line in (tmp_path / "sites" / f"{site}.csv").read_text().splitlines()]
    rows = [tested[0], *(line for line in tested if line.endswith("test"))]
    (tmp_path / "test.csv").write_text("\n".join(rows))
    got = serve(tmp_path, words, InProcess([*ours]), f"{tmp_path}/test.csv?{columns},part").run()
    same(want.server, got.server, "the server state")
    assert got.metrics == want.metrics
    registry = Registry.read(tmp_path / "devices.json")
    assert (registry.moments is not None) == (task == "regression")
    assert "statistics_digest" not in registry.devices[0].described() or registry.moments is not None


# ---- who does not take part


class Altered:
    """A device whose answer to the request for counts is altered, or that is gone instead."""

    def __init__(self, member: Membership, alter: Callable[[dict[str, Any]], None] | None) -> None:
        self.member, self.alter = member, alter

    def __call__(self, message: bytes) -> bytes:
        if b'"common"' not in message[:12]:
            return self.member(message)
        if self.alter is None:
            raise EOFError
        answer = json.loads(self.member(message))
        self.alter(answer["spread"])
        return json.dumps(answer).encode()


class Registering(Altered):
    """A device whose registration is altered."""

    def __call__(self, message: bytes) -> bytes:
        said = self.member(message)
        if b'"settings"' not in message or self.alter is None:
            return said
        registration = json.loads(said)
        self.alter(registration)
        return json.dumps(registration).encode()


def classes(folder: Path) -> list[Membership]:
    """Return devices of tables with classes, which send no statistics."""
    write_numbers(folder)
    return members_of(folder, [f"{folder}/sites/{site}.csv?label=up&drop=days,far&split=part" for site in SIZES])


@pytest.mark.filterwarnings("ignore:.*holds 0 and 1 alone")
@pytest.mark.parametrize(
    ("statistics", "words"),
    [
        ({}, "statistics are of columns, of a text or of targets, got none: leave them out"),
        ({"targets": []}, "sends sums of targets, and this task asks for none: install the server's version"),
    ],
)
def test_statistics_that_nobody_asked_for_harm_their_sender_alone(
    statistics: dict[str, Any], words: str, tmp_path: Path
) -> None:
    first, *others = classes(tmp_path)

    def add(registration: dict[str, Any]) -> None:
        registration["statistics"] = {"rows": sum(registration["train"]), **statistics}

    told = settings("fedavg", **{"task": "classification", "run.measures": ["accuracy"]})
    job = serve(tmp_path, told, InProcess([Registering(first, add), *others]), "", wait=0.5, min_devices=1)
    assert job.fleet is not None
    assert job.fleet.names == tuple(member.id for member in others)
    (refused,) = [line for line in audit(tmp_path) if line["event"] == "refused"]
    assert words in refused["why"]
    assert Registry.read(tmp_path / "devices.json").moments is None


def test_sums_of_another_number_of_targets_are_not_added(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    targets = ["days", *["days,a"] * 4]
    ours = members_of(
        tmp_path,
        [f"{tmp_path}/sites/{site}.csv?target={of}&split=part" for site, of in zip(SIZES, targets, strict=True)],
    )
    words = r"targets must be of the same kind, got float32 of shape \(N,\) on 0* \(Bremen\) and float32"
    with pytest.raises(SettingError, match=words):
        serve(tmp_path, settings("fedavg"), InProcess([*ours]), "", wait=0.5)
    assert not (tmp_path / "devices.json").exists()


def too_far(spread: dict[str, Any]) -> None:
    spread["numbers"]["age"]["squares"] *= 100


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (too_far, "squared distances of these numbers from .* got .* of 'age': send those of the same rows"),
        (dict.clear, "spreads of columns are an object of JSON, got None: send one"),
        (None, "it has not counted its columns within 0.5 s, or is gone: start it again for the next run"),
    ],
)
def test_who_lies_or_leaves_between_both_exchanges_is_left_out(alter: Any, words: str, tmp_path: Path) -> None:
    """The others count anew, and their preparation is that of a run without it."""
    write_sites(tmp_path)
    told = settings("fedavg")
    first, *others = members(tmp_path)
    manager = InProcess([Altered(first, alter), *others])
    job = serve(tmp_path, told, manager, source_of_server(tmp_path), wait=0.5, min_devices=4)
    assert job.fleet is not None
    assert job.fleet.names == tuple(member.id for member in others)
    (refused,) = [line for line in audit(tmp_path) if line["event"] == "refused"]
    assert refused["device"] == first.id
    assert re.search(words, refused["why"])
    left = Registry.read(tmp_path / "devices.json")
    (tmp_path / "devices.json").unlink()
    again = [Membership(member.source, member.folder) for member in others]
    serve(tmp_path, told, InProcess([*again]), source_of_server(tmp_path))
    right = Registry.read(tmp_path / "devices.json")
    assert (left.preparation, left.moments) == (right.preparation, right.moments)


def test_a_run_does_not_begin_where_devices_are_lost_again_and_again(tmp_path: Path) -> None:
    write_sites(tmp_path)
    asked = list[int]()

    def leaves(at: int, member: Membership) -> Callable[[bytes], bytes]:
        def answer(message: bytes) -> bytes:
            if b'"common"' in message[:12]:
                asked.append(at)
                if len([k for k in asked if k == at]) > at:
                    raise EOFError
            return member(message)

        return answer

    ours = [leaves(k, member) for k, member in enumerate(members(tmp_path))]
    with pytest.raises(SettingError, match="same devices in both exchanges, got another device lost in each of 4"):
        serve(tmp_path, settings("fedavg"), InProcess(ours), source_of_server(tmp_path), wait=0.5, min_devices=1)
    assert not (tmp_path / "devices.json").exists()


def test_a_device_counts_a_few_times_and_no_more(tmp_path: Path) -> None:
    write_sites(tmp_path)
    one, *_ = members(tmp_path)
    asked = json.dumps({"common": {"numbers": {}, "targets": [3.0]}}).encode()
    with pytest.raises(RefusedError, match="a device counts its columns after the settings, and at most 8 times"):
        one(asked)
    one, *_ = members(tmp_path)
    one(
        json.dumps(
            {"run": "a" * 32, "versions": versions(), "settings": Experiment().with_all(settings("fedavg")).described()}
        ).encode()
    )
    for _ in range(8):
        assert json.loads(one(asked))["spread"]["numbers"] == {}
    with pytest.raises(RefusedError, match="at most 8 times, got one more: start all ranks again"):
        one(asked)


@pytest.mark.parametrize("cap", [40, 62])
def test_examples_that_do_not_count_have_no_statistics(cap: int, tmp_path: Path) -> None:
    write_sites(tmp_path)
    manager = InProcess([*members(tmp_path)])
    serve(tmp_path, settings("fedavg", **{"run.cohort_size": 1}), manager, source_of_server(tmp_path), cap=cap)
    why = [line["why"] for line in audit(tmp_path) if line["event"] == "refused"]
    assert len(why) == (2 if cap == 40 else 1)
    assert why[-1] == (
        f"statistics of a device are over examples that all count, got 63 of which {cap} count: start the server with "
        "--most-examples 63, or use fewer"
    )


def test_an_earlier_version_that_sends_no_sums_is_refused(tmp_path: Path) -> None:
    write_sites(tmp_path)
    old, *others = members(tmp_path)

    def before(message: bytes) -> bytes:
        answer = json.loads(old(message))
        answer.pop("statistics", None)
        return json.dumps(answer).encode()

    serve(tmp_path, settings("fedavg"), InProcess([before, *others]), source_of_server(tmp_path))
    (refused,) = [line["why"] for line in audit(tmp_path) if line["event"] == "refused"]
    assert refused.startswith(
        f"device {old.id} (Bremen) has an earlier version of fedloom, which sends no sums of targets"
    )


# ---- tables that differ


def summary(**columns: list[Any]) -> Summary:
    return Summary.of(pd.DataFrame(columns))


def firsts(
    *summaries: Summary | None, least: Sequence[int] = (1, 1), clients: Sequence[int] = (1, 1)
) -> list[tuple[str, FirstStatistics]]:
    return [
        (f"device{k}", FirstStatistics(2, each, least[k], least_clients=clients[k])) for k, each in enumerate(summaries)
    ]


def test_columns_are_in_the_order_of_the_first_and_gaps_are_of_any_kind() -> None:
    gap = np.nan
    one = summary(a=[1.0, 2.0], b=["x", "y"], c=[gap, gap], d=np.array([gap, gap], object))
    other = summary(d=[3.0, gap], c=["z", gap], a=np.array([gap, gap], object), b=[gap, gap])
    found = [each.summary for each in aligned(firsts(one, other))]
    for each in found:
        assert each is not None
        assert (list(each.numbers), list(each.words)) == (["a", "d"], ["b", "c"])
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].numbers["d"].count, found[1].numbers["a"].count) == (0, 0)
    assert (found[0].words["c"], found[1].words["b"]) == ({"missing": 2}, {"missing": 2})
    withheld = aligned(firsts(one, other, least=(3, 3)))
    assert withheld[0].summary is not None
    assert withheld[0].summary.words["c"] == {}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (firsts(summary(a=[1.0, 2.0]), None), "got device0 with them and device1 without: name all with prepare=feder"),
        (
            firsts(summary(a=[1.0, 2.0]), summary(b=[1.0, 2.0])),
            "must have the names 'a', in any order, got no 'a', 'b' besides on device1: name columns as on device0",
        ),
        (
            firsts(summary(a=[1.0, 2.0]), summary(a=[1.0, 2.0], A=[1.0, 2.0])),
            "in any order, got 'A' besides on device1: leave out what is no feature: .drop=A",
        ),
        (
            firsts(summary(a=[1.0, 2.0]), summary(a=["x", "y"])),
            "got 'a' with numbers on device0 and words on device1: mend the column, or read it as words everywhere",
        ),
        (firsts(summary(a=[1.0]), summary(a=[1.0]), least=(1, 5)), "least=1 on device0 and least=5 on device1"),
        (
            firsts(summary(a=[1.0]), summary(a=[1.0]), clients=(2, 1)),
            "by the same rule, got least_clients=2 on device0 and least_clients=1 on device1: name the",
        ),
    ],
)  # fmt: skip
def test_tables_that_differ_are_named(found: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        aligned(found)


def test_names_of_people_are_no_words(tmp_path: Path) -> None:
    """Each device has few enough; together they have one for every second row."""
    ours = []
    for k in range(3):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / "t.csv").write_text("name,y\n" + "".join(f"p{20 * k + i % 20},{i % 3}.5\n" for i in range(24)))
        ours.append(Membership(f"{folder}/t.csv?target=y&prepare=federated", folder / "state"))
    with pytest.raises(SettingError, match=r"got 'name' with \d\d on all devices, more than \d\d: leave it out on all"):
        serve(tmp_path, settings("fedavg", **{"data.test_fraction": 0.0}), InProcess([*ours]), "")


def test_a_device_that_invents_words_neither_stops_the_run_nor_adds_columns(tmp_path: Path) -> None:
    """Without `least_clients` its words are columns of all devices, or too many for the run to begin."""
    tables = ["east,1.5\nwest,2.5\n" * 12] * 2 + ["east,1.5\neast,2.5\n" * 50]

    def columns(invented: int, how: str = "") -> tuple[str, ...]:
        made = []
        for k, rows in enumerate(tables):
            state = tmp_path / f"{invented}{how}{k}"
            state.mkdir()
            (state / "t.csv").write_text(f"ward,y\n{rows}")
            made.append(Membership(f"{state}/t.csv?target=y&prepare=federated{how}", state / "state"))
        *honest, liar = made

        def lies(message: bytes) -> bytes:
            answer = json.loads(liar(message))
            if "statistics" in answer:
                words = {f"invented{i}": 1 for i in range(invented)}
                answer["statistics"]["words"]["ward"] = words | {"east": 100 - invented}
            return json.dumps(answer).encode()

        few = settings("fedavg", **{"data.test_fraction": 0.0})
        (tmp_path / "devices.json").unlink(missing_ok=True)
        return serve(tmp_path, few, InProcess([*honest, lies]), "").federation.train.columns

    assert len(columns(60)) == 2 + 60
    with pytest.raises(SettingError, match="got 'ward' with 92 on all devices, more than 74"):
        columns(90)
    assert columns(90, "&least_clients=2") == ("ward_east", "ward_west")
    with pytest.raises(SettingError, match="number of clients that count words, 3, got 4: no word would be kept"):
        columns(60, "&least_clients=4")


@pytest.mark.parametrize("where", ["devices", "server"])
def test_the_server_prepares_its_test_examples_alike(where: str, tmp_path: Path) -> None:
    write_numbers(tmp_path)
    with_it, without = "&prepare=federated", ""
    on_device, on_server = (with_it, without) if where == "devices" else (without, with_it)
    columns = "target=days&drop=up,far"
    ours = members_of(tmp_path, [f"{tmp_path}/sites/{site}.csv?{columns}&split=part{on_device}" for site in SIZES])
    test = f"{tmp_path}/sites/Kiel.csv?{columns},part{on_server}"
    with pytest.raises(SettingError, match=r"prepared as those of the devices, got Kiel with(out)? prepare=federated"):
        serve(tmp_path, settings("fedavg"), InProcess([*ours]), test)


def test_a_server_that_prepares_nothing_is_refused(tmp_path: Path) -> None:
    write_sites(tmp_path)
    one, *_ = members(tmp_path)
    one(
        json.dumps(
            {"run": "a" * 32, "versions": versions(), "settings": Experiment().with_all(settings("fedavg")).described()}
        ).encode()
    )
    with pytest.raises(RefusedError, match=r"the server has no preparation for this table, .* install a newer fedloom"):
        one(json.dumps({"client": 0, "model": "mlp", "token": "t"}).encode())


# ---- afterwards


def killed(history: History) -> None:
    if len(history.metrics) == 3:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_goes_on_with_the_preparation_of_its_beginning(tmp_path: Path) -> None:
    """Devices that come back get it; one with another value in its table waits."""
    write_sites(tmp_path)
    words, test = settings("fedper"), source_of_server(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, words, InProcess([*members(tmp_path)]), test).run(tmp_path / "out", on_round=killed)
    before = (tmp_path / "devices.json").read_bytes()
    table = tmp_path / "sites" / "Kiel.csv"
    kept = table.read_text()
    header, *rows = kept.splitlines()
    place, part = header.split(",").index("age"), header.split(",").index("part")
    changed = next(k for k, row in enumerate(rows) if row.split(",")[part] == "train" and row.split(",")[place])
    cells = rows[changed].split(",")
    cells[place] = str(int(cells[place]) + 1)
    table.write_text("\n".join([header, *rows[:changed], ",".join(cells), *rows[changed + 1 :]]))
    other = members(tmp_path)[list(SIZES).index("Kiel")]
    table.write_text(kept)
    ours = [other if member.id == other.id else member for member in members(tmp_path)]
    manager = InProcess([*ours])
    job = serve(tmp_path, words, manager, test)
    assert job.fleet.waiting.pop(3).id == other.id
    manager.come(members(tmp_path)[2])
    got = job.run(tmp_path / "out", resume=True)
    assert (tmp_path / "devices.json").read_bytes() == before
    want = simulated(tmp_path, words)
    same(want.server, got.server, "the server state")
    check_same_run(tmp_path / "out", tmp_path / "simulated", exactly=True)


@pytest.mark.slow
def test_rows_of_a_new_site_are_predicted_as_by_the_simulation(tmp_path: Path) -> None:
    write_sites(tmp_path)
    words = settings("fedavg", **{"run.rounds": 1})
    simulated(tmp_path, words)
    manager = InProcess(members(tmp_path))
    serve(tmp_path, words, manager, source_of_server(tmp_path)).run(tmp_path / "out")
    new = f"{tmp_path}/test.csv?drop=readmitted,patient,part"
    want, got = (predict(tmp_path / run, new) for run in ("simulated", "out"))
    np.testing.assert_array_equal(want.values, got.values)
    assert got.names == ("los_days",)


def test_sums_are_in_the_order_of_devices_whoever_comes_first() -> None:
    """To the last bit: sums of these numbers depend on their order, and ranks are those of the connections."""
    sums = (1e16, 1.0, -1e16, 3.3, 0.1)

    class Answering:
        """A fleet of one rank for each number, in some order of connecting."""

        def __init__(self, ids: Sequence[int]) -> None:
            self.ids = ids

        def converse(self, messages: dict[int, bytes], wait: float | None) -> dict[int, bytes]:
            (mean,) = json.loads(messages[0])["common"]["targets"]
            squares = {rank: 1.1 * (sums[self.ids[rank]] - mean) ** 2 + 0.1 for rank in messages}
            answers = {rank: json.dumps({"spread": {"numbers": {}, "targets": [squares[rank]]}}) for rank in messages}
            return {rank: answers[rank].encode() for rank in sorted(answers, key=lambda rank: squares[rank])}

    found = set()
    for ids in itertools.permutations(range(len(sums))):
        ranks: Any = {
            rank: (SimpleNamespace(id=id, label=str(id)), FirstStatistics(1, targets=(sums[id],)))
            for rank, id in enumerate(ids)
        }
        fleet: Any = Answering(ids)
        common, lost = exchange_statistics(fleet, ranks, None)
        assert not lost
        found.add(json.dumps(common.moments))
    assert len(found) == 1
    assert len({sum(sums[k] for k in ids) for ids in itertools.permutations(range(len(sums)))}) > 1


@pytest.mark.slow
def test_a_hospital_that_comes_later_is_prepared_as_the_run_began(tmp_path: Path) -> None:
    """Its own statistics change nothing; with other columns it hears which."""
    write_sites(tmp_path)
    words, test = settings("fedavg"), source_of_server(tmp_path)
    serve(tmp_path, words, InProcess(members(tmp_path)[:4]), test)
    before = json.loads((tmp_path / "devices.json").read_text())
    fleet = serve(tmp_path, words, InProcess(members(tmp_path)), test).fleet
    registry = Registry.read(tmp_path / "devices.json")
    entry = registry.admit(fleet.waiting[5])
    assert registry.described() == before
    assert entry.columns == registry.devices[0].columns
    table = tmp_path / "sites" / f"{[*SIZES][4]}.csv"
    table.write_text(table.read_text().replace("age", "years", 1))
    manager = InProcess(members(tmp_path))
    serve(tmp_path, words, manager, test)
    assert "a table has the columns with which the run began: " in manager.failures[5]
    assert "'age'" in manager.failures[5]
