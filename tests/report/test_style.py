"""Colours of methods: an algorithm keeps its own from comparison to comparison, and no two of one comparison share."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from made import made_run

from fedloom.algorithms import ALGORITHMS
from fedloom.report.grouping import read_methods
from fedloom.report.style import COLOURS, colour, dashes, even_step, looks

COMPARED = ["fedavg", "fedprox", "scaffold", "fednova", "moon", "fedcurv", "fedntd"]


def test_methods_that_papers_compare_have_colours_of_their_own() -> None:
    found = dict(zip(COMPARED, looks(COMPARED), strict=True))
    assert {colour(number) for number in found.values()} == set(COLOURS)
    for name, number in found.items():
        assert looks([name]) == [number]
        assert looks(["pfedsd", "fedavgm", name])[2] == number  # whoever else is there
        for other in ALGORITHMS:
            if other != name:
                assert looks([other, name])[1] == number


@pytest.mark.parametrize("name", ["fednova-released", "FedNova", "out/fednova/seed-1", "fednova lr=0.1", "fednova (2)"])
def test_a_suffix_changes_no_colour(name: str) -> None:
    assert looks(["fedavg", name]) == looks(["fedavg", "fednova"])


@pytest.mark.parametrize("name", ["FedNTDMSE", "fedntd_mse"])
def test_a_longer_name_is_another_algorithm(name: str) -> None:
    assert looks([name]) == looks(["fedntd_mse"]) != looks(["fedntd"])


def test_the_first_of_an_algorithm_has_its_colour_and_others_what_is_left() -> None:
    found = looks(["fedprox mu=0.1", "mine", "fedprox mu=1.0", "fedavg"])
    assert (found[0], found[3]) == (*looks(["fedprox"]), *looks(["fedavg"]))
    assert len({colour(number) for number in found}) == 4


def test_no_two_share_a_colour_while_there_are_others_nor_ever_all_of_their_look() -> None:
    names = [*ALGORITHMS, "mine", "theirs", "fedavg", "fedavg"]
    draw = random.Random(0)
    for count in (*range(1, 23), len(names)):
        some = draw.sample(names, count)
        found = looks(some)
        assert len({colour(number) for number in found}) == min(count, len(COLOURS)), some
        assert len({(colour(number), str(dashes(number))) for number in found}) == count, some


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
