"""Local and server optimisers: a pure `init`, and a `step_` that may work in place on one client or on a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor
from torch.optim.sgd import sgd

from fedloom.core import tree
from fedloom.core.choices import Count, NonNegative, Positive, StrictSettings, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.rate_schedules import factor_at, rate_schedule
from fedloom.core.setting import setting

T = TypeVar("T")
Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class Optimiser(StrictSettings):
    """Take steps along gradients.

    An optimiser of your own says what it keeps of a tensor, and how it moves one; the rest is done here, for one client
    and for a stack of K, whose tensors have K in front. Operations by element suit both:

        @dataclass(frozen=True, kw_only=True)
        class Signs(fl.Optimiser):
            lr: fl.Positive = 1e-3
            beta: float = 0.9

            def kept(self, p):
                return (torch.zeros_like(p),)

            def move_(self, p, g, kept, lr, steps):
                p.sub_(lr * kept[0].lerp_(g, 1 - self.beta).sign())
    """

    counts_steps: ClassVar[bool] = False  # whether `move_` is told how many steps a tensor has taken

    lr: Positive = setting(flag="--lr RATE")
    """Learning rate of round 0."""
    clip: Positive | None = None
    """Maximum norm of the gradient over all parameters; a longer one is scaled down to it."""
    clip_value: Positive | None = None
    """Maximum size of each number of the gradient; what is beyond is cut, before `clip` looks at the norm."""
    micro_batch: Count | None = None
    """Rows of a batch whose gradient is computed at once (gradient accumulation): the step is that of the whole batch,
    in less memory. BatchNorm sees each such part as a batch; none: all rows."""
    schedule: str = setting("constant", "--lr-schedule S")
    """[Schedule of the learning rate](settings.md#schedules): `constant`, `cosine:OVER` (to 0, or `cosine:OVER:END`),
    `step:EVERY` (a tenth, or `step:EVERY:FACTOR`), `exponential:FACTOR`; by rounds, or with `?by=step` by the steps of
    a training; `?warmup=N` before it."""

    def __post_init__(self) -> None:
        check_choices(self)
        rate_schedule(self.schedule)

    def kept(self, p: Tensor) -> tuple[Tensor, ...]:
        """Return what is kept of a tensor between steps, before the first one.

        Args:
            p: the tensor, [...], of a stack [K, ...].

        Returns:
            Tensors of its shape.
        """
        return ()

    def move_(self, p: Tensor, g: Tensor, kept: Sequence[Tensor], lr: Tensor, steps: Tensor | None) -> None:
        """Move a tensor, and what is kept of it, in place.

        Args:
            p: the tensor, [...], of a stack [K, ...].
            g: its gradient, of the same shape.
            kept: what is kept of it.
            lr: the learning rate, of a shape that multiplies `p`.
            steps: how many steps this tensor has taken, this one counted, float64 of such a shape; None unless
                `counts_steps`.

        Raises:
            NotImplementedError: the optimiser does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} moves nothing: define move_")

    @property
    def timed(self) -> bool:
        """True if the learning rate depends on the step."""
        return self.schedule != "constant" and rate_schedule(self.schedule).by == "step"

    def rate(self, round: int) -> float:
        """Return the learning rate of a round, before its first step.

        Args:
            round: from 0.
        """
        return self.lr * factor_at(self.schedule, round)

    def init(self, params: Sequence[Tensor], lead: int = 0) -> list[Tensor]:
        """Return the state before the first step.

        Args:
            params: the tensors to train, each with `lead` leading client axes.
            lead: number of leading client axes, 0 or 1.
        """
        clients, device = params[0].shape[:lead], params[0].device
        taken = [torch.zeros(clients, dtype=torch.float64, device=device)] if self.timed else []
        counted = self.counts_steps
        counts = [torch.zeros((*clients, len(params)), dtype=torch.float64, device=device)] if counted else []
        return [*taken, *counts, *(t for slot in zip(*map(self.kept, params), strict=True) for t in slot)]

    def part_of(self, state: Sequence[Tensor], i: int, count: int) -> list[Tensor]:
        """Return what the state has of one tensor, as views.

        Args:
            state: as `init` made it, or as steps have left it.
            i: number of the tensor.
            count: of all tensors.
        """
        counted, state = self.counts_steps, state[self.timed :]
        return [*([state[0][..., i]] if counted else []), *state[counted + i :: count]]

    def step_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        state: Sequence[Tensor],
        lr: Tensor,
        lead: int = 0,
        moves: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Take one step in place.

        Args:
            params: the tensors to train, each with `lead` leading client axes.
            grads: a gradient for each; None: it has none, so the tensor and what the state has of it stay. Neither
                weight decay nor momentum moves it, as in `torch.optim`.
            state: as `init` returned it.
            lr: the learning rate, []; with lead = 1 it may be [K].
            lead: number of leading client axes, 0 or 1.
            moves: of some tensors, by number, whether they have a gradient: [] bool, with lead = 1 [K].
        """
        if self.clip_value is not None:
            grads = [g if g is None else g.clamp(-self.clip_value, self.clip_value) for g in grads]
        if self.clip is not None and (found := [g for g in grads if g is not None]):
            axes = [tuple(range(lead, g.ndim)) for g in found]
            norms = [g.square().sum(a) if a else g.square() for g, a in zip(found, axes, strict=True)]
            norm = torch.stack(norms).sum(0).sqrt()
            factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
            grads = [g if g is None else g * factor.reshape(factor.shape + (1,) * (g.ndim - lead)) for g in grads]
        held = [
            (t, t.clone(), moved)
            for i, moved in (moves or {}).items()
            for t in (params[i], *self.part_of(state, i, len(params)))
        ]
        self._step_(params, grads, state, lr)
        for t, before, moved in held:
            t.copy_(torch.where(moved.reshape(moved.shape + (1,) * (t.ndim - moved.ndim)), t, before))

    def _step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: Tensor
    ) -> None:
        """Take a step along gradients that are clipped, at the rate of the schedule."""
        if self.timed:
            lr = lr * rate_schedule(self.schedule).factor(state[0])
            state[0].add_(1)
        steps: Sequence[Tensor | None] = [None] * len(params)
        if self.counts_steps:
            counts = state[self.timed]
            every = all(g is not None for g in grads)
            counts.add_(1 if every else torch.tensor([float(g is not None) for g in grads], device=counts.device))
            steps = [_per_client(count, p) for p, count in zip(params, counts.unbind(-1), strict=True)]
        kept = state[self.timed + self.counts_steps :]
        for i, (p, g, taken) in enumerate(zip(params, grads, steps, strict=True)):
            if g is not None:
                self.move_(p, g, kept[i :: len(params)], _per_client(lr, p), taken)

    def effective_steps(self, num_steps: Tensor) -> Tensor:
        """Return the number of plain SGD steps that `num_steps` steps amount to, [] float64.

        (start - end) / lr is a sum over this number of steps.

        Args:
            num_steps: number of steps taken, [].

        Raises:
            SettingError: there is no such number.
        """
        raise SettingError(f"steps of {type(self).__name__} amount to no number of plain SGD steps: use SGD")

    def apply(self, weights: T, gradient: T, state: Sequence[Tensor]) -> tuple[T, list[Tensor]]:
        """Take one pure step at `lr` on a pytree, as a server does.

        Args:
            weights: a pytree of tensors.
            gradient: of the same structure, with None for a tensor that has none.
            state: as `init` returned it.

        Returns:
            The new weights and the new state.
        """
        flat, spec = tree.flatten(tree.map_tree(torch.clone, weights))
        moved = [s.clone() for s in state]
        rate = torch.tensor(self.lr, dtype=torch.float64, device=flat[0].device)
        self.step_(flat, tree.leaves(gradient), moved, rate)
        return tree.unflatten(flat, spec), moved


@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """PyTorch's SGD, also with Nesterov momentum (w -= lr * (g' + momentum * v)).

    g' = g + weight_decay * w;  v = momentum * v + g' (v = g' first);  w -= lr * v
    """

    lr: Positive = 0.01
    momentum: Beta = setting(0.0, "--momentum M")
    """Momentum of `sgd` and `rmsprop`."""
    weight_decay: NonNegative = setting(0.0, "--weight-decay W")
    """L2 penalty that is added to the gradient; `adamw` shrinks the weights themselves."""
    nesterov: bool = False
    """Nesterov momentum of `sgd`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise SettingError("nesterov needs momentum > 0; set momentum or drop nesterov")

    def kept(self, p: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(p),) if self.momentum else ()

    def move_(self, p: Tensor, g: Tensor, kept: Sequence[Tensor], lr: Tensor, steps: Tensor | None) -> None:
        if self.weight_decay:
            g = g.add(p, alpha=self.weight_decay)
        if self.momentum:
            (v,) = kept
            v.mul_(self.momentum).add_(g)
            g = g.add(v, alpha=self.momentum) if self.nesterov else v
        p.addcmul_(g, lr, value=-1)

    def effective_steps(self, num_steps: Tensor) -> Tensor:
        """Return the steps a to which steps of heavy-ball momentum m amount (FedNova, sec. 4.2).

        Steps of Nesterov's momentum count as those of heavy-ball momentum, as in the authors' code.

        a = sum_{s=1..n} (1 - m^s) / (1 - m) = (n - m (1 - m^n) / (1 - m)) / (1 - m)

        Args:
            num_steps: number of steps taken, [].

        Raises:
            SettingError: the rate changes from step to step.
        """
        if self.timed:
            raise SettingError(f"steps of {self.schedule!r} amount to no number of plain SGD steps: take one by rounds")
        n, m = num_steps.double(), self.momentum
        return (n - m * (1 - m**n) / (1 - m)) / (1 - m)

    def fused_step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: float | Tensor
    ) -> None:
        """Take the same step by PyTorch's fused kernel: one pass over memory instead of up to nine. No clipping.

        Parameters and state are dense and of the same strides.

        Args:
            params: the tensors to train, dense; they change in place.
            grads: a gradient for each, or None, as of `step_`.
            state: as `init` returned it, with the strides of the parameters; it changes in place.
            lr: the learning rate.
        """
        rows = zip(params, grads, state if self.momentum else [None] * len(params), strict=True)
        moving = [(p, g, v) for p, g, v in rows if g is not None]
        sgd(
            [p for p, _, _ in moving],
            # The kernel runs over memory and ignores strides: a transposed or expanded gradient is laid out like p.
            [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for p, g, _ in moving],
            [v for _, _, v in moving],
            fused=True,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,  # type: ignore[arg-type]
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015, Algorithm 1), with PyTorch's conventions; weight decay is added to the gradient."""

    counts_steps = True

    lr: Positive = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the moments of `adam` and `adamw`: `--set local.betas=0.8,0.9`, in a file `[0.8, 0.9]`."""
    eps: float = 1e-8
    """Term of `adam`, `adamw`, `rmsprop` and `adagrad` that is added to the denominator."""
    weight_decay: NonNegative = setting(0.0, "--weight-decay W")
    """L2 penalty that is added to the gradient; `adamw` shrinks the weights themselves."""

    def kept(self, p: Tensor) -> tuple[Tensor, ...]:
        return torch.zeros_like(p), torch.zeros_like(p)

    def move_(self, p: Tensor, g: Tensor, kept: Sequence[Tensor], lr: Tensor, steps: Tensor | None) -> None:
        assert steps is not None
        (m, v), (b1, b2) = kept, self.betas
        g = self._decayed(p, g, lr)
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        p.sub_(lr / (1 - b1**steps) * m / ((v / (1 - b2**steps)).sqrt() + self.eps))

    def _decayed(self, p: Tensor, g: Tensor, lr: Tensor) -> Tensor:
        return g.add(p, alpha=self.weight_decay) if self.weight_decay else g


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: first w <- (1 - lr weight_decay) w (Loshchilov & Hutter 2019, Algorithm 2)."""

    weight_decay: NonNegative = setting(0.01, "--weight-decay W")
    """Share of the weights, times the learning rate, by which a step shrinks them."""

    def _decayed(self, p: Tensor, g: Tensor, lr: Tensor) -> Tensor:
        if self.weight_decay:
            p.mul_(1 - lr * self.weight_decay)
        return g


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimiser):
    """PyTorch's RMSprop (Hinton 2012, lecture 6e): the step is divided by the root of a running mean of squares.

    v = alpha * v + (1 - alpha) * g'^2;  b = momentum * b + g' / (sqrt(v) + eps);  w -= lr * b
    """

    lr: Positive = 0.01
    alpha: Beta = 0.99
    """Decay rate of the running mean of squares of `rmsprop`."""
    eps: float = 1e-8
    """Term of `adam`, `adamw`, `rmsprop` and `adagrad` that is added to the denominator."""
    momentum: Beta = setting(0.0, "--momentum M")
    """Momentum of `sgd` and `rmsprop`."""
    weight_decay: NonNegative = setting(0.0, "--weight-decay W")
    """L2 penalty that is added to the gradient; `adamw` shrinks the weights themselves."""

    def kept(self, p: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(p), *((torch.zeros_like(p),) if self.momentum else ()))

    def move_(self, p: Tensor, g: Tensor, kept: Sequence[Tensor], lr: Tensor, steps: Tensor | None) -> None:
        if self.weight_decay:
            g = g.add(p, alpha=self.weight_decay)
        kept[0].mul_(self.alpha).addcmul_(g, g, value=1 - self.alpha)
        step = g / (kept[0].sqrt() + self.eps)
        p.addcmul_(kept[1].mul_(self.momentum).add_(step) if self.momentum else step, lr, value=-1)


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimiser):
    """PyTorch's Adagrad (Duchi et al. 2011): the step is divided by the root of the sum of all squares."""

    lr: Positive = 0.01
    accumulator: NonNegative = 0.0
    """Value of the sum of squares of `adagrad` before the first step."""
    eps: float = 1e-10
    """Term of `adam`, `adamw`, `rmsprop` and `adagrad` that is added to the denominator."""
    weight_decay: NonNegative = setting(0.0, "--weight-decay W")
    """L2 penalty that is added to the gradient; `adamw` shrinks the weights themselves."""

    def kept(self, p: Tensor) -> tuple[Tensor, ...]:
        return (torch.full_like(p, self.accumulator),)

    def move_(self, p: Tensor, g: Tensor, kept: Sequence[Tensor], lr: Tensor, steps: Tensor | None) -> None:
        if self.weight_decay:
            g = g.add(p, alpha=self.weight_decay)
        kept[0].addcmul_(g, g, value=1.0)
        p.addcmul_(g / (kept[0].sqrt() + self.eps), lr, value=-1)


OPTIMISERS: dict[str, type[Optimiser]] = {
    "sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop, "adagrad": Adagrad,
}  # fmt: skip
"""Optimisers by their words."""


def _per_client(value: Tensor, like: Tensor) -> Tensor:
    """Return a value for all clients [] or for each of them [K], shaped to multiply `like`."""
    return value.reshape(value.shape + (1,) * (like.ndim - value.ndim)).to(like.dtype)
