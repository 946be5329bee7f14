"""Local and server optimisers: a pure `init`, and a `step_` that may work in place on one client or on a stack."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.optim.sgd import sgd

from fedloom.core import tree
from fedloom.core.choices import Count, NonNegative, Positive, StrictSettings, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.setting import setting

T = TypeVar("T")
Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class Optimiser(StrictSettings, ABC):
    """Take steps along gradients."""

    lr: Positive = setting(flag="--lr RATE")
    """Learning rate of round 0."""
    clip: Positive | None = None
    """Maximum norm of the gradient over all parameters; a longer one is scaled down to it."""

    def __post_init__(self) -> None:
        check_choices(self)

    @abstractmethod
    def init(self, params: Sequence[Tensor], lead: int = 0) -> list[Tensor]:
        """Return the state before the first step.

        Args:
            params: the tensors to train, each with `lead` leading client axes.
            lead: number of leading client axes, 0 or 1.
        """

    @abstractmethod
    def _step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: Tensor
    ) -> None: ...

    @abstractmethod
    def _part(self, state: Sequence[Tensor], i: int, count: int) -> list[Tensor]:
        """Return what the state has of tensor `i` of `count`, as views."""

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
        if self.clip is not None and (found := [g for g in grads if g is not None]):
            axes = [tuple(range(lead, g.ndim)) for g in found]
            norms = [g.square().sum(a) if a else g.square() for g, a in zip(found, axes, strict=True)]
            norm = torch.stack(norms).sum(0).sqrt()
            factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
            grads = [g if g is None else g * factor.reshape(factor.shape + (1,) * (g.ndim - lead)) for g in grads]
        held = [
            (t, t.clone(), moved)
            for i, moved in (moves or {}).items()
            for t in (params[i], *self._part(state, i, len(params)))
        ]
        self._step_(params, grads, state, lr)
        for t, before, moved in held:
            t.copy_(torch.where(moved.reshape(moved.shape + (1,) * (t.ndim - moved.ndim)), t, before))

    def effective_steps(self, num_steps: Tensor) -> Tensor:
        """Return the number of plain SGD steps that `num_steps` steps amount to, [] float64.

        (start - end) / lr is a sum over this number of steps.

        Args:
            num_steps: number of steps taken, [].

        Raises:
            SettingError: there is no such number.
        """
        raise SettingError(
            f"steps of {type(self).__name__} amount to no number of plain SGD steps, by which this algorithm divides: "
            "use SGD"
        )

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
    """Momentum of `sgd`."""
    weight_decay: NonNegative = setting(0.0, "--weight-decay W")
    """L2 penalty that is added to the gradient."""
    nesterov: bool = False
    """Nesterov momentum of `sgd`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise SettingError("nesterov needs momentum > 0; set momentum or drop nesterov")

    def init(self, params: Sequence[Tensor], lead: int = 0) -> list[Tensor]:
        """Return the state before the first step.

        Args:
            params: the tensors to train, each with `lead` leading client axes.
            lead: number of leading client axes, 0 or 1.
        """
        return [torch.zeros_like(p) for p in params] if self.momentum else []

    def _step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: Tensor
    ) -> None:
        velocities: Sequence[Tensor | None] = state if self.momentum else [None] * len(params)
        for p, g, v in zip(params, grads, velocities, strict=True):
            if g is None:
                continue
            if self.weight_decay:
                g = g.add(p, alpha=self.weight_decay)
            if v is not None:
                v.mul_(self.momentum).add_(g)
                g = g.add(v, alpha=self.momentum) if self.nesterov else v
            p.addcmul_(g, _per_client(lr, p), value=-1)

    def _part(self, state: Sequence[Tensor], i: int, count: int) -> list[Tensor]:
        return [state[i]] if self.momentum else []

    def effective_steps(self, num_steps: Tensor) -> Tensor:
        """Return the steps a to which steps of heavy-ball momentum m amount (FedNova, sec. 4.2).

        Steps of Nesterov's momentum count as those of heavy-ball momentum, as in the authors' code.

        a = sum_{s=1..n} (1 - m^s) / (1 - m) = (n - m (1 - m^n) / (1 - m)) / (1 - m)

        Args:
            num_steps: number of steps taken, [].
        """
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

    lr: Positive = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the moments of `adam`: `--set local.betas=0.8,0.9`, in a file `[0.8, 0.9]`."""
    eps: float = 1e-8
    """Term of `adam` that is added to the denominator."""
    weight_decay: NonNegative = setting(0.0, "--weight-decay W")
    """L2 penalty that is added to the gradient."""

    def init(self, params: Sequence[Tensor], lead: int = 0) -> list[Tensor]:
        """Return the state before the first step.

        Args:
            params: the tensors to train, each with `lead` leading client axes.
            lead: number of leading client axes, 0 or 1.
        """
        counts = torch.zeros((*params[0].shape[:lead], len(params)), dtype=torch.float64, device=params[0].device)
        return [counts, *(torch.zeros_like(p) for p in (*params, *params))]

    def _step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: Tensor
    ) -> None:
        counts, moments = state[0], state[1:]  # of steps of each tensor
        n, (b1, b2) = len(params), self.betas
        if all(g is not None for g in grads):
            counts.add_(1)
        else:
            counts.add_(torch.tensor([float(g is not None) for g in grads], device=counts.device))
        of_each = zip(params, grads, counts.unbind(-1), moments[:n], moments[n:], strict=True)
        for p, g, count, m, v in of_each:
            if g is None:
                continue
            if self.weight_decay:
                g = g.add(p, alpha=self.weight_decay)
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            steps = _per_client(count, p)
            size = _per_client(lr, p) / (1 - b1**steps)
            p.sub_(size * m / ((v / (1 - b2**steps)).sqrt() + self.eps))

    def _part(self, state: Sequence[Tensor], i: int, count: int) -> list[Tensor]:
        return [state[0][..., i], state[1 + i], state[1 + count + i]]


@dataclass(frozen=True, kw_only=True)
class Cosine(Optimiser):
    """Another optimiser, `of`, whose rate falls to 0 over `steps` steps: lr * (1 + cos(pi t / steps)) / 2, t from 0."""

    lr: float = field(init=False)
    clip: None = field(init=False, default=None)  # `of` clips
    of: Optimiser
    steps: Count

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", self.of.lr)
        super().__post_init__()

    def init(self, params: Sequence[Tensor], lead: int = 0) -> list[Tensor]:
        """Return the state before the first step.

        Args:
            params: the tensors to train, each with `lead` leading client axes.
            lead: number of leading client axes, 0 or 1.
        """
        taken = torch.zeros(params[0].shape[:lead], dtype=torch.float64, device=params[0].device)
        return [taken, *self.of.init(params, lead)]

    def _step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: Tensor
    ) -> None:
        taken = state[0]
        share = 0.5 * (1 + torch.cos(math.pi * (taken / self.steps).clamp(max=1.0)))
        self.of.step_(params, grads, state[1:], lr * share, lead=taken.ndim)
        taken.add_(1)

    def _part(self, state: Sequence[Tensor], i: int, count: int) -> list[Tensor]:
        return self.of._part(state[1:], i, count)


@dataclass(frozen=True, kw_only=True)
class Distill:
    """Training of a server on public examples: in batches of `batch_size`, with a new `optimiser` state each round."""

    batch_size: Count
    optimiser: Optimiser

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Training of a client on public examples: `epochs` passes in the order they are sent, else as `Distill`."""

    epochs: Count
    batch_size: Count
    optimiser: Optimiser

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, kw_only=True)
class Local(StrictSettings):
    """Settings of the local training of every client, shared by all algorithms of a comparison.

    Each client has a new optimiser state in every round.
    """

    epochs: Count = setting(5, "--epochs N")
    """Passes of a client over its examples in each round, each freshly shuffled."""
    batch_size: Count = setting(50, "--batch-size N")
    """Examples of a batch. The last, shorter batch of an epoch is kept; a size beyond the largest client means full
    batches."""
    optimiser: Optimiser = setting(SGD(lr=0.01, momentum=0.9, weight_decay=1e-5), "--optimiser NAME")
    """Optimiser of local training, `sgd` or `adam`. Another one keeps `lr`, `clip` and `weight_decay`."""
    decay: Annotated[float, Gt(0), Le(1)] = setting(1.0, "--decay F")
    """The learning rate of round t, from 0, is `lr * decay**t`."""
    steps: Count | None = None
    """Number of batches in each round, instead of epochs."""

    def __post_init__(self) -> None:
        if not isinstance(self.optimiser, Optimiser):
            raise SettingError(
                f"optimiser must be one of fedloom's, such as SGD(lr=0.01, momentum=0.9) or Adam(lr=0.001), got "
                f"{_optimiser_said(self.optimiser)}"
            )
        check_choices(self)

    def rate(self, round: int) -> float:
        """Return the learning rate of a round, counted from 0.

        Args:
            round: from 0.
        """
        return self.optimiser.lr * self.decay**round

    def longer(self, epochs: int) -> Local:
        """Return this training with more epochs; of `steps`, with the share of steps that these would be.

        A share of a step counts as one: 2 epochs that are 5 steps are 8 steps with 1 epoch more.

        Args:
            epochs: how many more.
        """
        steps = self.steps and -(-self.steps * (self.epochs + epochs) // self.epochs)
        return replace(self, epochs=self.epochs + epochs, steps=steps)


def _per_client(value: Tensor, like: Tensor) -> Tensor:
    """Return a value for all clients [] or for each of them [K], shaped to multiply `like`."""
    return value.reshape(value.shape + (1,) * (like.ndim - value.ndim)).to(like.dtype)


def _optimiser_said(given: object) -> str:
    """Return what was given in the place of an optimiser, and how it is written here."""
    kind = given if isinstance(given, type) else type(given)
    if not kind.__module__.startswith("torch.optim"):
        return f"{kind.__name__}, a class: write {kind.__name__}(lr=0.01)" if kind is given else repr(given)
    what = f"the class torch.optim.{kind.__name__}" if kind is given else f"a torch.optim.{kind.__name__}"
    known = f"write fedloom.{kind.__name__}(lr=...)" if kind.__name__ in ("SGD", "Adam") else "take one of these"
    return f"{what}, which keeps its state in parameters and so cannot train many clients: {known}"
