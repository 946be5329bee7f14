"""Docstrings begin with a noun or a verb; those that authors read name arguments, result and errors."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedloom
from fedloom.core.averaging import Averaging

_RUNS = ("Algorithm", "Batch", "Batches", "Client", "Cohort", "Replies", "History", "Job", "Experiment")
_DATA = ("Dataset", "Examples", "Federation", "Partition", "Augment")
_TENSORS = ("Model", "Params", "Weights", "Maybe", "Local", "Optimiser", "SGD", "Adam")
_TASKS = ("Task", "Classification", "Binary", "Hinge", "SVM", "MultiLabel", "NextToken", "Regression", "LDAM")
_TASKS += ("Segmentation",)
ROOT = Path(__file__).resolve().parent.parent
_REFUSED = re.compile(
    r'(?m)^ *"""('
    r"As|From|How|In|That|There|Those|What|When|Where|Whether|Which|Who|Whom|Whose"  # clauses
    r"|Everybody|Everybody's|Everything|Somebody|Something|Whatever|Whoever"
    r"|Gives|Holds|Judges|Keeps|Makes|Reads|Returns|Says|Sends|Takes|Tells|Warns|Yields)(?!\S)"
)
_REFUSED_OF_CLASSES = re.compile(r'(?m)^ *class \w[^"]*:\n *"""(Collect|Define|Describe|Hold)(?!\S)')
WRITTEN_OUT = (*_RUNS, *_DATA, *_TENSORS, *_TASKS)  # classes: all their methods


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield public functions, and public methods of the classes whose docstrings are written out."""
    for name, value in [*((name, getattr(fedloom, name)) for name in fedloom.__all__), ("Averaging", Averaging)]:
        if inspect.isfunction(value) and value.__module__.startswith("fedloom"):
            yield name, value
        elif name in (*WRITTEN_OUT, "Averaging"):
            for method, found in vars(value).items():
                function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


def misleading(text: str, is_algorithm: bool = False) -> list[str]:
    """Return first words of a file's docstrings, those of fields too, that are neither a noun nor an imperative.

    Args:
        text: of the file.
        is_algorithm: the first line of its class says what the method does.
    """
    return [*_REFUSED.findall(text), *([] if is_algorithm else _REFUSED_OF_CLASSES.findall(text))]


_FILES = [path for folder in ("src", "papers/src", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in _FILES
        if (words := misleading(path.read_text(encoding="utf-8"), path.parent.name == "algorithms"))
    }
    assert len(_FILES) > 400
    assert not found, f"rewrite these docstrings: a noun for a thing, a verb for a function\n{found}"


def test_a_clause_in_the_place_of_a_noun_is_noticed() -> None:
    text = '''"""What is here."""
class A:
    """Hold numbers."""
    a: int
    """Who trains: nobody."""
    async def f(self):
        """Takes one."""
        """Return one."""
'''
    assert misleading(text) == ["What", "Who", "Takes", "Hold"]
    assert misleading(text, is_algorithm=True) == ["What", "Who", "Takes"]


def lacking(function: Callable[..., Any]) -> list[str]:
    """Return what a docstring lacks: an argument under `Args:`, what comes back, errors that its body raises."""
    doc = inspect.getdoc(function) or ""
    section = doc.partition("Args:\n")[2].partition("\n\n")[0]
    parameters = inspect.signature(function).parameters
    found = [n for n in parameters if n not in ("self", "cls") and f"{n}: " not in section]
    returns = inspect.signature(function).return_annotation
    if returns not in (None, "None") and not doc.startswith("Return ") and "Returns:\n" not in doc:
        found += ["Returns"] if "and return " not in doc.partition("\n")[0] and "return both" not in doc else []
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    if any(isinstance(node, ast.Raise) for node in ast.walk(body)) and "Raises:\n" not in doc:
        found.append("Raises")
    return found


@pytest.mark.parametrize(("name", "function"), [pytest.param(*one, id=one[0]) for one in functions()])
def test_a_docstring_is_complete(name: str, function: Callable[..., Any]) -> None:
    assert not (found := lacking(function)), f"the docstring of fl.{name} lacks {', '.join(found)}"


def test_what_a_docstring_lacks_is_noticed() -> None:
    def silent(x: int) -> int:
        """Add one."""
        raise ValueError

    def told(x: int) -> int:
        """Return one more.

        Args:
            x: a number.

        Raises:
            ValueError: always.
        """
        raise ValueError

    assert lacking(silent) == ["x", "Returns", "Raises"]
    assert lacking(told) == []
    assert len(list(functions())) > 180
    assert {*WRITTEN_OUT} - {name.partition(".")[0] for name, _ in functions()} == set()
