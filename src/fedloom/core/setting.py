"""Declare a setting once: type and bounds by its annotation, default and flag beside it, its sentence beneath it.

    rounds: Count = setting(30, "--rounds N")
    \"\"\"Maximum number of rounds.\"\"\"

The command line, the schema of settings files and docs/settings.md are made from these (`scripts/make_index.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from typing import Any, Literal

MISSING: Any = dataclasses.MISSING


Where = Literal["resumed", "method", "recipe"]


def setting(
    default: Any = MISSING, flag: str = "", group: str = "", may_differ: tuple[Where, ...] = (), part: str = ""
) -> Any:
    """Declare a field of a dataclass.

    Args:
        default: its default.
        flag: "--rounds N", or "--bf16" of one without a value in the help; "" where it has none.
        group: where the help lists it, if not with the other settings of its class.
        may_differ: where another value makes no other run: in a run that is `resumed`, in the runs of one `method`, in
            those of one published `recipe`. Nowhere, if results can depend on it and nobody asks for another value by
            going on or by a seed.
        part: "module:Class" of the part of a run that the setting asks for (`coordinator/part.py`).
    """
    metadata = {"flag": flag, "group": group, "may_differ": may_differ, "part": part}
    return dataclasses.field(default=default, metadata=metadata)


def may_differ(kind: type, where: Where) -> set[str]:
    """Return the settings of a class in which runs may differ."""
    return {field.name for field in dataclasses.fields(kind) if where in field.metadata.get("may_differ", ())}


def flag_of(kind: type, name: str) -> tuple[str, str, str]:
    """Return the flag of a setting, what stands for its value and its group; empty where it has none.

    A class that gives an inherited setting another default keeps the flag.
    """
    for owner in kind.__mro__:
        found = getattr(owner, "__dataclass_fields__", {}).get(name)
        if found is not None and found.metadata.get("flag"):
            flag, _, value = found.metadata["flag"].partition(" ")
            return flag, value, found.metadata["group"]
    return "", "", ""


@functools.cache
def sentences(kind: type) -> dict[str, str]:
    """Return what stands beneath each setting of a class, inherited ones too, as one line of Markdown.

    Raises:
        OSError: the source of the class cannot be read.
    """
    out: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if "__dataclass_fields__" not in vars(owner):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for declared, beneath in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(declared, ast.AnnAssign)
                and isinstance(declared.target, ast.Name)
                and isinstance(beneath, ast.Expr)
                and isinstance(beneath.value, ast.Constant)
            ):
                out[declared.target.id] = " ".join(str(beneath.value.value).split())
    return out
