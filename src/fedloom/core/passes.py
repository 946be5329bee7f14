"""A pass through a network whose functions are watched: no result of one example may depend on who else is there.

Two layers break that. Batch normalisation computes statistics over all rows, and dropout draws from a generator. What
the network calls is intercepted, whatever its modules look like inside.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.random import uniform

UNGOVERNED = (
    "{} draws random numbers inside the model, which no seed of a client governs. "
    "Use nn.Dropout, nn.Dropout1d/2d/3d, or set that layer's dropout to 0 [FL-MODEL-004]"
)
_CHANNEL_DROPOUTS = {F.dropout1d, F.dropout2d, F.dropout3d}
_DRAWS = {
    F.alpha_dropout,
    F.feature_alpha_dropout,
    F.gumbel_softmax,
    torch.bernoulli,
    torch.rand,
    torch.rand_like,
    torch.randn,
    torch.randn_like,
    torch.randint,
    torch.randperm,
    Tensor.bernoulli_,
    Tensor.normal_,
    Tensor.uniform_,
}


_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
# PyTorch's own function, whose first lines would hand it to the mode that runs it, and so on for ever.
_multi_head_attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.multi_head_attention_forward.__globals__, "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
_multi_head_attention.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


class TrainingCall(TorchFunctionMode):
    """A mode that makes a module's training pass a pure function of (weights, batch): see `Model.train`."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self.sites = 0  # dropout calls so far; the same sequence on every engine
        self.moved: dict[int, Tensor] = {}  # id of a running statistic -> its value after this batch
        self.single: dict[int, Tensor] = {}  # id of a running mean -> calls whose channels had one value: not measured

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func is F.instance_norm:
            return self._instance_norm(*args, **kwargs)
        if func is F.dropout:
            return self._dropout(False, *args, **kwargs)
        if func in _CHANNEL_DROPOUTS:
            return self._dropout(True, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # whose own dropout and attention are governed in turn
                return _multi_head_attention(*args, **kwargs)
        if func in _RECURRENT:
            return self._recurrent(func, *args)
        if func in _DRAWS:
            raise SettingError(UNGOVERNED.format(getattr(func, "__name__", func)))
        return func(*args, **kwargs)

    def _dropout(
        self, channels: bool, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return x
        if not self.batch.full and len(x) % len(self.batch.mask):
            raise StackingError(
                f"dropout in a batch with padding needs its {len(self.batch.mask)} examples in the first dimension, "
                f"got {list(x.shape)}: put them there (batch_first=True), or its masks would differ with the padding"
            )
        shape = torch.Size((*x.shape[:2], *[1] * (x.ndim - 2))) if channels else x.shape
        keep = uniform(self.batch.key, self.sites, shape) >= p
        self.sites += 1
        return torch.where(keep, x / (1.0 - p), 0.0) if p < 1.0 else torch.zeros_like(x)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Attend with dropout by the client's key; softmax(q k^T / sqrt(E) + mask) v, as PyTorch documents it."""
        if dropout_p == 0:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            masked = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if masked else scores + attn_mask
        return self._dropout(False, scores.softmax(-1), dropout_p) @ value

    def _recurrent(self, func: Any, *args: Any) -> Any:
        """Run a recurrent network layer by layer where dropout lies between its layers, by the client's key.

        Of 2 layers in two directions with biases, `weights` are 16 tensors, the four w_ih, w_hh, b_ih, b_hh of each
        direction of each layer, and h0 (of an LSTM, c0 too) is [4, B, H], with 2 rows for each layer.
        """
        packed = not isinstance(args[3], bool)  # (data, batch_sizes, hx, weights, ...), of sequences packed as one
        if packed:
            if args[6] > 0 and args[7]:
                raise SettingError(UNGOVERNED.format(f"{func.__name__} of a packed sequence"))
            return func(*args)
        x, hx, weights, biases, count, p, training, both, batch_first = args
        if p == 0 or not training or count == 1:
            return func(*args)
        states, ways, each, ends = hx if isinstance(hx, tuple) else (hx,), 1 + both, len(weights) // count, []
        for i in range(count):
            own = tuple(s[i * ways : (i + 1) * ways] for s in states)
            given = own if isinstance(hx, tuple) else own[0]
            part = weights[i * each : (i + 1) * each]
            x, *end = func(x, given, part, biases, 1, 0.0, training, both, batch_first)
            ends.append(end)
            if i < count - 1:  # masks go by example, whichever dimension is theirs
                x = self._dropout(False, x if batch_first else x.transpose(0, 1), p)
                x = x if batch_first else x.transpose(0, 1)
        return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        whole = self.batch.full and x.numel() > x.shape[1]
        y, mean, var, count = _normalised(x, None if whole else self.batch.mask, weight, bias, eps)
        if running_mean is not None and running_var is not None:
            several = (
                None if whole else count > 1
            )  # one value has no variance; which clients of a stack have one varies
            for old, new in ((running_mean, mean), (running_var, var * (count / (count - 1).clamp(min=1)))):
                self._remember(old, new, momentum, several)
            if several is not None:
                self.single[id(running_mean)] = self.single.get(id(running_mean), 0) + ~several
        return y

    def _remember(self, old: Tensor, new: Tensor, momentum: float, known: Tensor | None = None) -> None:
        before = self.moved.get(id(old), old)
        after = torch.lerp(before, new, momentum)
        self.moved[id(old)] = after if known is None else torch.where(known, after, before)

    def buffers(self, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the module's buffers after the pass; a batch that was not measured is not counted either."""
        after = {name: self.moved.get(id(b), b) for name, b in before.items()}
        counted = {id(b): f"{name.removesuffix('running_mean')}num_batches_tracked" for name, b in before.items()}
        for mean, calls in self.single.items():
            if (counter := counted.get(mean)) in after:
                after[counter] = after[counter] - calls
        return after

    def _instance_norm(
        self, x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
        weight: Tensor | None = None, bias: Tensor | None = None,
        use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Normalise each example by itself; running statistics move towards means over the real rows."""
        if use_input_stats and running_mean is not None and running_var is not None:
            var, mean = torch.var_mean(x.detach(), dim=[*range(2, x.ndim)], correction=1)  # [B, C]
            real = self.batch.mask.to(x.dtype)[:, None]
            for old, each in ((running_mean, mean), (running_var, var)):
                new = (each * real).sum(0) / real.sum().clamp(min=1)
                self._remember(old, new, momentum)
            running_mean = running_var = None
        return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


class BatchStatistics(TorchFunctionMode):
    """Evaluation of BatchNorm without running statistics: those of the real rows, also of a single value."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.mask = mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and args[1] is None:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self, x: Tensor, _mean: None, _var: None, weight: Tensor | None = None, bias: Tensor | None = None,
        training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        return _normalised(x, self.mask, weight, bias, eps)[0]


class RecordMoments(TorchFunctionMode):
    """A mode that notes the batch moments of the input of every BatchNorm layer with running statistics."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and args[1] is not None:
            var, mean = torch.var_mean(args[0], dim=[0, *range(2, args[0].ndim)], correction=0)
            self.moments[self.names[id(args[1])]] = mean, var
        return func(*args, **(kwargs or {}))


def _normalised(
    x: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise x by its real rows (`mask` None: all).

    Return the normalised x, the mean and biased variance of these rows, detached, and how many values a channel has in
    them.
    """
    given, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))  # statistics of bf16 inputs in float32
    weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    spatial = x[0, 0].numel()
    if mask is None:  # one fused operation, which vmap folds the clients into
        y, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        mean, rstd = mean.detach(), rstd.detach()  # no gradient goes through what it returns besides y
        count = torch.full((), float(x.shape[0] * spatial), dtype=x.dtype, device=x.device)
        return y.to(given), mean, (rstd.square().reciprocal() - eps).clamp(min=0), count
    if len(mask) != len(x):
        raise StackingError(
            f"BatchNorm in a batch with padding needs one row for each of its {len(mask)} examples, got {len(x)}: "
            "keep an example's parts in a dimension of their own"
        )
    dims, per_channel = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    real = mask.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
    count = real.sum() * spatial
    mean = (x * real).sum(dims) / count
    var = ((x - mean.view(per_channel)).square() * real).sum(dims) / count
    y = (x - mean.view(per_channel)) * torch.rsqrt(var + eps).view(per_channel)
    if weight is not None:
        y = y * weight.view(per_channel)
    return (y if bias is None else y + bias.view(per_channel)).to(given), mean.detach(), var.detach(), count


def draws_unseen(module: nn.Module) -> bool:
    """Return whether a module draws where a `TorchFunctionMode` cannot see it: inside one call."""
    return isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
