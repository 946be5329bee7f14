"""Registration of a device, once for each run: its own id, and a description of its examples."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le, Len

from fedloom.core.errors import RefusedError
from fedloom.core.json_types import TEXT, JsonType, listed, matching, one_of, whole
from fedloom.data import Inputs, Normalise, Tokens
from fedloom.data.examples import MAX_CLASSES
from fedloom.data.inputs import read_inputs
from fedloom.data.schema import Schema
from fedloom.engines.upload_bounds import LEAST
from fedloom.tables.targets import class_numbers

_LATE = ("target_dtype", "target_shape", "targets", "statistics_digest", "name", "inputs", "vocabulary")
CAP = 1_000_000  # the most examples of a device that count, by default
INVITATION = "invitation"  # instead of a method: asks whether a device takes part in a round
MASKED = "masked"  # instead of a method: a message of a masked sum
TIMES_MEDIAN = 10  # and at most this multiple of the median over devices
_LONGEST, _LARGEST = 1000, 1 << 21  # characters of a name, bytes of all names of classes or of columns
_LONGEST_NAME = 64  # characters of a device's name
_ID = JsonType(matching("[0-9a-f]{32}"), "32 hexadecimal digits")
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
TARGETS = {"int64": torch.int64, "float32": torch.float32, "float64": torch.float64}
_WORDS = {  # for entries of a registration, where their names are not those that people use
    "train": "training examples by class", "test": "test examples by class", "val": "validation examples by class",
    "dtype": "types of values", "shape": "shapes of an example", "target_dtype": "types of targets",
    "target_shape": "shapes of a target", "statistics_digest": "digests of the statistics", "inputs": "kinds of inputs",
    "vocabulary": "numbers of tokens", "model": "architectures", "name": "names", "id": "an id",
}  # fmt: skip
# Of what server and device send each other. It is raised where a message changes, or what a device computes of one: so
# versions of fedloom with the same number work together (tests/deploy/test_message_version.py).
MESSAGES = 1
_UNSAID = "of a version that it does not say"
_Number = Annotated[int, Ge(0), Le((1 << 40) - 1)]
_BY_CLASS = JsonType(
    Annotated[listed(_Number), Len(1, MAX_CLASSES)], f"a list of 1 to {MAX_CLASSES:,} whole numbers below 2**40"
)
_TYPES = {  # of entries of a registration
    "id": _ID,
    **dict.fromkeys(("train", "test", "val"), _BY_CLASS),
    "shape": JsonType(Annotated[listed(_Number), Len(1, 8)], "a list of 1 to 8 whole numbers"),
    "dtype": one_of([*DTYPES]),
    "model": TEXT,
    "target_dtype": one_of([*TARGETS]),
    "target_shape": JsonType(
        Annotated[list[Annotated[int, Ge(1), Le(MAX_CLASSES)]], Len(0, 3)],
        f"[], [D] or the shape of a mask, of at most {MAX_CLASSES:,} each",
    ),
    "statistics_digest": JsonType(matching("(?:[0-9a-f]{32})?"), f"{_ID.words} or an empty text"),
    "vocabulary": whole(0, (1 << 31) - 1, "a whole number below 2**31"),
}


def check_id(id: Any, whose: str) -> str:
    """Return an id, which is safe as a part of a path.

    Raises:
        RefusedError: it is no id.
    """
    if _ID.fits(id):
        return str(id)
    raise RefusedError(f"the id of {whose} is {_ID.words}, got {id!r:.80}")


def versions() -> dict[str, str]:
    """Return what each side says of itself: the versions of fedloom, of its messages, and PyTorch's first number."""
    from fedloom import __version__

    return {"fedloom": __version__, "messages": str(MESSAGES), "PyTorch": torch.__version__.partition(".")[0]}


def check_versions(theirs: Any, whose: str, own: str) -> str:
    """Return the version of fedloom of the other side, whose messages and PyTorch are those of this one.

    Args:
        theirs: what it says.
        whose: the other side in words.
        own: this side in words.

    Raises:
        RefusedError: it has others.
    """
    here = versions()
    said = (
        {n: v for n, v in theirs.items() if isinstance(v, str) and v.isprintable()} if isinstance(theirs, dict) else {}
    )
    there = said.get("fedloom", _UNSAID)[:40]
    for name, what in (("messages", "messages of version"), ("PyTorch", "PyTorch")):
        if said.get(name) != here[name]:
            has = f"{what} {said[name]:.40}" if name in said else f"{name} {_UNSAID}"
            raise RefusedError(
                f"{whose} has fedloom {there} with {has}, and {own} fedloom {here['fedloom']} with {what} "
                f"{here[name]}: both sides need the same, so install one of them on both"
            )
    return there


