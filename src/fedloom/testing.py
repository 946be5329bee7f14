"""A battery of tests for any algorithm, yours included: `check(MyAlgorithm)` in a test of your own.

It runs the algorithm on a tiny federation of six ragged clients, some never asked, and holds it to what every algorithm
promises: the same answer on every engine, nobody's data in anybody else's answer, states that can be saved, clients
that may vanish.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.algorithms.fedavg import FedAvg
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.client import Client
from fedloom.core.codec import decode, encode
from fedloom.core.errors import CodecError, SettingWarning
from fedloom.core.execution import Compilation
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Local
from fedloom.core.types import Weights
from fedloom.data import Examples, Federation, Partition
from fedloom.engines.loop import Loop
from fedloom.engines.population import HeldOut, Population
from fedloom.engines.simulated import Call, Faults, SimulatedCohort, Simulation
from fedloom.engines.stacked import Stacked

SIZES = (5, 12, 9, 23, 7, 16)  # training examples of each client: ragged, none a multiple of another
COHORTS = ((0, 2, 3, 5), (1, 2, 5), (0, 3, 5))  # of rounds 0, 1, 2; client 4 is never asked
FEATURES, CLASSES = 12, 3


class MLP(nn.Module):
    """Two layers with tanh: smooth, so that rounding is never amplified by a kink."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, width)
        self.head = nn.Linear(width, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Input of the last layer."""
        return torch.tanh(self.hidden(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Convolutional(nn.Module):
    """The features as a line of 12 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)
        self.head = nn.Linear(3 * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.conv(x[:, None])).flatten(1))  # type: ignore[no-any-return]


