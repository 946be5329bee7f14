"""Simulated clients: what the loop and the stack have in common."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.client import Client, NotPlanned, Public
from fedloom.core.cohort import Reduction, Replies, Scatter
from fedloom.core.errors import (
    ClientError,
    FedloomError,
    NobodyAnswered,
    NonFiniteError,
    SettingError,
    StackingError,
)
from fedloom.core.fold.execution import Compilation, Execution, Programs, executing
from fedloom.core.model import Model, own_defaults
from fedloom.core.random import derive
from fedloom.core.types import Failure, Weighted, Weights, replace
from fedloom.engines.population import HeldOut, Population
from fedloom.engines.store import ClientStore

Faults = Callable[[int, int, int], str | None]  # (round, exchange, client) -> why it does not answer, or None


@dataclass
class Traffic:
    """What one round moved and lost."""

    down: Counter[int] = field(default_factory=Counter)  # bytes by client
    up: Counter[int] = field(default_factory=Counter)
    failed: list[Failure] = field(default_factory=list)
    server_refused: dict[str, str] = field(default_factory=dict)  # why a server state stayed, by architecture
    losses: dict[int, float] = field(default_factory=dict)  # mean local training loss by client, last minimise


class Simulation(ABC):
    """An engine on one machine. Holds the clients' states; knows no algorithm by name.

    `chunk`: how many clients are computed at a time (stack); `chunks`: by architecture, as `fixed` has told it of a run
    that goes on. `faults`: simulated loss of clients. `on_nonfinite`:
    "stop" raises NonFiniteError, "refuse" treats the client as failed and leaves its state as it was; the same for the
    server's own state.
    """

    name: str

    def __init__(
        self,
        population: Population,
        algorithm: Algorithm[Any, Any],
        *,
        compilation: Compilation = "none",
        bf16: bool = False,
        chunk: int | None = None,
        chunks: Mapping[str, int] | None = None,
        faults: Faults | None = None,
        on_nonfinite: Literal["stop", "refuse"] = "stop",
    ) -> None:
        if algorithm.needs_public and population.federation.public is None:
            raise SettingError(f"{type(algorithm).__name__} needs public examples: federate(..., public=examples)")
        if chunk is not None and chunk < 1:
            raise SettingError(f"chunk must be >= 1 or None (chosen by memory), got {chunk}")
        self.population, self.algorithm = population, algorithm
        self.compilation, self.bf16, self.chunk = compilation, bf16, chunk
        self.faults, self.on_nonfinite = faults, on_nonfinite
        self.chunks_given = chunks
        self.states = ClientStore()  # a client never asked occupies nothing
        self.watch: Callable[[Exchange], None] | None = None  # sees every exchange of a replayed round
        self.traffic = Traffic()
        self.last = Execution()  # of the newest client call
        self._programs = Programs()
        self._initial: dict[str, Weights] = {}

    @own_defaults()
    def init(self) -> dict[str, Any]:
        """Server states before round 0: one for each architecture, or one ("") where the algorithm mixes them."""
        p, a = self.population, self.algorithm
        key = derive(p.seed, "init")
        if a.mixed:
            states = {"": a.init(dict(p.models), key, num_clients=p.num_clients)}
        else:
            states = {n: a.init(p.models[n], key, num_clients=m) for n, m in p.members.items() if m}
        return tree.cast(states, device=p.device, dtype=p.dtype)

    @own_defaults()
    def round(self, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[str, Any]:
        """One round with these clients: the new server states. `self.traffic` then tells of this round."""
        self.traffic = Traffic()
        self.states.version = round + 1
        cohort = SimulatedCohort(self, server, tuple(sorted(clients)), round)  # its order carries no meaning
        groups = {"": cohort} if self.algorithm.mixed else {str(g.architecture): g for g in cohort.groups}
        return {**server, **{name: self._moved(name, server[name], group) for name, group in groups.items()}}

    def _moved(self, name: str, before: Any, cohort: SimulatedCohort) -> Any:
        """The server state of one architecture after its round; the one before, if nobody answered or it is refused."""
        with executing(Execution()) as own:  # of what the server trains itself
            try:
                after = self.algorithm.round(before, cohort)
            except NobodyAnswered:
                return before
        problem = _first_bad_loss(own, 1).get(0)
        if problem is not None:
            problem = problem[0], f"{problem[1]} in its own training"
        elif not _finite(after):
            problem = None, "its own state is not finite"
        else:
            return after
        batch, what = problem
        if self.on_nonfinite == "stop":
            raise NonFiniteError(what + _REMEDY, client=None, round=cohort.round + 1, batch=batch)
        self.traffic.server_refused[name] = _at(what, batch)
        return before

    def server_of(self, server: dict[str, Any], client: int) -> Any:
        """The server state that concerns a client."""
        return server["" if self.algorithm.mixed else self.population.assignment[client]]

    def judge(
        self, server: dict[str, Any], clients: Sequence[int], round: int, held_out: HeldOut = "test"
    ) -> dict[int, tuple[int, int]]:
        """(right, examples) of each client's personal model after `round` on what it holds out."""
        judge = _Judge(self.algorithm).verdict
        verdicts = self._look(judge, server, clients, round, lambda ids: (_judged(self.population, ids, held_out),))
        return {k: (int(v[0]), int(v[1])) for k, v in verdicts.items()}

    def personal(self, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[int, Weights]:
        """The models by which clients are judged after `round`."""
        return self._look(_Judge(self.algorithm).model, server, clients, round, lambda ids: ())

    @own_defaults()
    def fresh(self, client: int) -> Any:
        """The state of a client at its first contact."""
        p, name = self.population, self.population.assignment[client]
        model, key = p.models[name], derive(p.seed, "client", client)
        if name not in self._initial:
            self._initial[name] = tree.cast(model.init(derive(p.seed, "init")), device=p.device, dtype=p.dtype)
        own = self.algorithm.init_client(self._initial[name], model, key)
        fits = all(t.device == p.device and t.dtype in (p.dtype, torch.int64, torch.bool) for t in tree.leaves(own))
        return own if fits else tree.cast(own, device=p.device, dtype=p.dtype)  # among a million, most are new

    @own_defaults()
    def _look(
        self,
        fn: Callable[..., Any],
        server: dict[str, Any],
        clients: Sequence[int],
        round: int,
        scatter: Callable[[Sequence[int]], Any],
    ) -> dict[int, Any]:
        """What `fn(client, sent, *scatter)` finds on each client, without consequences: no state moves, no byte
        counts, nobody is lost, and what it draws is drawn for nothing else. `sent`: what the algorithm judges with.
        """
        out: dict[int, Any] = {}
        for group in SimulatedCohort(self, server, tuple(clients), round).groups:
            sent = self.algorithm.judged_with(self.server_of(server, group.clients[0]), group.model)
            call = Call(fn, (sent,), round, "evaluate")
            for ids, _, found in self.answers(call, sorted(group.clients), scatter):
                out.update({k: tree.take(found, i) for i, k in enumerate(ids)})
        return out

    def fixed(self) -> dict[str, Any]:
        """What is chosen once for a run because results depend on it in the last bit."""
        return {"engine": self.name, "compilation": self.compilation, "bf16": self.bf16}

    @abstractmethod
    def answers(
        self, call: Call, clients: Sequence[int], scatter: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        """Compute `call` for clients of one architecture: (clients, states, uploads), stacked, chunk by chunk.

        `scatter` gives what is sent to some clients, stacked.
        """

    def clients(self, call: Call, ids: Sequence[int]) -> Client[Any]:
        """K clients as one stacked `Client`; shared leaves are not stacked (see `client_axes`)."""
        p, model = self.population, self.population.models[self.population.assignment[ids[0]]]
        a, words = self.algorithm, (call.round, call.exchange)
        planned = call.exchange != "evaluate" or a.personal_trains
        none: Any = NotPlanned(algorithm=type(a).__name__)
        keys = [derive(p.seed, "client", *words, k) for k in ids]
        return Client(
            state=self.states.stack(ids, self.fresh),
            train=p.train_batches(ids, a.local, *words) if planned else none,
            val=p.held_out_batches(ids, "val"),
            public=p.public,
            num_examples=torch.from_numpy(p.sizes[list(ids)]).to(p.device),
            round=torch.tensor(call.round, device=p.device),
            lr=torch.tensor(a.local.rate(call.round), dtype=torch.float64, device=p.device),
            key=torch.tensor(keys, device=p.device),
            model=model,
            task=p.task,
        )

    def execute(self, call: Call, ids: Sequence[int], run: Callable[[], Any]) -> tuple[Any, Execution]:
        """Run a client call under this engine's settings; an error names client, round and batch."""
        execution = Execution(
            compilation=self.compilation, bf16=self.bf16, programs=self._programs, watching=self.watch is not None
        )
        with executing(execution):
            try:
                out = run()
            except (FedloomError, KeyboardInterrupt):
                raise
            except Exception as error:
                who = ids[0] if len(ids) == 1 else -1
                message = f"{type(error).__name__}: {error}" + (
                    "" if who >= 0 else f" (in a stack of clients {list(ids)})"
                )
                raise ClientError(message, client=who, round=call.round + 1, batch=execution.step) from error
        if not (isinstance(out, tuple) and len(out) == 2):
            raise StackingError(f"{call.name} must return (new state, upload), got {type(out).__name__}")
        return out, execution

    def unsound(
        self, call: Call, ids: Sequence[int], execution: Execution, states: Any, uploads: Any, sent: Any
    ) -> dict[int, str]:
        """Clients with losses, states or uploads that are not finite, and where; raises if `on_nonfinite` says stop.

        Where the server `sent` them what is not finite, that is what is said.
        """
        bad: dict[int, tuple[int | None, str]] = {
            ids[i]: found for i, found in _first_bad_loss(execution, len(ids)).items()
        }
        for losses, real in _losses(execution, len(ids)):
            count = real.sum(1)
            means = (torch.where(real, losses, 0.0).double().sum(1) / count).tolist()
            self.traffic.losses.update({k: m for k, m, n in zip(ids, means, count.tolist(), strict=True) if n})
        leaves = [("upload", t) for t in tree.leaves(uploads)] + [("state", t) for t in tree.leaves(states)]
        for kind, leaf in leaves:
            if leaf.is_floating_point():
                # NaN and infinity survive a sum, which reads the tensor once
                total = leaf.flatten(1).sum(1, dtype=torch.float64) if leaf.ndim > 1 else leaf
                for i in (~total.isfinite()).nonzero().flatten().tolist():
                    bad.setdefault(ids[i], (None, f"the {kind} is not finite"))
        if bad and not _finite(sent):
            if self.on_nonfinite == "stop":
                raise NonFiniteError(
                    f"what it sends to {call.name} is not finite{_REMEDY}", client=None, round=call.round + 1
                )
            return dict.fromkeys(bad, "what the server sent is not finite")
        if bad and self.on_nonfinite == "stop":
            k, (where, what) = next(iter(bad.items()))
            raise NonFiniteError(what + _REMEDY, client=k, round=call.round + 1, batch=where)
        return {k: _at(what, where) for k, (where, what) in bad.items()}


_REMEDY = "; a lower rate or clipping may help"


def _losses(execution: Execution, n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each minimise of n clients: its losses by client and step, [n, S], and which steps were taken."""
    for losses, counts in zip(execution.losses, execution.steps, strict=True):
        if losses.ndim == 1:  # one client, or a stack whose clients all compute the same
            losses, counts = losses.expand(n, -1), counts * n
        steps = torch.arange(losses.shape[1], device=losses.device)
        yield losses, steps < torch.tensor(counts, device=losses.device)[:, None]


def _first_bad_loss(execution: Execution, n: int) -> dict[int, tuple[int | None, str]]:
    """(batch, what) of the first loss that is not finite, for each of n clients that has one, by its place."""
    found: dict[int, tuple[int | None, str]] = {}
    for losses, real in _losses(execution, n):
        wrong = real & ~losses.isfinite()
        for i in wrong.any(1).nonzero().flatten().tolist():
            batch = int(wrong[i].nonzero()[0])
            found.setdefault(i, (batch, f"the loss is {float(losses[i, batch])}"))
    return found


def _at(what: str, batch: int | None) -> str:
    return what if batch is None else f"{what} at batch {batch}"


def _finite(values: Any) -> bool:
    """Whether all floating leaves are finite: NaN and infinity survive a sum, which reads each tensor once."""
    sums = [t.sum(dtype=torch.float64) for t in tree.leaves(values) if t.is_floating_point()]
    return not sums or bool(torch.stack(sums).isfinite().all())


@dataclass(frozen=True)
class Call:
    """One exchange: what runs on the clients of one architecture, and with what."""

    method: Callable[..., Any]
    broadcast: tuple[Any, ...]
    round: int
    exchange: int | str  # how often these clients were asked in this round before, or what for: "evaluate"

    @property
    def name(self) -> str:
        return getattr(self.method, "__qualname__", repr(self.method))


@dataclass(frozen=True)
class Exchange:
    """What a client did in one exchange of a round."""

    name: str  # of the algorithm's method
    number: int  # of the exchange in its round
    client: int
    state: Any  # its new one
    upload: Any
    trained: Weights | None  # its model after its last `minimise` over its own training examples
    unclear: bool  # whether there was such a `minimise`, whose carry has not exactly one model of the client's network


class SimulatedCohort:
    """A `Cohort` of simulated clients."""

    def __init__(
        self,
        engine: Simulation,
        server: dict[str, Any],
        clients: tuple[int, ...],
        round: int,
        *,
        exchanges: dict[int, int] | None = None,
        architecture: str | None = None,
    ) -> None:
        self.engine, self.server, self.clients, self.round = engine, server, clients, round
        # How often each client was asked in this round: what it draws must not depend on other architectures.
        self.exchanges = {} if exchanges is None else exchanges
        self.architecture = architecture

    @property
    def ids(self) -> Tensor:
        return torch.tensor(self.clients, dtype=torch.int64, device=self.engine.population.device)

    @property
    def num_clients(self) -> int:
        p = self.engine.population
        return p.num_clients if self.architecture is None else p.members[self.architecture]

    @property
    def model(self) -> Model:
        names = {self.engine.population.assignment[k] for k in self.clients}
        if len(names) != 1:
            raise StackingError(
                f"this cohort has the architectures {sorted(names)}: use group.model for group in cohort.groups"
            )
        return self.engine.population.models[names.pop()]

    @property
    def groups(self) -> Sequence[SimulatedCohort]:
        p = self.engine.population
        by_model = {n: tuple(k for k in self.clients if p.assignment[k] == n) for n in p.models}
        return [self._with(c, architecture=n) for n, c in by_model.items() if c]

    @property
    def sizes(self) -> Tensor:
        return torch.as_tensor(self.engine.population.sizes[list(self.clients)], device=self.engine.population.device)

    @property
    def num_public(self) -> int:
        public = self.engine.population.federation.public
        return 0 if public is None else len(public)

    @property
    def public(self) -> Public:
        return self.engine.population.public

    def key(self, purpose: str) -> int:
        return derive(self.engine.population.seed, "server", self.round, purpose)

    def gather(self, fn: Callable[..., Any], *broadcast: Any, scatter: Scatter = (), at_least: int = 1) -> Replies[Any]:
        values: dict[int, Any] = {}
        failed: dict[int, str] = {}
        for ids, uploads in self._exchange(fn, broadcast, scatter, failed):
            values.update({k: tree.take(uploads, i) for i, k in enumerate(ids)})
        there = tuple(k for k in self.clients if k in values)
        self._enough(fn, there, at_least)
        return Replies(cohort=self._with(there), values=[values[k] for k in there], failed=_failures(failed))

    def reduce(self, fn: Callable[..., Any], *broadcast: Any, scatter: Scatter = (), at_least: int = 1) -> Reduction:
        total, failed, there = tree.WeightedMean(), dict[int, str](), set[int]()
        for ids, uploads in self._exchange(fn, broadcast, scatter, failed):
            total.add(uploads)
            there.update(ids)
        cohort = self._with(tuple(k for k in self.clients if k in there))
        self._enough(fn, cohort.clients, at_least)
        return Reduction(cohort=cohort, total=total, failed=_failures(failed))

    def _enough(self, fn: Callable[..., Any], there: Sequence[int], at_least: int) -> None:
        if self.clients and len(there) < at_least:
            asked, name = len(self.clients), getattr(fn, "__qualname__", fn)
            raise NobodyAnswered(f"{name} needs the answers of {at_least} clients, got {len(there)} of {asked}")

    def _exchange(
        self, fn: Callable[..., Any], broadcast: tuple[Any, ...], scatter: Scatter, failed: dict[int, str]
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """(clients, stacked uploads) of those who answer, in order of client number within each architecture.

        The order, and with it every sum, does not depend on the order of the cohort.
        """
        name = getattr(fn, "__qualname__", fn)
        if not getattr(fn, "on_client", False):
            raise StackingError(f"{name} runs on clients: mark it @on_client")
        if getattr(fn, "__self__", None) is not self.engine.algorithm:
            raise StackingError(
                f"clients run methods of the run's own {type(self.engine.algorithm).__name__}, which are sent by name; "
                f"{name} is not one of them: call it from a method of the algorithm that is marked @on_client"
            )
        if not callable(scatter):
            _one_each(scatter, len(self.clients))
        engine, number = self.engine, max((self.exchanges.get(k, 0) for k in self.clients), default=0)
        self.exchanges.update(dict.fromkeys(self.clients, number + 1))
        place = {k: i for i, k in enumerate(self.clients)}
        down = tree.nbytes(broadcast)

        @functools.lru_cache(1)
        def chosen(ids: tuple[int, ...]) -> Any:
            device = engine.population.device
            if callable(scatter):
                return _one_each(scatter(torch.tensor(ids, device=device)), len(ids))
            return tree.take(scatter, torch.tensor([place[k] for k in ids], device=device))

        def sent(ids: Sequence[int]) -> Any:
            return chosen(tuple(ids))

        groups, later = self.groups, list[tuple[Any, ...]]()
        for group in groups:
            order = sorted(group.clients)
            if engine.faults is not None:
                reasons = {k: engine.faults(self.round, number, k) for k in order}
                failed.update({k: why for k, why in reasons.items() if why is not None})
                order = [k for k in order if reasons[k] is None]
            if not order:
                continue
            call = Call(fn, broadcast, self.round, number)
            for ids, states, uploads in engine.answers(call, order, sent):
                each = sent(ids)
                bad = engine.unsound(call, ids, engine.last, states, uploads, (broadcast, each))
                failed.update(bad)
                good = [i for i, k in enumerate(ids) if k not in bad]
                there = [ids[i] for i in good]
                if len(groups) == 1:
                    engine.states.put(there, states, good)
                else:  # when all architectures have answered: uploads that have no common mean are refused before
                    later.append((there, states, good))
                if engine.watch is not None:
                    lead, trained = engine.last.trained or (0, ())
                    for k, i in zip(there, good, strict=True):
                        models = _models_in(tree.take(trained, i) if lead else trained, group.model)
                        clear = len(models) == 1
                        model, unclear = models[0] if clear else None, engine.last.trained is not None and not clear
                        state, upload = tree.take(states, i), tree.take(uploads, i)
                        engine.watch(Exchange(call.name, number, k, state, upload, model, unclear))
                up, mine = payload(uploads, len(ids)), tree.nbytes_each(each, len(ids))
                for i, k in enumerate(ids):  # a refused upload has been sent all the same
                    engine.traffic.down[k] += down + mine[i]
                    engine.traffic.up[k] += up[i]
                if good:
                    index = torch.tensor(good, device=engine.population.device)
                    yield there, uploads if len(good) == len(ids) else tree.take(uploads, index)
        for there, states, good in later:
            engine.states.put(there, states, good)
        engine.traffic.failed.extend(_failures(failed))

    def _with(self, clients: tuple[int, ...], architecture: str | None = None) -> SimulatedCohort:
        return SimulatedCohort(
            self.engine, self.server, clients, self.round, exchanges=self.exchanges,
            architecture=architecture or self.architecture,
        )  # fmt: skip


def _one_each(scatter: Any, count: int) -> Any:
    """What is sent to so many clients, one entry each."""
    for leaf in tree.leaves(scatter):
        if not isinstance(leaf, Tensor) or leaf.shape[:1] != (count,):
            raise StackingError(f"scatter has one entry for {count} clients each, got {getattr(leaf, 'shape', leaf)!r}")
    return scatter


def _models_in(carry: Any, model: Model) -> list[Weights]:
    """The weights of a network within what was trained."""
    nodes = tree.flatten(carry, is_leaf=lambda n: isinstance(n, Weights))[0]
    return [n for n in nodes if isinstance(n, Weights) and model.fits(n)]


def payload(uploads: Any, count: int) -> list[int]:
    """Bytes of each of `count` stacked uploads; the weights of `Weighted` are control data and not counted."""
    nodes = tree.flatten(uploads, is_leaf=lambda n: isinstance(n, Weighted))[0]
    return tree.nbytes_each([n.value if isinstance(n, Weighted) else n for n in nodes], count)


@dataclass(frozen=True)
class _Judge:
    """The evaluation of personal models, written like any other method of a client."""

    algorithm: Algorithm[Any, Any]

    def model(self, client: Client[Any], sent: Any) -> tuple[Any, Weights]:
        return client.state, self.algorithm.personal(client, sent)

    def verdict(self, client: Client[Any], sent: Any, judged: Batches) -> tuple[Any, Tensor]:
        from fedloom.core.fold import fold

        weights, model, task = self.algorithm.personal(client, sent), client.model, client.task

        def count(total: Tensor, batch: Any, weights: Any) -> Tensor:
            right = task.correct(model(weights, batch.x), batch.y) & batch.mask
            return total + torch.stack([right.sum(), batch.mask.sum()])

        total = torch.zeros(2, dtype=torch.int64, device=client.num_examples.device)
        return client.state, fold(count, total, replace(judged, x=client.val.x, y=client.val.y), weights)


def _judged(population: Population, ids: Sequence[int], held_out: HeldOut) -> Batches:
    """What K clients are judged on, stacked, without the arrays, which a client has in its other batches."""
    nothing: Any = ()
    return replace(population.held_out_batches(ids, held_out), x=nothing, y=nothing)


def _failures(failed: dict[int, str]) -> tuple[Failure, ...]:
    return tuple(Failure(k, why) for k, why in sorted(failed.items()))


def client_axes(client: Client[Any]) -> Client[Any]:
    """Which leaves of a stacked `Client` have the client axis: 0, else None."""

    def batches(b: Batches, axis: int | None) -> Batches:
        if isinstance(b, NotPlanned):
            return b
        axes: Batches = tree.map_tree(lambda _: axis, b)
        return replace(axes, x=None, y=None)

    return replace(
        tree.map_tree(lambda _: 0, client),
        train=batches(client.train, 0),
        val=batches(client.val, 0),
        public=replace(client.public, batches=batches(client.public.batches, None)),
        round=None,
        lr=None,
    )
