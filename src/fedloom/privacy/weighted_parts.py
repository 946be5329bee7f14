"""Parts of uploads of which a mean is taken, and what cannot be added up."""

from __future__ import annotations

from typing import Any

from fedloom.core import tree
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.types import Tree, Weighted, Weights
from fedloom.engines.accounting import is_named


def weighted_of(uploads: Tree) -> tuple[list[Weighted[Any]], Any]:
    """Return the `Weighted` of uploads, and what holds them.

    Raises:
        StackingError: there is something else in them.
        SettingError: there are whole numbers, of which a mean is the maximum.
    """
    nodes, spec = tree.flatten(uploads, is_leaf=lambda n: isinstance(n, Weighted))
    if not all(isinstance(node, Weighted) for node in nodes):
        raise StackingError(tree.UNWEIGHTED)
    if names := [name for node in nodes for name in _whole_numbers(node.value)]:
        raise SettingError(
            f"secure_aggregation adds up floating numbers, and the mean of {', '.join(names[:3])} would be a "
            "maximum, which no sum gives: leave such counters out of uploads (buffers = 'local' or 'server'), or "
            "take a network or a method without them"
        )
    return nodes, spec


def _whole_numbers(value: Tree) -> list[str]:
    """Return the names of the tensors in stacked values that are not floating."""
    out = list[str]()
    for node in tree.flatten(value, is_leaf=is_named)[0]:
        named = (
            {**node.params, **node.buffers}
            if isinstance(node, Weights)
            else node
            if is_named(node)
            else {"a tensor": node}
        )
        out += [name for name, leaf in named.items() if not leaf.is_floating_point()]
    return out
