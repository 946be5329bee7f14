"""First screen: what is established, what few seeds leave open, and references that are never best."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import made_run, methods
from rich.console import Console

from fedloom.report import comparison, figures, opening, write_report
from fedloom.report.methods import Method
from fedloom.report.number_table import percent
from fedloom.report.over_seeds import BRIEF, noise_of, paired_difference
from fedloom.report.page import Page
from fedloom.report.sentences import describe_ending, describe_levels, describe_missing
from fedloom.report.several_seeds import summary
from fedloom.report.standings import _claim, standing_of, standing_table, standings, verdict


def ended(folder: Path, **ends: tuple[float, ...]) -> list[Method]:
    """Runs of methods that end at these global accuracies, a seed each; personal ones are 10 points higher."""
    for name, values in ends.items():
        for seed, end in enumerate(values):
            run = made_run(folder / name / str(seed), name, seed, rounds=2)
            rows = [{"round": t, "global_accuracy": v, "personal_accuracy": v + 0.1} for t, v in enumerate((0.1, end))]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return methods(folder)


def shown(of: list[Method]) -> list[list[str]]:
    found = standing_table(of, standings(of))
    assert found is not None
    return [[text.replace("\u00a0", " ") for text in row] for row in found[0].texts()]


def said(of: list[Method]) -> list[str]:
    return list(verdict(of, standings(of)))


SURE = (
    "How sure: in brackets 95 % intervals, paired over {} seeds, each with its own partition; established is what they "
    "exclude 0 from. Other data may differ."
)


def test_standings_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, measured = ended(tmp_path, fedavg=(0.5, 0.7), fedntd=(0.6, 0.78)), list[str]()

    def counted(a: Method, b: Method, name: str, *how: Any) -> Any:
        measured.append(name)
        return paired_difference(a, b, name, *how)

    monkeypatch.setattr("fedloom.report.standings.paired_difference", counted)
    opening.first_screen(Page("", {}, ""), of)
    assert sorted(measured) == sorted(set(measured))
    assert "global_accuracy" in measured


def test_the_best_is_compared_with_the_runner_up(tmp_path: Path) -> None:
    of = ended(tmp_path, fedavg=(0.5, 0.7), fedntd=(0.6, 0.78), moon=(0.2, 0.2))
    noise = noise_of(of, "global_accuracy", "last", 1)
    gap = paired_difference(*of[1::-1], "global_accuracy", "last", 1, noise)
    assert gap is not None
    assert noise is not None
    assert noise.df == 2
    assert shown(of)[0] == [
        "Global accuracy, %", "fedntd", "69.0 ± 12.7", "fedavg", "60.0 ± 14.1",
        f"+9.0 [{100 * gap.low:.1f}, {100 * gap.high:.1f}]",
    ]  # fmt: skip
    assert said(of)[0] == (
        f"Global accuracy: fedntd has the highest mean, 69.0 ± 12.7 %, 9.0 points ({100 * gap.low:.1f} to "
        f"{100 * gap.high:.1f}) above fedavg: not established. fedavg and moon may be as good."
    )
    assert said(of)[2:] == [SURE.format(2)]


def test_how_much_and_how_sure_stand_beside_who_is_best(tmp_path: Path) -> None:
    of = ended(tmp_path, fedavg=(0.5, 0.6, 0.7), fedntd=(0.6, 0.7, 0.801))
    assert said(of) == [
        "Global accuracy: fedntd is best, 70.0 ± 10.1 %, ahead of fedavg by 10.0 points (9.9 to 10.2): established.",
        "Personal accuracy: fedntd is best, 80.0 ± 10.1 %, ahead of fedavg by 10.0 points (9.9 to 10.2): established.",
        SURE.format(3),
    ]
    run = of[0].runs[0]
    rows = (tmp_path / run.folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1]) | {"personal_accuracy": 0.1}
    (tmp_path / run.folder / "metrics.jsonl").write_text(f"{rows[0]}\n{json.dumps(last)}\n")
    first, second, _ = said(methods(tmp_path))
    assert first.endswith("established.")
    assert not first.endswith("not established.")
    assert second.endswith("above fedavg: not established.")


def test_what_is_low_is_best_by_how_much_it_is_lower(tmp_path: Path) -> None:
    of = ended(tmp_path, fedavg=(0.5, 0.6, 0.7), fedntd=(0.6, 0.7, 0.801))
    measure = replace(of[0].measures["global_accuracy"], better="low")
    one = standing_of(of, measure)
    assert _claim(replace(one, chance=None)) == (
        "Global accuracy: fedavg is best, 60.0 ± 10.0 %, ahead of fedntd by 10.0 points (9.9 to 10.2): established."
    )


def test_who_may_be_as_good_is_judged_of_all_together(tmp_path: Path) -> None:
    """A method that one interval would call worse is open beside three others."""
    ends = {"fedavg": (0.70, 0.71), "fedntd": (0.69, 0.71), "moon": (0.68, 0.688), "scaffold": (0.5, 0.52)}
    of = ended(tmp_path, **ends)
    one = standing_of(of, of[0].measures["global_accuracy"])
    noise = noise_of(of, "global_accuracy", "last", 1)
    best, moon = of[0], next(m for m in of if m.label == "moon")
    alone = paired_difference(best, moon, "global_accuracy", "last", 1, noise)
    assert alone is not None
    assert alone.low > 0
    assert one.open() == ["fedntd", "moon"]
    assert said(of)[0].endswith("above fedntd: not established. fedntd and moon may be as good.")


def test_the_winner_is_not_that_of_seeds_which_the_other_lacks(tmp_path: Path) -> None:
    """Seed 2 of FedNTD never ended; over the seeds of both it is ahead, and is not called the loser."""
    of = ended(tmp_path, fedavg=(0.60, 0.61, 0.90), fedntd=(0.63, 0.641))
    assert shown(of)[0][1:5] == ["fedavg", "70.3 ± 17.0", "fedntd", "63.5 ± 0.8"]
    over_both = "but over the seeds that both have, fedntd is ahead of it."
    behind = "{} accuracy: fedavg has the highest mean, {} ± 17.0 %, " + over_both
    assert said(of) == [behind.format("Global", 70.3), behind.format("Personal", 80.3), SURE.format(2)]


def test_equal_differences_establish_nothing(tmp_path: Path) -> None:
    """One test example of 120 in both seeds."""
    of = ended(tmp_path, fedavg=(0.5, 0.7), fedntd=(0.5 + 1 / 120, 0.7 + 1 / 120))
    assert said(of)[0].endswith("0.8 points (0.8 to 0.8) above fedavg: not established.")
    found = standing_table(of, standings(of))
    assert found is not None
    assert "Equal differences in all seeds give no interval, and establish nothing." in found[1]


def test_unfinished_runs_are_compared_with_none_that_are_longer(tmp_path: Path) -> None:
    of = ended(tmp_path, fedavg=(0.5, 0.6), fedntd=(0.1, 0.22))
    runs = [run for m in of if m.label == "fedntd" for run in m.runs]
    for run in runs:
        file = tmp_path / run.folder / "settings.json"
        settings = json.loads(file.read_text())
        settings["run"]["rounds"] = 10
        file.write_text(json.dumps(settings))
        records = tmp_path / run.folder / "metrics.jsonl"
        records.write_text(records.read_text() + json.dumps({"round": 2, "global_accuracy": 0.2}) + "\n")
    assert said(methods(tmp_path))[-1] == (
        "How sure: nothing is established; with runs that are not finished, a difference may be chance."
    )


def test_one_seed_establishes_nothing(tmp_path: Path) -> None:
    of = [replace(m, runs=m.runs[:1]) for m in ended(tmp_path, fedavg=(0.5, 0.7), fedntd=(0.6, 0.8))]
    assert said(of) == [
        "Global accuracy: fedntd has the highest value, 60.0 %, 10.0 points above fedavg.",
        "Personal accuracy: fedntd has the highest value, 70.0 %, 10.0 points above fedavg.",
        "How sure: nothing is established; with one seed each, a difference may be chance.",
    ]
    assert shown(of)[0][:5] == ["Global accuracy, %", "fedntd", "60.0", "fedavg", "50.0"]
    assert said(of[:1]) == ["Global accuracy ends at 50.0 %.", "Personal accuracy ends at 60.0 %."]
    assert standing_table(of[:1], standings(of[:1])) is None


def test_references_are_never_best(tmp_path: Path) -> None:
    of = ended(tmp_path, local_only=(0.9, 0.9), centralised=(0.8, 0.8), fedavg=(0.5, 0.6), moon=(0.4, 0.5))
    by_name = {m.label: m for m in of}
    assert [name for name, m in by_name.items() if m.is_reference] == ["centralised", "local_only"]
    (measured, *_) = standings(of)
    assert [m.label for m, _ in measured.ranked] == ["fedavg", "moon"]
    assert [measured.better_than(spread) for _, spread in measured.references] == [0, 0]
    assert measured.against(by_name["local_only"]) == {1: [], 0: [], -1: ["fedavg", "moon"]}
    assert shown(of)[0][-2:] == ["80.0 ± 0.0", "90.0 ± 0.0"]
    assert said(of)[3] == (
        "local_only, a reference, reaches 90.0 ± 0.0 % in global accuracy. "
        "Established: better than it: none; worse: fedavg and moon."
    )
    table = comparison.headline(of)
    assert [table.rows[k][0] for k in table.winners(1)] == ["fedavg"]
    assert "Highest at the end: fedavg, 55.0 %." in describe_ending(of, "global_accuracy")
    of_models = {t.name: t for t in summary(tmp_path).tables()}["global_accuracy"]
    assert [[of_models.rows[k][0] for k in of_models.winners(i)] for i in (2, 3)] == [["fedavg"], ["fedavg"]]
    only = [by_name["local_only"], by_name["centralised"]]
    assert said(only)[0] == "Only references ran, which are never called best."
    assert said([by_name["fedavg"], *only])[0] == "fedavg beside references; no other method ran."


def test_captions_say_that_references_are_left_out_where_a_best_is_marked(tmp_path: Path) -> None:
    """In LaTeX, in Markdown and on the page, which mark the best; not on a terminal, which marks none."""
    of = ended(tmp_path, local_only=(0.9, 0.9), centralised=(0.8, 0.8), fedavg=(0.5, 0.6), moon=(0.4, 0.5))
    found, note = summary(tmp_path), " Bold: the best of each column, references (centralised, local_only) left out;"
    tex, markdown = found.latex(), found.markdown()
    for text, bold in ((tex, r"\textbf{"), (markdown.replace(r"\_", "_"), "**")):
        tables = text.split("begin{table}" if text is tex else "accuracy in %")[1:]
        assert sum(bold in table for table in tables) == 2
        assert all((note in table.replace(r"\_", "_")) == (bold in table) for table in tables)
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(found)
    assert "Bold" not in console.file.getvalue()  # type: ignore[attr-defined]
    table = comparison.headline(of)
    page = Page("", {}, "")
    assert page.keep(table, "After the last round.").caption == f"After the last round.{note} no test of significance."
    alone = replace(table, rows=[row for row in table.rows if row[0] == "fedavg"])
    assert page.keep(alone, "One.").caption == "One."
    assert replace(table, references=frozenset()).bold_note == f"{note.partition(',')[0]}; no test of significance."


def test_no_interval_goes_beyond_what_an_accuracy_can_be(tmp_path: Path) -> None:
    of = ended(tmp_path, fedavg=(0.9, 0.1), fedntd=(0.1, 0.8))
    gap = paired_difference(of[0], of[1], "global_accuracy", "last", 1)
    assert gap is not None
    assert (gap.low, gap.high) == (-1.0, 1.0)
    assert shown(of)[0][5] == "+5.0 (no statement)"
    assert "+5.0 (no statement)" in summary(tmp_path).markdown().replace("-5.0", "+5.0")
    assert replace(gap, low=-0.999).text(percent) == "+5.0 [-99.9, 100.0]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    for name in ("fedavg", "fedntd", "local_only"):
        for seed in (0, 1):
            made_run(folder / name / str(seed), name, seed, planned_rounds=4)
    return write_report(folder).read_text(encoding="utf-8")


@pytest.mark.slow
def test_headings_of_columns_are_one_or_two_words(page: str) -> None:
    labels = {"fedavg", "fedntd", "local_only"}
    heads = {
        re.sub(r"\(.*?\)|, (%|s|MiB)", "", head).strip() for head in re.findall(r'scope="col"[^>]*>([^<]*)<', page)
    }
    assert heads > labels & heads
    assert [head for head in heads if len(head.split()) > 2] == []
    assert all(len(heading.split()) <= 2 for heading in BRIEF.values())


@pytest.mark.slow
def test_who_is_best_stands_before_the_first_curve_which_stands_only_once(page: str) -> None:
    first = page.index('id="figure-global_accuracy"')
    assert page.index("<h1") < page.index('class="verdict"') < first < page.index('class="lead"')
    assert page.count('id="figure-global_accuracy"') == 1
    assert page.index('class="lead"') < page.index('id="table-standing"') < page.index("<nav")


@pytest.mark.slow
def test_how_it_was_run_is_one_fold(page: str) -> None:
    (how,) = re.findall(r'<section id="how".*?</section>', page, flags=re.DOTALL)
    assert "<details>" in how
    assert re.findall(r"<h3>([^<]*)</h3>", how) == [
        "Lost responses", "Settings", "Settings that all share", "Runs, engines and versions",
    ]  # fmt: skip
    assert page.count("<h2") == page.count("<section ") + 1  # that of the first curve


@pytest.mark.slow
def test_every_figure_and_table_has_its_links(page: str) -> None:
    figures, tables = (re.findall(rf'id="{kind}-([^"]*)"', page) for kind in ("figure", "table"))
    assert len(figures) > 5
    assert len(tables) > 5
    for name in figures:
        assert f'href="#figure-{name}"' in page
        assert all(f'href="figures/{name}.{kind}" download' in page for kind in ("svg", "png", "pdf"))
    for name in tables:
        assert f'href="#table-{name}"' in page
        assert f'href="tables/{name}.csv" download' in page


@pytest.mark.slow
def test_references_are_grey(page: str) -> None:
    (summary_,) = re.findall(r'id="table-summary".*?</table>', page, flags=re.DOTALL)
    rows = re.findall(r"<tr(| class=\"reference\")>\s*<th scope=\"row\".*?</svg>([^<]*)</th>", summary_, re.DOTALL)
    assert {label: bool(kind) for kind, label in rows} == {"fedavg": False, "fedntd": False, "local_only": True}


# ---- where nothing was learnt, and where methods are equal


def chance(folder: Path, value: float, examples: int = 10_000) -> None:
    """Write into the manifests of runs what a model reaches that looks at no input."""
    for path in folder.rglob("manifest.json"):
        named = {"global_accuracy": {"value": value, "examples": examples}}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chance": named}))


@pytest.mark.slow
def test_nothing_is_best_where_nothing_is_above_chance(tmp_path: Path) -> None:
    ended(tmp_path, fedavg=(0.101, 0.1), fedntd=(0.103, 0.1), local_only=(0.5, 0.5))
    chance(tmp_path, 0.1)
    of = methods(tmp_path)
    sentence = "No method is above chance in global accuracy (10.0 %, by luck up to 10.6 %)."
    assert said(of)[0] == sentence
    assert shown(of)[0][1:6] == ["none above chance (10.0 %, by luck up to 10.6 %)", "–", "–", "–", "–"]
    assert describe_ending(of, "global_accuracy").startswith("No method ends above chance.")
    table = comparison.headline(of)
    assert [table.winners(i) for i, c in enumerate(table.columns) if c.name.startswith("global")] == [set()]
    found = summary(tmp_path)
    in_words = "No method is above chance (10.0 %, by luck up to 10.6 %)."
    assert in_words in found.captions()["global_accuracy"]
    assert in_words not in found.captions()["personal_accuracy"]
    assert in_words.replace("%", r"\%") in found.latex()
    assert (
        "Dotted line: chance, what a model reaches that looks at no input (10.0 %" in write_report(tmp_path).read_text()
    )


def test_a_run_alone_at_chance_says_so(tmp_path: Path) -> None:
    ended(tmp_path, fedavg=(0.104,))
    chance(tmp_path, 0.1)
    assert said(methods(tmp_path))[0] == (
        "Global accuracy ends at 10.4 %, which is not above chance (10.0 %, by luck up to 10.6 %)."
    )
    chance(tmp_path, 0.09)
    assert said(methods(tmp_path))[0] == "Global accuracy ends at 10.4 %."


def test_methods_that_print_the_same_are_best_together(tmp_path: Path) -> None:
    of = ended(tmp_path, fedavg=(0.7001,), fedntd=(0.7004,), moon=(0.6,))
    assert said(of)[0] == "fedntd and fedavg are equal in global accuracy, 70.0 %, and no other is better."
    assert shown(of)[0][1:6] == ["fedntd, fedavg (equal)", "70.0", "moon", "60.0", "–"]
    assert describe_ending(of, "global_accuracy").startswith("Highest at the end: fedntd and fedavg, 70.0 %.")
    table = comparison.headline(of)
    assert [table.rows[k][0] for k in sorted(table.winners(1))] == ["fedavg", "fedntd"]
    assert summary(tmp_path).latex().count(r"\textbf{70.0}") >= 2


def test_the_first_figure_is_that_of_most_methods(tmp_path: Path) -> None:
    """A method with personal models alone is on the first screen, if others have them too."""
    for name in ("fedavg", "fedrep", "mine"):
        without = () if name == "fedavg" else ("global_accuracy", "class_accuracy")
        made_run(tmp_path / name, name, without=without)
    assert opening.first_measure(methods(tmp_path)) == "personal_accuracy"
    assert opening.first_measure(methods(tmp_path / "fedavg")) == "global_accuracy"


@pytest.mark.slow
def test_lines_that_are_the_same_say_so(tmp_path: Path) -> None:
    for name in ("fedavg", "ditto", "moon"):
        made_run(tmp_path / name, name)
    log = (tmp_path / "fedavg/metrics.jsonl").read_text()
    (tmp_path / "ditto/metrics.jsonl").write_text(log)
    of = methods(tmp_path)
    page = write_report(tmp_path).read_text()
    first, second, _ = (m.label for m in of)
    assert {first, second} == {"fedavg", "ditto"}
    of_accuracy = page[page.index('id="figure-global_accuracy"') :]
    of_accuracy = of_accuracy[: of_accuracy.index("</figure>")]
    assert f"The lines of {first} and {second} are the same." in of_accuracy
    assert "moon (same)" not in of_accuracy
    assert f"{second} (same)" in page
    figure = figures.curves(of, "global_accuracy", "accuracy (%)")
    assert figure is not None
    styles = [line._dash_pattern for line in figure.axes[0].lines[:3]]  # type: ignore[attr-defined]
    assert styles[0][1] == styles[1][1] != styles[2][1]  # dashes of one length that take turns
    assert styles[0][0] != styles[1][0]


@pytest.mark.parametrize(("value", "drawn"), [(0.3, True), (0.01, False)])
def test_chance_has_room_where_it_is_near_and_is_named_where_it_is_not(
    value: float, drawn: bool, tmp_path: Path
) -> None:
    ended(tmp_path, fedavg=(0.6,), local_only=(0.5,))
    for log in tmp_path.rglob("metrics.jsonl"):
        log.write_text(log.read_text().replace('"global_accuracy": 0.1', '"global_accuracy": 0.4'))
    chance(tmp_path, value)
    of = methods(tmp_path)
    figure = figures.curves(of, "global_accuracy", "accuracy (%)")
    assert figure is not None
    assert figures.shows_chance(figure) is drawn
    low, high = figure.axes[0].get_ylim()
    assert bool(low < 100 * value < high) is drawn
    levels = [line for line in figure.axes[0].lines if str(line.get_gid()).startswith("level.")]
    assert [line.get_ydata()[0] for line in levels] == [50.0]  # type: ignore[index]
    said = describe_levels(of, "global_accuracy", figure)
    assert ("Dotted line: chance" in said) is drawn
    assert ("lies beyond the axis." in said) is not drawn
    assert said.endswith("Thin line: what local_only, 50.0 %, reaches.")


def test_local_training_has_no_global_model(tmp_path: Path) -> None:
    for name in ("fedavg", "fedrep", "local_only"):
        made_run(tmp_path / name, name, without=() if name == "fedavg" else ("global_accuracy",))
    said = describe_missing(methods(tmp_path), "global_accuracy")
    assert said == " Not measured: fedrep. local_only: no global model."
