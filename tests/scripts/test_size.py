"""The size of the source: lines of statements by room, long files, and circles of imports."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path
from typing import Any

import pytest

import fedloom
import fedloom_papers

LOADED = ("modules that fedloom.run loads", "of these, of neighbours")
SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "scripts/size.py"))
FILES = {
    "fedloom/__init__.py": '"""Nothing."""\n',
    "fedloom/low/__init__.py": "",
    "fedloom/low/a.py": "import sys\n\n\ndef f():  # a comment\n    return [\n        1,\n    ]\n",
    "fedloom/low/b.py": "def g():\n    from fedloom.low import c\n",
    "fedloom/low/c.py": "from fedloom.low.b import g\n",
    "fedloom/high/d.py": "from fedloom.low import a\n" + "x = 1\n" * 400,
    "fedloom_papers/one/e.py": "from fedloom.low import a\nx = 1\n",
}
KERNEL = {
    "fedloom/__init__.py": "",
    "fedloom/coordinator/__init__.py": "from fedloom.coordinator.job import f\n\nx = 1\n",
    "fedloom/coordinator/rounds.py": "class Coordinator:\n    def next(self):\n        return 1\n",
    "fedloom/core/algorithm.py": (
        "class Algorithm:\n    a: int\n    _b = 2\n\n    def c(self): ...\n\n    def _d(self): ...\n"
    ),
    "fedloom/coordinator/job.py": "def f():\n    import fedloom.display.lines\n    import fedloom.ranks.rank_engine\n",
    "fedloom/display/lines.py": "show = print\n",
    "fedloom/ranks/rank_engine.py": "from fedloom.core.tree import leaf\n\n\na = 1\nb = 2\n",
    "fedloom/ranks/alone.py": "import fedloom.cli\n",
    "fedloom/core/__init__.py": "\nversion = 1\n",
    "fedloom/core/tree.py": "from fedloom import data, report, __version__\n\nleaf = 1\n",
    "fedloom/algorithms/__init__.py": "from fedloom.algorithms.fedavg import FedAvg\n",
    "fedloom/algorithms/fedavg.py": "class FedAvg:\n    pass\n",
}


def made(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_counts(tmp_path: Path) -> None:
    size = SCRIPT["Size"].of(made(tmp_path, FILES))
    assert size.rows() == {
        "high": (1, 401, 400), "low": (4, 10, 5), "papers": (1, 2, 1), "fedloom": (1, 1, 0), "wheel": (6, 412, 405),
        "all": (7, 414, 406),
    }  # fmt: skip
    assert size.long == {"fedloom/high/d.py": 401}
    assert size.circles == [["fedloom.low.b", "fedloom.low.c"]]


def test_the_kernel_and_its_neighbours(tmp_path: Path) -> None:
    size = SCRIPT["Size"].of(made(tmp_path, KERNEL))
    size.loaded = ["fedloom", "fedloom.core", "fedloom.ranks.rank_engine", "fedloom.wording"]
    # of a run: its package and module, a line shown, three of ranks, one of a tree and its package's
    assert size.kernel() == {
        "modules that fedloom.run loads": 4,
        "of these, of neighbours": 1,
        "statements behind fedloom.run": 1 + 1 + 1 + 2 + 2,
        "statements behind fedloom.run with all methods": 7 + 2,
        "statements of the wheel": 17,
        "imports of neighbours in the kernel": 2,
        "members of Algorithm": 2,
        "statements of Coordinator": 3,
    }
    assert size.edges == [
        "fedloom/coordinator/job.py imports fedloom.ranks.rank_engine",
        "fedloom/core/tree.py imports fedloom.report",
    ]


def test_a_table_of_before_and_after(capsys: Any) -> None:
    before, after = SCRIPT["Size"](), SCRIPT["Size"]()
    for size, counts in (
        (before, {"core": 1200, "old": 7, "wheel": 1207}),
        (after, {"core": 1100, "new": 9, "wheel": 1100}),
    ):
        for room, n in counts.items():
            size.statements[room], size.lines[room], size.files[room] = n, 2 * n, 1
    before.circles, before.closures, before.edges = [["a", "b"]], {"fedloom.run": 1200}, ["a imports b"]
    before.loaded, after.loaded, after.closures = ["fedloom.ranks.rank_engine"], ["fedloom.core"], {"fedloom.run": 1100}
    before.members, after.members = 38, 20
    SCRIPT["compare"](before, after)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| core | 1 | 2,400 → 2,200 | 1,200 → 1,100 | -100 |",
        "| new | 0 → 1 | 0 → 18 | 0 → 9 | +9 |",
        "| old | 1 → 0 | 14 → 0 | 7 → 0 | -7 |",
        "| wheel | 1 | 2,414 → 2,200 | 1,207 → 1,100 | -107 |",
        "| all | 2 | 2,414 → 2,218 | 1,207 → 1,109 | -98 |",
        "",
        "Files above 400 lines: 0 → 0; circles: 1 → 0.",
        "",
        "| the kernel and its neighbours | |",
        "|---|---|",
        "| modules that fedloom.run loads | 1 → 1 |",
        "| of these, of neighbours | 1 → 0 |",
        "| statements behind fedloom.run | 1,200 → 1,100 |",
        "| statements of the wheel | 1,207 → 1,100 |",
        "| imports of neighbours in the kernel | 1 → 0 |",
        "| members of Algorithm | 38 → 20 |",
        "| statements of Coordinator | 0 → 0 |",
    ]


@pytest.fixture(scope="module")
def size() -> Any:
    """Return the counts of this copy, without the modules that a run loads."""
    return SCRIPT["Size"].of(*(Path(package.__file__).parents[1] for package in (fedloom, fedloom_papers)))


@pytest.mark.slow
def test_no_modules_import_each_other(size: Any) -> None:
    assert not size.circles, f"these import each other, within functions or for types too: {size.circles}"


def check_page(numbers: dict[str, int]) -> None:
    """Compare the page with what is counted."""
    rows = SCRIPT["rows_of"](SCRIPT["PAGE"].read_text(encoding="utf-8"))
    for what, n in numbers.items():
        _, now, most = rows[what]
        assert n <= most, f"docs/design.md allows {most:,} {what}, there are {n:,}"
        assert abs(n - now) <= 0.03 * now, (
            f"docs/design.md has {now:,} {what}, there are {n:,}: scripts/size.py --write"
        )


def test_the_page_has_what_is_counted(size: Any) -> None:
    numbers = size.kernel()
    assert len(numbers) == 8
    check_page({what: n for what, n in numbers.items() if what not in LOADED})


@pytest.mark.slow
def test_the_page_has_the_modules_that_a_run_loads(size: Any) -> None:
    size = dataclasses.replace(size, loaded=SCRIPT["loaded"](Path(fedloom.__file__).parents[1]))
    check_page({what: size.kernel()[what] for what in LOADED})


def test_the_page_is_renewed() -> None:
    page = "| a | b |\n| members of Algorithm | 1,038 | 1,020 | 1,020 |\n| x | 1 | 2 | 3 |\n"
    assert SCRIPT["renewed"](page, {"members of Algorithm": 2345}) == page.replace("1,020", "2,345", 1)
    assert SCRIPT["rows_of"](page) == {"members of Algorithm": (1038, 1020, 1020), "x": (1, 2, 3)}


PAGE = """# A page

