"""A module is found by its name: no two modules of the package share one, unless both mean the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import fedloom
import fedloom_papers

SOURCES = [Path(package.__file__).parent for package in (fedloom, fedloom_papers)]
SHARED = {  # name: why more than one module or package has it
    "__init__": "what a package says of itself",
    "commands": "what a room offers at the command line, and what papers do",
    "cohort": "what an algorithm calls, and how an engine answers it",
    "alignment": "the measure, and the analysis that draws it",
    "forgetting": "the measure, and the analysis that draws it",
    "fedntd": "the algorithm, and the study of the paper that it is from",
    "pfedsd": "the same of its paper",
    "dense": "the same of its paper",
    "published": "what the paper of a study has printed",
    "recipes": "the settings that stand for it",
    "claims": "what it says beside these, and how runs of recipes speak to it",
}


def places() -> dict[str, list[str]]:
    """Where in the package each name of a module or of a package stands."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            where = path.relative_to(source)
            found[path.stem].append(str(where))
            if path.stem == "__init__" and where.parts[:-1]:
                found[path.parent.name].append(str(where.parent))
    return found


def test_no_two_modules_share_a_name() -> None:
    twice = {name: where for name, where in places().items() if len(where) > 1 and name not in SHARED}
    assert not twice, f"rename these modules after what they hold, or say in SHARED why both are the same: {twice}"


def test_names_that_are_shared_still_are() -> None:
    alone = [name for name in SHARED if len(places()[name]) < 2]
    assert not alone, f"SHARED names what stands in one place only: {alone}"


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest collects one of them alone, and calls the other a mismatch."""
    found: dict[str, list[str]] = defaultdict(list)
    for root in (Path(__file__).parent, Path(__file__).parents[1] / "papers/tests"):
        for path in sorted(root.rglob("test_*.py")):
            found[path.name].append(str(path.relative_to(root.parent)))
    assert not {name: where for name, where in found.items() if len(where) > 1}, "rename one after what it tests"


@pytest.mark.slow
def test_no_module_only_hands_on_names_of_another() -> None:
    """A package's `__init__` may; a module that defines nothing is a second name for what stands elsewhere."""
    for path in sorted(p for source in SOURCES for p in source.rglob("*.py")):
        if path.stem not in ("__init__", "__main__"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            own = [n for n in body if not isinstance(n, ast.Import | ast.ImportFrom | ast.Expr)]
            assert own, f"{path} defines nothing"
