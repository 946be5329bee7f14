"""Examples that a server makes: as batches to begin with, kept by their loss, as bytes, and as public examples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.core.batches import Batches
from fedloom.core.client import Public
from fedloom.core.errors import SettingWarning, warn
from fedloom.core.model import Model
from fedloom.core.types import Weights, replace
from fedloom.data import Normalise


def statistics_distance(model: Model, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [B, C] in evaluation mode, and how far the inputs of the BatchNorm layers are from their statistics, [].

    r = sum_l ||sigma^2_l(x) - running sigma^2_l||_2 + ||mu_l(x) - running mu_l||_2, with mean and biased variance of
    each channel over the batch and its pixels; 0 without such layers. DENSE, eq. 3, of one client; DeepInversion's R.
    """
    logits, moments = model.moments(weights, x)
    r, buffers = logits.new_zeros(()), {**weights.buffers, **model.frozen}
    for layer, (mu, variance) in moments.items():
        known = {n: buffers[f"{layer}.running_{n}".lstrip(".")] for n in ("mean", "var")}
        r = r + (variance - known["var"]).norm() + (mu - known["mean"]).norm()
    return logits, r


def labelled(y: Tensor, steps: int, key: int) -> Batches:
    """Return `steps` batches of the same labels y [B], each with a key of its own; the loss makes their inputs."""
    zero = torch.zeros((), dtype=torch.int64, device=y.device)
    return Batches(
        x=torch.zeros((len(y), 1, 1, 1), device=y.device),  # four axes: what makes images is laid out for images
        y=y,
        examples=torch.arange(len(y), device=y.device),
        order=torch.arange(len(y), device=y.device).expand(steps, -1),
        mask=torch.ones((steps, len(y)), dtype=torch.bool, device=y.device),
        num_steps=zero + steps,
        num_examples=zero + len(y),
        key=zero + key,
    )


def least(examples: Tensor, **terms: Tensor) -> Weights:
    """Return the batch of least loss before there is one: buffers, so that a fold carries it and does not train it."""
    none = examples.new_full((), torch.inf)
    return Weights(params={}, buffers={"x": examples, "loss": none, **terms})


def lesser(kept: Weights, x: Tensor, loss: Tensor, **terms: Tensor) -> Weights:
    """Return the batch of less loss: what was kept, or x [B, ...] with its loss [] and the terms that make it up."""
    new = {"x": x, "loss": loss, **terms}
    better = loss < kept.buffers["loss"]
    return Weights(params={}, buffers={n: torch.where(better, new[n].detach(), t) for n, t in kept.buffers.items()})


def as_bytes(x: Tensor) -> Tensor:
    """Values in [0, 1] as the bytes of a picture, uint8: clipped, times 255, truncated."""
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def as_public(x: Tensor, prepare: Normalise, dtype: torch.dtype) -> Public:
    """Examples x [n, ...] that a server has made, to visit like public ones."""
    zero = torch.zeros((), dtype=torch.int64, device=x.device)
    everything = labelled(torch.zeros(len(x), dtype=torch.int64, device=x.device), 1, 0)
    return Public(replace(everything, x=x, num_steps=zero, prepare=prepare, dtype=dtype))


def needs_statistics(setting: str, remedy: str, models: Mapping[str, Model]) -> None:
    """Warn where no network has a BatchNorm layer with running statistics, which a term of the loss compares with."""
    if not any(model.has_statistics for model in models.values()):
        warn(
            f"{setting} weighs a distance to the running statistics of BatchNorm layers, and there are none in "
            f"{', '.join(models)}, so that this term is 0: set {remedy}, or use networks with BatchNorm",
            SettingWarning,
        )