One [link to three](page.md#anchor) words, 12.5 | and `code`:

    fedloom run fedavg

    fedloom report

<!-- runnable -->
```python
import fedloom
```

| name | loss |
|---|---|
| `made` | by a script |

| by | hand |
|---|---|
| one | 2 |

- an entry
    that goes on

<!-- made by scripts/make_time.py: from here -->
nothing counts
<!-- to here -->
last
"""


def test_words_by_hand_are_those_with_letters_outside_code_and_what_scripts_make() -> None:
    """Wrong edit: code in indented blocks counts as words."""
    assert SCRIPT["words"](PAGE) == 2 + 7 + 3 + 5 + 1
    assert SCRIPT["words"](PAGE + "<!-- made by a script that writes the page's end -->\nnot these\n") == 18


def test_each_head_of_a_made_table_stands_on_a_page() -> None:
    texts = "\n".join((SCRIPT["ROOT"] / page).read_text(encoding="utf-8") for page in SCRIPT["pages"]())
    assert [head for head in SCRIPT["MADE_TABLES"] if head not in texts] == []


def test_pages_have_no_more_words_than_can_be_read() -> None:
    """Wrong edit: a page of 1,000 words more, or one in a folder that is not counted."""
    pages = SCRIPT["pages"]()
    assert len(pages) > 60
    assert not any("results" in page or "claims" in page for page in pages)
    assert sum(pages.values()) <= SCRIPT["MOST_WORDS"], "python scripts/size.py --words"
