"""Define an algorithm: a few functions and the hyper-parameters they share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.batches import Batches
from fedloom.core.choices import StrictSettings, check_choices
from fedloom.core.client import Client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.core.fold import minimise
from fedloom.core.fold.execution import current
from fedloom.core.local_training import Local
from fedloom.core.losses import Loss
from fedloom.core.model import Model
from fedloom.core.requires import GlobalOnly, Requires
from fedloom.core.types import BatchLoss, Beside, Params, Weights

if TYPE_CHECKING:
    from fedloom.data import Federation

V = TypeVar("V")
S = TypeVar("S")
B = TypeVar("B")
C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class Algorithm(StrictSettings, ABC, Generic[V, S]):
    """A federated algorithm: server state V, client state S (both pytrees of tensors).

    Fields are hyper-parameters, named by the paper's symbols; one that is annotated `Literal[...]` takes those values
    alone, one that is annotated `Positive`, `NonNegative`, `Count` or `Annotated[float, Ge(0), Lt(1)]` values within
    these bounds. Methods that run on a client are marked `@on_client` and written for ONE client. State is returned,
    never assigned.

    Where clients have several architectures, the run keeps one server state for each and calls `round` once for each,
    with the cohort's clients of that architecture. An algorithm whose rounds mix architectures says so in
    `requires`: its `init` gets all models and its `round` the whole cohort.
    """

    local: Local = field(default_factory=Local)

    neutral: ClassVar[Mapping[str, Any]] = {}  # the settings with which its models are FedAvg's; see `GlobalOnly`

    def __post_init__(self) -> None:
        check_choices(self)
        if not any(_says(self, name) for name in ("personal", "evaluation_payload", "global_weights", "global_models")):
            raise SettingError(
                f"{type(self).__name__} says no model to evaluate clients by: define global_weights(self, server) "
                "or personal(self, client, sent)"
            )
        if self.neutral and all(getattr(self, name) == value for name, value in self.neutral.items()):
            setting = ", ".join(f"{name} = {value}" for name, value in self.neutral.items())
            apart = isinstance(self.neutral, GlobalOnly)
            but = " but for the models by which clients are evaluated" if apart else ""
            warn(f"{type(self).__name__} with {setting} is FedAvg{but} [FL-METHOD-011]", SettingWarning)

    @property
    def personalises(self) -> bool:
        """True where clients are evaluated by personal models: where `personal` or `evaluation_payload` is defined."""
        return _says(self, "personal") or _says(self, "evaluation_payload")

    @property
    def requires(self) -> Requires:
        """Needs of data, networks and runs; a run that lacks one is refused before it starts."""
        return Requires()

    @property
    def training(self) -> Local:
        """Plan of a round's batches, `client.train`: longer than `local` where a client trains other things besides."""
        return self.local

    @property
    def evaluation_training(self) -> Local | None:
        """Plan of the batches with which `personal` trains: epochs, steps, size. None: it does not train."""
        return None

    @abstractmethod
    def init(self, model: Any, key: int, *, num_clients: int) -> V:
        """Return the server state before round 0.

        Args:
            model: the run's model, or a mapping of names to models where it requires them `mixed`.
            key: of the initial weights: `model.init(key)`.
            num_clients: how many clients there are.
        """

    def bind(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        """Return this algorithm as it runs with these data and networks: itself, or a copy with facts about them.

        The facts are not settings: `return super().bind(federation,
        models).with_context(shape=federation.train.shape)`.

        Args:
            federation: what the run trains on.
            models: the networks by name.

        Raises:
            SettingError: they do not suit the settings. It is raised before work starts.
        """
        return self

    def with_context(self, **facts: Any) -> Self:
        """Return a copy that has attributes besides its settings.

        Args:
            **facts: the attributes by name.
        """
        made = copy.copy(self)
        for name, fact in facts.items():
            object.__setattr__(made, name, fact)  # as frozen classes set what they derive
        return made

    def init_client(self, initial: Weights, model: Model, key: int) -> S:
        """Return the state of a client at its first contact. It is not called for a client that is never selected.

        Args:
            initial: initial weights of its architecture, the same for all clients and known to each of them.
            model: its network.
            key: of its randomness.
        """
        return ()  # type: ignore[return-value]

    def init_rows(self, initial: Weights, model: Model, *, num_clients: int) -> Mapping[str, Any]:
        """Return what the server keeps of each client beside its state, by name, before the first contact.

        `cohort.rows(name)` reads such rows, `cohort.keep(name, rows)` replaces them. They are stored like the clients'
        states: a checkpoint writes those that moved.

        Args:
            initial: initial weights of the client's architecture.
            model: the client's network.
            num_clients: of all architectures, so a row with an entry for each client is indexed by its number.
        """
        return {}

    @abstractmethod
    def round(self, server: V, cohort: Cohort) -> V:
        """Run a round, with as many exchanges as the paper has, and return the server state.

        Args:
            server: the state after the last round.
            cohort: the selected clients, reached by `cohort.reduce` and `cohort.gather`.
        """

    def evaluation_payload(self, server: V, model: Model) -> Any:
        """Return what a client is sent to be evaluated: the global weights, `()` if there are none.

        Args:
            server: the state after the round.
            model: the client's network.
        """
        found = self.global_models({"" if self.requires.mixed else model.name: server}, {model.name: model})
        return found.get(model.name, ())

    def personal(self, client: Client[S], sent: Any) -> Weights:
        """Return the model by which a client is evaluated. Runs on the client, like an `@on_client` method.

        Args:
            client: its state and data. `client.train` is there only where `evaluation_training` plans it.
            sent: what `evaluation_payload` returns.
        """
        return sent  # type: ignore[no-any-return]

    def has_personal(self, state: S) -> Tensor:
        """Return whether a client has a model of its own, [] bool. Runs on the client.

        A client without one is evaluated by the newest global model.

        Args:
            state: of the client.
        """
        return torch.ones((), dtype=torch.bool)

    def global_weights(self, server: V) -> Weights | None:
        """Return the model by which the server is evaluated, None if there is none.

        Args:
            server: the state after the round.
        """
        return None

    def global_models(self, server: Mapping[str, V], models: Mapping[str, Model]) -> dict[str, Weights]:
        """Return the global model of each architecture that has one, by its name.

        Args:
            server: all server states of a run by architecture. One that requires them `mixed` has one, named "".
            models: the networks by name.
        """
        found = {name: self.global_weights(state) for name, state in server.items()}
        return {name: weights for name, weights in found.items() if weights is not None}

    # ---- for a method that runs on a client

    def train(
        self,
        client: Client[Any],
        start: Weights,
        *context: Any,
        loss: Loss | None = None,
        correct: Callable[..., Any] | None = None,
        batches: Batches | None = None,
        only: str | None = None,
        optimiser: int = 0,
    ) -> Weights:
        """Train with the run's optimiser over a client's batches of this round, and return the weights.

        Buffers move as in any training.

        Args:
            client: whose batches and learning rate are used.
            start: weights to begin with.
            *context: what `loss` and `correct` need. Tensors are passed here, not captured.
            loss: `loss(w, batch, *context)`, the loss of a batch; None: the task's, `client.loss`.
            correct: `correct(g, *context)` changes a gradient before weight decay and momentum see it.
            batches: those to train on; None: `client.train`.
            only: words that choose the parameters to train, such as "last:1" or "* !norm". The others stay as they are
                in `start`, and neither weight decay nor an optimiser state knows them.
            optimiser: number of the client's optimiser that goes on, where it keeps `Requires.optimisers` of them: an
                algorithm that trains two models one after the other has 0 and 1.
        """
        given, term = loss or client.loss, self.term
        if not _says(self, "term"):
            wanted = given
        else:

            def wanted(w: Weights, batch: Batch, *context: Any) -> BatchLoss:
                found = given(w, batch, *context[1:])
                return found + term(found, batch, context[0])

            context = (start, *context)
            given_correct = correct
            correct = given_correct and (lambda g, *context: given_correct(g, *context[1:]))
        batches = client.train if batches is None else batches
        names, whole = client.model.params, correct
        if only is None or names == (chosen := client.model.chosen(only)):
            return self._minimise(client, optimiser, wanted, start, batches, *context, correct=correct)

        def of_part(part: Weights, batch: Batch, rest: Params, *context: Any) -> Any:
            params = {name: part.params[name] if name in part.params else rest[name] for name in names}
            return wanted(Weights(params, part.buffers), batch, *context)

        def correct_part(gradient: Params, rest: Params, *context: Any) -> Params:
            all = Params({n: gradient[n] if n in gradient else torch.zeros_like(rest[n]) for n in names})
            return whole(all, *context).select(gradient.__contains__)  # type: ignore[misc,no-any-return]

        part = Weights(start.params.select(chosen.__contains__), start.buffers)
        context = (start.params.select(lambda name: name not in chosen), *context)
        trained = self._minimise(client, optimiser, of_part, part, batches, *context, correct=whole and correct_part)
        return start.merge(trained)

    def train_beside(
        self, client: Client[Any], start: Weights, beside: B, *context: Any, loss: Loss
    ) -> tuple[Weights, B]:
        """Train `start` as `train` does, and another pytree in the same steps; return both.

        Args:
            client: whose batches and learning rate are used.
            start: weights to begin with.
            beside: any pytree. Its floating leaves are trained, but the buffers of `Weights` in it are only moved: by
                what the loss returns as its `BatchLoss.beside`.
            *context: what `loss` needs.
            loss: `loss(w, batch, beside, *context)`, the loss of a batch, in both.
        """
        term = self.term if _says(self, "term") else None

        def of_both(carry: tuple[Weights, Beside[B]], batch: Batch, *context: Any) -> tuple[Tensor, Any]:
            w, other = carry
            found = loss(w, batch, other.value, *(context if term is None else context[1:]))
            value = found.value if term is None else found.value + term(found, batch, context[0])
            return value, (found.weights, other if found.beside is None else Beside(found.beside))

        both, context = (start, Beside(beside)), context if term is None else (start, *context)
        w, other = self._minimise(client, 0, of_both, both, client.train, *context)
        return w, other.value

    def _minimise(
        self,
        client: Client[Any],
        number: int,
        loss: Any,
        carry: C,
        batches: Batches,
        *more: Any,
        correct: Any = None,
    ) -> C:
        """Train by `minimise`, or with the client's optimiser of this number where it keeps some."""
        kept, how = current().optimisers, self.local.optimiser
        if kept is None:
            return minimise(loss, carry, batches, how, *more, lr=client.lr, correct=correct)
        return kept.minimise(number, loss, carry, batches, how, *more, lr=client.lr, correct=correct)  # type: ignore[no-any-return]

    def term(self, loss: BatchLoss, batch: Batch, start: Weights) -> Tensor:
        """Return what a subclass adds to the loss of every local step, [].

        Args:
            loss: the step's own loss, with `loss.weights` and `loss.logits`.
            batch: the step's examples.
            start: weights with which the training began.
        """
        return torch.zeros_like(loss.value)


def _says(algorithm: Algorithm[Any, Any], method: str) -> bool:
    """Return whether the algorithm has a method of its own, or of a parent, in the place of that of `Algorithm`."""
    return getattr(type(algorithm), method) is not getattr(Algorithm, method)