class Normalised(nn.Module):
    """Batch normalisation and dropout: what padding and stacking disturb if anything does."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.norm(self.hidden(x)))))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Trail:
    """What a run left behind; entry 0 of `servers` and `states` is before the first round."""

    servers: list[dict[str, Any]]
    states: list[dict[int, Any]]
    personal: dict[int, Weights]
    right: dict[int, tuple[int, int]]  # what `Simulation.judge` says
    engine: Simulation


@dataclass(frozen=True)
class Subject:
    """An algorithm under test. `models`: by name, from [B, 12] to [B, 3]; `local`: its local training in the tests."""

    algorithm: Algorithm[Any, Any]
    models: Mapping[str, Model]

    @classmethod
    def of(
        cls,
        algorithm: Algorithm[Any, Any] | Callable[[], Algorithm[Any, Any]],
        models: Mapping[str, Model] | None = None,
        local: Local | None = None,
    ) -> Subject:
        """A subject from an algorithm or something that makes one."""
        made = algorithm if isinstance(algorithm, Algorithm) else algorithm()
        tiny = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3), decay=0.9)
        return cls(changed(made, local=local or tiny), models or {"mlp": Model(MLP, name="mlp")})

    @property
    def name(self) -> str:
        return type(self.algorithm).__name__

    @property
    def cohorts(self) -> Sequence[Sequence[int]]:
        return ((0,),) * len(COHORTS) if self.algorithm.pooled else COHORTS

    def population(
        self,
        *,
        kind: type[Population] = Population,
        models: Mapping[str, Model] | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        **settings: Any,
    ) -> Population:
        """The six clients (one, where the algorithm pools them)."""
        everything, chosen = federation(), dict(models or self.models)
        if self.algorithm.pooled:
            everything, first = everything.pooled(), next(iter(chosen))
            chosen = {first: chosen[first]}
        return kind(federation=everything, models=chosen, dtype=dtype, seed=seed, **settings)

    def run(
        self,
        kind: type[Simulation] = Loop,
        population: Population | None = None,
        *,
        algorithm: Algorithm[Any, Any] | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        compilation: Compilation = "none",
        chunk: int | None = None,
        faults: Faults | None = None,
        refuse: bool = False,
    ) -> Trail:
        """Some rounds, with every state after every round."""
        population = population or self.population()
        engine = kind(
            population,
            algorithm or self.algorithm,
            compilation=compilation,
            chunk=chunk,
            faults=faults,
            on_nonfinite="refuse" if refuse else "stop",
        )
        return follow(engine, engine.init(), self.cohorts if cohorts is None else cohorts)


def follow(engine: Simulation, server: dict[str, Any], cohorts: Sequence[Sequence[int]], start: int = 0) -> Trail:
    """Run rounds start, start + 1, ... on an engine and note every state."""
    servers, states = [_copy(server)], [_copy(dict(engine.states))]
    for t, cohort in enumerate(cohorts, start):
        server = engine.round(server, cohort, t)
        servers.append(_copy(server))
        states.append(_copy(dict(engine.states)))
    everyone = range(engine.population.num_clients)
    return Trail(servers, states, personal(engine, server, everyone), engine.judge(server, everyone), engine)


def personal(engine: Simulation, server: dict[str, Any], clients: Sequence[int]) -> dict[int, Weights]:
    """The model by which each client is judged."""

    def own(client: Client[Any], server: Any) -> tuple[Any, Weights]:
        return client.state, engine.algorithm.personal(server, client)

    out: dict[int, Weights] = {}
    for group in SimulatedCohort(engine, server, tuple(clients), 0, held_out="test").groups:
        found = group.look(own, (engine.server_of(server, group.clients[0]),))
        out.update(zip(group.clients, found, strict=True))
    return out


def federation() -> Federation:
    """Six clients with 5 to 23 training examples of 12 features and 3 classes, 3 to test on, 2 or 0 to validate on."""
    rng = np.random.Generator(np.random.PCG64(0))
    centres = rng.normal(size=(CLASSES, FEATURES))

    def examples(n: int) -> Examples:
        y = rng.integers(CLASSES, size=n)
        return Examples(torch.from_numpy(centres[y] + rng.normal(size=(n, FEATURES))), torch.from_numpy(y), CLASSES)

    lists: dict[str, list[range]] = {"train": [], "test": [], "val": []}
    end = 0
    for k, n in enumerate(SIZES):
        for role, count in (("train", n), ("test", 3), ("val", 2 * (k % 2))):
            lists[role].append(range(end, end + count))
            end += count
    parts = {role: Partition.from_lists(rows, name="tiny") for role, rows in lists.items()}
    return Federation(
        train=examples(end),
        partition=parts["train"],
        local_test=parts["test"],
        local_val=parts["val"],
        public=examples(20),
    )


def check(
    algorithm: Algorithm[Any, Any] | Callable[[], Algorithm[Any, Any]],
    *,
    models: Mapping[str, Model] | None = None,
    local: Local | None = None,
) -> dict[str, str]:
    """Hold an algorithm to every promise in `CHECKS`; return the checks that do not apply to it, and why.

    `algorithm`: an instance, or a function without arguments that makes one. `models`: networks by name that take 12
    features to 3 logits. `local`: the local training (default: 2 epochs in batches of 4, SGD with momentum).

    Raises:
        AssertionError: a promise is broken; the message says which and how.
    """
    subject, skipped = Subject.of(algorithm, models, local), {}
    for name, test in CHECKS.items():
        try:
            why = test(subject)
        except Exception as error:
            error.add_note(f"in the check {name!r} of {subject.name}: {test.__doc__}")
            raise
        if why is not None:
            skipped[name] = why
    return skipped


# --- checks


def engines_agree(subject: Subject) -> str | None:
    """Loop, stack and a stack in chunks of two give the same states and personal models, to 1e-9 in float64."""
    loop = subject.run(Loop)
    for chunk in (None, 2):
        stacked = subject.run(Stacked, chunk=chunk)
        what = "the stacked engine" + (f" with chunk = {chunk}" if chunk else "")
        _agree(loop, stacked, f"loop and {what} must agree", 1e-9)
        assert loop.right == stacked.right, f"personal accuracies differ: loop {loop.right}, {what} {stacked.right}"
    return None


def float32_agrees(subject: Subject) -> str | None:
    """After one local step in float32, loop and stack agree to 1e-5."""
    algorithm = changed(subject.algorithm, local=dataclasses.replace(subject.algorithm.local, steps=1))
    population = subject.population(dtype=torch.float32)
    loop, stacked = (
        subject.run(kind, population, algorithm=algorithm, cohorts=subject.cohorts[:1]) for kind in ENGINES
    )
    for leaf in tree.leaves((loop.servers, loop.states)):
        assert leaf.dtype != torch.float64, "a float32 run has float64 leaves in its states: use the model's dtype"
    _agree(loop, stacked, "loop and stack must agree on the first local step in float32", 1e-5)
    return None


def tracing_agrees(subject: Subject) -> str | None:
    """A stack whose lock-steps are traced computes what an untraced one does, to 1e-9 in float64."""
    traced = subject.run(Stacked, compilation="trace")
    _agree(subject.run(Loop), traced, "the traced stack must agree with the loop", 1e-9)
    return None


def architectures_mix(subject: Subject) -> str | None:
    """Three architectures in one cohort: engines agree, and without mixing no architecture feels another."""
    if subject.algorithm.pooled:
        return "pools its clients, who then have one architecture"
    models = {
        "narrow": Model(MLP, name="narrow"),
        "wide": Model(lambda: MLP(16), name="wide"),
        "convolutional": Model(Convolutional, name="convolutional"),
    }
    population = subject.population(models=models)
    loop = subject.run(Loop, population)
    _agree(loop, subject.run(Stacked, population), "loop and stack must agree on three architectures", 1e-9)
    if subject.algorithm.mixed:
        return None
    for name in models:
        own = [[k for k in cohort if population.assignment[k] == name] for cohort in subject.cohorts]
        alone = subject.run(Loop, population, cohorts=own)
        _same(
            loop.servers[-1][name],
            alone.servers[-1][name],
            f"the server state of {name!r} must not depend on clients of other architectures",
        )
    return None


def normalisation_and_dropout(subject: Subject) -> str | None:
    """With BatchNorm and dropout on ragged batches, loop and stack agree to 1e-9: padding changes nothing."""
    population = subject.population(models={"normalised": Model(Normalised, name="normalised")})
    loop, stacked = (subject.run(kind, population) for kind in ENGINES)
    _agree(loop, stacked, "loop and stack must agree on a model with BatchNorm and dropout", 1e-9)
    return None


def neutral_is_fedavg(subject: Subject) -> str | None:
    """With the settings in `neutral`, the server's weights are those of FedAvg, bit for bit."""
    a = subject.algorithm
    if not a.neutral:
        return "declares no neutral settings"
    shared = {f.name for f in dataclasses.fields(FedAvg)} & {f.name for f in dataclasses.fields(a)}
    fedavg = FedAvg(**{name: getattr(a, name) for name in shared})
    for kind in ENGINES:
        mine = subject.run(kind, algorithm=changed(a, **a.neutral))
        theirs = subject.run(kind, algorithm=fedavg)
        for t, (x, y) in enumerate(zip(mine.servers, theirs.servers, strict=True)):
            for name in y:
                ours = a.global_weights(x[name])
                ours = x[name] if ours is None else ours
                _same(ours, y[name], f"{subject.name} with {dict(a.neutral)} must be FedAvg ({kind.name}, round {t})")
    return None


