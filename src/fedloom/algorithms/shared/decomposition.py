"""Weights as a shared part, scaled unit by unit, plus an own part: W_S * m + W_k (APD, Yoon et al., ICLR 2020)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedloom.core.model import Model
from fedloom.core.types import Params, Weights


@dataclass(frozen=True)
class Unit:
    """Division of a tensor into units. `mask`: the name of r; `count`: of units; `shape`: m's, to multiply by."""

    mask: str
    count: int
    shape: tuple[int, ...]


@functools.cache
def units(model: Model) -> dict[str, Unit]:
    """Return the tensors that are decomposed, by name: weight and bias of linear layers and convolutions.

    Transposed convolutions in groups are left out.

    Of a convolution with 5 outputs, `conv.weight` [5, 3, 2, 2] and `conv.bias` [5] share the mask `conv.weight.mask`
    [5], which multiplies them as [5, 1, 1, 1] and as [5].
    """
    found, network = dict[str, Unit](), model.skeleton()
    # Without frozen weights, and those that are another layer's or made of other tensors.
    known = {n: p for n, p in network.named_parameters() if n in model.params}
    for layer, module in network.named_modules():
        weight, bias = (f"{layer}.{name}".removeprefix(".") for name in ("weight", "bias"))
        transposed = getattr(module, "transposed", False)  # its kernel is [in, out / groups, ...]
        if transposed and module.groups > 1:
            continue
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and weight in known:
            axis = int(transposed)
            shape, count = [1] * known[weight].ndim, known[weight].shape[axis]
            shape[axis] = -1
            found[weight] = Unit(f"{weight}.mask", count, tuple(shape))
            if bias in known:
                found[bias] = Unit(f"{weight}.mask", count, (-1,))
    return found


def decompose(model: Model, w: Weights, raw: float, share: float) -> Weights:
    """Return the parts beside W_S = w as they begin, with the buffers of w.

    Of `fc.weight` they are the own part `fc.weight.own`, `share` of it, and r, `fc.weight.mask`, filled with `raw`;
    m = sigmoid(r).
    """
    params = Params()
    for name, unit in units(model).items():
        params[f"{name}.own"] = share * w.params[name]
        params[unit.mask] = w.params[name].new_full((unit.count,), raw)
    return Weights(params=params, buffers=w.buffers)


def effective(model: Model, parts: Weights, decomposed: Tensor) -> Weights:
    """W_S * sigmoid(r) + own part, of W_S with what `decompose` gave; where not `decomposed`, [] bool, W_S alone."""
    params, masks = dict(parts.params), dict[str, Tensor]()
    for name, unit in units(model).items():
        if unit.mask in params:
            masks[unit.mask] = torch.where(decomposed, torch.sigmoid(params.pop(unit.mask)), 1.0)
        own = torch.where(decomposed, params.pop(f"{name}.own"), 0.0)
        params[name] = params[name] * masks[unit.mask].reshape(unit.shape) + own
    return Weights(params=params, buffers=parts.buffers)
