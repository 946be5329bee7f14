"""The training of clients between two messages, and what else is trained on public examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Gt, Le

from fedloom.core.choices import Count, StrictSettings, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.optimiser import OPTIMISERS, SGD, Optimiser
from fedloom.core.rate_schedules import rate_schedule
from fedloom.core.setting import setting


@dataclass(frozen=True, kw_only=True)
class Distill:
    """Training of a server on public examples: in batches of `batch_size`, with a new `optimiser` state each round."""

    batch_size: Count
    optimiser: Optimiser

    def __post_init__(self) -> None:
        check_choices(self)
        _by_steps(self.optimiser)


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Training of a client on public examples: `epochs` passes in the order they are sent, else as `Distill`."""

    epochs: Count
    batch_size: Count
    optimiser: Optimiser

    def __post_init__(self) -> None:
        check_choices(self)
        _by_steps(self.optimiser)


@dataclass(frozen=True, kw_only=True)
class Local(StrictSettings):
    """Settings of the local training of every client, shared by all algorithms of a comparison.

    Each client begins each of its trainings with a new optimiser, unless it keeps it.
    """

    epochs: Count = setting(5, "--epochs N")
    """Passes of a client over its examples in each round, each freshly shuffled."""
    batch_size: Count = setting(50, "--batch-size N")
    """Examples of a batch. The last, shorter batch of an epoch is kept; a size beyond the largest client means full
    batches."""
    optimiser: Optimiser = setting(SGD(lr=0.01, momentum=0.9, weight_decay=1e-5), "--optimiser NAME")
    """[Optimiser of local training](settings.md#optimisers): `sgd`, `adam`, `adamw`, `rmsprop`, `adagrad`, or
    `module:Class`. Another one keeps what all have, and `weight_decay`."""
    decay: Annotated[float, Gt(0), Le(1)] = setting(1.0, "--decay F")
    """The learning rate of round t, from 0, is `decay**t` times what `lr` and `schedule` say."""
    steps: Count | None = None
    """Number of batches in each round, instead of epochs."""
    keep_optimiser: bool = False
    """Let each client [keep its optimiser](settings.md#optimisers) between its trainings, round after round: momentum,
    moments and the count of steps."""

    def __post_init__(self) -> None:
        if not isinstance(self.optimiser, Optimiser):
            raise SettingError(
                "optimiser must be one of fedloom's, such as SGD(lr=0.01, momentum=0.9) or Adam(lr=0.001), or derived "
                f"from fedloom.Optimiser, got {_optimiser_said(self.optimiser)} [FL-METHOD-001]"
            )
        check_choices(self)

    def rate(self, round: int) -> float:
        """Return the learning rate of a round, counted from 0.

        Args:
            round: from 0.
        """
        return self.optimiser.rate(round) * self.decay**round

    def longer(self, epochs: int) -> Local:
        """Return this training with more epochs; of `steps`, with the share of steps that these would be.

        A share of a step counts as one: 2 epochs that are 5 steps are 8 steps with 1 epoch more.

        Args:
            epochs: how many more.
        """
        steps = self.steps and -(-self.steps * (self.epochs + epochs) // self.epochs)
        return replace(self, epochs=self.epochs + epochs, steps=steps)


def _by_steps(optimiser: Optimiser) -> None:
    """Refuse a schedule by rounds of a training that knows no rounds."""
    text = optimiser.schedule
    if text != "constant" and rate_schedule(text).by == "round":
        more = "&" if "?" in text else "?"
        raise SettingError(
            f"training on public examples has a schedule of its steps, got schedule = {text!r}, by rounds: write "
            f"{text.replace('by=round', 'by=step') if 'by=round' in text else f'{text}{more}by=step'}"
        )


def _optimiser_said(given: object) -> str:
    """Return what was given in the place of an optimiser, and how it is written here."""
    kind = given if isinstance(given, type) else type(given)
    if not kind.__module__.startswith("torch.optim"):
        return f"{kind.__name__}, a class: write {kind.__name__}(lr=0.01)" if kind is given else repr(given)
    what = f"the class torch.optim.{kind.__name__}" if kind is given else f"a torch.optim.{kind.__name__}"
    there = {one.__name__ for one in OPTIMISERS.values()}
    known = f"write fedloom.{kind.__name__}(lr=...)" if kind.__name__ in there else "take one of these"
    return f"{what}, which keeps its state in parameters and so cannot train many clients: {known}"