def others_data_stay_theirs(subject: Subject) -> str | None:
    """Everybody else's examples made NaN, a client's states and uploads stay what they were, bit for bit."""
    mine = subject.cohorts[0][-1]
    everyone = [tuple(range(subject.population().num_clients))]
    for kind in ENGINES:
        clean, poisoned = subject.population(), subject.population(kind=_Poisoned, mine=mine)
        alone = [subject.run(kind, p, cohorts=[(mine,)] * 2, refuse=True) for p in (clean, poisoned)]
        what = f"other clients' data reach client {mine} ({kind.name}): padding or shared tables leak"
        _same(alone[0].servers, alone[1].servers, what)
        _same(alone[0].states, alone[1].states, what)
        _same(alone[0].personal[mine], alone[1].personal[mine], what)
        recording = _RecordingLoop if kind is Loop else _RecordingStacked
        seen = []
        for p in (clean, poisoned):
            engine = recording(p, subject.algorithm, on_nonfinite="refuse")
            engine.round(engine.init(), everyone[0], 0)
            seen.append({e: (state, upload) for e, k, state, upload in engine.log if k == mine and e == 0})
        _same(seen[0], seen[1], what)
    return None


def only_the_cohort_moves(subject: Subject) -> str | None:
    """Who took part has moved (itself or the server); who did not is as before; who was never asked keeps nothing."""
    for kind in ENGINES:
        trail, asked = subject.run(kind), set[int]()
        for t, cohort in enumerate(subject.cohorts):
            before, after = trail.states[t], trail.states[t + 1]
            asked.update(cohort)
            assert set(after) == asked, f"after round {t} states exist for {sorted(after)}, asked were {sorted(asked)}"
            for k in set(before) - set(cohort):
                _same(before[k], after[k], f"client {k} was not asked in round {t}, its state must not change")
            server = _differ(trail.servers[t], trail.servers[t + 1])
            still = [k for k in cohort if k in before and not _differ(before[k], after[k])]
            assert server or not still, f"round {t}: neither the server nor the clients {still} moved"
            assert server or before or any(tree.leaves(after[k]) for k in cohort), f"round {t} left nothing behind"
    return None


