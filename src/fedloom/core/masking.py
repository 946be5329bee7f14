"""The mask that a network is given: for each token, or ready for each pair of places."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.batch import probe
from fedloom.core.cutting import alike, moved
from fedloom.core.model import Model
from fedloom.core.network_inputs import READY
from fedloom.data import Examples
from fedloom.data.inputs import Inputs, Tokens

_TRIED = 4


def masking(model: Model, seed: int, dtype: torch.dtype, device: torch.device, train: Examples) -> Model:
    """Return a network as it is given the mask of sequences; often itself.

    Models of Hugging Face make a mask [B, 1, T, T] of one for each token, and look at its values before, which `vmap`
    cannot take. They take a ready one too. It is tried, in evaluation and training, that answers are the same.
    """
    how = train.normalise
    if model.arguments is None or not model.arguments.has_mask or train.x.ndim != 2 or not len(train):
        return model
    assert isinstance(how, Tokens | Inputs)
    x = train.x[:_TRIED].to(device)
    x = torch.cat([x, how.ended(x, max(1, how.places(x) // 2))])  # of which some have padding, at any rate
    real = torch.arange(how.places(x), device=device) < how.ends(x)[:, None]
    given = how(x, dtype)
    weights = moved(tree.cast(model.init(seed), device=device, dtype=dtype))

    def answers(model: Model) -> list[Tensor]:
        logits = [model(weights, given), model.train(weights, probe(given))[0]]
        return [t[real] if t.shape[:2] == real.shape and t.ndim > 2 else t for t in logits]

    with torch.no_grad():
        try:
            expected = answers(model)
        except Exception:  # which shows where it is tried before the run
            return model
        for form in READY:
            made = model.masked(form)
            try:
                found = answers(made)
            except Exception:  # whose forward takes no such mask
                continue
            if all(a.shape == b.shape and alike(a, b, real) for a, b in zip(expected, found, strict=True)):
                return made
    return model