def check_device_name(name: Any) -> str:
    """Return the name of a device, which is fit for a terminal and for pages; "" for none.

    Raises:
        RefusedError: it is no such name.
    """
    ok = isinstance(name, str) and len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip()
    if ok and not _ID.fits(name):
        return str(name)
    raise RefusedError(
        f"the name of a device has at most {_LONGEST_NAME} printable characters, no space at its ends, and is no id, "
        f"got {name!r:.80}: name it otherwise (--name)"
    )


def check_names(names: Any, whose: str, count: int) -> tuple[str, ...]:
    """Return the names of `count` classes or columns; an empty tuple where they have no names.

    Raises:
        RefusedError: they are no names, too long, or of another number.
    """
    checked = tuple(names) if isinstance(names, list | tuple) else (None,)
    if len(checked) not in (0, count) or not all(isinstance(name, str) for name in checked):
        raise RefusedError(f"examples have the names of all {count} {whose} or none, got {names!r:.80}")
    if long := [name for name in checked if len(name) > _LONGEST]:
        raise RefusedError(
            f"the names of {whose} have at most {_LONGEST} characters, got {len(long[0])}: rename {long[0]!r:.80}"
        )
    if (size := len(json.dumps(checked))) > _LARGEST:
        raise RefusedError(f"the names of {whose} take at most {_LARGEST} bytes, got {size}: shorten them")
    return checked


