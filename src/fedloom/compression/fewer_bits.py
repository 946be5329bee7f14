"""Fewer bits for a number: some of them, its sign, or a float16.

Methods named `encode` and `read` are pure functions of tensors, which run for each client of a stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.compression.bit_packing import packed, unpacked
from fedloom.compression.fewer_numbers import Named
from fedloom.core.errors import CodecError
from fedloom.core.random import uniform


class Rounding:
    """Stage of an encoder that writes each number in fewer bits (abstract)."""

    by_feedback: ClassVar[bool] = False
    """Bias: what is left waits for the next upload, unless somebody says otherwise."""

    def encode(self, key: Tensor, numbers: Named, contracts: bool) -> dict[str, Any]:
        """Return what travels of one client's numbers; `key`, `contracts` as of `Fewer.encode`."""
        raise NotImplementedError

    def check(self, sent: dict[str, Any], like: Named) -> None:
        """Raise CodecError unless what has travelled can be read."""

    def read(self, sent: dict[str, Any], like: Named) -> Named:
        """Return the numbers."""
        raise NotImplementedError


@dataclass(frozen=True)
class Bits(Rounding):
    """Steps of a tensor's largest number, 2 ** bits - 1 of them from -1 to 1; rounded at random, unless they contract.

    Rounded to the nearest step no number is farther from what is read than from 0.
    """

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise ValueError(f"a number has 2, 4 or 8 bits, got {self.bits}: write one of them")

    @property
    def most(self) -> int:
        """Steps on either side of 0."""
        return (1 << self.bits - 1) - 1

    def encode(self, key: Tensor, numbers: Named, contracts: bool) -> dict[str, Any]:
        out = {}
        for site, (name, t) in enumerate(numbers.items()):
            flat, scale = t.flatten(), t.abs().amax()
            step = scale / self.most
            at = torch.where((step > 0) & step.isfinite(), flat / step, 0.0)  # else what is read shows it
            at = at.round() if contracts else (at + uniform(key, site, flat.shape).to(at.dtype)).floor()
            code = (at.clamp(-self.most, self.most) + self.most).to(torch.uint8)
            out[name] = {"scale": scale, "steps": packed(code, self.bits)}
        return out

    def check(self, sent: dict[str, Any], like: Named) -> None:
        for name, t in like.items():
            if int(unpacked(sent[name]["steps"], self.bits, t.numel()).max()) > 2 * self.most:
                raise CodecError(f"numbers of {self.bits} bits are up to {2 * self.most} steps from the least")

    def read(self, sent: dict[str, Any], like: Named) -> Named:
        out = {}
        for name, t in like.items():
            at = unpacked(sent[name]["steps"], self.bits, t.numel()).to(t.dtype) - self.most
            out[name] = (at * (sent[name]["scale"] / self.most)).view(t.shape)
        return out


@dataclass(frozen=True)
class Signs(Rounding):
    """Signs, and the mean of a tensor's absolute values."""

    by_feedback = True

    def encode(self, key: Tensor, numbers: Named, contracts: bool) -> dict[str, Any]:
        return {
            name: {"scale": t.abs().mean(), "signs": packed((t.flatten() >= 0).to(torch.uint8), 1)}
            for name, t in numbers.items()
        }

    def read(self, sent: dict[str, Any], like: Named) -> Named:
        out = {}
        for name, t in like.items():
            signs = unpacked(sent[name]["signs"], 1, t.numel()).to(t.dtype)
            out[name] = ((2 * signs - 1) * sent[name]["scale"]).view(t.shape)
        return out


@dataclass(frozen=True)
class Float16(Rounding):
    """Numbers as float16, to the nearest."""

    def encode(self, key: Tensor, numbers: Named, contracts: bool) -> dict[str, Any]:
        return {name: t.to(torch.float16) for name, t in numbers.items()}

    def read(self, sent: dict[str, Any], like: Named) -> Named:
        return {name: sent[name].to(t.dtype) for name, t in like.items()}
