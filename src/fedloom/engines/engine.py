"""What every engine does: hold the server's side of a run, ask clients, accept or refuse what they answer."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.cohort import Predict
from fedloom.core.errors import NobodyAnswered, NonFiniteError, SettingError, StackingError
from fedloom.core.fold.execution import Execution, Programs, executing
from fedloom.core.network_makers import own_defaults
from fedloom.core.random import derive
from fedloom.core.types import Weights
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.cohort import AskedCohort, Exchange, Traffic
from fedloom.engines.engine_options import DEFAULTS, Options
from fedloom.engines.finite import REMEDY, at_batch, finite, first_bad_loss
from fedloom.engines.message import EVALUATING, GIVEN, Answer, Call, EvaluationResult, HeldOutSplit, Request, Split
from fedloom.engines.norms import Norms
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.storage.files import File
from fedloom.storage.keys import Keys
from fedloom.storage.store import ClientStore

Send = Callable[[Sequence[int]], tuple[Any, ...]]  # clients -> what is sent to each of them, stacked


class Engine(ABC):
    """Runs the clients of a population; knows no algorithm by name.

    Clients' states are in `states`, at the server; requests carry them. `options`: how clients are computed, and which
    of their answers are taken.
    """

    name: str
    stacked = False  # whether clients are computed together
    elsewhere = False  # whether clients' examples are not here
    durable: int | None = None  # the last round whose checkpoint is on disk

    def __init__(
        self,
        population: Population,
        algorithm: Algorithm[Any, Any],
        options: Options = DEFAULTS,
        *,
        programs: Programs | None = None,
    ) -> None:
        if algorithm.needs_public and population.federation.public is None:
            raise SettingError(f"{type(algorithm).__name__} needs public examples: federate(..., public=examples)")
        algorithm = algorithm.bind(population.federation, population.models)
        val = population.federation.local_val
        if algorithm.needs_val and (val is None or not len(val.indices)):
            raise SettingError(
                f"{type(algorithm).__name__} needs validation examples on its clients, got none: hold some out with "
                "federate(..., val_fraction=0.2), or data.val_fraction (--val-fraction 0.2)"
            )
        self.population, self.algorithm = population, algorithm
        self.options = o = options
        if o.partial_sums is not None and self.elsewhere:
            raise SettingError(
                f"partial_sums = {o.partial_sums} cannot be, because devices answer each for itself: leave one of them "
                "out"
            )
        self.norms = Norms()
        self._bills: dict[str, PayloadSize] = {}
        self.runtime = Runtime(
            population, algorithm, stacked=self.stacked, compilation=o.compilation, bf16=o.bf16, programs=programs
        )
        self.states = ClientStore()  # a client never asked occupies nothing
        self.watch: Callable[[Exchange], None] | None = None  # sees every exchange of a replayed round
        self.kept: list[tuple[list[int], Any, int]] = []  # rows of the round at hand: (keys, rows [K, ...], round)
        self.noted: dict[str, Any] = {}  # of the round at hand, as `kept`
        self.to_judge: dict[str, Predict | Mapping[int, Predict]] = {}
        self.traffic = Traffic()
        self.lost: dict[int, str] = {}  # clients of the exchange at hand that did not answer, and why

    # ---- what a run asks of an engine

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
        if a.mixed:
            states = {"": a.init(dict(p.models), key, num_clients=p.num_clients)}
        else:
            states = {n: a.init(p.models[n], key, num_clients=m) for n, m in p.members.items() if m}
        if other := [leaf for leaf in tree.leaves(states) if not isinstance(leaf, Tensor)]:
            raise StackingError(
                f"init of {type(a).__name__} must return a server state made of tensors, got one with "
                f"{type(other[0]).__name__}: return model.init(key), or a class marked @fedloom.state"
            )
        return tree.cast(states, device=p.device, dtype=p.dtype)

    @own_defaults()
    def round(self, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[str, Any]:
        """Run one round with these clients, and return the new server states.

        `self.traffic` then tells of this round.
        """
        self.traffic = Traffic()
        self.states.version = round + 1
        cohort = AskedCohort(self, tuple(sorted(map(int, clients))), round)  # its order carries no meaning
        groups = {"": cohort} if self.algorithm.mixed else {str(g.architecture): g for g in cohort.groups}
        after = {**server, **{name: self._moved(name, server[name], group) for name, group in groups.items()}}
        self.norms.end_round()
        return after

    def evaluate_counts(
        self, server: dict[str, Any], clients: Sequence[int], round: int, held_out: HeldOutSplit = "test"
    ) -> dict[int, tuple[int, int]]:
        """Return (right, examples) of each client's personal model after `round` on its held-out examples."""
        found = self.evaluate(server, clients, round, held_out).items()
        return {k: (int(seen.right), int(seen.examples)) for k, seen in found}

    def evaluate(
        self, server: dict[str, Any], clients: Sequence[int], round: int, split: Split = "test"
    ) -> dict[int, EvaluationResult]:
        """Return how good each client's personal model is after `round`.

        Losses and training rows are measured where "all" are judged.
        """
        return self._evaluate(server, clients, round, split)

    def evaluate_models(
        self, models: Mapping[str, Weights], clients: Sequence[int], round: int, split: Split = "test"
    ) -> dict[int, EvaluationResult]:
        """Return the same as `look` for one model of each architecture, shared by all its clients."""
        return self._evaluate(models, clients, round, split, GIVEN)

    def personal(self, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[int, Weights]:
        """Return the models by which clients are judged after `round`."""
        return self._evaluate(server, clients, round, None)

    def fixed(self) -> dict[str, Any]:
        """Return what is chosen once for a run because results depend on it in the last bit."""
        rows: dict[str, Any] = {"rows": [*self.keys.rows]} if self.keys.rows else {}
        rows |= {"pools": [*self.keys.pools]} if self.keys.pools else {}
        o = self.options
        rows |= {"partial_sums": o.partial_sums} if o.partial_sums else {}
        return {"engine": self.name, "compilation": o.compilation, "bf16": o.bf16, **rows}

    def variant(self, algorithm: Algorithm[Any, Any], options: Options | None = None) -> Engine:
        """Make the same engine for another algorithm or with other options, with no states; traced steps are shared."""
        return type(self)(self.population, algorithm, options or self.options, programs=self.runtime.programs)

    def open(self) -> None:  # noqa: B027  # most need nobody
        """Begin to ask processes that were launched for this run; without this call, clients are computed here."""

    def decliners(self, round: int, clients: Sequence[int]) -> dict[int, str]:
        """Return those of some clients that would decline to take part in a round, and why."""
        faults = self.options.faults
        reasons = {} if faults is None else {k: faults(round, 0, k) for k in clients}
        return {k: why for k, why in reasons.items() if why == "declined"}

    def refused(self, clients: Mapping[int, str], round: int) -> None:  # noqa: B027  # the record of the round says it
        """Take note of clients whose answers hold numbers that are not finite or too large, and why."""

    def close(self) -> None:  # noqa: B027  # most have started nothing
        """End what the engine has started; it can be used again."""

    # ---- checkpoints

    def keep_states(self, budget: int | None, folder: Path | None) -> None:
        """Begin with no states; those beyond `budget` bytes go to files of `folder` (None: a temporary one)."""
        self.states = ClientStore(budget, folder)

    def save(self) -> dict[int, File]:
        """Write the states that moved since the last time, and return the file of each client's newest state.

        The files are safely on disk.
        """
        return self.states.save()

    def restore(self, folder: Path, written: Mapping[int, File], budget: int | None) -> None:
        """Go back to the states of a checkpoint, which are in files of `folder` and are read when asked for.

        `budget`: as for `keep_states`; with None nothing is ever written.
        """
        self.states = ClientStore(budget, folder)
        self.spare(file.name for file in written.values())
        self.states.restore(written, self.fresh)

    def spare(self, names: Iterable[str]) -> None:
        """Delete no file of a state that has one of these names: checkpoints name them."""
        self.states.protected = set(names)

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
        return Keys(p.num_clients, tuple(sorted(rows)), tuple(self._pools), type(self.algorithm).__name__)

    @cached_property
    def _pools(self) -> dict[str, Any]:
        """An entry of each pool, by name in alphabetical order."""
        if type(self.algorithm).init_pools is Algorithm.init_pools:
            return {}  # most have none, and need no server state to say so
        found = self.algorithm.init_pools(next(iter(self.init().values())))
        return dict(sorted(found.items()))

    @property
    def clients(self) -> Mapping[int, Any]:
        """The states of clients that took part, without the server's rows and pools; each is read when asked for."""
        alone = not self.keys.rows and not self.keys.pools
        return self.states if alone else _Below(self.states, self.population.num_clients)

    def rows(self, name: str, clients: Sequence[int]) -> Any:
        """Return rows of some clients, stacked; as `init_rows` makes them where nothing was kept yet."""
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
        if place.kind == "entry":
            made = self._pools[place.name]
        else:
            name = p.assignment[place.number]
            made = self.algorithm.init_rows(self.runtime.initial(name), p.models[name], num_clients=p.num_clients)
            made = made[place.name]
        return tree.cast(made, device=p.device, dtype=p.dtype)

    def _keep_rows(self) -> None:
        for keys, rows, round in self.kept:
            self.states.offer(keys, rows, (round, 0))
            self.states.accept(keys)

    def _moved(self, name: str, before: Any, cohort: AskedCohort) -> Any:
        """Return the server state of one architecture after its round; the one before, if the new one is rejected."""
        for mine in (self.kept, self.noted, self.to_judge):
            mine.clear()
        with executing(Execution()) as own:  # of what the server trains itself
            try:
                after = self.algorithm.round(before, cohort)
            except NobodyAnswered:
                return before
        if not tree.same_structure(before, after):
            raise StackingError(
                f"round of {type(self.algorithm).__name__} must return a server state like the one that init makes, "
                f"of its structure, shapes and types, got {tree.unlike(after, before)}"
            )
        losses = tuple(t.expand(1, -1) for t in own.losses)
        problem = first_bad_loss(losses, tuple(map(tuple, own.steps))).get(0)
        if problem is not None:
            problem = problem[0], f"{problem[1]} in its own training"
        elif not finite(after):
            problem = None, "its own state is not finite"
        elif not finite([rows for _, rows, _ in self.kept]):
            problem = None, "what it keeps of its clients is not finite"
        else:
            self._keep_rows()
            several = not self.algorithm.mixed and len(self.population.models) > 1
            for found, all_of_them in ((self.noted, self.traffic.noted), (self.to_judge, self.traffic.to_judge)):
                all_of_them.update({f"{key}_{name}" if several else key: value for key, value in found.items()})
            if losses:
                self.traffic.server_losses[name] = float(losses[-1].double().mean())
            return after
        batch, what = problem
        if self.options.on_nonfinite == "stop":
            raise NonFiniteError(what + REMEDY, client=None, round=cohort.round + 1, batch=batch)
        self.traffic.server_refused[name] = at_batch(what, batch)
        return before

    @own_defaults()
    def _evaluate(
        self,
        server: Mapping[str, Any],
        clients: Sequence[int],
        round: int,
        split: Split | None,
        method: str = "personal",
    ) -> dict[int, Any]:
        """Return what clients make of what they are sent to be judged with, without consequences.

        No state moves, no byte counts, no client is lost, and what clients draw is drawn for nothing else. Clients that
        have nothing to be judged by are left out.
        """
        out: dict[int, Any] = {}
        rate = self.algorithm.local.rate(round)
        for group in AskedCohort(self, tuple(map(int, clients)), round).groups:
            name = str(group.architecture)
            if method == GIVEN:
                sent = server[name]
            else:
                sent = self.algorithm.evaluation_payload(server["" if self.algorithm.mixed else name], group.model)
            if not (tree.leaves(sent) or self.algorithm.personalises):
                continue  # another architecture's alone is global, and these clients have nothing of their own
            call = Call(method, (sent,), round, EVALUATING, rate, split)
            for request, _, answer in self.answers(call, sorted(group.clients), lambda ids: ()):
                out.update({k: tree.take(answer.upload, i) for i, k in enumerate(request.clients)})
        return out


class _Below(Mapping[int, Any]):
    """Entries of a store under keys below a number, read one by one: a dict of them would hold what is on disk."""

    def __init__(self, states: Mapping[int, Any], end: int) -> None:
        self._states, self._end = states, end

    def __iter__(self) -> Iterator[int]:
        return (k for k in self._states if k < self._end)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, key: int) -> Any:
        if not 0 <= key < self._end:
            raise KeyError(key)
        return self._states[key]


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
