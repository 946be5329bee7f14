"""Inputs of networks that are no pictures and no rows of numbers: token ids, and several inputs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.normalise import Normalise

IGNORED = -100
"""The target of a place that no loss and no measure counts; PyTorch's `ignore_index`."""

_EXACT = 2**24  # float32 holds every integer up to it


def _check_padding(padding: int | None) -> None:
    if padding is not None and (isinstance(padding, bool) or not isinstance(padding, int) or padding < 0):
        raise ValueError(f"padding is the token id that fills shorter sequences, 0 or more, got {padding!r}: give it")


@dataclass(frozen=True)
class Tokens:
    """Give a network stored integers as they are: token ids [B, T] int64, neither scaled nor rounded.

    Args:
        padding: the id behind the last token of a shorter sequence; None where all have the same length. A network
            whose forward has an argument `attention_mask` is given it: 1 for a token, 0 for padding, [B, T].
        cut: whether a batch may be cut to about its longest sequence, so that short ones do not pay for long ones:
            where the network answers the same, up to rounding, and draws nothing.
        vocabulary: how many ids there are, by which networks of names are made; None: one more than the largest here.
    """

    padding: int | None = 0
    cut: bool = True
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        _check_padding(self.padding)
        if self.vocabulary is not None and (type(self.vocabulary) is not int or self.vocabulary < 2):
            raise ValueError(f"a vocabulary has at least two ids, got {self.vocabulary!r}: count them, padding too")

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the ids, int64, whatever `dtype` is."""
        return x.long()

    def places(self, x: Tensor) -> int:
        """Return the number of places of stored sequences [..., T]."""
        return x.shape[-1]

    def ends(self, x: Tensor) -> Tensor:
        """Return the number of places of each sequence [..., T] before its padding, [...] int64."""
        return _ends(torch.ne(x, -1 if self.padding is None else self.padding))

    def shortened(self, x: Tensor, length: int) -> Tensor:
        """Return the first `length` places of sequences [..., T]."""
        return x[..., :length]

    def ended(self, x: Tensor, length: int) -> Tensor:
        """Return sequences [..., T] of which only the first `length` places are no padding; there is padding."""
        assert self.padding is not None
        return torch.cat([x[..., :length], torch.full_like(x[..., length:], self.padding)], -1)


def _ends(there: Tensor) -> Tensor:
    return (there * torch.arange(1, there.shape[-1] + 1, device=there.device)).amax(-1)


Kind = Literal["integers", "truths", "numbers"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Input(NamedTuple):
    """One of several inputs of a network: its name, the shape of an example's, and what its values are."""

    name: str
    shape: tuple[int, ...]
    kind: Kind

    @property
    def size(self) -> int:
        """Values of an example."""
        return prod(self.shape)


