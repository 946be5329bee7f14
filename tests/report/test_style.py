"""Colours of methods: an algorithm keeps its own from comparison to comparison, and no two of one comparison share."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
from made import made_run

from fedloom.algorithms import ALGORITHMS
from fedloom.report import style
from fedloom.report.grouping import read_methods
from fedloom.report.style import COLOURS, FAINT, INK, at_night, colour, contrast, dashes, even_step, ink, looks

COMPARED = ["fedavg", "fedprox", "scaffold", "pfedsd", "fedntd", "moon", "local_only", "fednova", "fedcurv", "fedper"]
LIGHT, DARK = "#ffffff", "#1c2027"  # the grounds of figures


def test_every_algorithm_has_a_colour_of_its_own_whoever_else_is_there() -> None:
    names = [*ALGORITHMS]
    found = dict(zip(names, looks(names), strict=True))
    assert len({colour(number) for number in found.values()}) == len(names)
    assert all(dashes(found[name]) == "-" for name in COMPARED)
    draw = random.Random(0)
    for name in names:
        others = draw.sample([*names, "mine", "theirs"], 12)
        assert looks([*others, name])[-1] == found[name] or name in others
        assert looks([name]) == [found[name]]


@pytest.mark.parametrize("name", ["fednova-released", "FedNova", "out/fednova/seed-1", "fednova lr=0.1", "fednova (2)"])
def test_a_suffix_changes_no_colour(name: str) -> None:
    assert looks(["fedavg", name]) == looks(["fedavg", "fednova"])


@pytest.mark.parametrize("name", ["FedNTDMSE", "fedntd_mse"])
def test_a_longer_name_is_another_algorithm(name: str) -> None:
    assert looks([name]) == looks(["fedntd_mse"]) != looks(["fedntd"])


def test_colours_go_by_names_and_not_by_order() -> None:
    names = ["fedprox mu=0.1", "mine", "fedprox mu=1.0", "fedavg", "\ud800"]
    found = dict(zip(names, looks(names), strict=True))
    assert (found["fedprox mu=0.1"], found["fedavg"]) == (*looks(["fedprox"]), *looks(["fedavg"]))
    assert len({colour(number) for number in found.values()}) == len(names)
    for order in itertools.permutations(names):
        assert looks(order) == [found[name] for name in order]
    assert looks(["mine"]) == [found["mine"]]  # in another report too


def test_no_two_share_a_colour_while_there_are_others_nor_ever_all_of_their_look() -> None:
    names = [*ALGORITHMS, "mine", "theirs", "fedavg", "fedavg", *(f"own_{i}" for i in range(60))]
    draw = random.Random(0)
    for count in (*range(1, 23), len(COLOURS), len(names)):
        some = draw.sample(names, count)
        found = looks(some)
        assert len({colour(number) for number in found}) == min(count, len(COLOURS)), some
        assert len({(colour(number), str(dashes(number))) for number in found}) == count, some


def test_contrast_by_hand() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # WebAIM's checker


def test_words_and_lines_have_contrast_by_day_and_at_night() -> None:
    for number in range(len(COLOURS)):
        assert contrast(ink(number), LIGHT) >= 4.5
        assert contrast(at_night(number), DARK) >= 4.5
    assert ink(COLOURS.index("#0072B2")) == "#0072b2"  # dark enough as it is
    assert len({at_night(number) for number in range(len(COLOURS))}) == len(COLOURS)
    assert min(contrast(INK, LIGHT), contrast(FAINT, LIGHT)) >= 4.5


def test_the_style_sheet_has_contrast_in_both_modes() -> None:
    css = (Path(style.__file__).parent / "page.css").read_text()
    modes = [dict(re.findall(r"--([a-z-]+): (#\w{6})", part)) for part in css.split("@media", 2)[:2]]
    assert len(modes[0]) == len(modes[1]) >= 11
    for mode in modes:
        for ground in (mode["ground"], mode["card"]):
            for words in ("ink", "soft", "link"):
                assert contrast(mode[words], ground) >= 4.5, words
            assert contrast(mode["worst"], ground) >= 3
        assert contrast(mode["warn"], mode["warn-ground"]) >= 4.5
    assert modes[1]["card"] == DARK
    for neutral in (INK, FAINT, style.GRID, style.WORST):
        assert f'="{neutral}"]' in css


def test_methods_keep_their_colours_in_another_report(tmp_path: Path) -> None:
    for name in ("fedavg", "fednova", "scaffold"):
        made_run(tmp_path / "all" / f"a_{name}", name)
    for name in ("scaffold", "fednova"):
        made_run(tmp_path / "some" / name, name)
    every, some = ({m.label: m.number for m in read_methods([tmp_path / folder])[0]} for folder in ("all", "some"))
    assert some == {name: every[name] for name in ("scaffold", "fednova")}


@pytest.mark.parametrize(("span", "step"), [(0, 1), (2, 1), (7, 1), (8, 2), (29, 5), (198, 50), (1000, 200)])
def test_steps_between_ticks(span: int, step: int) -> None:
    assert even_step(span) == step
