"""The results that are kept in papers/docs/results are what today's code says of the runs beside them."""

from __future__ import annotations

import runpy
import tracemalloc
from pathlib import Path

import pytest

from fedloom_papers import recipes, study, tables
from fedloom_papers.reproduction import kept
from fedloom_papers.reproduction.results_page import pages
from fedloom_papers.reproduction.unfinished_runs import MOST

KEPT = Path(__file__).parents[2] / "docs" / "results"
KEPT_PAGES = sorted(KEPT.glob("*/*/results.md"))


def test_every_kept_run_is_on_a_page() -> None:
    assert len(KEPT_PAGES) > 10
    assert {file.parent for file in KEPT.glob(f"*/*/{kept.NAME}")} == {page.parent for page in KEPT_PAGES}
    assert not list(KEPT.rglob("metrics.jsonl"))


@pytest.mark.slow
def test_the_index_and_the_claims_say_what_is_kept() -> None:
    made = runpy.run_path(str(KEPT.parents[2] / "scripts" / "make_results.py"))
    assert made["TARGET"].read_text(encoding="utf-8") == made["page"](), "python scripts/make_results.py"
    for path, text in made["claims"]().items():
        assert path.read_text(encoding="utf-8") == text, "python scripts/make_results.py"


def test_kept_results_are_small() -> None:
    sizes = {path: path.stat().st_size for path in KEPT.rglob("*") if path.is_file()}
    archives = {path for path in sizes if path.name.endswith(".tar.gz")}  # of unfinished runs
    assert sum(size for path, size in sizes.items() if path not in archives) < 5_000_000
    assert sum(sizes[path] for path in archives) < MOST


def test_a_small_file_takes_little_memory_to_read(tmp_path: Path) -> None:
    kept.write(tmp_path, [])
    tracemalloc.start()
    try:
        assert kept.read(tmp_path) == []
        assert tracemalloc.get_traced_memory()[1] < 2**22, "memory is taken for the largest file that may be read"
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", KEPT_PAGES, ids=lambda page: "/".join(page.parts[-3:-1]))
def test_pages_say_what_is_said_of_their_runs_today(page: Path) -> None:
    table = page.parent.name
    _, texts = pages(f"{table}: {tables()[table]}", recipes(table), [page.parents[1]], remarks=study(table).remarks)
    for name, text in texts.items():
        assert text == (page.parent / name).read_text(encoding="utf-8"), "python scripts/make_results.py"
