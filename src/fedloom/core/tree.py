"""Functions of pytrees of tensors: stacking, bytes, means over clients. Their arithmetic is in `types`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedloom.core.errors import StackingError
from fedloom.core.types import Maybe, Tree, Weighted

T = TypeVar("T")

flatten = pytree.tree_flatten
unflatten = pytree.tree_unflatten
leaves = pytree.tree_leaves
map_tree = pytree.tree_map


def zeros_like(x: T) -> T:
    return map_tree(torch.zeros_like, x)  # type: ignore[no-any-return]


def stack(trees: Sequence[T]) -> T:
    """Stack K trees of one structure into one tree whose leaves have a leading axis K."""
    return map_tree(lambda *vs: torch.stack(vs), *trees)  # type: ignore[no-any-return]


def take(x: T, index: int | Tensor | slice) -> T:
    """Return the entry (or entries) `index` along the leading axis of every leaf."""
    return map_tree(lambda v: v[index], x)  # type: ignore[no-any-return]


def pick(trees: Sequence[T], index: Tensor) -> T:
    """Return the tree of that number, [] int64, among some of one structure; it may differ between stacked clients."""
    return map_tree(lambda *vs: torch.stack(vs).index_select(0, index.reshape(1))[0], *trees)  # type: ignore[no-any-return]


def cat(trees: Sequence[T]) -> T:
    """Concatenate trees with leading axes K1, K2, ... into one with leading axis K1 + K2 + ..."""
    return map_tree(lambda *vs: torch.cat(vs), *trees)  # type: ignore[no-any-return]


def nbytes(x: Tree) -> int:
    """Return the payload bytes of a tree; an absent `Maybe` costs its flag alone."""
    return sum(v.numel() * v.element_size() for v in present_leaves(x))


def present_leaves(x: Tree) -> list[Tensor]:
    """Return the leaves that travel: all except the values of absent `Maybe`s."""
    out: list[Tensor] = []
    for node in pytree.tree_leaves(x, is_leaf=lambda n: isinstance(n, Maybe)):
        if isinstance(node, Maybe):
            out.append(node.present)
            if bool(node.present):
                out.extend(present_leaves(node.value))
        else:
            out.append(node)
    return out


def nbytes_each(stacked: Tree, count: int) -> list[int]:
    """Return the payload bytes of each of `count` trees that are stacked."""
    nodes = flatten(stacked, is_leaf=lambda n: isinstance(n, Maybe))[0]
    plain = sum(v.nbytes // count for v in nodes if isinstance(v, Tensor))
    maybes = [n for n in nodes if isinstance(n, Maybe)]
    return [plain + sum(nbytes(take(m, i)) for m in maybes) for i in range(count)]


def same_structure(x: Tree, y: Tree) -> bool:
    """Return whether two trees agree in structure, shapes and dtypes."""
    (a, spec_a), (b, spec_b) = flatten(x), flatten(y)
    return spec_a == spec_b and all(_alike(u, v) for u, v in zip(a, b, strict=True))


def _alike(u: Any, v: Any) -> bool:
    tensors = isinstance(u, Tensor) and isinstance(v, Tensor)
    return tensors and u.shape == v.shape and u.dtype == v.dtype


def unlike(x: Tree, y: Tree) -> str:
    """Say in what two trees that are not of the `same_structure` differ: "NoneType in the place of Weights"."""
    if type(x) is not type(y):
        return f"{type(x).__name__} in the place of {type(y).__name__}"
    a, b = ({pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(t)[0]} for t in (x, y))
    for path in dict.fromkeys([*b, *a]):
        mine, other = a.get(path), b.get(path)
        if not _alike(mine, other):
            return f"{_kind(mine)} in the place of {_kind(other)}{f' at {path}' if path else ''}"
    return f"the parts of a {type(x).__name__} in another order"


def _kind(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
    return "nothing" if leaf is None else type(leaf).__name__


class WeightedMean:
    """Running means of uploads: each `Weighted` in them on its own, accumulated in float64 and cast back.

    Integer leaves take the maximum. Weights are normalised over the uploads that were added, whoever is missing.
    """

    def __init__(self) -> None:
        self._nodes: list[_Sum] = []
        self._spec: Any = None

    def add(self, uploads: Tree) -> None:
        """Add K uploads, stacked along the leading axis of every leaf."""
        nodes, self._spec = flatten(uploads, is_leaf=lambda n: isinstance(n, Weighted))
        if not all(isinstance(n, Weighted) for n in nodes):
            raise StackingError(UNWEIGHTED)
        self._nodes = self._nodes or [_Sum() for _ in nodes]
        if len(nodes) != len(self._nodes):
            raise StackingError(UNLIKE)
        for total, node in zip(self._nodes, nodes, strict=True):
            total.add(node.value, node.weight)

    def merge(self, other: WeightedMean) -> None:
        """Add the sums of another, in float64."""
        if not other:
            return
        if not self:
            self._nodes, self._spec = other._nodes, other._spec
            return
        if len(other._nodes) != len(self._nodes):
            raise StackingError(UNLIKE)
        for total, more in zip(self._nodes, other._nodes, strict=True):
            total.merge(more)

    def sums(self) -> tuple[Tree, list[str]]:
        """Return what travels: (the uploads' tree with sums in place of values, the types of the values' leaves)."""
        values = [Weighted(unflatten(s.sums, s.spec), torch.tensor(s.weight, dtype=torch.float64)) for s in self._nodes]
        return unflatten(values, self._spec), [str(d).removeprefix("torch.") for s in self._nodes for d in s.dtypes]

    @classmethod
    def of(cls, sums: Tree, types: Sequence[str]) -> WeightedMean:
        """Return the mean whose `sums` gave these two."""
        made, left = cls(), [getattr(torch, name) for name in types]
        nodes, made._spec = flatten(sums, is_leaf=lambda n: isinstance(n, Weighted))
        for node in nodes:
            one = _Sum()
            one.sums, one.spec = flatten(node.value)
            one.weight, one.dtypes = float(node.weight), left[: len(one.sums)]
            del left[: len(one.sums)]
            made._nodes.append(one)
        return made

    def __bool__(self) -> bool:
        """Return whether anything was added."""
        return self._spec is not None

    def result(self) -> Tree:
        """Return the uploads' tree with each Weighted replaced by its mean, once something was added."""
        return unflatten([s.mean() for s in self._nodes], self._spec)