@dataclass(frozen=True)
class Registration:
    """Description of a device, which it sends when it joins. Its examples stay on the device.

    Attributes:
        id: 32 hexadecimal digits, which identify the device on any host and rank.
        train: training examples by class.
        test: held-out examples by class, to test on.
        val: the same, to validate on.
        shape: of an example.
        dtype: of the values of an example as they are stored.
        model: its architecture; "" before the server has chosen one.
        classes: names of the classes, in their order; empty where they are numbers from 0.
        columns: names of a table's features, in their order; empty where they have none.
        target_dtype: of the targets, int64 for classes. Targets that are no classes are counted as of one class.
        target_shape: of the target of an example: () for one number, (D,) for several, (H, W) for masks.
        targets: names of targets that are no classes; empty where they have none.
        statistics_digest: of the statistics of its training rows, where it has sent some.
        inputs: what `describe_inputs` says of token ids, or of several inputs of a network; None of other examples.
        vocabulary: number of tokens, or of classes, where there is a target for each place of a sequence or each pixel
            of an image; else 0.
        name: what people call it; "" where it has none.
        fedloom: version of fedloom there, as it says now; it may be another one when the device joins again.
    """

    id: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    val: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    model: str = ""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    target_dtype: str = "int64"
    target_shape: tuple[int, ...] = ()
    targets: tuple[str, ...] = ()
    statistics_digest: str = ""
    inputs: Any = None
    vocabulary: int = 0
    name: str = ""
    fedloom: str = field(default="", compare=False)

    @classmethod
    def of(cls, fields: Any) -> Registration:
        """Return the registration in an object of JSON.

        Raises:
            RefusedError: it is no registration.
        """
        given = {name: _plain(getattr(cls, name)) for name in _LATE} | (fields if isinstance(fields, dict) else {})
        for name, kind in _TYPES.items():
            if not kind.fits(value := given.get(name)):
                raise RefusedError(
                    f"a device registers with {_WORDS.get(name, name)}, {kind.words}, got {value!r:.80}: give it other "
                    "examples, or the server's version of fedloom"
                )
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value := given[name], list) else value for name in _TYPES
        }
        device = cls(**read, name=check_device_name(given["name"]), inputs=given["inputs"])
        if not len(device.train) == len(device.test) == len(device.val) or not sum(device.train):
            raise RefusedError("examples are of the same classes, and some are to train on: count them by class")
        if np.prod(device.shape, dtype=float) > 1 << 30:
            raise RefusedError(f"an example has at most 2**30 values, got {device.shape!s:.80}: make it smaller")
        try:
            normalise = device.normalise
        except (ValueError, TypeError, KeyError) as error:
            raise RefusedError(f"inputs are token ids or several by name, got {device.inputs!r:.80}: {error}") from None
        of_images = len(device.target_shape) > 1  # masks
        if isinstance(normalise, Normalise) and (device.dtype == "int64" or (device.vocabulary and not of_images)):
            raise RefusedError("integers are token ids, which a device registers as such: say what inputs are")
        count = device.shape[0] if len(device.shape) == 1 else 0
        return replace(
            device,
            classes=check_names(given.get("classes"), "classes", len(device.train)),
            columns=check_names(given.get("columns"), "columns", count),
            targets=device._check_targets(given["targets"], given.get("classes")),
        )

    def _check_targets(self, names: Any, classes: Any) -> tuple[str, ...]:
        """Return the names of targets that are no classes."""
        masks = bool(self.vocabulary) and self.inputs is None and self.target_dtype == "int64"
        of_pixels = masks and len(self.shape) > 2 and self.target_shape == self.shape[1:]
        if len(self.target_shape) > 1 and not of_pixels:
            raise RefusedError(
                f"an example has one target, a row of them or one for each pixel, got {self.target_shape!s:.80}: store "
                "(N,), (N, D) or masks of the shape of the images"
            )
        if self.has_classes:
            if self.target_shape or names:
                raise RefusedError(
                    f"class numbers are one for each example, got the shape {self.target_shape!s:.80} and the names "
                    f"{names!r:.80}: give neither"
                )
            return ()
        if len(self.train) != 1 or classes:
            raise RefusedError(
                f"examples whose targets are no classes are counted as of one, got {len(self.train)} with the names "
                f"{classes!r:.80}: count all together"
            )
        return check_names(names, "targets", 0 if self.vocabulary else self.num_outputs)

    def differences(self, other: Registration) -> str:
        """Return in which entries two registrations differ, in words; names are quoted, since devices sent them."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.compare)
        changed = [f"{_WORDS.get(n, n)} were {a!r:.60} and are {b!r:.60}" for n, a, b in pairs if a != b]
        return "; ".join(changed)

    @property
    def label(self) -> str:
        """The id, with the name where it has one."""
        return f"{self.id} ({self.name})" if self.name else self.id

    @property
    def has_classes(self) -> bool:
        """True if targets are class numbers."""
        return self.target_dtype == "int64" and not self.vocabulary

    @property
    def normalise(self) -> Normalise | Tokens | Inputs:
        """The way from stored values to inputs; as they are where nothing is registered, since devices do it."""
        return Normalise() if self.inputs is None else read_inputs(self.inputs)

    @property
    def num_outputs(self) -> int:
        """Number of classes, or of targets that are no classes."""
        return self.vocabulary or (len(self.train) if self.has_classes else math.prod(self.target_shape))

    def described(self) -> dict[str, Any]:
        """Return the registration as JSON has it; later entries are left out where they are unused."""
        kept = {n: v for n, v in asdict(self).items() if n != "fedloom"}
        return {n: _plain(v) for n, v in kept.items() if n not in _LATE or v != getattr(type(self), n)}

    @property
    def target_kind(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape of the target of an example."""
        return TARGETS[self.target_dtype], self.target_shape

    @property
    def described_targets(self) -> str:
        """Kind of the targets, in words."""
        return describe_targets(self.target_dtype, self.target_shape)

    def schema(self, features: bool = True) -> Schema:
        """Return what all devices have in common.

        Args:
            features: False: without columns and inputs, which a preparation of all devices may still make.
        """
        inputs = {name: getattr(self, name) for name in ("shape", "dtype", "inputs", "vocabulary")} if features else {}
        columns = self.columns if features else ()
        return Schema(f"on {self.label}", columns, self.class_names, self.described_targets, self.targets, inputs)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, by default their numbers."""
        return self.classes or class_numbers(len(self.train))

    def with_cap(self, cap: int) -> Registration:
        """Return the registration with at most `cap` examples of each role.

        The classes keep their shares, rounded by largest remainders: 3, 2 and 2 examples under a cap of 4 are 1.7, 1.1
        and 1.1, so 2, 1 and 1 remain.
        """

        def cut(counts: tuple[int, ...]) -> tuple[int, ...]:
            total = sum(counts)
            if total <= cap:
                return counts
            whole = [n * cap // total for n in counts]
            for c in sorted(range(len(counts)), key=lambda c: -(counts[c] * cap % total))[: cap - sum(whole)]:
                whole[c] += 1
            return tuple(whole)

        return replace(self, train=cut(self.train), test=cut(self.test), val=cut(self.val))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value


def describe_targets(dtype: str, shape: tuple[int, ...]) -> str:
    return "class numbers" if dtype == "int64" and not shape else f"{dtype} of shape {('N', *shape)}".replace("'", "")


def cap_of(registrations: Sequence[Registration]) -> int:
    """Return the most examples of a device that count in a new run.

    It limits the weight of a device that claims many more examples than others. With one or two devices there is no
    useful median, and `CAP` alone applies.
    """
    sizes = sorted(sum(each.train) for each in registrations)
    return CAP if len(sizes) < LEAST else min(CAP, TIMES_MEDIAN * sizes[(len(sizes) - 1) // 2])
