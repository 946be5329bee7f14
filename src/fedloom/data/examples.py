"""Examples in memory, as compact tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.changes import Drift
from fedloom.data.inputs import IGNORED, Inputs, Prepared, Tokens, check_masks
from fedloom.data.normalise import AS_STORED, Normalise

MAX_CLASSES = 2**16  # a table of clients and classes is made
_LOGITS = 2**24  # of a batch that is evaluated, 64 MiB
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """N labelled examples, kept as they were stored; `normalise` makes network inputs of a batch of `x`.

    Args:
        x: (N, ...) uint8 or floating point: images (N, C, H, W), feature vectors (N, D); or integers of any width,
            token ids (N, T), shorter sequences filled at their end with `Tokens.padding`.
        y: (N,) int64 class labels in [0, num_classes), or floating point targets (N, ...), or of tokens one int64
            target for each place, (N, T), or of images the class of each pixel, (N, H, W), signed integers of any
            width, -100 where none counts.
        num_classes: number of classes C, of tokens the size of the vocabulary; for floating point targets, the number
            of outputs.
        normalise: from stored values to network inputs: `Normalise`, of token ids `Tokens`, of several inputs `Inputs`.
        name: what reports call these examples.
        augment: random changes of a batch of network inputs while training, (inputs, key) -> inputs; it is static and
            hashable, like `fedloom.core.augment.Augment`. Evaluation never augments.
        columns: what the features of vectors are called, for messages; nothing if they have no names.
        classes: what the classes are called, in their order; nothing if they have numbers alone.
        owners: what the natural clients of `Dataset.owners` are called, by their number; likewise.
        preparation: what `x` is made of, where that is fitted on the examples that train: `federate` makes it anew.
        targets: what the columns of floating point targets are called; nothing if they have no names.
        groups: (N,) int64 number of each example's group, such as its patient, whose examples never fall on both sides
            of a split; None if each example stands alone.

    Raises:
        ValueError: lengths, types, labels or values break one of the rules above.
    """

    x: Tensor
    y: Tensor
    num_classes: int
    normalise: Normalise | Tokens | Inputs = AS_STORED
    name: str = "arrays"
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    preparation: Prepared | None = None
    targets: tuple[str, ...] = ()
    groups: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.classes and len(self.classes) != self.num_classes:
            raise ValueError(
                f"classes must name each of the {self.num_classes} classes, got {len(self.classes)} names: name all or "
                "none"
            )
        if self.x.dim() < 2 or self.y.dim() < 1 or len(self.x) != len(self.y):
            remedy = "give single features as (N, 1)" if self.x.dim() < 2 else "give the labels of these examples"
            raise ValueError(
                f"x (N, ...) and y (N,) of {self.name} need the same number of examples, got shapes "
                f"{tuple(self.x.shape)} and {tuple(self.y.shape)}: {remedy} [FL-DATA-025]"
            )
        self._check_type()
        # the extremes tell of NaN and infinity without a second copy of the data
        if self.x.is_floating_point() and self.x.numel() and not all(torch.isfinite(m) for m in self.x.aminmax()):
            bad = int((~torch.isfinite(self.x).flatten(1).all(dim=1)).sum())
            raise ValueError(f"x must be finite, got {bad} examples with NaN or infinity: impute them [FL-DATA-008]")
        if self.num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {self.num_classes}: count the classes of y")
        if self.groups is not None and (self.groups.dtype != np.int64 or self.groups.shape != (len(self.x),)):
            raise ValueError(
                f"groups must be int64 of shape ({len(self.x)},), got {self.groups.dtype} of shape "
                f"{self.groups.shape}: number the group of each example"
            )
        if self.y.is_floating_point():
            if not bool(torch.isfinite(self.y).all()):
                raise ValueError("targets y must be finite, got NaN or infinity: remove those examples")
            return
        if self.has_tokens and self.y.dim() > 1:
            self._check_next_tokens()
            return
        if self.has_pixels and self.x.dim() > 3 and self.y.dim() > 2:
            check_masks(self.x, self.y, self.num_classes)
            return
        if self.y.dtype != torch.int64 or self.y.dim() != 1:
            column = self.y.dim() > 1 and self.y.shape[1:].numel() == 1  # of which argmax would make zeros
            remedy = "pass y.ravel()" if column else "use from_arrays, or y.long(); turn one-hot rows into y.argmax(1)"
            raise ValueError(
                f"class labels y must be int64 of shape (N,), got {self.y.dtype} of shape {tuple(self.y.shape)}: "
                + remedy
            )
        if self.num_classes > MAX_CLASSES:
            raise ValueError(
                f"num_classes must be at most {MAX_CLASSES}, got {self.num_classes}: number the classes from 0"
            )
        if len(self.y) and (int(self.y.min()) < 0 or int(self.y.max()) >= self.num_classes):
            raise ValueError(
                f"class labels must be in 0..{self.num_classes - 1} for num_classes={self.num_classes}, got "
                f"{int(self.y.min())}..{int(self.y.max())}: renumber them from 0, or raise num_classes [FL-DATA-007]"
            )

    def _check_type(self) -> None:
        """Refuse values of a type that `normalise` does not take, and ids that are none."""
        x, how = self.x, type(self.normalise).__name__
        if not self.has_tokens and x.dtype != torch.uint8 and not x.is_floating_point():
            raise ValueError(
                f"x must be uint8 or floating point, got {x.dtype}: x.astype(numpy.float32) makes numbers of integers; "
                "token ids are given as they are, with normalise=fedloom.data.Tokens()"
            )
        whole = isinstance(self.normalise, Tokens) or (isinstance(self.normalise, Inputs) and self.normalise.whole)
        if whole and x.dtype not in INTEGERS:
            made = x.is_floating_point() and not bool((x == x.round()).all())
            found = f"{float(x[x != x.round()][0]):g}" if made else f"{x.dtype}"
            raise ValueError(
                f"token ids of {how} are integers, got {found}: x.astype(numpy.int32) of ids that are whole, and "
                "numbers that are none without Tokens"
            )
        if isinstance(self.normalise, Tokens) and x.numel() and int(x.min()) < 0:
            row = int((x.flatten(1) < 0).any(1).nonzero()[0])
            raise ValueError(
                f"token ids are 0 or more, got {int(x.min())} in example {row}: number tokens from 0, and fill shorter "
                f"sequences with the id of padding, Tokens(padding={self.normalise.padding}) [FL-DATA-009]"
            )

        padding = self.normalise.padding if isinstance(self.normalise, Tokens) else None
        if padding is not None and x.dim() == 2 and x.numel():
            there = x != padding
            if bool((within := there[:, 1:] & ~there[:, :-1]).any()):
                row, place = (int(n) for n in within.nonzero()[0])
                raise ValueError(
                    f"the id of padding, {padding}, stands behind the last token of a sequence and nowhere else, got "
                    f"it at place {place} of example {row}: number tokens without it, put padding at the end, or write "
                    "normalise=fedloom.data.Tokens(padding=None) where there is none"
                )

    def _check_next_tokens(self) -> None:
        """Refuse targets of the places of sequences that do not fit these, or are no tokens."""
        shapes = [self.shape] if isinstance(self.normalise, Tokens) else [p.shape for p in self.normalise.parts]  # type: ignore[union-attr]
        if self.y.dtype != torch.int64 or tuple(self.y.shape[1:]) not in shapes:
            raise ValueError(
                f"targets of the places of a sequence must be int64 and of the shape of the tokens, "
                f"{' or '.join(f'(N, {str(s)[1:-1].rstrip(chr(44))})' for s in shapes)}, got {self.y.dtype} of shape "
                f"{tuple(self.y.shape)}: fedloom.data.next_tokens(tokens) makes them, with {IGNORED} where none counts"
            )
        wrong = (self.y != IGNORED) & ((self.y < 0) | (self.y >= self.num_classes))
        if bool(wrong.any()):
            raise ValueError(
                f"targets of a vocabulary of num_classes={self.num_classes} tokens are in 0..{self.num_classes - 1}, "
                f"or {IGNORED} where none counts, got {int(self.y[wrong][0])} in example "
                f"{int(wrong.flatten(1).any(1).nonzero()[0])}: raise num_classes, or renumber the tokens"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def has_pixels(self) -> bool:
        """True if targets are integers for each place of an example that is no sequence: the classes of its pixels."""
        return not self.y.is_floating_point() and self.y.dim() > 1 and not self.has_tokens

    @property
    def has_tokens(self) -> bool:
        """True if a network is given token ids, or several inputs, and no pictures or rows of numbers."""
        return isinstance(self.normalise, Tokens | Inputs)

    @property
    def has_classes(self) -> bool:
        """True if each example is of one class; targets that are numbers, or of each token or pixel, have none."""
        return not self.y.is_floating_point() and self.y.dim() == 1

    @property
    def remote(self) -> Mapping[str, Any] | None:
        """The devices that hold the examples, as they registered; None where the examples are here."""
        return None

    def at_once(self, most: int) -> int:
        """Return how many examples to evaluate at a time, fewer where their logits take more room.

        Args:
            most: the largest number.
        """
        places = 1 if self.y.is_floating_point() else self.y.shape[1:].numel()
        return min(most, max(1, _LOGITS // max(1, self.num_classes * places)))

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        kind = "classes" if self.has_classes else "classes of pixels" if self.has_pixels else "tokens"
        classes = f"{self.num_classes:,} {kind}"
        outputs = f"targets {', '.join(self.targets)}" if self.targets else classes
        return f"Examples({self.name}: {len(self):,} of {shape} {self.x.dtype}, {outputs})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example, without N."""
        return tuple(self.x.shape[1:])

    def select(self, rows: npt.NDArray[np.int64] | Tensor) -> Examples:
        """Return a copy of some examples, in the given order.

        Args:
            rows: positions, int64 of shape (n,).
        """
        index = torch.tensor(rows) if isinstance(rows, np.ndarray) else rows  # a copy: partitions are read-only
        index = index.to(self.x.device, torch.int64)
        places = index.cpu().numpy()
        preparation = self.preparation and self.preparation.select(places)
        groups = None if self.groups is None else self.groups[places]
        return replace(self, x=self.x[index], y=self.y[index], preparation=preparation, groups=groups)

    def drifted(self, rule: Drift, clients: npt.NDArray[np.int64], round: int) -> Examples:
        """Return the same examples as a rule has them in a round.

        Args:
            rule: how examples change.
            clients: the client of each example, [N].
            round: from 0.

        Raises:
            ValueError: the rule gives labels or stored values of another shape or type.
        """
        if self.has_tokens and rule.changes_features:
            raise ValueError(
                f"token ids are names and do not move, and {type(rule).__name__} moves inputs: let labels drift"
            )
        y, x = rule.labels(self.y, clients, round, self.num_classes), rule.features(self.x, clients, round)
        for name, old, new in (("labels", self.y, y), ("features", self.x, x)):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ValueError(
                    f"drift keeps shapes and types, and {name} of {type(rule).__name__} gives {new.dtype} of "
                    f"{tuple(new.shape)} for {old.dtype} of {tuple(old.shape)}: return the latter"
                )
        return replace(self, x=x, y=y)

    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples on `device`.

        Args:
            device: of PyTorch, such as "cuda".
        """
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def prepared(self, fitted: Prepared) -> Examples:
        """Return the same with the features that a fitted preparation makes of their columns.

        Args:
            fitted: the preparation.

        Raises:
            ValueError: they are no rows of a table that is prepared.
        """
        if self.preparation is None:
            raise ValueError(
                f"{self.name} must be rows of the table that is prepared, got arrays: take test and public examples "
                "from the Dataset of the same table"
            )
        x, columns = fitted.features(self.preparation)
        made = fitted.of_rows(self.preparation)
        if made.tokens is not None:
            return self._of_tokens(torch.from_numpy(x).to(self.x.device), made, made.tokens)
        return replace(self, x=torch.from_numpy(x).to(self.x.device), columns=columns, preparation=made)

    def _of_tokens(self, x: Tensor, made: Prepared, how: Tokens) -> Examples:
        """Return the same of token ids; where targets are the next ones, these are among `x`, behind all others."""
        if self.y.is_floating_point() or self.y.dim() == 1:
            return replace(self, x=x, normalise=how, preparation=made)
        assert how.padding is not None
        assert how.vocabulary is not None
        y = x[:, 1:].long()
        y = y.masked_fill(y == how.padding, IGNORED)
        return replace(self, x=x[:, :-1].contiguous(), y=y, num_classes=how.vocabulary, normalise=how, preparation=made)

    def class_counts(self) -> npt.NDArray[np.int64]:
        """Return the number of examples of each class, (num_classes,).

        Raises:
            ValueError: `y` holds floating point targets, which have no classes.
        """
        if not self.has_classes:
            raise ValueError(
                f"class counts need int64 labels, got targets of type {self.y.dtype} and shape "
                f"{tuple(self.y.shape)}: pass labels as y"
            )
        return torch.bincount(self.y, minlength=self.num_classes).cpu().numpy()

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of a SHA-256 over values, labels and normalisation; the name is left out."""
        digest = hashlib.sha256(f"{self.num_classes} {self.normalise}".encode())
        for tensor in (self.x, self.y):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            if tensor.numel():  # PyTorch cannot always view nothing as bytes
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]


