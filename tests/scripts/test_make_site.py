"""The pages of the site: each has its place, links lead to pages that exist, equations say what was written."""

from __future__ import annotations

import posixpath
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fedloom

ROOT = Path(__file__).parents[2]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/make_site.py"))
BESIDE = ("source/", "results/")  # pages that are reached by links alone


@pytest.fixture(scope="module")
def made() -> Any:
    return MADE["site"]()


def navigated() -> list[str]:
    """The pages that mkdocs.yml lists, in its order."""
    _, _, listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return re.findall(r"[\w./-]+\.md$", listed, re.MULTILINE)


def test_a_version_of_the_site_has_the_number_of_the_library() -> None:
    """Where `make docs-version` reads no number, it writes all pages as `latest` alone."""
    words = ["make", "--no-print-directory", "--dry-run", "docs-version"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"mike deploy --update-aliases {'.'.join(fedloom.__version__.split('.')[:2])} latest\n" in said


def test_each_page_stands_in_the_navigation_once(made: Any) -> None:
    listed = navigated()
    assert len(listed) == len(set(listed))
    assert set(listed) - {"results/index.md"} == {page for page in made.pages if not page.startswith(BESIDE)}
    assert "results/index.md" in made.pages


def test_links_lead_to_pages(made: Any) -> None:
    found = 0
    for page, text in made.pages.items():
        for target in MADE["_LINK"].findall(MADE["_CODE"].sub("", text)):
            path = target[1].partition("#")[0]
            if path and not path.startswith(("https://", "http://", "mailto:")) and not page.startswith("source/"):
                there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
                assert there in made.pages or there in made.files, f"{page} links to {path}"
                found += 1
    assert found > 500


def test_a_link_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(LookupError, match=r"README.md links to docs/nowhere.md, which does not exist"):
        MADE["Site"]().linked("[here](docs/nowhere.md)", ROOT / "README.md", "index.md")


def test_links_are_those_of_the_site_and_code_stays() -> None:
    site, source = MADE["Site"](), ROOT / "docs/guide.md"
    text = "[`ditto`](algorithms/ditto.md) [code](../src/fedloom/core/client.py) `[a](b.md)` [up](#engines)\n"
    assert site.linked(text, source, "guide.md") == (
        "[`ditto`](algorithms/ditto.md) [code](source/src/fedloom/core/client.py.md) `[a](b.md)` [up](#engines)\n"
    )
    block = "\n```\n[a](b.md)\n```\n\n    [a](b.md)\n"
    assert site.linked(block, source, "guide.md") == block


def test_each_algorithm_has_a_page_with_what_it_declares(made: Any) -> None:
    for name, kind in fedloom.ALGORITHMS.items():
        page = made.pages[f"algorithms/{name}.md"]
        assert f"`fl.{kind.__name__}`" in page
        assert "| download |" in page
        assert "## Method" in page
    assert "test_ditto.py::test_rounds" in made.pages["algorithms/ditto.md"]
    assert "| dirichlet:0.1, as given, seed 0, round 30 | 63.3 | 92.6 | 65.4 |" in made.pages["algorithms/ditto.md"]
    rows = [line for line in made.pages["algorithms/fedavg.md"].splitlines() if ", round 30 |" in line]
    assert len({line.partition(" | ")[0] for line in rows}) == len(rows)  # each says what it is of
    assert any("pathological:2, tuned: lr=0.0562, seed 0" in line for line in rows)


def test_all_public_names_have_a_place_on_one_page(made: Any) -> None:
    every = "".join(text for page, text in made.pages.items() if page.startswith("api"))
    for name in fedloom.__all__:
        assert f"[`{name}`]" in every or name in ("ALGORITHMS", "Ge", "Gt", "Le", "Lt"), name
    for module, name in MADE["public"]():
        assert every.count(f"\n::: {module}.{name}\n") == 1, name


def test_equations_are_typeset_and_settings_are_not() -> None:
    equation = "    w <- sum_k (n_k / n) w_k + lam / 2 ||v - w||^2 - server_lr v^(t)\n"
    assert MADE["typeset"](equation) == (
        '<pre class="equations">w ← Σ<sub>k</sub> (n<sub>k</sub> / n) w<sub>k</sub> + λ / 2 ‖v - w‖<sup>2</sup>'
        " - server_lr v<sup>(t)</sup>\n</pre>"
    )
    assert "<pre" not in MADE["equations"]("    @dataclass\n    class A: ...\n")


def test_equations_of_pages_of_algorithms_are_typeset_and_their_commands_are_not(made: Any) -> None:
    for name in fedloom.ALGORITHMS:
        page = made.pages[f"algorithms/{name}.md"]
        assert f"\n    fedloom run {name} " in page
    assert '<pre class="equations">' in made.pages["algorithms/ditto.md"]


def test_lists_are_set_apart_for_python_markdown() -> None:
    assert MADE["spaced"]("Two:\n- a\n- b\n") == "Two:\n\n- a\n- b\n"
    assert MADE["spaced"]("```\nTwo:\n- a\n```\n") == "```\nTwo:\n- a\n```\n"


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("ditto", "algorithms/ditto.md"), ("ditto", "how-to.md"), ("resume", "runs.md"), ("resume", "how-to.md"),
        ("non-iid split", "how-to.md"), ("own dataset", "how-to.md"), ("deploy", "how-to.md"),
        ("batchnorm", "how-to.md"), ("lora", "how-to.md"), ("lora", "tutorials/adapters.md"),
        ("out of memory", "how-to.md"), ("slow clients", "tutorials/slow-clients.md"), ("bottleneck", "time.md"),
        ("breakpoint", "how-to.md"), ("breakpoint", "tutorials/debug-my-method.md"), ("adamw", "how-to.md"),
        ("epsilon", "tutorials/hospitals-with-epsilon.md"), ("async", "how-to.md"), ("slow", "how-to.md"),
        ("fl-data-001", "errors/data.md"), ("errors", "errors/index.md"),
    ],
)  # fmt: skip
def test_a_search_finds_a_page_with_a_heading_that_has_its_words(made: Any, query: str, page: str) -> None:
    headings = [line.lower() for line in re.findall(r"^#+ (.+)$", made.pages[page], re.MULTILINE)]
    assert any(all(word in heading for word in query.split()) for heading in headings), headings


def test_a_search_names_answers_before_pages_of_names(made: Any) -> None:
    assert [page for page, text in made.pages.items() if text.startswith("---\nsearch:\n  boost:")] == ["how-to.md"]
