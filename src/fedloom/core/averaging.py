"""Share the round of algorithms whose server averages models: which tensors travel, and which stay with each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from fedloom.core import patterns
from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Aggregation, Client
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.types import Maybe, Weighted, Weights, replace, state

if TYPE_CHECKING:
    from fedloom.data import Federation

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Averaging(Algorithm[Weights, S]):
    """Average the global model; a part of it may stay with the clients (abstract).

    The server sends `down(server)`; a client starts from `received`, keeps `own(trained)` and sends `up(trained)`. It
    is evaluated by `received`.
    """

    aggregation: Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""
    buffers: Literal["average", "server", "local"] = "average"
    """BatchNorm statistics: `average` them like parameters, keep the `server`'s (those of the initial model), or leave
    them `local` to each client."""
    shared: str = "*"
    """Tensors that are shared: glob patterns of their names or of their layers', `last:N` for the last N layers, or a
    kind of layers (`norm`, `conv`, `linear`, `embedding`), separated by spaces; a word that begins with ! takes back.
    `* !last:1` leaves the last layer to each client, `* !norm` the normalisation layers (FedBN)."""

    kinds: ClassVar[Mapping[frozenset[str], Mapping[str, str]]] = {}  # of layers, by a network's tensors; `bind` finds

    def __post_init__(self) -> None:
        super().__post_init__()
        patterns.check(self.shared)

    @property
    def personalises(self) -> bool:
        kind = type(self)
        said = (kind.personal, kind.evaluation_payload) != (Averaging.personal, Averaging.evaluation_payload)
        return said or self.shared != "*" or self.buffers == "local"

    def bind(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        bound = super().bind(federation, models)
        if self.shared == "*":
            return bound
        for model in models.values():
            self.check_shared(model)
        if not set(self.shared.replace("!", "").split()) & patterns.KINDS.keys():
            return bound
        kinds: dict[frozenset[str], dict[str, str]] = {}
        for model in models.values():
            if kinds.setdefault(frozenset(model.tensors), model.kinds) != model.kinds:
                raise SettingError(
                    f"shared = {self.shared!r} chooses layers by their kind, and {', '.join(models)} have tensors of "
                    "the same names in layers of other kinds: write patterns of names"
                )
        return bound.with_context(kinds=kinds)

    def check_shared(self, model: Model) -> None:
        """Refuse a `shared` that fits no tensor of a network.

        Args:
            model: the network whose tensors the words choose.

        Raises:
            SettingError: a word of `shared` chooses no tensor.
        """
        patterns.select(self.shared, model.tensors, model.params, model.skeleton(), model.name)

    def init(self, model: Model, key: int, *, num_clients: int) -> Weights:
        """Return the server state before round 0.

        Args:
            model: the network of all clients.
            key: of the initial weights: `model.init(key)`.
            num_clients: how many clients there are.

        Raises:
            SettingError: `shared` matches no parameter.
        """
        weights = model.init(key)
        if not self.down(weights).params:
            raise SettingError(f"shared = {self.shared!r} matches no parameter of {model.name}: {list(weights.params)}")
        return weights

    def init_client(self, initial: Weights, model: Model, key: int) -> S:
        return self.own(initial)  # type: ignore[return-value]

    def down(self, weights: Weights) -> Weights:
        """Return the part of a whole model that the server sends.

        Args:
            weights: the whole model.
        """
        names = self._shared(weights)
        return Weights(
            params=weights.params.select(names.__contains__),
            buffers={} if self.buffers == "local" else weights.buffers.select(names.__contains__),
        )

    def shared_tensors(self, initial: Weights) -> list[str] | None:
        """Return the names of the trained tensors that clients share where others stay with them; else None.

        Args:
            initial: initial weights, whose names are chosen from.
        """
        return None if self.shared == "*" else [*self.down(initial).params]

    def up(self, weights: Weights) -> Weights:
        """Return the part of a whole model that a client sends.

        Args:
            weights: the whole model.
        """
        part = self.down(weights)
        return Weights(params=part.params) if self.buffers == "server" else part

    def own(self, weights: Weights) -> Weights:
        """Return the part of a whole model that stays with the client.

        Args:
            weights: the whole model.
        """
        sent = self.down(weights)
        return weights.select(lambda name: name not in sent.params and name not in sent.buffers)

    def received(self, client: Client[S], sent: Weights) -> Weights:
        """Return the whole model from what was sent and what is the client's own.

        Args:
            client: the client, whose state holds its own part.
            sent: the part that the server sent.
        """
        return client.model.arrange(sent.merge(client.state))  # type: ignore[arg-type]

    def answer(self, client: Client[S], w_k: Weights) -> tuple[S, Weighted[Weights]]:
        """Return what a client keeps and what it sends of the whole model that it trained.

        Args:
            client: the client.
            w_k: the whole model that it trained.

        Returns:
            The client's new state, and its upload with the weight that it has in the mean.
        """
        return self.own(w_k), client.weigh(self.up(w_k), self.aggregation)  # type: ignore[return-value]

    def model_of(self, server: Weights) -> Weights:
        """Return the global model in the server's state: the state itself, where the server keeps nothing else.

        Args:
            server: the state of the server.
        """
        return server

    def evaluation_payload(self, server: Weights, model: Model) -> Weights:
        return self.down(self.model_of(server))

    def personal(self, client: Client[S], sent: Weights) -> Weights:
        return self.received(client, sent)

    def global_weights(self, server: Weights) -> Weights | None:
        return self.model_of(server) if self.shared == "*" else None

    def _shared(self, weights: Weights) -> set[str]:
        """Return the names of the tensors that are shared."""
        names = (*weights.params, *weights.buffers)
        if self.shared == "*":
            return set(names)
        kinds = self.kinds[frozenset(names)] if self.kinds else {}
        return patterns.chosen(self.shared, names, weights.params, kinds)


@state
class Kept(Generic[S]):
    """Client state that also stores the last local model."""

    inner: S  # what its algorithm keeps
    v: Maybe[Weights]  # the whole model with which its last training ended
    made: Tensor  # [] int64: the round of that training, from 0


if TYPE_CHECKING:
    _Averaging = Averaging[Any]
else:  # derived from it, what stands before an algorithm would bring back the defaults that this one has changed
    _Averaging = object


class KeepsModel(_Averaging):
    """Abstract, to stand before an algorithm that averages: clients keep the model that they trained last.

    Each client is evaluated by that model, whatever the server has averaged since. A client that never took part is
    evaluated by the model from which it would start.
    """

    def init_client(self, initial: Weights, model: Model, key: int) -> Kept[Any]:
        inner = super().init_client(initial, model, key)
        return Kept(inner=inner, v=Maybe.none(initial), made=torch.zeros((), dtype=torch.int64))

    def received(self, client: Client[Any], sent: Weights) -> Weights:
        return super().received(replace(client, state=client.state.inner), sent)

    def answer(self, client: Client[Any], w_k: Weights) -> tuple[Kept[Any], Weighted[Weights]]:
        inner, upload = super().answer(replace(client, state=client.state.inner), w_k)
        return Kept(inner=inner, v=Maybe.some(w_k), made=client.round), upload

    def personal(self, client: Client[Any], sent: Weights) -> Weights:
        return client.state.v.otherwise(self.received(client, sent))  # type: ignore[no-any-return]

    def has_personal(self, state: Kept[Any]) -> Tensor:
        return state.v.present
