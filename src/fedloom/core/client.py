"""All that ONE client may see, and the mark of the methods that run on a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from fedloom.core.batches import Batches, plan
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.fold.execution import current
from fedloom.core.losses import Loss, task_loss
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.types import Weighted, replace, state, static
from fedloom.wording import did_you_mean

S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Aggregation = Literal["samples", "uniform"]  # how a mean over clients weighs them
_AGGREGATIONS = get_args(Aggregation)


@state
class Public:
    """Examples that everybody holds; the server names rows, the client looks them up.

    Labels `batches.y` are 0 everywhere unless the federation says that they are known (`public_labels`).
    """

    batches: Batches

    def only(self, index: Tensor) -> Public:
        """Return the public examples `index` [P] alone."""
        b = self.batches
        count = torch.full_like(b.num_examples, len(index))
        return Public(batches=replace(b, x=b.x[index], y=b.y[index], num_examples=count))

    def rows(self, index: Tensor, batch_size: int) -> Batches:
        """Return one pass over the public examples `index` [P], in that order."""
        count = torch.full_like(self.batches.num_examples, index.shape[0])
        return replace(self.batches, examples=index, num_examples=count, notes={}).in_order(batch_size)

    def consensus(self, teachers: Sequence[tuple[Callable[..., Tensor], Any]]) -> Tensor:
        """Return the mean over pairs (fn, weights) of fn(weights, x) for every public example, [P, ...]."""
        everything = self.rows(torch.arange(self.batches.x.shape[0], device=self.batches.x.device), 200)
        total = torch.zeros((), device=everything.x.device)
        for fn, weights in teachers:
            total = total + everything.predict(fn, weights) / len(teachers)
        return total

    def shuffled(self, batch_size: int, steps: int, key: int) -> Batches:
        """Return `steps` batches of all public examples, over as many fresh permutations as that takes.

        The short batch of a permutation comes last.
        """
        b, device = self.batches, self.batches.x.device
        n = int(b.num_examples)
        order, mask = plan(np.array([n], np.int64), min(batch_size, n), [key], steps=steps)
        return replace(
            b,
            examples=torch.arange(n, device=device),
            order=torch.from_numpy(order[0]).to(device),
            mask=torch.from_numpy(mask[0]).to(device),
            num_steps=torch.tensor(steps, device=device),
            key=torch.tensor(key, device=device),
        )


@state
class NotPlanned:
    """Placeholder for a client's training batches while it is evaluated, where nothing said that evaluating trains."""

    algorithm: str = static()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks of any object
            raise AttributeError(name)
        raise StackingError(
            f"personal of {self.algorithm} reads client.train, and batches for evaluation are planned only for "
            "algorithms that say how: define the property evaluation_training, which returns self.local or another plan"
        )


@state
class Client(Generic[S]):
    """All that one client may see in one exchange of one round. Nothing in it knows of other clients."""

    state: S  # what it keeps between rounds
    train: Batches  # this round's training batches, in order; for evaluating by `Algorithm.evaluation_training`
    val: Batches  # held-out examples, one pass; empty (num_examples = 0) where none are held out
    public: Public
    num_examples: Tensor  # [] int64: its training examples
    round: Tensor  # [] int64, from 0
    lr: Tensor  # [] float64: this round's learning rate
    key: Tensor  # [] int64: its randomness in this exchange
    model: Model = static()
    task: Task = static()

    @property
    def loss(self) -> Loss:
        """The task's loss of a batch, (weights, batch) -> `BatchLoss`."""
        return task_loss(self.model, self.task)

    def weigh(self, value: T, aggregation: Aggregation) -> Weighted[T]:
        """Return a value for a mean over clients.

        Args:
            value: pytree of tensors.
            aggregation: "samples": its weight is this client's number of training examples; "uniform": 1.

        Returns:
            The value with its weight, which `Cohort.reduce` takes the mean of.

        Raises:
            SettingError: there is no such aggregation.
        """
        if not isinstance(aggregation, str) or aggregation not in _AGGREGATIONS:
            text = aggregation if isinstance(aggregation, str) else ""
            raise SettingError(
                f"client.weigh counts clients by 'samples' or 'uniform', got "
                f"{repr(text) if text else type(aggregation).__name__}{did_you_mean(text, _AGGREGATIONS)}: another "
                "weight is fedloom.Weighted(value=..., weight=...)"
            )
        counts = self.num_examples if aggregation == "samples" else torch.ones_like(self.num_examples)
        return Weighted(value=value, weight=counts)

    def note(self, **numbers: Tensor | float) -> None:
        """Note numbers of this client for the round's record.

        The record has their mean over the round's clients (`client_NAME`), their standard deviation (`client_NAME_std`)
        and each client's (`client_NAME_by_client`). Of a name that is noted twice the last number counts; one that is
        not finite counts as none.

        Args:
            **numbers: one number each, [].

        Raises:
            StackingError: a number is no single one, a name is that of a spread, or it is a step of `fold` or
                `minimise` that notes.
        """
        run = current()
        if run.step is not None:
            raise StackingError(
                "a step of fold or minimise cannot note, since its tensors end with it: return the number in the carry "
                "and call client.note after the fold"
            )
        for name, number in numbers.items():
            value = number if isinstance(number, Tensor) else torch.tensor(number, device=self.key.device)
            if value.ndim or name.endswith(("_std", "_by_client")):
                raise StackingError(
                    "client.note takes one number for each name, which ends neither in _std nor in _by_client, got "
                    f"{name} of shape {list(value.shape)}: note a mean, or each by a name of its own"
                )
            run.notes[name] = value.detach().to(torch.float64)


def on_client(method: F) -> F:
    """Mark a method that a client runs.

    Written for one client; the engine decides where and how many at a time. So: no Python branch on tensor values, no
    `.item()`, every answer a pytree of tensors.

    Args:
        method: `(self, client, *broadcast, *scatter) -> (new state, upload)`. What is sent is annotated.

    Returns:
        The method, marked.
    """
    method.on_client = True  # type: ignore[attr-defined]
    return method
