"""Colours of methods: by their place in a comparison, and no two of one look alike."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from made import made_run

from fedloom.report import style
from fedloom.report.grouping import read_methods
from fedloom.report.style import (
    COLOURS,
    FAINT,
    INK,
    canvas,
    colour,
    contrast,
    dark_colour,
    dashes,
    drawing,
    even_step,
    ink,
    label_ends,
)

LIGHT, DARK = "#ffffff", "#1c2027"  # the grounds of figures


def test_neighbours_differ_in_colour_and_dashes_and_no_two_methods_look_alike() -> None:
    several = range(3 * len(COLOURS))
    assert [colour(n) for n in several[: len(COLOURS)]] == [*COLOURS]
    assert dashes(0) == "-"
    assert len({str(dashes(n)) for n in range(6)}) == 6  # who sees no colours tells six methods apart
    assert len({(colour(n), str(dashes(n))) for n in several}) == len(several)


def test_contrast_by_hand() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # WebAIM's checker


def test_words_and_lines_have_contrast_by_day_and_at_night() -> None:
    for number in range(len(COLOURS)):
        assert contrast(ink(number), LIGHT) >= 4.5
        assert contrast(dark_colour(number), DARK) >= 4.5
    assert ink(COLOURS.index("#0072B2")) == "#0072b2"  # dark enough as it is
    assert len({dark_colour(number) for number in range(len(COLOURS))}) == len(COLOURS)
    assert min(contrast(INK, LIGHT), contrast(FAINT, LIGHT)) >= 4.5


def test_the_first_ten_methods_are_far_apart_in_the_dark_too() -> None:
    """Colours that are mixed with white until they are legible come near each other."""
    shown = [_oklab(dark_colour(number)) for number in range(10)]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(shown, 2)) > 0.08


def _oklab(text: str) -> npt.NDArray[np.float64]:
    """The colour in Ottosson's perceptual space, by his constants."""
    share = np.array([*bytes.fromhex(text[1:])]) / 255
    light = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]) @ light
    axes = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(axes) @ np.cbrt(cones)


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


def test_a_method_has_its_place_in_the_comparison_as_number_on_all_problems(tmp_path: Path) -> None:
    for name in ("scaffold", "mine", "fedavg"):
        made_run(tmp_path / f"a_{name}", name)
    methods = read_methods([tmp_path])[0]
    assert [(m.label, m.number) for m in methods] == [("fedavg", 0), ("mine", 1), ("scaffold", 2)]


@pytest.mark.parametrize(("span", "step"), [(0, 1), (2, 1), (7, 1), (8, 2), (29, 5), (198, 50), (1000, 200)])
def test_steps_between_ticks(span: int, step: int) -> None:
    assert even_step(span) == step


def test_names_of_lines_stand_beside_their_ends_in_order_and_apart() -> None:
    with drawing():
        _, axes = canvas()
        axes.set_ylim(0, 1)
        label_ends(axes, [(1, 0.5, 0, "a"), (1, 0.9, 1, "x" * 30), (1, 0.5, 2, "b"), (1, 0.0, None, "c")])
    at = {text.get_text(): text.xy[1] for text in axes.texts}  # type: ignore[attr-defined]
    assert list(at) == ["c", "a", "b", "x" * 21 + "…"]
    assert (np.diff(list(at.values())) > 0.03).all()
    assert at["c"] == pytest.approx(0, abs=0.03)
    assert at["x" * 21 + "…"] == pytest.approx(0.9, abs=0.01)
    assert (at["a"] + at["b"]) / 2 == pytest.approx(0.5, abs=0.04)
