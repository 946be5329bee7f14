"""Checks of the battery. A check returns None or the reason why it does not apply, and raises AssertionError."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fedloom.algorithms.fedavg import FedAvg
from fedloom.core import tree
from fedloom.core.model import Model
from fedloom.core.requires import GlobalOnly
from fedloom.core.task import Task
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import Faults
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.storage.codec import decode, encode
from fedloom.testing.compare import close, differ, round_trip, same
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from fedloom.testing.small_networks import MLP, Convolutional, Deep
from fedloom.testing.subject import (
    ENGINES,
    OtherTestRows,
    Padded,
    Poisoned,
    RecordingLoop,
    RecordingStacked,
    Subject,
    Trail,
    record_run,
    with_settings,
)

# Engines with messages compute like the loop, which `payloads_travel` verifies. Checks of computation leave them out.
COMPUTING: tuple[type[Engine], ...] = (Loop, Stacked)


def engines_agree(subject: Subject) -> str | None:
    """Loop, stack and a stack in chunks of two give the same states and personal models, to 1e-9 in float64."""
    loop = subject.run(Loop)
    for chunk in (None, 2):
        stacked = subject.run(Stacked, chunk=chunk)
        what = "the stacked engine" + (f" with chunk = {chunk}" if chunk else "")
        _agree(loop, stacked, f"loop and {what} must agree", 1e-9)
        _same_results(loop, stacked, what)
    return None


def _same_results(loop: Trail, other: Trail, what: str) -> None:
    """Raise AssertionError where sums of the headline differ: of right answers at all, of numbers beyond 1e-9."""
    assert loop.right.keys() == other.right.keys()
    for k, (total, n) in loop.right.items():
        sums = torch.tensor([total, other.right[k][0]], dtype=torch.float64)
        fits = other.right[k][1] == n and torch.allclose(sums[0], sums[1], rtol=1e-9, atol=1e-12)
        assert fits, (
            f"personal models of client {k} are evaluated otherwise: loop {loop.right[k]}, {what} {other.right[k]}"
        )


def float32_agrees(subject: Subject) -> str | None:
    """After one local step in float32, loop and stack agree to 1e-5."""
    algorithm = with_settings(subject.algorithm, local=dataclasses.replace(subject.algorithm.local, steps=1))
    population = subject.population(dtype=torch.float32)
    loop, stacked = (
        subject.run(kind, population, algorithm=algorithm, cohorts=subject.cohorts[:1]) for kind in (Loop, Stacked)
    )
    for leaf in tree.leaves((loop.servers, loop.states)):
        assert leaf.dtype != torch.float64, "a float32 run has float64 leaves in its states: use the model's dtype"
    _agree(loop, stacked, "loop and stack must agree on the first local step in float32", 1e-5)
    return None


def tracing_agrees(subject: Subject) -> str | None:
    """Compare a stack whose lock-steps are traced with an untraced one: the same to 1e-9 in float64."""
    loop, traced = subject.run(Loop), subject.run(Stacked, compilation="trace")
    _agree(loop, traced, "the traced stack must agree with the loop", 1e-9)
    _same_results(loop, traced, "traced")
    return None


def architectures_mix(subject: Subject) -> str | None:
    """Three architectures in one cohort: engines agree, and without mixing architectures do not affect each other."""
    if subject.algorithm.requires.one_place:
        return "pools its clients, which then have one architecture"
    models = {
        "shallow": Model(MLP, name="shallow"),
        "deep": Model(Deep, name="deep"),
        "convolutional": Model(lambda: Convolutional(2, pooled=3), name="convolutional"),
    }  # with equally many features, which algorithms may compare
    population = subject.population(models=models)
    loop = subject.run(Loop, population)
    _agree(loop, subject.run(Stacked, population), "loop and stack must agree on three architectures", 1e-9)
    if subject.algorithm.requires.mixed:
        return None
    for name in models:
        own = [[k for k in cohort if population.assignment[k] == name] for cohort in subject.cohorts]
        alone = subject.run(Loop, population, cohorts=own)
        same(
            loop.servers[-1][name],
            alone.servers[-1][name],
            f"the server state of {name!r} must not depend on clients of other architectures",
        )
    return None


def normalisation_and_dropout(subject: Subject) -> str | None:
    """With BatchNorm and dropout on ragged batches, loop and stack agree to 1e-9: padding changes nothing."""
    normalised = subject.normalised
    _agree(
        normalised.run(Loop),
        normalised.run(Stacked),
        "loop and stack must agree on a model with BatchNorm and dropout",
        1e-9,
    )
    return None


def neutral_is_fedavg(subject: Subject) -> str | None:
    """With the settings in `neutral`, models are those of FedAvg, bit for bit, and results of clients the same.

    With `GlobalOnly` settings the global model alone; personal models must differ then.
    """
    a = subject.algorithm
    apart = isinstance(a.neutral, GlobalOnly)
    if not a.neutral:
        return "declares no neutral settings"
    shared = {f.name for f in dataclasses.fields(FedAvg)} & {f.name for f in dataclasses.fields(a)}
    neutral = with_settings(a, **a.neutral)
    fedavg = FedAvg(**{name: getattr(neutral, name) for name in shared})
    for kind in COMPUTING:
        own_run = subject.run(kind, algorithm=neutral)
        fedavg_run = _fedavg(kind, fedavg, tuple(subject.models.values()), subject.task)  # type: ignore[arg-type]
        for t, (x, y) in enumerate(zip(own_run.servers, fedavg_run.servers, strict=True)):
            models = neutral.global_models(x, subject.models)
            for name in y:
                ours = models.get(name, x.get(name))
                same(ours, y[name], f"{subject.name} with {dict(a.neutral)} must be FedAvg ({kind.name}, round {t})")
        alike = own_run.right == fedavg_run.right and not any(
            differ(weights, fedavg_run.personal[k]) for k, weights in own_run.personal.items()
        )
        assert alike or apart, (
            f"{subject.name} with {dict(a.neutral)} must evaluate clients by FedAvg's models ({kind.name}), and "
            "personal models are others: let them follow the settings, or declare neutral = GlobalOnly(...)"
        )
        assert not apart or not alike, (
            f"{subject.name} declares GlobalOnly settings, and with {dict(a.neutral)} clients are evaluated by "
            f"FedAvg's models ({kind.name}): declare them as a plain mapping"
        )
    return None


@functools.cache
def _fedavg(kind: type[Engine], fedavg: FedAvg, models: tuple[Model, ...], task: Task) -> Trail:
    """Run FedAvg, once for all algorithms of a process."""
    return Subject(fedavg, {model.name: model for model in models}, task).run(kind)


def data_stay_private(subject: Subject) -> str | None:
    """With the examples of all other clients NaN, a client's states and uploads are the same, bit for bit."""
    client = subject.cohorts[0][-1]
    all_clients = [tuple(range(subject.population().num_clients))]
    for kind in COMPUTING:
        clean, poisoned = subject.population(), subject.population(kind=Poisoned, client=client)
        trails = [subject.run(kind, p, cohorts=[(client,)] * 2, refuse=True) for p in (clean, poisoned)]
        message = f"other clients' data reach client {client} ({kind.name}): padding or shared tables leak"
        same(trails[0].servers, trails[1].servers, message)
        same(trails[0].states, trails[1].states, message)
        same(trails[0].personal[client], trails[1].personal[client], message)
        recording = {Loop: RecordingLoop, Stacked: RecordingStacked}[kind]
        logs = []
        for p in (clean, poisoned):
            engine = recording(p, subject.algorithm, Options(on_nonfinite="refuse"))
            engine.round(engine.init(), all_clients[0], 0)
            logs.append({e: (state, upload) for e, k, state, upload in engine.log if k == client and e == 0})
        same(logs[0], logs[1], message)
    return None