def empty_steps_change_nothing(subject: Subject) -> str | None:
    """A step of padding at the end changes no bit; columns of padding change nothing beyond rounding."""
    for kind in ENGINES:
        reference = subject.run(kind)
        longer = subject.run(kind, subject.population(kind=_Padded, steps=1))
        _agree(reference, longer, f"a step without real rows must change nothing ({kind.name})", 0.0)
        wider = subject.run(kind, subject.population(kind=_Padded, rows=3))
        _agree(reference, wider, f"rows of padding must change nothing ({kind.name})", 1e-10)
    return None


def order_of_cohort_is_immaterial(subject: Subject) -> str | None:
    """The same cohorts in another order give the same bits."""
    for kind in ENGINES:
        turned = subject.run(kind, cohorts=[tuple(reversed(c)) for c in subject.cohorts])
        _agree(subject.run(kind), turned, f"the order of a cohort must change nothing ({kind.name})", 0.0)
    return None


def states_keep_their_shape(subject: Subject) -> str | None:
    """Server and client states have the same structure, shapes and dtypes before, during and after a run."""
    population = subject.population(models={"normalised": Model(Normalised)})
    for kind in ENGINES:
        trail = subject.run(kind, population)
        for t, server in enumerate(trail.servers):
            assert tree.same_structure(trail.servers[0], server), f"the server state changed its shape by round {t}"
        label, model = next(iter(population.models.items()))
        start = trail.servers[0]["" if subject.algorithm.mixed else label]
        fresh = tree.cast(subject.algorithm.init_client(start, model, 0), dtype=population.dtype)
        for t, states in enumerate(trail.states):
            for k, state in states.items():
                assert tree.same_structure(fresh, state), (
                    f"the state of client {k} after round {t} has another structure, shape or dtype than init_client's"
                )
        whole = tree.cast(model.init(0), dtype=population.dtype)
        for k, weights in trail.personal.items():
            assert tree.same_structure(whole, weights), f"personal must return all weights of the model, client {k}"
    return None


def payloads_travel(subject: Subject) -> str | None:
    """Everything sent or kept passes through the codec unchanged, and a run over such a wire gives the same bits."""
    wired = subject.run(_Wire)
    _agree(subject.run(Loop), wired, "a run whose payloads pass through the codec must be the same", 0.0)
    for server in wired.servers:
        _through(server, "server state")
    return None


def saved_runs_continue(subject: Subject) -> str | None:
    """Save after round 0, load into a new engine, continue: the same bits as without a break."""
    for kind in ENGINES:
        whole = subject.run(kind)
        saved = {k: encode(state) for k, state in whole.states[1].items()}
        server = encode(whole.servers[1])
        engine = kind(subject.population(), subject.algorithm)
        start = decode(server, engine.init())
        for k, data in saved.items():
            engine.states[k] = decode(data, tree.zeros_like(whole.states[1][k]))
        resumed = follow(engine, start, subject.cohorts[1:], start=1)
        what = f"a resumed run must be the same ({kind.name}): is all that matters part of a state?"
        _same(whole.servers[1:], resumed.servers, what)
        _same(whole.states[1:], resumed.states, what)
        _same(whole.personal, resumed.personal, what)
    return None


