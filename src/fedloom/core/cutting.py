"""Sequences whose padding is cut off, so that short ones do not pay for long ones: for which networks."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.batch import cut_length, probe
from fedloom.core.model import Model
from fedloom.core.types import Params, Weights
from fedloom.data import Examples
from fedloom.data.inputs import Inputs, Tokens, counts_padding

_TRIED = 8


def cutting(model: Model, seed: int, dtype: torch.dtype, device: torch.device, train: Examples) -> Model:
    """Return a network as it is given the sequences of `train`: cut, where it answers the same; often itself."""
    how = train.normalise
    if not isinstance(how, Tokens | Inputs) or not how.cut or how.padding is None or train.x.ndim != 2:
        return model
    if not len(train) or not how.places(train.x) or counts_padding(train.x, train.y, how):
        return model
    weights = tree.cast(model.init(seed), device=device, dtype=dtype)
    if not cuts(model, weights, train.x.to(device), how):
        return model
    made = copy.copy(model)
    made.cut = how
    return made


def moved(weights: Weights) -> Weights:
    """Return other weights than the initial ones, whose last layer may be 0."""
    draw = torch.Generator().manual_seed(0)
    params = {
        n: p + 0.1 * torch.randn(p.shape, generator=draw, dtype=p.dtype).to(p.device) for n, p in weights.params.items()
    }
    return Weights(params=Params(params), buffers=weights.buffers)


def cuts(model: Model, weights: Weights, x: Tensor, how: Tokens | Inputs) -> bool:
    """Return whether a network answers the same, up to rounding, to sequences whose padding is cut off.

    It is tried on the shortest sequences of stored examples x, in evaluation and training, with `moved` weights. A
    network that draws, as dropout does, draws more for longer sequences.
    """
    ends = how.ends(x)
    some = ends.argsort(stable=True)[:_TRIED]
    stored, dtype = x[some], next(iter(weights.params.values())).dtype
    length = cut_length(stored, how)
    if length == how.places(x):
        return False
    few, fewer = how(stored, dtype), how(how.shortened(stored, length), dtype)
    weights = moved(weights)
    real = torch.arange(length, device=x.device) < ends[some, None]
    with torch.no_grad():
        try:
            pairs = [(model(weights, few), model(weights, fewer))]
            (whole, before), (short, after) = (model.train(weights, probe(each)) for each in (few, fewer))
        except Exception:  # whose forward takes this one length, or fails where it is tried before the run
            return False
    pairs += [(whole, short), *((before[n], after[n]) for n in before)]
    return all(alike(a, b, real) for a, b in pairs)


def alike(whole: Tensor, cut: Tensor, real: Tensor) -> bool:
    """Return whether answers are the same at the places that are real, [B, T'], or in all where there is one each."""
    if whole.shape != cut.shape:
        if whole.ndim < 3 or whole.shape[0] != len(real) or cut.shape[1] != real.shape[1]:
            return False
        whole, cut = whole[:, : real.shape[1]][real], cut[real]
    if not whole.is_floating_point():
        return torch.equal(whole, cut)
    if not bool(torch.isfinite(whole).all()):  # such as the mean of a row of nothing but padding
        return False
    near = 1e-3 if whole.dtype == torch.float32 else 1e-9
    return torch.allclose(whole, cut, rtol=near, atol=0.1 * near * float(whole.abs().max()))
