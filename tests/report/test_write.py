"""The page: it stands on its own, is well formed, escapes, says what is missing, and is the same twice."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made import made_run

from fedloom import FedNTD, PFedSD, RunSettings, run
from fedloom.coordinator.history import History
from fedloom.core.errors import SettingError
from fedloom.report import summary, write_report

sys.path.append(str(Path(__file__).parents[1] / "coordinator"))
import tiny

GLOBAL = ("global_accuracy", "global_loss", "class_accuracy", "forgetting", "in_local_accuracy", "out_local_accuracy")
PERSONAL = ("personal_accuracy", "personal_std", "personal_worst_tenth", "personal_by_client")


class Reader(HTMLParser):
    """Checks that elements close in order, and collects attributes, headings and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []  # element, name, value
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Reader:
    return Reader(path.read_text(encoding="utf-8"))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two methods with two seeds each, one of them losing clients; and their report."""
    folder = tmp_path_factory.mktemp("comparison")
    for seed in (0, 1):
        made_run(folder / f"fedavg/seed-{seed}", "fedavg", seed, failed={"1": "low battery"})
        made_run(folder / f"pfedsd/seed-{seed}", "pfedsd", seed, level=0.8)
    write_report(folder)
    return folder


@pytest.mark.slow
def test_a_page_is_well_formed_and_stands_on_its_own(comparison: Path) -> None:
    page = read(comparison / "report/report.html")
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for element, name, value in page.attributes:
        if name in ("href", "xlink:href"):
            inside = value.startswith("#") and value[1:] in ids
            beside = element == "a" and (comparison / "report" / value).is_file()
            assert inside or beside or (element == "image" and value.startswith("data:image/png;base64,")), value[:80]
        assert name not in ("src", "style")
        assert not name.startswith("on")
        assert all(target[1:] in ids for target in re.findall(r"url\(([^)]*)\)", value))
    raw = (comparison / "report/report.html").read_text(encoding="utf-8")
    assert raw.startswith("<!DOCTYPE html>\n<html lang=")
    namespaces = {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\"' ]+", raw)) <= namespaces  # and no address


@pytest.mark.slow
def test_the_policy_allows_the_pages_own_style_and_script_by_hash(comparison: Path) -> None:
    raw = (comparison / "report/report.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', raw)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    for kind in ("style", "script"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", raw, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
        assert raw.count(f"<{kind}>") == 1


@pytest.mark.slow
def test_headings_are_in_order_and_tables_say_what_their_heads_are_of(comparison: Path) -> None:
    raw = (comparison / "report/report.html").read_text(encoding="utf-8")
    levels = [int(level) for level in re.findall(r"<h([1-6])", raw)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))
    heads = re.findall(r"<th( [^>]*)?>", raw)
    assert heads
    assert all(re.search(r'scope="(col|row|colgroup)"', head) for head in heads)
    assert re.search(r'<th scope="colgroup" class="group" colspan="4">global accuracy, %</th>', raw)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_loss_over_all_clients_is_drawn_where_a_run_has_it(count: int, tmp_path: Path) -> None:
    runs = [made_run(tmp_path / f"run-{i}", f"method_{i}", rounds=2) for i in range(count)]
    for name, drawn in (("without", False), ("with", True)):
        assert ("Training loss of all clients" in write_report(runs, tmp_path / name).read_text()) == drawn
        lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(line | {"personal_train_loss": 1.5}) + "\n" for line in lines)
        (runs[0] / "metrics.jsonl").write_text(text)


@pytest.mark.slow
def test_tables_begin_with_what_is_looked_for_first(comparison: Path) -> None:
    text = read(comparison / "report/report.html").text
    assert "Summary accuracy, % a round method global personal worst decile" in text


@pytest.mark.slow
def test_every_figure_is_described_and_lies_beside_the_page(comparison: Path) -> None:
    page = read(comparison / "report/report.html")
    drawn = [value.removeprefix("figure-") for tag, name, value in page.attributes if (tag, name) == ("figure", "id")]
    assert {"global_accuracy", "personal_accuracy", "train_loss", "global_loss", "forgetting"} <= set(drawn)
    assert {"in_local_accuracy", "out_local_accuracy", "personal_by_client", "federation"} <= set(drawn)
    assert {"global_accuracy_by_bytes", "global_accuracy_by_seconds", "classes"} <= set(drawn)
    descriptions = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(descriptions) == len(drawn)
    assert all(len(d) > 30 for d in descriptions)
    folder = comparison / "report/figures"
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        f"{n}.{kind}" for n in drawn for kind in ("png", "svg", "pdf")
    )
    for name in drawn:
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_curves_are_of_one_size(comparison: Path) -> None:
    figures = comparison / "report/figures"
    accuracy, forgetting = (
        ElementTree.parse(figures / f"{n}.svg").getroot() for n in ("global_accuracy", "forgetting")
    )
    assert accuracy.get("viewBox") == forgetting.get("viewBox")
    assert "forgetting (points)" in (figures / "forgetting.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_summary_says_what_ran(comparison: Path) -> None:
    text = read(comparison / "report/report.html").text
    assert "2 methods on made_up" in text
    assert "Compared: fedavg and pfedsd, 2 seeds each, on 6 clients (shards s=2). 4 rounds of 2 clients each" in text
    (row, *_) = table(comparison / "report/tables/standing.csv")
    assert (row["measure"], row["best"], row["second"]) == ("Global accuracy, %", "pfedsd", "fedavg")
    first, second, more = (float(row[name]) for name in ("best_value", "second_value", "difference"))
    assert more == pytest.approx(first - second)
    is_open = float(row["difference_low"]) <= 0 <= float(row["difference_high"])
    (open_ones,) = re.findall(r"Left open: ([^.]*)\.", text) or [text * ("no difference between" in text)]
    assert ("global accuracy" in open_ones) == is_open
    assert "16 of 32 selected clients did not respond" not in text
    assert "8 of 32 selected clients did not respond: see How it was run." in text
    assert "Line: mean over seeds; band: lowest to highest over seeds." in text
    assert "low battery 8 50.0 1" in text  # times, share of those asked, different clients


@pytest.mark.slow
def test_two_seeds_have_a_band_and_one_has_none(comparison: Path, tmp_path: Path) -> None:
    def filled(name: Path) -> int:
        return name.read_text().count('<g id="band.')

    assert filled(comparison / "report/figures/train_loss.svg") == 2
    write_report(comparison / "fedavg/seed-0", tmp_path)
    assert filled(tmp_path / "figures/train_loss.svg") == 0
    assert "band:" not in read(tmp_path / "report.html").text


@pytest.mark.slow
def test_tables_give_the_numbers_of_the_runs_back(comparison: Path) -> None:
    tables = comparison / "report/tables"
    rounds = table(tables / "rounds.csv")
    history = History.read(comparison / "pfedsd/seed-1")
    mine = [row for row in rounds if row["run"] == "pfedsd/seed-1"]
    for row, flat in zip(mine, history.rows(), strict=True):
        for name, value in flat.items():
            assert (float(row[name]) if row[name] else None) == value, name
    last = history.metrics[-1]["personal_by_client"]
    personal = table(tables / "personal.csv")
    assert {r["client"]: float(r["accuracy"]) for r in personal if r["run"] == "pfedsd/seed-1"} == last
    ended = {r["method"]: r for r in table(tables / "summary.csv")}
    ends = [History.read(comparison / f"pfedsd/seed-{s}").last("global_accuracy") for s in (0, 1)]
    assert float(ended["pfedsd"]["global_accuracy"]) == pytest.approx(sum(ends) / 2, abs=1e-15)
    assert (
        summary(comparison).files().items()
        <= {p.name: p.read_bytes() for p in (comparison / "report").glob("summary.*")}.items()
    )
    assert "fedavg_low" in (tables / "differences.csv").read_text()
    held = table(tables / "federation.csv")
    first = History.read(comparison / "fedavg/seed-0").federation["train"]
    assert [[int(r[f"class_{c}"]) for c in range(3)] for r in held] == first
    assert {p.stem for p in tables.iterdir()} >= {"settings", "runs", "failures", "targets_global_accuracy"}


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(comparison: Path, tmp_path: Path) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    write_report(comparison, tmp_path / "again")
    assert files(tmp_path / "again") == files(comparison / "report")


@pytest.mark.slow
def test_the_users_own_style_of_matplotlib_changes_nothing(comparison: Path, tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"lines.linewidth": 9, "svg.hashsalt": "mine", "font.size": 30}):
        write_report(comparison, tmp_path)
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "report.html").read_bytes() == (comparison / "report/report.html").read_bytes()
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.slow
def test_text_from_files_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script> & $x^2$ \x07 \ud800 日'
    for i in range(2):
        folder = tmp_path / f"run{i}"
        settings: dict[str, Any] = {"data": {"source": evil, "<img src=x>": evil, "partition": evil, "clients": evil}}
        made_run(folder, f"{evil}{i}", settings={**settings, "model": evil}, failed={"<q>": evil})
        manifest = (folder / "manifest.json").read_text()
        manifest = manifest.replace("shards s=2", "<i>p</i>").replace("2.8", "<u>v</u>").replace("it was", "<s>e</s>")
        (folder / "manifest.json").write_text(manifest)
    page = read(write_report(tmp_path, tmp_path / "out"))
    raw = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    for bad in ("<script>alert", "<img", "<q>", "<i>", "<u>", "<s>", "\x07"):
        assert bad not in raw, bad
    data = '<script type="application/json"'
    assert re.findall(r"<script[^>]*>", raw) == [f'{data} class="axes" data-prefix="">', f"{data}>", "<script>"]
    numbers = raw.partition('<script type="application/json">')[2].partition("</script>")[0]
    assert "<" not in numbers
    assert "alert" in json.dumps(json.loads(numbers))
    assert '<script>alert("1")</script> & $x^2$' in page.text
    for svg in (tmp_path / "out/figures").glob("*.svg"):
        ElementTree.parse(svg)


@pytest.mark.slow
def test_a_name_cannot_lead_a_file_elsewhere(tmp_path: Path) -> None:
    made_run(tmp_path / "runs/x", "../../../evil", without=(*PERSONAL, "federation.json"))
    write_report(tmp_path / "runs/x", tmp_path / "out/report")
    outside = [p for p in tmp_path.rglob("*evil*") if not p.is_relative_to(tmp_path / "out/report/figures")]
    assert not outside
    assert (tmp_path / "out/report/figures/classes.svg").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "without", "sentences"),
    [
        (2, GLOBAL, ["Accuracy by class is not shown", "Forgetting is not shown", "Test loss is not shown"]),
        (2, PERSONAL, ["Personal accuracies are not shown", "Personal accuracy is not shown: no run has measured it."]),
        (
            1,
            ("federation.json", "timing.jsonl", "train_loss", "bytes_down", "bytes_up"),
            [
                "Not shown: no run has a federation.json.",
                "Global accuracy against seconds is not shown",
                "Global accuracy against bytes is not shown",
                "Training loss is not shown",
            ],
        ),
        (
            1,
            (*GLOBAL, *PERSONAL, "train_loss", "settings.json", "manifest.json", "federation.json", "timing.jsonl"),
            ["Accuracies are not shown: none was measured.", "Not shown: no run rose above", "or recorded none"],
        ),
    ],
)
def test_what_was_not_measured_is_left_out_and_said(
    tmp_path: Path, count: int, without: tuple[str, ...], sentences: list[str]
) -> None:
    for i in range(count):
        made_run(tmp_path / f"runs/r{i}", f"a{i}", without=without)
    text = read(write_report(tmp_path / "runs")).text
    assert [s for s in sentences if s not in text] == []


@pytest.mark.slow
def test_who_has_not_measured_what_others_have_is_named(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fedavg", without=PERSONAL)
    made_run(tmp_path / "b", "kt_pfl", without=(*GLOBAL, *PERSONAL))
    text = read(write_report(tmp_path)).text
    assert "Global accuracy was measured for fedavg only" in text
    assert (
        "Drop of a class from its best earlier round, mean over classes. Lower is better. Not measured: kt_pfl." in text
    )


@pytest.mark.slow
def test_an_unfinished_run_is_marked(tmp_path: Path) -> None:
    made_run(tmp_path / "half", rounds=3, planned_rounds=30)
    with (tmp_path / "half/metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "glob')
    text = read(write_report(tmp_path / "half")).text
    assert "half is unfinished: 3 of 30 rounds." in text
    assert "3 of 30" in text[text.index("Each run, its engine") - 400 :]


@pytest.mark.slow
def test_a_run_before_its_first_round_has_a_report(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "new", rounds=1, planned_rounds=30)
    for name in ("metrics.jsonl", "timing.jsonl"):
        first = (folder / name).read_text().splitlines(keepends=True)[0]
        (folder / name).write_text(first)
    assert "0 of 30 rounds" in read(write_report(folder)).text


@pytest.mark.slow
def test_many_methods_have_a_legend_and_different_lines(tmp_path: Path) -> None:
    for i in range(10):
        made_run(tmp_path / f"m{i}", f"method_{i}", rounds=2, without=(*PERSONAL, "class_accuracy", "train_loss"))
    report = write_report(tmp_path)
    svg = (report.parent / "figures/global_accuracy.svg").read_text()
    assert all(f" method_{i}<" in svg for i in range(10))
    looks = re.findall(
        r'class="swatch".*?stroke-width="3" (stroke="#\w+")( stroke-dasharray="[^"]+")?/>', report.read_text()
    )
    assert len(set(looks)) == 10


@pytest.mark.slow
def test_runs_of_the_library_itself_have_a_report(tmp_path: Path) -> None:
    federation = tiny.federation()
    for seed in (0, 1):
        for algorithm in (FedNTD(local=tiny.LOCAL), PFedSD(local=tiny.LOCAL)):
            settings = RunSettings(rounds=3, cohort_size=2, seed=seed, engine="loop")
            run(
                algorithm,
                federation,
                tiny.mlp,
                settings,
                directory=tmp_path / type(algorithm).__name__ / f"seed-{seed}",
            )
    page = read(write_report(tmp_path))
    assert "Compared: FedNTD and PFedSD, 2 seeds each, on 6 clients" in page.text
    assert "is not shown" not in page.text
    assert not any(value.endswith(".json") for _, name, value in page.attributes if name == "href")


@pytest.mark.slow
def test_where_a_report_goes(tmp_path: Path) -> None:
    little = (*GLOBAL, *PERSONAL, "federation.json")
    one = made_run(tmp_path / "one", without=little)
    for _ in range(2):  # the second time over the first
        assert write_report(one) == one / "report/report.html"
    assert write_report([one], tmp_path / "there") == tmp_path / "there/report.html"
    with pytest.raises(SettingError, match=r"a report on 2 directories needs a folder to go to"):
        write_report([one, made_run(tmp_path / "two")])
    with pytest.raises(SettingError, match=r"a report on 0 directories"):
        write_report([])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        SettingError, match=r"figures need matplotlib: pip install '<PATH>\[report\]', where <PATH> is fedloom's"
    ):
        write_report(made_run(tmp_path / "run"))
    assert not (tmp_path / "run/report").exists()