def evaluation_rows_stay_unused(subject: Subject) -> str | None:
    """With other test rows, states and personal models are the same, bit for bit: they serve evaluation alone."""
    for kind in COMPUTING:
        reference, changed = subject.run(kind), subject.run(kind, subject.population(kind=OtherTestRows))
        what = f"nothing may depend on the rows that clients are evaluated on ({kind.name})"
        same((reference.servers, reference.states), (changed.servers, changed.states), f"{what}: a state does")
        same(reference.personal, changed.personal, f"{what}: a personal model does")
    return None


def only_the_cohort_changes(subject: Subject) -> str | None:
    """After a round the cohort's clients or the server have changed; other clients have not; new ones keep nothing."""
    for kind in ENGINES:
        trail, selected = subject.run(kind), set[int]()
        for t, cohort in enumerate(trail.selected):
            before, after = trail.states[t], trail.states[t + 1]
            selected.update(cohort)
            owners = {k: trail.engine.keys.place(k).number for k in _of_clients(trail, after)}  # rows of the server too
            clients = set(owners.values())  # states without tensors are not kept at all
            assert clients in (selected, set()), (
                f"after round {t} states exist for {sorted(clients)}, selected: {sorted(selected)}"
            )
            for k, state in before.items():
                if k not in owners:
                    same(state, after[k], f"an entry of a pool must not change, one did in round {t}")
                elif (client := owners[k]) not in cohort:
                    same(state, after[k], f"client {client} was not selected in round {t}, its state must not change")
            server = differ(trail.servers[t], trail.servers[t + 1])
            unmoved = [k for k in cohort if k in before and not differ(before[k], after[k])]
            assert server or not unmoved, f"round {t}: neither the server nor the clients {unmoved} changed"
            assert server or before or any(tree.leaves(state) for state in after.values()), f"round {t} changed nothing"
    return None


