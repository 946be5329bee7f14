"""The encoder of a run's setting `compression`: fewer numbers, fewer bits, and what is left for the next upload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.compression.fewer_bits import Rounding
from fedloom.compression.fewer_numbers import Fewer, Named
from fedloom.core.client import Client
from fedloom.core.errors import SettingError
from fedloom.core.random import fold_in
from fedloom.core.types import Params
from fedloom.engines.links import Encoder


@dataclass(frozen=True, kw_only=True)
class Compressed(Encoder):
    """Uploads in fewer numbers of fewer bits. What is no number with a fraction, or empty, travels as it is.

    Attributes:
        fewer: how numbers are left out, if any are.
        rounding: how those that are left are written, if not as they are.
        whole: whether an upload is one vector, or each tensor of it.
        feedback: whether what is left of an upload is added to the client's next one.
    """

    fewer: Fewer | None = None
    rounding: Rounding | None = None
    whole: bool = False
    feedback: bool = False

    def init(self, params: Params) -> dict[str, Any]:
        numbers, _ = _parted(params)
        kept = {} if self.fewer is None else self.fewer.init(self._one(numbers))
        left = {name: torch.zeros_like(t) for name, t in numbers.items()} if self.feedback else {}
        return {"kept": kept, "left": left}

    def encode(self, client: Client[Any], values: Params, kept: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        numbers, others = _parted(values)
        beside, mine, left = dict[str, Tensor](), kept["kept"], kept["left"]
        if self.feedback:
            numbers = {name: t + _known(left, name, t) for name, t in numbers.items()}
        few = self._one(numbers)
        if self.fewer is not None:
            beside, few, mine = self.fewer.encode(fold_in(client.key, 1), few, mine, self.feedback)
        sent = few if self.rounding is None else self.rounding.encode(fold_in(client.key, 2), few, self.feedback)
        message = {"beside": beside, "numbers": sent, "others": others}
        if self.feedback:
            back = self._read(message, Params({name: _bare(t) for name, t in values.items()}))
            left = left | {name: t - back[name] for name, t in numbers.items()}
        return message, {"kept": mine, "left": left}

    def decode(self, sent: Any, like: Params) -> Params:
        one = self._one(_parted(like)[0])
        if self.fewer is not None:
            self.fewer.check(sent["beside"], one)
        if self.rounding is not None:
            self.rounding.check(sent["numbers"], self._few(one))
        return self._read(sent, like)

    def _read(self, sent: dict[str, Any], like: Params) -> Params:
        """Return the values of one client, of what can be read."""
        numbers, _ = _parted(like)
        one, read = self._one(numbers), sent["numbers"]
        if self.rounding is not None:
            read = self.rounding.read(read, self._few(one))
        if self.fewer is not None:
            read = self.fewer.read(sent["beside"], read, one)
        if self.whole and numbers:
            parts = read[""].split([t.numel() for t in numbers.values()])
            read = {name: p.view(t.shape).to(t.dtype) for (name, t), p in zip(numbers.items(), parts, strict=True)}
        return Params({name: read[name] if name in numbers else sent["others"][name] for name in like})

    def _one(self, numbers: Named) -> Named:
        """Return what is encoded by itself: one vector, or each tensor."""
        if not (self.whole and numbers):
            return numbers
        return {"": torch.cat([t.flatten() for t in numbers.values()])}

    def _few(self, like: Named) -> Named:
        return like if self.fewer is None else self.fewer.shapes(like)


class CompressedDown(Compressed):
    """Encoder of what the server sends to all clients, in fewer bits."""

    of_downloads: ClassVar[bool] = True


def _parted(values: Params) -> tuple[Named, Named]:
    """Return the tensors that are encoded, and the others."""
    numbers = {name: t for name, t in values.items() if t.is_floating_point() and t.numel()}
    return numbers, {name: t for name, t in values.items() if name not in numbers}


def _known(left: Named, name: str, t: Tensor) -> Tensor:
    """Return what is left of a tensor.

    Raises:
        SettingError: it is none of the model's.
    """
    if name not in left or left[name].shape != t.shape:
        raise SettingError(
            f"a client keeps what compression leaves of its model's tensors, and uploads {name!r} {list(t.shape)} "
            "besides: add ?feedback=false to compression, or leave compression out"
        )
    return left[name]


def _bare(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, device="meta")