UNWEIGHTED = "an upload to reduce is made of Weighted(value=..., weight=...); gather sends anything else"
UNLIKE = (
    "uploads of different architectures have no mean. Take that of each on its own: "
    "for group in cohort.groups: group.reduce(...)"
)


def checked_weights(weights: Tensor) -> Tensor:
    """Return weights of uploads in float64; raise ValueError where one is not finite or negative."""
    w = weights.double()
    if not bool(torch.isfinite(w).all() and (w >= 0).all()):
        raise ValueError(f"weights of an average must be finite and not negative, got {w.tolist()}")
    return w


class _Sum:
    def __init__(self) -> None:
        self.weight = 0.0
        self.sums: list[Tensor] = []
        self.dtypes: list[torch.dtype] = []
        self.spec: Any = None

    def add(self, values: Tree, weights: Tensor) -> None:
        flat, spec = flatten(values)
        if self.sums and (
            spec != self.spec or any(s.shape != v.shape[1:] for s, v in zip(self.sums, flat, strict=True))
        ):
            raise StackingError(UNLIKE)
        self.spec, w = spec, checked_weights(weights)
        if not self.sums:
            self.dtypes = [v.dtype for v in flat]
            self.sums = [torch.zeros_like(v[0], dtype=torch.float64) if v.is_floating_point() else v[0] for v in flat]
        shares = w.tolist()
        for n, v in enumerate(flat):
            if v.is_floating_point():  # one client after the other: how they were stacked cannot change the sum
                for i, share in enumerate(shares):
                    self.sums[n].add_(v[i], alpha=share)
            else:
                self.sums[n] = torch.maximum(self.sums[n], v.amax(0))
        self.weight += sum(shares)

    def merge(self, other: _Sum) -> None:
        if other.spec != self.spec or any(s.shape != t.shape for s, t in zip(self.sums, other.sums, strict=True)):
            raise StackingError(UNLIKE)
        pairs = zip(self.sums, other.sums, strict=True)
        self.sums = [s + t if s.is_floating_point() else torch.maximum(s, t) for s, t in pairs]
        self.weight += other.weight

    def mean(self) -> Tree:
        if self.weight == 0.0:
            raise ValueError("the mean of uploads whose weights are all zero")
        pairs = zip(self.sums, self.dtypes, strict=True)
        return unflatten([(s / self.weight).to(d) if s.is_floating_point() else s for s, d in pairs], self.spec)


def cast(x: T, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> T:
    """Return the tree on a device, its floating leaves in a dtype."""
    return map_tree(lambda v: v.to(device=device, dtype=dtype if v.is_floating_point() else v.dtype), x)  # type: ignore[no-any-return]
