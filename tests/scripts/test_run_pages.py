"""Pages that lead a person in run from top to bottom, and print what stands beneath their blocks."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/run_pages.py"))
PAGES = MADE["PAGES"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("default")  # a page may show what is warned of
def test_a_page_prints_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    for block, printed in MADE["run"](page.read_text(encoding="utf-8"), tmp_path):
        if block.printed is not None:
            assert MADE["agrees"](block.printed, printed), f"{page.name} says\n{block.printed}\nand prints\n{printed}"


def test_pages_have_no_output_that_nothing_prints() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = list(MADE["blocks"](text))
        assert len(found) >= 2, page.name
        assert text.count("```text\n") == sum(block.printed is not None for block in found), page.name
        assert all(block.printed for block in found if block.printed is not None), f"{page.name}: scripts/run_pages.py"
        assert not re.search(r"^```(?!python|bash|text|toml|$)", text, re.MULTILINE), page.name


def test_blocks_share_a_folder_and_names(tmp_path: Path) -> None:
    page = (
        '```python title="own.py"\nx = 2\n```\n\n```python\nfrom own import x\n```\n\n'
        "```python\nprint(x, 0.5)\n```\n\n```text\n2 0.51\n```\n\n```bash\nfedloom algorithms ditto\n```\n"
    )
    found = list(MADE["run"](page, tmp_path))
    assert [block.kind for block, _ in found] == ["python", "python", "python", "bash"]
    assert [printed for _, printed in found][2] == "2 0.5\n"
    assert "Ditto" in found[3][1]
    assert "own" not in sys.modules
    assert MADE["renewed"](page, tmp_path) == page.replace("0.51", "0.5")
    with pytest.raises(RuntimeError, match="rm -r x ends with 2"):
        list(MADE["run"]("```bash\nrm -r x\n```\n", tmp_path))


def test_lines_may_start_processes_with_variables(tmp_path: Path) -> None:
    page = "```bash\nCOLUMNS=60 fedloom {} &\n{}\n```\n"
    (block, printed), *_ = MADE["run"](page.format("--version", "wait"), tmp_path)
    assert (block.kind, printed) == ("bash", "\n")
    with pytest.raises(RuntimeError, match=r"COLUMNS=60 fedloom algorithms dito ends with 2: .*ditto"):
        list(MADE["run"](page.format("algorithms dito", "wait"), tmp_path))
    with pytest.raises(RuntimeError, match="sleep 1 is no command of fedloom"):
        list(MADE["run"]("```bash\nsleep 1 &\n```\n", tmp_path))


def test_processes_that_nobody_waits_for_are_killed() -> None:
    with MADE["Started"]() as started:
        started.start(["fedloom", "--version"])
        _, process = started.running[0]
    assert process.returncode is not None


def test_numbers_may_differ_a_little_and_words_may_not() -> None:
    agrees = MADE["agrees"]
    assert agrees("fedavg 0.62\nditto 61.0 ± 2.0", "fedavg  0.66\nditto 64.1 ± 0.2")
    assert not agrees("fedavg 0.62", "fedavg 0.72")
    assert not agrees("fedavg 0.62", "fedprox 0.62")
    assert not agrees("bytes 1,200", "bytes 1,300")
    assert not agrees("a 0.5", "a 0.5 0.6")
    assert agrees("+41.8 [-68.3, 151.9]", "+43.8 [-11.3, 91.9]")
    assert agrees("first\n...\nlast", "first\n0.4\n0.5\nlast")
    assert not agrees("first\n...", "second\n0.4")