def clients_may_vanish(subject: Subject) -> str | None:
    """A client lost in any exchange keeps its state; lost in the only one of a round, it counts as never asked."""
    cohort = subject.cohorts[1]
    lost = cohort[len(cohort) // 2]
    recorder = _RecordingLoop(subject.population(), subject.algorithm)
    before = recorder.round(recorder.init(), subject.cohorts[0], 0)
    recorder.log.clear()
    recorder.round(before, cohort, 1)
    exchanges = 1 + max((exchange for exchange, *_ in recorder.log), default=-1)
    log = {(exchange, k): state for exchange, k, state, _ in recorder.log}
    for kind in ENGINES:
        for e in range(exchanges):

            def faults(round: int, exchange: int, client: int, e: int = e) -> str | None:
                return "lost by the test" if (round, exchange, client) == (1, e, lost) else None

            trail = subject.run(kind, faults=faults, cohorts=subject.cohorts[:2])
            failed = [f.client for f in trail.engine.traffic.failed]
            assert failed == [lost], f"the round must report client {lost} as lost, it reports {failed}"
            was = trail.states[1].get(lost) if e == 0 else log[e - 1, lost]
            _close(
                {} if was is None else {lost: was},
                {k: s for k, s in trail.states[2].items() if k == lost},
                f"client {lost}, lost in exchange {e}, must keep the state it had ({kind.name})",
                0.0 if e == 0 else 1e-9,
            )
            missing = set(cohort) - set(trail.states[2]) - {lost}
            assert not missing, f"clients {sorted(missing)} answered and have no state"
            if exchanges == 1:
                rest = [subject.cohorts[0], [k for k in cohort if k != lost]]
                fewer = subject.run(kind, cohorts=rest)
                _agree(trail, fewer, f"a lost client must count as never asked ({kind.name})", 0.0)
    return None


def rounds_may_ask_nobody(subject: Subject) -> str | None:
    """A round without clients, or one that loses all of them, leaves server and clients as they were."""
    for kind in ENGINES:
        for cohort in ((), subject.cohorts[1]):
            trail = subject.run(
                kind,
                cohorts=[subject.cohorts[0], cohort],
                faults=lambda round, exchange, client: "lost by the test" if round == 1 else None,
            )
            _same(
                trail.servers[1], trail.servers[2], "nobody answered, the server must not move: test for that in round"
            )
            _same(trail.states[1], trail.states[2], "nobody answered, no client's state may move")
    return None


def seeds_govern(subject: Subject) -> str | None:
    """The same seed twice gives the same bits, another seed others; torch's and NumPy's own generators play no part."""
    for kind in ENGINES:
        first = subject.run(kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1234)
            again = subject.run(kind)
        _agree(first, again, f"the same seed must give the same bits ({kind.name})", 0.0)
        other = subject.run(kind, subject.population(seed=1))
        assert _differ((first.servers, first.states), (other.servers, other.states)), "another seed changed nothing"
    return None


CHECKS: Mapping[str, Callable[[Subject], str | None]] = {
    test.__name__: test
    for test in (
        engines_agree,
        float32_agrees,
        tracing_agrees,
        architectures_mix,
        normalisation_and_dropout,
        neutral_is_fedavg,
        others_data_stay_theirs,
        only_the_cohort_moves,
        empty_steps_change_nothing,
        order_of_cohort_is_immaterial,
        states_keep_their_shape,
        payloads_travel,
        saved_runs_continue,
        clients_may_vanish,
        rounds_may_ask_nobody,
        seeds_govern,
    )
}
ENGINES: tuple[type[Simulation], type[Simulation]] = (Loop, Stacked)


# --- what they are made of


@dataclass(frozen=True, eq=False)
class _Poisoned(Population):
    """Every example but those of client `mine` is NaN."""

    mine: int = 0

    def train_batches(self, clients: Sequence[int], local: Local, round: int, exchange: int) -> tuple[Batches, Tensor]:
        batches, keys = super().train_batches(clients, local, round, exchange)
        return self._poison(batches), keys

    def held_out_batches(self, clients: Sequence[int], kind: HeldOut, batch_size: int = 200) -> Batches:
        return self._poison(super().held_out_batches(clients, kind, batch_size))

    def _poison(self, batches: Batches) -> Batches:
        f = self.federation
        own = [p.rows(self.mine) for p in (f.partition, f.local_test, f.local_val) if p is not None]
        x = torch.full_like(batches.x, float("nan"))
        rows = torch.from_numpy(np.concatenate(own))
        return dataclasses.replace(batches, x=x.index_copy(0, rows, batches.x[rows]))


@dataclass(frozen=True, eq=False)
class _Padded(Population):
    """Training batches with more padding than they need."""

    steps: int = 0
    rows: int = 0

    def train_batches(self, clients: Sequence[int], local: Local, round: int, exchange: int) -> tuple[Batches, Tensor]:
        batches, keys = super().train_batches(clients, local, round, exchange)
        order, mask = (F.pad(t, (0, self.rows, 0, self.steps)) for t in (batches.order, batches.mask))
        return dataclasses.replace(batches, order=order, mask=mask), keys


class _Recorder(Simulation):
    """Notes (exchange, client, state, upload) of every answer."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.log: list[tuple[int, int, Any, Any]] = []

    def answers(
        self, call: Call, clients: Sequence[int], scatter: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        for ids, states, uploads in super().answers(call, clients, scatter):  # type: ignore[safe-super]
            for i, k in enumerate(ids):
                self.log.append((call.exchange, k, _copy(tree.take(states, i)), _copy(tree.take(uploads, i))))
            yield ids, states, uploads


class _RecordingLoop(_Recorder, Loop):
    pass


class _RecordingStacked(_Recorder, Stacked):
    pass


class _Wire(Loop):
    """A loop whose every payload and state is encoded, decoded and compared."""

    def answers(
        self, call: Call, clients: Sequence[int], scatter: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        call = dataclasses.replace(call, broadcast=_through(call.broadcast, f"broadcast to {call.name}"))

        def sent(ids: Sequence[int]) -> Any:
            each, what = scatter(ids), f"scatter to {call.name}"
            return tree.stack([_through(tree.take(each, i), what) for i in range(len(ids))])

        for ids, states, uploads in super().answers(call, clients, sent):
            kept = [_through(tree.take(states, i), f"state after {call.name}") for i in range(len(ids))]
            up = [_through(tree.take(uploads, i), f"upload of {call.name}") for i in range(len(ids))]
            yield ids, tree.stack(kept), tree.stack(up)


def changed(algorithm: Algorithm[Any, Any], **settings: Any) -> Algorithm[Any, Any]:
    """The algorithm with some settings replaced, without warnings of neutral ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)
        return dataclasses.replace(algorithm, **settings)


