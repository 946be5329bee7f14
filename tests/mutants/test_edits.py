"""The list of wrong edits still fits the source. What the tests make of them: `make mutants`."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from pathlib import Path

import pytest

from fedloom.algorithms import ALGORITHMS
from mutants import ROOT, Copy, Edit, has_logic, read, source_of, test_of as path_of_test, without

EDITS = read()


def test_every_edit_still_applies() -> None:
    """Whoever changes a line that an edit names learns it at once; the next test looks at some of them more closely."""
    texts = {edit.file: source_of(edit.file, ROOT).read_text(encoding="utf-8") for edit in EDITS}
    for edit in EDITS:
        edit.on(texts[edit.file])


@pytest.mark.some(8)
@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.label)
def test_an_edit_changes_the_code(edit: Edit) -> None:
    text = source_of(edit.file, ROOT).read_text(encoding="utf-8")
    wrong = edit.on(text)
    if edit.file.endswith(".py"):
        compile(wrong, edit.file, "exec")
        tree = ast.parse(wrong)
        assert ast.dump(tree) != ast.dump(ast.parse(text))
        assert read_names(tree) <= made_names(tree), "the edit breaks the code instead of changing what it computes"
    else:  # a page
        assert wrong != text
    for test in edit.tests:
        path, _, name = test.partition("::")
        there = path_of_test(path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in there, f"{test} is no test"  # without parameters, which change


def read_names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def made_names(tree: ast.Module) -> set[str]:
    """Names that a module, its functions and classes make anywhere, and those of Python."""
    made = {*dir(builtins), "__file__"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                made.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                made.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                made |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
    return made


def test_the_list_covers_every_algorithm_and_part() -> None:
    assert len({edit.label for edit in EDITS}) == len(EDITS) >= 60
    named = {found[0] for edit in EDITS if (found := re.match(r"S\d+(?=: )", edit.name))}
    assert named == {f"S{i}" for i in range(1, 13)}
    by_group = Counter(edit.group for edit in EDITS if not re.match(r"S\d+: ", edit.name))
    assert set(by_group) > set(ALGORITHMS)
    assert [name for name, count in by_group.items() if count < (2 if name in ALGORITHMS else 3)] == []


def test_every_source_file_with_logic_has_a_wrong_edit() -> None:
    assert [str(file.relative_to(ROOT)) for file in without()] == [], "give each an edit that a fast test notices"


def test_files_without_a_branch_a_loop_or_arithmetic_need_none(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    for text, logic in (
        ("X = 1 + 2\nif X > 2:\n    X = 3\n", False),
        ("def f(x):\n    return g(x)\n", False),
        ("class A:\n    def f(self, x):\n        return x + 1\n", True),
        ("def f(x):\n    return [y for y in x]\n", True),
        ("def f(x):\n    return x is None\n", True),
    ):
        file.write_text(text)
        assert has_logic(file) is logic, text


def test_an_edit_that_no_longer_applies_says_where_to_look() -> None:
    edit = Edit("kt_pfl", "a sign", "algorithms/kt_pfl.py", "a - b * gone", "a + b * gone", ("test_battery.py",))
    with pytest.raises(LookupError) as error:
        edit.on("x = 1\ny = a - b * moved\n")
    assert "kt_pfl: a sign: algorithms/kt_pfl.py has this 0 times" in str(error.value)
    assert "2: y = a - b * moved" in str(error.value)
    with pytest.raises(LookupError, match="2 times"):
        edit.on("a - b * gone\n" * 2)


@pytest.fixture
def copy(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """A package of one function, and tests of it."""
    import mutants

    package, tests = tmp_path / "src" / "fedloom", tmp_path / "tests"
    package.mkdir(parents=True)
    tests.mkdir()
    (package / "__init__.py").write_text("def half(x):\n    return x / 2\n")
    body = "import fedloom\n\ndef test_it():\n    assert fedloom.half(4) == 2\n"
    (tests / "test_half.py").write_text(body)
    (tests / "test_nothing.py").write_text("def test_it():\n    pass\n")
    outside, its_tests = tmp_path / "papers" / "src" / "fedloom_papers", tmp_path / "papers" / "tests"
    for folder in (outside, its_tests):
        folder.mkdir(parents=True)
    (outside / "__init__.py").write_text("def third(x):\n    return x / 3\n")
    (its_tests / "test_third.py").write_text(body.replace("half(4)", "third(6)").replace("fedloom", "fedloom_papers"))
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return Copy(tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "test", "verdict"),
    [
        ("x * 2", "test_half.py", "killed"),
        ("x * 2", "test_nothing.py", "survived"),
        ("x / two", "test_half.py", "broken"),
        ("x /", "test_half.py", "broken"),
        ("x * 2", "test_that_is_not_there.py", "broken"),
    ],
)
def test_only_a_test_that_fails_kills(new: str, test: str, verdict: str, copy: Copy) -> None:
    assert copy.verdict(Edit("half", "wrong", "__init__.py", "x / 2", new, (test,)))[0] == verdict
    assert (
        "x / 2" in (copy.root / "src" / "fedloom" / "__init__.py").read_text()
    )  # and the next edit finds the original


@pytest.mark.slow
def test_files_of_papers_are_edited_too(copy: Copy) -> None:
    for new, verdict in (("x * 3", "killed"), ("x  / 3", "survived")):
        edit = Edit("third", "wrong", "papers/__init__.py", "x / 3", new, ("papers/test_third.py",))
        assert copy.verdict(edit)[0] == verdict


def test_an_edit_without_its_place_is_told_apart(copy: Copy) -> None:
    assert copy.verdict(Edit("half", "wrong", "__init__.py", "x / 3", "x", ("test_half.py",)))[0] == "no longer applies"