def empty_steps_change_nothing(subject: Subject) -> str | None:
    """Check that a step of padding at the end changes no bit, and columns of padding nothing beyond rounding."""
    for kind in COMPUTING:
        reference = subject.run(kind)
        longer = subject.run(kind, subject.population(kind=Padded, steps=1))
        _agree(reference, longer, f"a step without real rows must change nothing ({kind.name})", 0.0)
        wider = subject.run(kind, subject.population(kind=Padded, rows=3))
        _agree(reference, wider, f"rows of padding must change nothing ({kind.name})", 1e-10)
    return None


def order_of_cohort_is_immaterial(subject: Subject) -> str | None:
    """Check that the same cohorts in another order give the same bits."""
    for kind in COMPUTING:
        turned = subject.run(kind, cohorts=[tuple(reversed(c)) for c in subject.cohorts])
        _agree(subject.run(kind), turned, f"the order of a cohort must change nothing ({kind.name})", 0.0)
    return None


def states_keep_their_shape(subject: Subject) -> str | None:
    """Server and client states have the same structure, shapes and dtypes before, during and after a run."""
    normalised = subject.normalised
    for kind in COMPUTING:
        trail = normalised.run(kind)
        for t, server in enumerate(trail.servers):
            assert tree.same_structure(trail.servers[0], server), f"the server state changed its shape by round {t}"
        (model,) = normalised.models.values()
        all_weights = tree.cast(model.init(0), dtype=torch.float64)
        for t, states in enumerate(trail.states):
            for k, state in states.items():
                assert tree.same_structure(trail.engine.fresh(k), state), (
                    f"the state of client {k} after round {t} has another structure, shape or dtype than init_client's"
                )
        for k, weights in trail.personal.items():
            assert tree.same_structure(all_weights, weights), (
                f"personal must return all weights of the model, client {k}"
            )
    return None


def payloads_travel(subject: Subject) -> str | None:
    """Clients in another process, and devices with states on their disks, give the same bits over a wire."""
    loop = subject.run(Loop)
    for kind, what in ((Messages, "travel with the messages"), (DevicesInProcess, "stay with devices")):
        sent = subject.run(kind)
        _agree(loop, sent, f"a run over a wire must be the same where states {what}", 0.0)
    for server in loop.servers:
        round_trip(server, "server state")
    return None


def saved_runs_continue(subject: Subject) -> str | None:
    """Save after round 0, load into a new engine, continue: the same bits as without a break."""
    for kind in ENGINES:
        unbroken, resumed = subject.run(kind), _from_round_1(subject, kind, subject.cohorts[1:])
        what = f"a resumed run must be the same ({kind.name}): is a part of the state missing?"
        same(unbroken.servers[1:], resumed.servers, what)
        same(unbroken.states[1:], resumed.states, what)
        same(unbroken.personal, resumed.personal, what)
    return None


def _from_round_1(
    subject: Subject, kind: type[Engine], cohorts: Sequence[Sequence[int]], faults: Faults | None = None
) -> Trail:
    """Run rounds 1, 2, ... of an engine that begins with what its usual run saved after round 0."""
    unbroken = subject.run(kind)
    engine = kind(subject.population(), subject.algorithm, Options(faults=faults))
    start = decode(encode(unbroken.servers[1]), engine.init())
    for k, state in unbroken.states[1].items():
        engine.states[k] = decode(encode(state), tree.zeros_like(state))
    trail = record_run(engine, start, cohorts, start=1)
    engine.close()
    return trail