def _through(value: Any, what: str) -> Any:
    """The value, encoded and decoded."""
    try:
        back = decode(encode(value), tree.zeros_like(value))
    except CodecError as error:
        raise AssertionError(f"the {what} cannot travel: {error}") from error
    _same(value, back, f"the {what} must pass through the codec unchanged")
    return back


def _agree(x: Trail, y: Trail, what: str, tolerance: float) -> None:
    for t, (a, b) in enumerate(zip(x.servers, y.servers, strict=True)):
        _close(a, b, f"{what}: server state after round {t - 1}", tolerance)
    for t, (s, r) in enumerate(zip(x.states, y.states, strict=True)):
        assert set(s) == set(r), f"{what}: after round {t - 1} states of clients {sorted(s)} and of {sorted(r)}"
        for k in sorted(s):
            _close(s[k], r[k], f"{what}: state of client {k} after round {t - 1}", tolerance)
    for k in x.personal:
        _close(x.personal[k], y.personal[k], f"{what}: personal model of client {k}", tolerance)


def _same(x: Any, y: Any, what: str) -> None:
    _close(x, y, what, 0.0)


def _close(x: Any, y: Any, what: str, tolerance: float) -> None:
    """Two trees agree in structure, and in values to `tolerance`, relative where they exceed 1 (0: in every bit)."""
    assert tree.flatten(x)[1] == tree.flatten(y)[1], f"{what}: the structures differ"
    for i, (a, b) in enumerate(zip(tree.leaves(x), tree.leaves(y), strict=True)):
        alike = a.shape == b.shape and a.dtype == b.dtype
        assert alike, f"{what}: leaf {i} is {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
        if torch.equal(a, b):
            continue
        gap = float((a.double() - b.double()).abs().max())
        allowed = tolerance * max(1.0, float(a.double().abs().max()))
        assert gap <= allowed, f"{what}: leaf {i} {list(a.shape)} differs by {gap:.3g}, allowed is {allowed:.3g}"


def _differ(x: Any, y: Any) -> bool:
    """Whether two trees differ anywhere."""
    (a, spec_a), (b, spec_b) = tree.flatten(x), tree.flatten(y)
    return bool(spec_a != spec_b or not all(torch.equal(u, v) for u, v in zip(a, b, strict=True)))


def _copy(value: Any) -> Any:
    """A tree that no later step in place can reach."""
    return tree.map_tree(torch.clone, value)