class Dataset(NamedTuple):
    """Data that a source holds.

    Attributes:
        train: N examples to distribute over clients.
        test: examples of the same shape and classes that everyone is measured on; None if the source has none.
        owners: (N,) int64, natural client of every row of `train`, numbered from 0; None if the source has none.
        held_out: (N,) bool, rows of `train` that the source sets aside to evaluate their owner on. Where there are such
            rows, `test` is a copy of all of them.
    """

    train: Examples
    test: Examples | None
    owners: npt.NDArray[np.int64] | None = None
    held_out: npt.NDArray[np.bool_] | None = None

    def select(self, rows: npt.NDArray[np.int64]) -> Dataset:
        """Return the data set with some rows of `train`, in the given order.

        Args:
            rows: positions in `train`, (n,).
        """
        owners = None if self.owners is None else self.owners[rows]
        held_out = None if self.held_out is None else self.held_out[rows]
        return self._replace(train=self.train.select(rows), owners=owners, held_out=held_out)

    def first_classes(self, count: int) -> Dataset:
        """Return the examples of the first `count` classes alone, with these classes and no other.

        Args:
            count: number of classes.
        """

        def rows(part: Examples) -> npt.NDArray[np.int64]:
            return np.flatnonzero((part.y < count).numpy())

        def of(part: Examples) -> Examples:
            return replace(part, num_classes=count, classes=part.classes[:count])

        kept, test = self.select(rows(self.train)), self.test and self.test.select(rows(self.test))
        return kept._replace(train=of(kept.train), test=test and of(test))

    def standardised(self) -> Dataset:
        """Return the same with stored values (x - mean) / (std + 0.001), float32: each place of an example by itself.

        FedProx's MNIST. Means and deviations are over all of `train`, in the unit of what is stored.
        """
        mean = self.train.x.mean(0, dtype=torch.float64)
        std = torch.zeros_like(mean)
        for part in torch.split(self.train.x, 4096):
            std += (part - mean).square().sum(0)
        std = (std / len(self.train)).sqrt() + 0.001

        def of(part: Examples) -> Examples:
            x = torch.cat([((rows - mean) / std).float() for rows in torch.split(part.x, 4096)])
            return replace(part, x=x, normalise=Normalise(), preparation=None)

        return self._replace(train=of(self.train), test=self.test and of(self.test))

    def merged(self) -> Dataset:
        """Return one set of examples to distribute: those of `test` behind those of `train`, and no `test`.

        Raises:
            ValueError: there is no `test`, it is stored or normalised in another way than `train`, or examples have
                owners, which those of `test` lack.
        """
        if self.test is None:
            raise ValueError(f"to merge takes a training and a test set, got {self.train.name} without a test set")
        if self.owners is not None or self.held_out is not None:
            raise ValueError(
                f"to merge takes data without natural clients, whose test examples have owners too, got "
                f"{self.train.name}: its partition 'natural' holds examples out for each of them"
            )
        parts = (self.train, self.test)
        if len({(part.x.is_floating_point(), part.normalise) for part in parts}) > 1:
            raise ValueError(
                "to merge takes training and test examples that are stored and normalised alike, got "
                f"{' and '.join(f'{part.x.dtype} with {part.normalise}' for part in parts)}: make both in one way"
            )
        x, y = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y"))
        raw, more = self.train.preparation, self.test.preparation
        together = [part.groups for part in parts if part.groups is not None]
        groups = np.concatenate(together) if len(together) == 2 else None
        made = replace(self.train, x=x, y=y, preparation=raw and more and raw.joined(more), groups=groups)
        return Dataset(made, None)