def clients_may_drop_out(subject: Subject) -> str | None:
    """Check that a client lost in any exchange keeps its state; in the only exchange, it counts as never selected."""
    cohort = subject.cohorts[1]
    lost_client = cohort[len(cohort) // 2]
    recorder = RecordingLoop(subject.population(), subject.algorithm)
    before = recorder.round(recorder.init(), subject.cohorts[0], 0)
    recorder.log.clear()
    recorder.round(before, cohort, 1)
    exchanges = len({exchange for exchange, *_ in recorder.log})
    if not exchanges:
        return "selects no client in its second round"
    log = {(exchange, k): state for exchange, k, state, _ in recorder.log}
    for kind in ENGINES:
        for e in range(exchanges):

            def faults(round: int, exchange: int, client: int, e: int = e) -> str | None:
                return "lost by the test" if (round, exchange, client) == (1, e, lost_client) else None

            trail = _from_round_1(subject, kind, [cohort], faults)
            failed = [f.client for f in trail.engine.traffic.failed]
            assert failed == [lost_client], f"the round must report client {lost_client} as lost, it reports {failed}"
            state_before = trail.states[0].get(lost_client) if e == 0 else log[e - 1, lost_client]
            close(
                {} if state_before is None else {lost_client: state_before},
                {k: s for k, s in trail.states[1].items() if k == lost_client},
                f"client {lost_client}, lost in exchange {e}, must keep the state it had ({kind.name})",
                0.0 if e == 0 else 1e-9,
            )
            missing = set(cohort) - set(trail.states[1]) - {lost_client}
            assert not missing or not trail.states[1], f"clients {sorted(missing)} answered and have no state"
            if exchanges == 1:
                fewer = _from_round_1(subject, kind, [[k for k in cohort if k != lost_client]])
                _agree(trail, fewer, f"a lost client must count as never selected ({kind.name})", 0.0)
    return None


def rounds_may_be_empty(subject: Subject) -> str | None:
    """Check that a round without clients changes no client's state; if all drop out, the server stays too."""
    for kind in ENGINES:
        for cohort in ((), subject.cohorts[1]):
            trail = _from_round_1(subject, kind, [cohort], lambda round, exchange, client: "lost by the test")
            if trail.selected[0]:
                same(trail.servers[0], trail.servers[1], "no client responded, the server must not change")
            before, after = (_of_clients(trail, states) for states in trail.states)
            same(before, after, "no client responded, no client's state may change")
    return None


def seeds_govern(subject: Subject) -> str | None:
    """Check that a seed gives the same bits twice, another one others; generators of torch and NumPy play no part."""
    for kind in COMPUTING:
        first = subject.run(kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1234)
            again = subject.run(kind, subject.population())
        _agree(first, again, f"the same seed must give the same bits ({kind.name})", 0.0)
    first, other = subject.run(Loop), subject.run(Loop, subject.population(seed=1))
    assert differ((first.servers, first.states), (other.servers, other.states)), "another seed changed nothing"
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
        data_stay_private,
        evaluation_rows_stay_unused,
        only_the_cohort_changes,
        empty_steps_change_nothing,
        order_of_cohort_is_immaterial,
        states_keep_their_shape,
        payloads_travel,
        saved_runs_continue,
        clients_may_drop_out,
        rounds_may_be_empty,
        seeds_govern,
    )
}


def _of_clients(trail: Trail, states: Mapping[int, Any]) -> dict[int, Any]:
    """Return clients' states and the server's rows for them, without the entries of pools."""
    return {k: state for k, state in states.items() if k < trail.engine.keys.first_entry}


def _agree(x: Trail, y: Trail, message: str, tolerance: float) -> None:
    for t, (a, b) in enumerate(zip(x.servers, y.servers, strict=True)):
        close(a, b, f"{message}: server state after round {t - 1}", tolerance)
    for t, (s, r) in enumerate(zip(x.states, y.states, strict=True)):
        assert set(s) == set(r), f"{message}: after round {t - 1} states of clients {sorted(s)} and of {sorted(r)}"
        for k in sorted(s):
            close(s[k], r[k], f"{message}: state of client {k} after round {t - 1}", tolerance)
    for k in x.personal:
        close(x.personal[k], y.personal[k], f"{message}: personal model of client {k}", tolerance)