@dataclass(frozen=True)
class Inputs:
    """Give a network several inputs, which are stored side by side as one row of each example, [N, D].

    A forward that has arguments of all their names is called with these; any other with the inputs in their order.
    Integers are given as int64, truth values as bool, numbers in the dtype of the run.

    Args:
        parts: the inputs, in the order in which they are stored.
        padding: the id behind the last token of a shorter sequence, of the inputs that are integers; None: none is.
        cut: whether a batch may be cut to about its longest sequence, as of `Tokens`. The inputs of `sequences` are cut
            together, where all of them are padding.
    """

    parts: tuple[Input, ...]
    padding: int | None = 0
    cut: bool = field(default=True, repr=False)  # of how batches are computed, and not of the examples

    def __post_init__(self) -> None:
        _check_padding(self.padding)
        shapes = [part.shape for part in self.parts]
        for part in self.parts:
            if part.name.endswith("mask") and len(shapes) > 1 and shapes.count(part.shape) < 2:
                others = ", ".join(f"{p.name} {('N', *p.shape)}" for p in self.parts if p is not part)
                raise ValueError(
                    f"a mask has the shape of the tokens that it is of, got {part.name} {('N', *part.shape)} beside "
                    f"{others}: give one value for each token".replace("'N'", "N")
                )

    @property
    def whole(self) -> bool:
        """True if no input is a number that is not whole: they are stored as integers then."""
        return all(part.kind != "numbers" for part in self.parts)

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the stored rows, [..., D], in a type that is exact for each input."""
        return x.long() if self.whole else x.to(dtype)

    @cached_property
    def sequences(self) -> tuple[Input, ...]:
        """The inputs (N, T) that are token ids, and their masks: those of the longest T that integers have."""
        longest = max((p.shape for p in self.parts if p.kind == "integers" and len(p.shape) == 1), default=None)
        return tuple(p for p in self.parts if p.kind != "numbers" and p.shape == longest)

    def places(self, x: Tensor) -> int:
        """Return the number of places of `sequences`; 0 where there are none."""
        return self.sequences[0].size if self.sequences else 0

    def ends(self, x: Tensor) -> Tensor:
        """Return the number of places of `sequences` before their padding, [...] int64, of stored rows [..., D].

        Padding has the id of padding; in masks and truth values it is 0.
        """
        there = torch.zeros((*x.shape[:-1], self.places(x)), dtype=torch.bool, device=x.device)
        for part, own in zip(self.parts, self._split(x), strict=True):
            if part in self.sequences:
                there |= torch.ne(own, -1 if (fill := self._fill(part)) is None else fill)
        return _ends(there)

    def _fill(self, part: Input) -> int | None:
        """Return what stands behind the end of one of `sequences`; None: nothing does."""
        return self.padding if part.kind == "integers" and not part.name.endswith("mask") else 0

    def ended(self, x: Tensor, length: int) -> Tensor:
        """Return stored rows [..., D] in which only the first `length` places of `sequences` are no padding."""
        out = []
        for part, own in zip(self.parts, self._split(x), strict=True):
            fill = self._fill(part) if part in self.sequences else None
            behind = own[..., length:] if fill is None else torch.full_like(own[..., length:], fill)
            out += [own[..., :length], behind]
        return torch.cat(out, -1)

    def shortened(self, x: Tensor, length: int) -> Tensor:
        """Return stored rows [..., D] with the first `length` places of `sequences` alone; `unpack` takes them too."""
        split = zip(self.parts, self._split(x), strict=True)
        return torch.cat([own[..., :length] if part in self.sequences else own for part, own in split], -1)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the values of each input, [..., size], of rows [..., D] whose sequences may have been shortened."""
        missing, count = sum(part.size for part in self.parts) - x.shape[-1], max(1, len(self.sequences))
        sizes = [part.size - missing // count * (part in self.sequences) for part in self.parts]
        return torch.split(x, sizes, -1)

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """Return the inputs by name, [B, ...], of rows [B, D]."""
        out = {}
        for part, own in zip(self.parts, self._split(x), strict=True):
            values = own if part in self.sequences else own.reshape(*x.shape[:-1], *part.shape)
            if part.kind != "numbers":
                values = values.long() if part.kind == "integers" else values != 0
            out[part.name] = values
        return out


def pack(values: Mapping[str, Tensor], padding: int | None = 0, cut: bool = True) -> tuple[Tensor, Inputs]:
    """Return several inputs [N, ...] side by side, [N, D], and how a network is given them.

    Raises:
        ValueError: there is none, they differ in number of examples, or an id is too large to stand beside numbers.
    """
    if not values or not all(t.dim() for t in values.values()) or len({len(t) for t in values.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in values.items()) or "none"
        raise ValueError(f"inputs by name need the same number of examples each, (N, ...), got {shapes}: give them")
    parts = tuple(
        Input(
            str(name), tuple(t.shape[1:]),
            "numbers" if t.is_floating_point() else "truths" if t.dtype == torch.bool else "integers",
        )
        for name, t in values.items()
    )  # fmt: skip
    made = Inputs(parts, padding, cut)
    whole = [t for part, t in zip(parts, values.values(), strict=True) if part.kind == "integers" and t.numel()]
    if made.whole:
        dtype = next(
            kind
            for kind in (torch.uint8, torch.int16, torch.int32, torch.int64)
            if all(torch.iinfo(kind).min <= int(t.min()) and int(t.max()) <= torch.iinfo(kind).max for t in whole)
        )
    else:
        numbers = [t.dtype for t in values.values() if t.is_floating_point()]
        dtype = torch.float64 if torch.float64 in numbers else torch.float32
        for name, t in values.items():
            if not t.is_floating_point() and t.numel() and max(abs(int(t.min())), abs(int(t.max()))) > _EXACT:
                raise ValueError(
                    f"integers that stand beside numbers are at most {_EXACT:,}, got {int(t.max()):,} in {name!r}: "
                    "renumber them"
                )
    return torch.cat([t.to(dtype).reshape(len(t), -1) for t in values.values()], 1), made


def next_tokens(tokens: Tensor | npt.NDArray[np.integer], padding: int | None = 0) -> Tensor:
    """Return the target of each place of token ids [N, T]: the next token, and `IGNORED` at the end and at padding.

    >>> next_tokens(torch.tensor([[5, 7, 0]]))
    tensor([[   7, -100, -100]])
    """
    tokens = torch.as_tensor(tokens)
    y = torch.full(tokens.shape, IGNORED, dtype=torch.int64)
    y[:, :-1] = tokens[:, 1:].long()
    return y if padding is None else y.masked_fill(y == padding, IGNORED)


def check_masks(x: Tensor, y: Tensor, num_classes: int) -> None:
    """Raise ValueError where the classes of pixels do not fit the images `x`, [N, C, H, W], or are none."""
    if y.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64) or y.shape[1:] != x.shape[2:]:
        raise ValueError(
            f"masks must be signed integers of the shape of the images, {('N', *x.shape[2:])}".replace("'", "")
            + f", got {y.dtype} of shape {tuple(y.shape)}: give the class of each pixel to from_arrays"
        )
    kept = y[y != IGNORED]
    if kept.numel() and not 0 <= int(kept.min()) <= int(kept.max()) < num_classes:
        wrong = (y != IGNORED) & ((y < 0) | (y.int() >= num_classes))
        raise ValueError(
            f"classes of pixels are in 0..{num_classes - 1} for num_classes={num_classes}, or {IGNORED} where none "
            f"counts, got {int(y[wrong][0])} in the mask of example {int(wrong.flatten(1).any(1).nonzero()[0])}: raise "
            "num_classes, renumber the classes, or say which value counts nowhere, from_arrays(..., ignored=255)"
        )


def counts_padding(x: Tensor, y: Tensor, how: Tokens | Inputs) -> bool:
    """Return whether a target y [N, T] counts at a place of padding, or stands at other places than sequences have."""
    if y.ndim < 2 or y.is_floating_point():
        return False
    places = how.places(x)
    if y.shape[1:] != (places,):
        return True
    behind = torch.arange(places, device=x.device) >= how.ends(x)[:, None]
    return bool(((y != IGNORED) & behind).any())


def describe_inputs(how: Normalise | Tokens | Inputs) -> Any:
    """Return how stored values become inputs, as JSON has it."""
    if isinstance(how, Normalise):
        return [how.mean, how.std, how.scale]
    if isinstance(how, Tokens):
        return {"padding": how.padding, "cut": how.cut, "vocabulary": how.vocabulary}
    parts = [[name, [*shape], kind] for name, shape, kind in how.parts]
    return {"inputs": parts, "padding": how.padding, "cut": how.cut}


def read_inputs(found: Any) -> Normalise | Tokens | Inputs:
    """Return what `describe_inputs` has described.

    Raises:
        ValueError: it is none of these; TypeError and KeyError likewise.
    """
    if not isinstance(found, Mapping):
        mean, std, scale = found
        return Normalise(tuple(map(float, mean)), tuple(map(float, std)), float(scale))
    if "inputs" not in found:
        return Tokens(found["padding"], found["cut"] is True, found["vocabulary"])
    parts = [Input(str(name), tuple(map(int, shape)), kind) for name, shape, kind in found["inputs"]]
    if wrong := [part for part in parts if part.kind not in KINDS or min(part.shape, default=1) < 1]:
        raise ValueError(f"inputs of a network are {', '.join(KINDS)} of some shape, got {wrong[0]!r:.80}")
    return Inputs(tuple(parts), found["padding"], found.get("cut", True) is True)


class Prepared(Protocol):
    """Columns of some examples, and what makes features of them: `fedloom.tables.preparation`."""

    @property
    def frame(self) -> Any:
        """The columns, a pandas DataFrame of N rows."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Description of the features, once it is fitted."""

    @property
    def tokens(self) -> Tokens | None:
        """The kind of the token ids that it makes; None where it makes other features."""

    def select(self, rows: npt.NDArray[np.int64]) -> Self:
        """Return the same of some rows."""

    def joined(self, other: Any) -> Self:
        """Return the same with the rows of another one after its own."""

    def fitted(
        self, rows: npt.NDArray[np.int64], y: npt.NDArray[Any], sizes: npt.NDArray[np.int64] | None = None
    ) -> Self:
        """Return the same, fitted on some rows and their labels alone, whose clients have so many each."""

    def features(self, other: Any = None) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
        """Return features of these columns, or of those of another one, and their names."""

    def of_rows(self, other: Any) -> Self:
        """Return the same of the rows of another one."""
