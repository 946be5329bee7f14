"""What algorithms share whose server averages models: which tensors travel, and which stay with each client."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Aggregation, Client
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.types import Weights

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Averaging(Algorithm[Weights, S]):
    """Abstract: the global model, of which a part may be the clients' own.

    `aggregation`: mean weighted by number of `samples`, or `uniform`. `buffers` (BatchNorm statistics): `average` them
    like parameters, keep the `server`'s, or leave them `local` to each client. `shared`: which tensors are shared, as
    glob patterns of their names or `last:N` for those of the last N layers, separated by spaces; one that starts with !
    takes back. `* !last:1` leaves the last layer to each client.

    Clients keep `own(weights)`, or a state of which that is a part (`own_of` says which). The server sends
    `down(server)`; a client starts from `received`, sends `up(trained)`, and is judged by `received`.
    """

    aggregation: Aggregation = "samples"
    buffers: Literal["average", "server", "local"] = "average"
    shared: str = "*"

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.shared.split():
            layers = word.removeprefix("!")
            if layers.startswith("last:") and not (layers[5:].isdecimal() and int(layers[5:])):
                raise SettingError(f"shared names the last N layers as last:N with N >= 1, got {word!r}")

    @property
    def personalises(self) -> bool:
        said = (type(self).personal, type(self).judged_with) != (Averaging.personal, Averaging.judged_with)
        return said or self.shared != "*" or self.buffers == "local"

    def init(self, model: Model, key: int, *, num_clients: int) -> Weights:
        weights = model.init(key)
        if not self.down(weights).params:
            raise SettingError(f"shared = {self.shared!r} matches no parameter of {model.name}: {list(weights.params)}")
        return weights

    def init_client(self, initial: Weights, model: Model, key: int) -> S:
        return self.own(initial)  # type: ignore[return-value]

    def own_of(self, state: S) -> Weights:
        """Where a client's state holds its own tensors."""
        return state  # type: ignore[return-value]

    def down(self, weights: Weights) -> Weights:
        """The part of a whole model that the server sends."""
        names = self._shared(weights)
        return Weights(
            params=weights.params.select(names.__contains__),
            buffers={} if self.buffers == "local" else weights.buffers.select(names.__contains__),
        )

    def up(self, weights: Weights) -> Weights:
        """The part of a whole model that a client sends."""
        part = self.down(weights)
        return Weights(params=part.params) if self.buffers == "server" else part

    def own(self, weights: Weights) -> Weights:
        """The part of a whole model that stays with the client."""
        sent = self.down(weights)
        return weights.select(lambda name: name not in sent.params and name not in sent.buffers)

    def received(self, client: Client[S], sent: Weights) -> Weights:
        """The whole model from what was sent and what is the client's own."""
        return client.model.arrange(sent.merge(self.own_of(client.state)))

    def judged_with(self, server: Weights, model: Model) -> Weights:
        return self.down(server)

    def personal(self, client: Client[S], sent: Weights) -> Weights:
        return self.received(client, sent)

    def global_weights(self, server: Weights) -> Weights | None:
        return server if self.shared == "*" else None

    def _shared(self, weights: Weights) -> set[str]:
        """The names of the tensors that are shared."""
        names, shared = (*weights.params, *weights.buffers), set[str]()
        if self.shared == "*":
            return set(names)
        layers = list(dict.fromkeys(_layer(name) for name in weights.params))
        for pattern in self.shared.split():
            wanted = pattern.removeprefix("!")
            if wanted.startswith("last:"):
                last = layers[-int(wanted.removeprefix("last:")) :]
                meant = {name for name in names if _layer(name) in last}
            else:
                meant = {name for name in names if fnmatchcase(name, wanted)}
            shared = shared - meant if pattern.startswith("!") else shared | meant
        return shared


def _layer(name: str) -> str:
    """The layer to which a tensor belongs: of `conv.weight` it is `conv`."""
    return name.rpartition(".")[0]
