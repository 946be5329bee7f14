"""The server's side of a run: the population, the states of clients and server, and how clients are asked."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.cohort import HasPools, Predict
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.fold.execution import Programs
from fedloom.core.network_makers import own_defaults
from fedloom.core.random import derive
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.chain import chain_of
from fedloom.engines.engine_options import DEFAULTS, Options
from fedloom.engines.links import Chain
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.population import Population
from fedloom.engines.round_traffic import Exchange, Traffic
from fedloom.engines.runtime import Runtime
from fedloom.engines.upload_bounds import Norms, bound
from fedloom.storage.keys import Keys
from fedloom.storage.store import ClientStore

Send = Callable[[Sequence[int]], tuple[Any, ...]]  # clients -> what is sent to each of them, stacked


class ServerSide(ABC):
    """Interface of an engine for a cohort.

    Clients' states are in `states`, at the server; requests carry them. `options`: how clients are computed, and which
    of their answers are taken.
    """

    name: str
    stacked = False  # whether clients are computed together
    elsewhere = False  # whether clients' examples are not here
    on_one_thread = False  # whether each client is computed on one thread, also in a run that has more
    uses: ClassVar[frozenset[str]] = frozenset()  # of the settings that not all engines use
    fleet: Any = None  # the devices that are the clients of a run, for an engine of these
    least = 0  # the fewest answers to what is asked once in a run
    durable: int | None = None  # the last round whose checkpoint is on disk

    def __init__(
        self,
        population: Population,
        algorithm: Algorithm[Any, Any],
        options: Options = DEFAULTS,
        *,
        programs: Programs | None = None,
    ) -> None:
        algorithm = algorithm.bind(population.federation, population.models)
        self.population, self.algorithm = population, algorithm
        self.options = o = options
        if o.partial_sums is not None and self.elsewhere:
            raise SettingError(
                f"partial_sums = {o.partial_sums} cannot be, because devices answer each for itself: leave one of them "
                "out"
            )
        if o.attack is not None and self.elsewhere:
            raise SettingError(
                f"attack = {type(o.attack).__name__} is a simulation of clients that lie, and devices are what they "
                "are: leave it out; an aggregator, such as 'median', is for devices too"
            )
        self.bound = bound(o.bound)
        self.took_mean = False  # whether uploads became a mean
        self.norms = Norms()
        self._chain: tuple[Options, Chain] | None = None
        self._bills: dict[str, PayloadSize] = {}
        self.runtime = Runtime(
            population, algorithm, stacked=self.stacked, compilation=o.compilation, bf16=o.bf16, programs=programs,
            encoders=o.encoders, gradients=o.gradients,
        )  # fmt: skip
        for name in o.works:
            self.runtime.work(name)
        self.states = ClientStore()  # a client never asked occupies nothing
        self.watch: Callable[[Exchange], None] | None = None  # sees every exchange of a replayed round
        self.kept: list[tuple[list[int], Any, int]] = []  # rows of the round at hand: (keys, rows [K, ...], round)
        self.noted: dict[str, Any] = {}  # of the round at hand, as `kept`
        self.to_judge: dict[str, Predict | Mapping[int, Predict]] = {}
        self.traffic = Traffic()
        self.lost: dict[int, str] = {}  # clients of the exchange at hand that did not answer, and why

    @property
    def chain(self) -> Chain:
        """The way of uploads to their mean, by the options."""
        if self._chain is None or self._chain[0] is not self.options:
            self._chain = self.options, chain_of(self.options)
        return self._chain[1]

    @own_defaults()
    def init(self) -> dict[str, Any]:
        """Return the server states before round 0.

        There is one for each architecture, or one ("") where the algorithm mixes them.
        """
        p, a = self.population, self.algorithm
        key = derive(p.seed, "init")
        try:
            inspect.signature(a.init).bind(None, key, num_clients=1)
        except TypeError as error:
            raise SettingError(
                f"init of {type(a).__name__} is called as init(model, key, num_clients=N), and it takes "
                f"init{inspect.signature(a.init)} ({error}): write def init(self, model, key, *, num_clients)"
            ) from None
        if a.requires.mixed:
            states = {"": a.init(dict(p.models), key, num_clients=p.num_clients)}
        else:
            states = {n: a.init(p.models[n], key, num_clients=m) for n, m in p.members.items() if m}
        if other := [leaf for leaf in tree.leaves(states) if not isinstance(leaf, Tensor)]:
            raise StackingError(
                f"init of {type(a).__name__} must return a server state made of tensors, got one with "
                f"{type(other[0]).__name__}: return model.init(key), or a class marked @fedloom.state"
            )
        return tree.cast(states, device=p.device, dtype=p.dtype)

    def absent(self, round: int) -> Collection[int]:
        """Return clients that have not joined by a round, from 0."""
        return () if self.options.absent is None else self.options.absent(round)

    def removed(self) -> Collection[int]:
        """Return clients that take part no more, and are not drawn."""
        return ()

    def clients_change(self) -> bool:
        """Return whether the clients will be others after a round that is done, which needs a checkpoint then."""
        return False

    def judged(self, clients: Sequence[int], refused: Mapping[int, str], round: int) -> None:  # noqa: B027  # records say it
        """Take note of clients that have answered, and of those whose answers are not taken, and why."""

    # ---- asking

    @abstractmethod
    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        """Ask clients of one architecture: yield (request, new states, answer) for some of them at a time, in order."""

    def ask(self, call: Call, clients: Sequence[int], send: Send) -> tuple[Request, Any, Answer]:
        """Ask some clients, here and now."""
        request = self.request(call, clients, send)
        states, answer = self.runtime.answer(request, self.stack(clients), watched=self.watch is not None)
        return request, states, answer

    def request(self, call: Call, clients: Sequence[int], send: Send) -> Request:
        """Return the request to some clients of one architecture."""
        return Request.to(call, clients, self.population.seed, self.states.accepted, send(clients))

    def bill(self, method: str) -> PayloadSize:
        """Return the bill of a method, which says what its messages cost."""
        if method not in self._bills:
            self._bills[method] = PayloadSize(self.runtime.method(method))
        return self._bills[method]

    def stack(self, clients: Sequence[int]) -> Any:
        """Return the states of some clients, stacked; new ones for clients never heard of, which are not kept."""
        return self.states.stack(clients, self.fresh)

    # ---- what the server keeps of each client, in the same store

    @cached_property
    def keys(self) -> Keys:
        """Keys under which the store holds states, rows and entries of pools."""
        p = self.population
        label, model = next(iter(p.models.items()))
        rows = self.algorithm.init_rows(self.runtime.initial(label), model, num_clients=p.num_clients)
        names = (*sorted(rows), *sorted(self.chain.rows))
        return Keys(p.num_clients, names, tuple(self._pools), type(self.algorithm).__name__)

    @cached_property
    def _pools(self) -> dict[str, Any]:
        """An entry of each pool, by name in alphabetical order."""
        if not isinstance(self.algorithm, HasPools):
            return {}  # most have none, and need no server state to say so
        found = self.algorithm.init_pools(next(iter(self.init().values())))
        return dict(sorted(found.items()))

    @property
    def clients(self) -> Mapping[int, Any]:
        """The states of clients that took part, each read when it is asked for.

        They are without the server's rows and pools, and without what encoders and optimisers keep.
        """
        alone = not (self.keys.rows or self.keys.pools or self.options.encoders or self.runtime.optimisers)
        return self.states if alone else _Below(self.states, self.population.num_clients, self.runtime.own)

    def rows(self, name: str, clients: Sequence[int]) -> Any:
        """Return rows of some clients, stacked; as `init_rows` makes them where nothing was kept yet."""
        if not clients:
            return tree.take(self.rows(name, [0]), slice(0))
        return self.states.stack([self.keys.row(name, k) for k in clients], self.fresh)

    def pool(self, name: str) -> Sequence[Any]:
        """Return the entries of a pool, in order; each is read when it is asked for."""
        return _Pool(self.states, self.keys.entries(name, sorted(self.states)))

    def fresh(self, key: int) -> Any:
        """Make what the store does not have.

        It is the first state of a client, a row, or an entry of a pool as it would be.
        """
        p, place = self.population, self.keys.place(key)
        if place.kind == "state":
            return self.runtime.fresh(place.number)
        if place.name in self.chain.rows:
            return self.chain.rows[place.name]()
        if place.kind == "entry":
            made = self._pools[place.name]
        else:
            name = p.assignment[place.number]
            made = self.algorithm.init_rows(self.runtime.initial(name), p.models[name], num_clients=p.num_clients)
            made = made[place.name]
        return tree.cast(made, device=p.device, dtype=p.dtype)


class _Below(Mapping[int, Any]):
    """Entries of a store under keys below a number, read one by one: a dict of them would hold what is on disk."""

    def __init__(self, states: Mapping[int, Any], end: int, own: Callable[[Any], Any]) -> None:
        self._states, self._end, self._own = states, end, own

    def __iter__(self) -> Iterator[int]:
        return (k for k in self._states if k < self._end)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, key: int) -> Any:
        if not 0 <= key < self._end:
            raise KeyError(key)
        return self._own(self._states[key])


class _Pool(Sequence[Any]):
    """Entries of a store, read one by one."""

    def __init__(self, states: Mapping[int, Any], keys: list[int]) -> None:
        self._states, self._keys = states, keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Pool(self._states, self._keys[index])
        return self._states[self._keys[index]]
