"""What the inside of a page is made of: figures with their values, colours that a style sheet can change."""

from __future__ import annotations

import base64
import hashlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import UndefinedError

from fedloom import History
from fedloom.report import figures
from fedloom.report.methods import Method, Run
from fedloom.report.number_table import Column, Table
from fedloom.report.page import Page, _templates
from fedloom.report.style import ink, inline, rendered

SVG = "{http://www.w3.org/2000/svg}"


def method(label: str = "fedavg", number: int = 0, values: tuple[float, ...] = (0.1, 0.35, 0.8)) -> Method:
    metrics = [{"round": t, "global_accuracy": v} for t, v in enumerate(values)]
    return Method(label, number, (Run(label, History(algorithm=label, metrics=metrics)),))


def drawn(*methods: Method) -> ElementTree.Element:
    """The figure of global accuracy as it is on a page."""
    page = Page("title", {m.number: m.label for m in methods}, "lead")
    figure = figures.curves(methods, "global_accuracy", "accuracy (%)")
    assert figure is not None
    return ElementTree.fromstring(str(page.figure(figure, "global_accuracy", "Global", "caption", digits=1).svg))


@pytest.mark.slow
def test_a_path_tells_the_values_of_a_curve() -> None:
    """What page.js does: places along the path, between those of the axes' ends."""
    svg = drawn(method(), method("fedprox", 1, (0.2, 0.3, 0.4)))
    (x0, x1, low_x, high_x), (y0, y1, low, high) = (map(float, svg.get(f"data-{a}", "").split()) for a in "xy")
    assert svg.get("data-unit") == "round"
    found = {}
    for group in svg.iter(f"{SVG}g"):
        if group.get("data-part") == "line":
            path = next(p for p in group.iter(f"{SVG}path") if p.get("clip-path"))
            points = np.array([float(n) for n in re.findall(r"-?[\d.]+", path.get("d", ""))]).reshape(-1, 2)
            rounds = low_x + (points[:, 0] - x0) / (x1 - x0) * (high_x - low_x)
            values = low + (points[:, 1] - y0) / (y1 - y0) * (high - low)
            found[group.get("data-method")] = (rounds, values)
    np.testing.assert_allclose(found["0"], [[0, 1, 2], [10, 35, 80]], atol=1e-3)
    np.testing.assert_allclose(found["1"], [[0, 1, 2], [20, 30, 40]], atol=1e-3)


@pytest.mark.slow
def test_every_point_of_a_long_curve_is_in_its_path() -> None:
    svg = drawn(method(values=tuple(0.5 + 1e-6 * t for t in range(300))))
    (line,) = (g for g in svg.iter(f"{SVG}g") if g.get("data-part") == "line")
    assert len(re.findall(r"[ML]", next(line.iter(f"{SVG}path")).get("d", ""))) == 300


@pytest.mark.slow
def test_all_parts_of_a_method_can_be_hidden_together() -> None:
    svg = drawn(method(), method("fedprox", 1))
    parts = {(g.get("data-part"), g.get("data-method")) for g in svg.iter() if g.get("data-method")}
    assert parts == {(part, n) for part in ("line", "label") for n in "01"}


@pytest.mark.slow
def test_figures_are_styled_by_attributes_alone() -> None:
    svg = drawn(method("moon", 5))
    assert not [e for e in svg.iter() if e.get("style") or e.tag.endswith(("style", "metadata"))]
    assert any(e.get("stroke") == "#56b4e9" for e in svg.iter())
    assert {e.get("font-size") for e in svg.iter(f"{SVG}text")} >= {"9px", "10px"}
    assert not [e for e in svg.iter() if e.get("font-family")]


@pytest.mark.slow
def test_markers_look_as_their_uses_do() -> None:
    """The page's style sheet does not reach what is used, only what uses it."""
    svg = drawn(method())
    used = [path for defs in svg.iter(f"{SVG}defs") for path in defs if path.tag == f"{SVG}path"]
    assert used
    assert all(set(path.attrib) == {"id", "d"} for path in used)
    assert all(use.get("stroke") for use in svg.iter(f"{SVG}use"))


def test_fonts_of_earlier_matplotlib_keep_their_size() -> None:
    style = b"font: 700 9.5px 'DejaVu Sans', sans-serif; fill: #123456"
    old = b'<svg xmlns="http://www.w3.org/2000/svg"><text style="' + style + b'">x</text></svg>'
    (text,) = ElementTree.fromstring(inline(old, "old", "words")).iter(f"{SVG}text")
    assert dict(text.attrib) == {"font-size": "9.5px", "fill": "#123456"}


def test_names_inside_a_figure_are_its_own_and_lead_somewhere() -> None:
    figure = figures.curves([method(), method("fedprox", 1)], "global_accuracy", "accuracy (%)")
    assert figure is not None
    svg = ElementTree.fromstring(inline(rendered(figure, "svg"), "one", '<words> & "quotes"'))
    assert svg.get("aria-label") == '<words> & "quotes"'
    ids = {e.get("id") for e in svg.iter() if e.get("id")}
    asked = {v[1:] for e in svg.iter() for k, v in e.attrib.items() if k.endswith("href")}
    asked |= {v[5:-1] for e in svg.iter() if (v := e.get("clip-path"))}
    assert asked == ids
    assert all(str(name).startswith("one-") for name in ids)


def test_the_style_sheet_has_the_colours_of_the_methods_at_night() -> None:
    page = Page("title", {30: "rare"}, "lead")
    css = re.search(r"<style>(.*?)</style>", page.html(), re.DOTALL)
    assert css
    night = css[1].split("@media screen and (prefers-color-scheme: dark)")[2]
    assert f'[fill="{ink(30)}"]' in night
    assert '[stroke="#0072b2"]' in night  # of who holds which classes
    assert '[stroke="#004bc3"]' not in night  # of nobody here


@pytest.mark.parametrize("count", [1, 2])
def test_methods_can_be_hidden_where_there_are_several(count: int) -> None:
    html = Page("title", dict(list({3: "a<b", 4: "c"}.items())[:count]), "lead").html()
    assert ('<div class="methods" role="group" aria-label="Methods in the figures" hidden>' in html) == (count == 2)
    assert ('data-method="3"' in html) == (count == 2)
    assert ("a&lt;b" in html) == (count == 2)


def test_a_table_on_the_page() -> None:
    columns = [Column("m", "method"), Column("a", "x & y", str, "high", "both"), Column("w", "words")]
    page = Page("title", {}, "lead")
    page.section("one", "One")
    page.table(Table("t", columns, [["<a>", 1.0, "w" * 50], ["b", 2.0, None]], [0, 12]), 'caption "<')
    html = " ".join(page.html().split())
    assert 'aria-label="caption &#34;&lt; Bold: the best of each column; no test of significance."' in html
    assert (
        '<td colspan="1"></td><th scope="colgroup" class="group" colspan="1">both</th><td class="group" colspan="1">'
        in html
    )
    assert '<th scope="col" class="group">x &amp; y</th><th scope="col" class="text group">words</th>' in html
    assert 'stroke="#0072b2"/></svg>&lt;a&gt;</th>' in html
    assert f'<td class="group">1.0</td><td class="text group long">{"w" * 50}</td>' in html.replace("> <", "><")
    assert '<td class="group"><b>2.0</b></td><td class="text group">–</td>' in html.replace("> <", "><")
    assert page.files["tables/t.csv"].startswith(b"m,a,w\n")


def test_the_table_of_the_first_screen_needs_no_head_on_a_telephone() -> None:
    """There its rows are lists, whose lines begin with what their column is called."""
    page = Page("title", {}, "lead")
    table = Table("standing", [Column("m", "measure"), Column("b", "best & so")], [["loss", "a"]])
    page.section("one", "One")
    page.begin("lead", (), None, page.keep(table, "caption"))
    page.table(Table("t", table.columns, table.rows), "caption")
    html = " ".join(page.html().split())
    assert html.count('<td class="text" data-head="best &amp; so">a</td>') == html.count("data-head=") == 1
    assert 'class="scroll stacked" id="table-standing"' in html


def test_parts_of_a_page_have_names_of_their_own() -> None:
    page = Page("title", {}, "lead")
    for prefix in ("p1-", "p2-"):
        page.part(prefix, "A problem")
        page.section("summary", "Summary")
        page.table(Table("t", [Column("m", "method")], [["a"]]), "caption")
        page.grid()  # of no figure
    assert [section.name for section in page.sections] == ["p1-part", "p1-summary", "p2-part", "p2-summary"]
    assert set(page.files) == {"tables/p1-t.csv", "tables/p2-t.csv"}
    assert [len(section.blocks) for section in page.sections] == [0, 1, 0, 1]


def test_the_policy_names_the_digests_of_style_and_script_and_a_missing_name_is_an_error() -> None:
    html = Page("title", {}, "lead").html()
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert text
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in html or f"&#39;sha256-{digest}&#39;" in html
    with pytest.raises(UndefinedError):
        _templates().from_string("{{ nothing }}").render()
