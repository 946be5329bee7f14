"""pFedSD's term against plain PyTorch, on top of other algorithms too; its teachers, their age, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.algorithms import (
    KDNTD,
    FedAvg,
    FedAvgFT,
    FedAvgStored,
    FedNTD,
    FedPer,
    FedProx,
    LGFedAvg,
    PerFedAvg,
    PFedSD,
    Scaffold,
)
from fedloom.algorithms.pfedsd import self_distilled
from fedloom.coordinator import Job, RunSettings
from fedloom.core import tree
from fedloom.core.augment import Augment
from fedloom.core.batch import probe
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import BatchLoss, Params, Weights
from fedloom.data import (
    Arrival,
    Growing,
    LabelDrift,
    OffsetDrift,
    Window,
    federate,
    from_arrays,
    iid,
    next_tokens,
)
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.models import Reads, build
from fedloom.tasks import MultiLabel, NextToken, Regression
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from small import TINY, Tiny, assert_params, clients_of, random_data
from targets_made import federation as of_targets, linear

ENGINES = [Loop, Stacked, Messages]
SIZES = (5, 11, 8)
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.9, weight_decay=1e-3))
T, LAM, MU = 2.0, 0.7, 0.3
COHORTS = ((0, 1), (1, 2), (0, 1), (0, 1, 2))


def go(engine: Any, algorithm: Any, cohorts: Any = COHORTS, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """An engine after rounds with these cohorts, and the server's state."""
    run = engine(clients_of(random_data(SIZES)), dataclasses.replace(algorithm, local=LOCAL), Options(**settings))
    server = run.init()
    for t, cohort in enumerate(cohorts):
        server = run.round(server, cohort, t)
    return run, server


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


# ---- the term, on top of others


def step_by_step(
    start: dict[str, Tensor],
    data: Any,
    teacher: dict[str, Tensor] | None,
    proximal: bool = False,
    weights: bool = False,
    known: Any = None,
) -> dict[str, Tensor]:
    """Local training in plain PyTorch: CE, FedProx's term if asked for, (5) or the norm if there is a teacher.

    `known`: which examples it teaches, [n] bool; None: all.
    """
    student = Tiny().double()
    student.load_state_dict(start)
    optimiser = torch.optim.SGD(student.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
    x, y = (torch.from_numpy(a) for a in data)
    known = torch.ones(len(y)) if known is None else torch.from_numpy(known).double()
    for rows in [r for _ in range(2) for r in torch.arange(len(y)).split(4)]:
        z = student(x[rows])
        loss = F.cross_entropy(z, y[rows])
        if proximal:
            loss = loss + MU / 2 * sum(((p - start[n]) ** 2).sum() for n, p in student.named_parameters())
        if teacher is not None and weights:
            loss = loss + LAM / 2 * sum(((p - teacher[n]) ** 2).sum() for n, p in student.named_parameters())
        elif teacher is not None:
            with torch.no_grad():
                own = Tiny().double()
                own.load_state_dict(teacher)
                q = torch.softmax(own(x[rows]) / T, 1)
            p = torch.softmax(z / T, 1)
            each = T**2 * (q * (q / p).log()).sum(1)
            loss = loss + LAM * (known[rows] * each).sum() / max(1.0, float(known[rows].sum()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {n: p.detach().clone() for n, p in student.named_parameters()}


CASES: dict[str, tuple[Any, list[str], bool, bool]] = {  # algorithm, own tensors, proximal term, weighted by samples
    "pfedsd": (PFedSD(lam=LAM, T=T), [], False, False),
    "pfedsd_weights": (PFedSD(lam=LAM, transfer="weights"), [], False, False),
    "fedprox_weights": (self_distilled(FedProx)(mu=MU, lam=LAM, transfer="weights"), [], True, True),
    "fedprox": (self_distilled(FedProx)(mu=MU, lam=LAM, T=T), [], True, True),
    "fedper": (self_distilled(FedPer)(personal_layers="last:1", lam=LAM, T=T), ["fc2.weight", "fc2.bias"], False, True),
    "lg": (self_distilled(LGFedAvg)(global_modules="fc2.*", lam=LAM, T=T), ["fc1.weight", "fc1.bias"], False, False),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_the_term_on_top_of_local_methods(case: str, engine: Any) -> None:
    algorithm, own, proximal, by_samples = CASES[case]
    weights = algorithm.transfer == "weights"
    data = random_data(SIZES)
    run, server = go(engine, algorithm)
    w = dict(run.init()["tiny"].params)
    mine: dict[int, dict[str, Tensor]] = {k: {n: w[n] for n in own} for k in range(3)}
    v: dict[int, dict[str, Tensor]] = {}
    for cohort in COHORTS:
        ends = {k: step_by_step({**w, **mine[k]}, data[k], v.get(k), proximal, weights) for k in cohort}
        shares = np.array([SIZES[k] if by_samples else 1 for k in cohort], float)
        for n in set(w) - set(own):
            w[n] = sum(s / shares.sum() * ends[k][n] for k, s in zip(cohort, shares, strict=True))
        v |= ends
        mine |= {k: {n: ends[k][n] for n in own} for k in cohort}
    for n in set(w) - set(own):
        np.testing.assert_allclose(server["tiny"].params[n], w[n], rtol=1e-8, atol=1e-10)
    for k, evaluated in run.personal(server, range(3), len(COHORTS)).items():
        assert_params(evaluated, Weights(params=v[k]), rtol=1e-8, atol=1e-10)
    run.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_participation_is_the_local_update_of_fedavg(engine: Any) -> None:
    ends: dict[str, Any] = {}
    for algorithm in (PFedSD(lam=3.0, T=2.0), FedAvg(aggregation="uniform"), FedAvg(aggregation="uniform")):
        run = engine(clients_of(random_data(SIZES)), dataclasses.replace(algorithm, local=LOCAL))
        sent: dict[int, Any] = {}
        run.watch = lambda exchange, sent=sent: sent.update({exchange.client: exchange.upload.value})
        ends[type(algorithm).__name__] = run.round(run.init(), (0, 1, 2), 0), sent
        run.close()
    assert same(*ends.values())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_of_zero_is_fedavg_bit_for_bit(engine: Any) -> None:
    with pytest.warns(UserWarning, match="PFedSD with lam = 0 is FedAvg"):
        (one, mine), (other, theirs) = (go(engine, a) for a in (PFedSD(lam=0), FedAvg(aggregation="uniform")))
    assert same(mine, theirs)
    one.close()
    other.close()


# ---- where the teacher is


@pytest.mark.slow
def test_a_device_without_a_state_of_its_own_computes_the_same_bits() -> None:
    """The personal model travels with the request (`loop`, `Messages`) or stays on the device (`DevicesInProcess`)."""
    found = []
    for engine in (Loop, Messages, DevicesInProcess):
        run, server = go(engine, PFedSD(lam=LAM, T=T))
        states = run.all_states() if engine is DevicesInProcess else run.states
        found.append((server, {k: states[k] for k in range(3)}, run.personal(server, range(3), 4)))
        run.close()
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [PFedSD(lam=LAM, T=T), CASES["fedper"][0]], ids=["pfedsd", "fedper"])
def test_stored_predictions_teach_what_the_model_teaches(algorithm: Any, engine: Any) -> None:
    table = dataclasses.replace(algorithm, teacher_store="soft_predictions")
    (one, server), (other, stored) = (go(engine, a) for a in (algorithm, table))
    assert_params(stored["tiny"], server["tiny"], rtol=0, atol=1e-9)
    data = random_data(SIZES)
    for k in range(3):
        logits = other.states[k].logits
        said = TINY(other.states[k].v.value, torch.from_numpy(data[k][0]))
        np.testing.assert_allclose(logits[: SIZES[k]], said, rtol=1e-12, atol=1e-12)
        assert logits.shape == (11, 4)
        assert not logits[SIZES[k] :].any()
    evaluated = [run.personal(w, range(3), 4) for run, w in ((one, server), (other, stored))]
    for k in range(3):
        assert_params(evaluated[1][k], evaluated[0][k], rtol=0, atol=1e-9)
    one.close()
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_stored_predictions_in_float32(engine: Any) -> None:
    ends = []
    for more in ({}, {"teacher_store": "soft_predictions"}):
        population = clients_of(random_data(SIZES), dtype=torch.float32)
        run = engine(population, PFedSD(lam=LAM, T=T, local=LOCAL, **more))
        server = run.init()
        for t in range(3):
            server = run.round(server, (0, 1, 2), t)
        ends.append(server["tiny"])
    assert_params(ends[1], ends[0], rtol=0, atol=1e-6)


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("store", ["model", "soft_predictions"])
@pytest.mark.parametrize("rule", [Growing(0.4, 3, seed=2), Window(0.5, 3)])
def test_a_stored_prediction_does_not_teach_what_came_after_it(rule: Arrival, store: Any, engine: Any) -> None:
    """The past model teaches all examples that are there, its stored predictions those that were there with it."""
    data = random_data(SIZES)
    population = clients_of(data)
    f = dataclasses.replace(population.federation, arrives=rule)
    run = engine(dataclasses.replace(population, federation=f), PFedSD(lam=LAM, T=T, teacher_store=store, local=LOCAL))
    server = run.init()
    w, v, taught = dict(server["tiny"].params), dict[int, Any](), dict[int, Any]()
    unknown = 0
    for t, cohort in enumerate(COHORTS):
        server = run.round(server, cohort, t)
        ends = {}
        for k in cohort:
            rows = f.at(t).partition.rows(k)
            known = np.isin(rows, taught.get(k, [])) if store == "soft_predictions" else None
            unknown += 0 if known is None else int((~known).sum())
            own = f.train.x[rows].numpy(), f.train.y[rows].numpy()
            ends[k] = step_by_step(w, own, v.get(k), known=known)
            taught[k] = rows
        w = {n: sum(ends[k][n] for k in cohort) / len(cohort) for n in w}
        v |= ends
    assert_params(server["tiny"], Weights(params=w), rtol=1e-8, atol=1e-10)
    assert unknown > 0 or store == "model"
    if store == "soft_predictions":
        places = [f.arrived(k, 3)[0] for k in range(3)]  # of the last round, in which all took part
        for k in range(3):
            logits = run.states[k].logits
            said = TINY(run.states[k].v.value, f.train.x[f.at(3).partition.rows(k)])
            np.testing.assert_allclose(logits[places[k]], said, rtol=1e-12, atol=1e-12)
            assert not logits[np.setdiff1d(np.arange(11), places[k])].any()
    run.close()


# ---- absence, age, ramp, failure


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_a_teacher_that_is_too_old_does_not_teach(engine: Any) -> None:
    late = ((0, 1), (1, 2), (1, 2), (0, 1, 2))  # client 0 comes back after three rounds

    def uploads(algorithm: Any) -> dict[int, Any]:
        run, server = go(engine, algorithm, late[:3])
        sent: dict[int, Any] = {}
        run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
        run.round(server, late[3], 3)
        return sent

    never, three, two = (uploads(PFedSD(lam=LAM, T=T, teacher_max_age=age)) for age in (None, 3, 2))
    assert all(same(never[k], three[k]) for k in range(3))
    assert all(same(never[k], two[k]) for k in (1, 2))
    assert not same(never[0], two[0])


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_the_weight_grows_over_the_first_rounds(engine: Any) -> None:
    """Of four rounds: 0 in round 0, a quarter in round 1, whole from round 4 on."""
    ramp = PFedSD(lam=0.8, T=T, kd_warmup_rounds=4)
    for t, share in ((1, 0.25), (2, 0.5), (4, 1.0), (9, 1.0)):
        ends = []
        for algorithm in (ramp, PFedSD(lam=0.8 * share, T=T)):
            run, server = go(engine, algorithm, [(0, 1, 2)])
            ends.append(run.round(server, (0, 1, 2), t)["tiny"])
        assert_params(ends[0], ends[1], rtol=1e-10, atol=1e-12)
    with pytest.warns(UserWarning, match="is FedAvg"):
        _, plain = go(engine, PFedSD(lam=0), [(0, 1, 2)] * 2)
    _, ramped = go(engine, dataclasses.replace(ramp, kd_warmup_rounds=1_000_000_000), [(0, 1, 2)] * 2)
    assert_params(ramped["tiny"], plain["tiny"], rtol=0, atol=1e-7)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_whose_answer_is_lost_keeps_the_teacher_that_it_had(engine: Any) -> None:
    def faults(round: int, exchange: int, client: int) -> str | None:
        return "late" if (round, client) == (1, 0) else None

    run, server = go(engine, PFedSD(lam=LAM, T=T), [(0, 1)])
    before = run.states[0]
    run.options = Options(faults=faults)
    run.round(server, (0, 1), 1)
    assert same(before, run.states[0])
    assert bool(before.v.present)
    assert int(run.states[1].made) == 1
    run.close()


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_a_client_whose_training_diverges_keeps_the_teacher_that_it_had(engine: Any) -> None:
    data = random_data(SIZES)
    run = engine(clients_of(data), PFedSD(lam=LAM, T=T, local=LOCAL), Options(on_nonfinite="refuse"))
    server = run.round(run.init(), (0, 1), 0)
    before = run.states[0]
    run.population.federation.train.x[: SIZES[0]] = float("nan")
    run.round(server, (0, 1), 1)
    assert [f.client for f in run.traffic.failed] == [0]
    assert same(before, run.states[0])


@pytest.mark.parametrize("algorithm", [PFedSD(), CASES["fedper"][0], PFedSD(teacher_store="soft_predictions")])
def test_who_has_a_personal_model(algorithm: Any) -> None:
    run, server = go(Loop, algorithm, [(0, 2)])
    has = [bool(run.algorithm.has_personal(tree.take(run.stack([k]), 0))) for k in range(3)]
    assert has == [True, False, True]
    evaluated = run.personal(server, [1], 1)[1]
    if isinstance(algorithm, PFedSD):
        assert same(evaluated, server["tiny"])  # the newest global model, not the initial one
    assert bool(FedAvg().has_personal(Weights(params={})))


# ---- what is refused


def test_stored_predictions_are_refused_with_augmentation() -> None:
    population = clients_of(random_data(SIZES))
    f = population.federation
    augmented = dataclasses.replace(f, train=dataclasses.replace(f.train, augment=Augment(flip=True)))
    changed = dataclasses.replace(population, federation=augmented)
    with pytest.raises(SettingError, match='augmented at random: set teacher_store="model", or leave augmentation out'):
        Loop(changed, PFedSD(teacher_store="soft_predictions"))
    Loop(changed, PFedSD())


def test_stored_predictions_are_refused_where_inputs_drift() -> None:
    population = clients_of(random_data(SIZES))
    drifting = dataclasses.replace(population.federation, drift=OffsetDrift(0.1))
    changed = dataclasses.replace(population, federation=drifting)
    with pytest.raises(SettingError, match=r'the examples drift by data.drift: set teacher_store="model"'):
        Loop(changed, PFedSD(teacher_store="soft_predictions"))
    Loop(changed, PFedSD())
    labels = dataclasses.replace(population.federation, drift=LabelDrift(1))
    Loop(dataclasses.replace(population, federation=labels), PFedSD(teacher_store="soft_predictions"))


def test_a_norm_between_weights_has_no_stored_predictions() -> None:
    with pytest.raises(SettingError, match="pulls towards the past model itself"):
        PFedSD(transfer="weights", teacher_store="soft_predictions")


def test_stored_predictions_need_a_logit_for_each_class() -> None:
    five = Model(lambda: nn.Linear(6, 5), name="five")
    run = Loop(clients_of(random_data(SIZES), model=five), PFedSD(teacher_store="soft_predictions", local=LOCAL))
    with pytest.raises(SettingError, match=r"of the data's 4 classes, and the network makes 5 logits: give it as many"):
        run.round(run.init(), (0, 1), 0)


def test_stored_predictions_must_not_depend_on_the_batch() -> None:
    norm: Callable[[], nn.Module] = lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 4))  # noqa: E731
    run = Loop(
        clients_of(random_data(SIZES), model=Model(norm, name="norm")),
        PFedSD(teacher_store="soft_predictions"),
    )
    with pytest.raises(SettingError, match=r'those of norm do .*: set teacher_store="model"'):
        run.init()


def test_what_the_term_can_stand_on() -> None:
    with pytest.raises(SettingError, match=r"derives from fl\.Averaging .*, such as FedProx, got Scaffold"):
        self_distilled(Scaffold)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="got PFedSD"):
        self_distilled(PFedSD)
    with pytest.raises(SettingError, match="brings the settings lam, which KDNTD has with another meaning"):
        self_distilled(KDNTD)
    assert self_distilled(FedProx) is self_distilled(FedProx)


@pytest.mark.parametrize("kind", [PerFedAvg, FedAvgFT])
def test_what_makes_a_model_to_judge_by_takes_no_term(kind: Any) -> None:
    """v_k would take its place; and Per-FedAvg's steps are its own, which no term reaches."""
    rule = (
        rf"evaluates clients by the model that they trained last, and {kind.__name__} by one that its own personal "
        "makes: take"
    )
    with pytest.raises(SettingError, match=rule):
        self_distilled(kind)
    assert self_distilled(FedAvgStored)(lam=0.5).personalises


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("store", ["model", "soft_predictions"])
def test_a_network_of_which_zeros_make_nan_has_a_first_round(store: Any, engine: Any) -> None:
    """The direction of a weight of length 0 is 0 / 0, and zeros stand where there is no v_k."""
    model = Model(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), name="normed")
    ends = []
    for algorithm in (PFedSD(lam=0.5, teacher_store=store, local=LOCAL), FedAvg(aggregation="uniform", local=LOCAL)):
        population = clients_of(random_data(SIZES), model=model)
        run = engine(population, algorithm.bind(population.federation, {"normed": model}))
        server = run.round(run.init(), (0, 1, 2), 0)
        ends.append((server, run.round(server, (0, 1, 2), 1)))
    (first, second), (plain, later) = ends
    assert same(first, plain)
    assert all(t.isfinite().all() for t in tree.leaves(second))
    assert not same(second, later)  # and then it is taught


def test_several_labels_are_distilled_one_by_one() -> None:
    rng = np.random.default_rng(0)
    z, v = (torch.from_numpy(3 * rng.normal(size=(5, 3))) for _ in range(2))
    y = torch.from_numpy((rng.random((5, 3)) > 0.5).astype(np.float64))
    batch = probe(torch.zeros(5, 1), y, {"v": v, "share": torch.ones(5, dtype=torch.float64)})
    algorithm = PFedSD(lam=0.7, T=2.0)
    start = Weights(params=Params({}))
    term = algorithm.term(BatchLoss(value=z.sum(), logits=z, weights=start), batch, start)
    q, p = torch.sigmoid(v / 2), torch.sigmoid(z / 2)
    each = 4 * (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log())
    torch.testing.assert_close(term, 0.7 * each.mean())
    settings = RunSettings(cohort_size=5)
    for method in (algorithm, self_distilled(FedProx)()):
        Job(algorithm=method, federation=of_targets("labels"), model=linear, task=MultiLabel(), settings=settings)
    with pytest.raises(SettingError, match=r"compares the probabilities of classes, .* are labels"):
        Job(algorithm=self_distilled(FedNTD)(), federation=of_targets("labels"), model=linear, task=MultiLabel())
    with pytest.raises(SettingError, match=r"compares the probabilities of classes, .* are numbers"):
        Job(algorithm=algorithm, federation=of_targets("numbers"), model=linear, task=Regression())


def test_tokens_are_distilled_place_by_place() -> None:
    """The term is the mean over the places that count; those of padding and of rows without a teacher add nothing."""
    rng = np.random.default_rng(0)
    z, v = (torch.from_numpy(3 * rng.normal(size=(3, 4, 6))) for _ in range(2))
    y = torch.tensor([[1, 2, 3, -100], [4, -100, -100, -100], [5, 5, 5, 5]])
    share = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    batch = probe(torch.zeros(3, 1), y, {"v": v, "share": share})
    start = Weights(params=Params({}))
    term = PFedSD(lam=0.7, T=2.0).term(BatchLoss(value=z.sum(), logits=z, weights=start), batch, start)
    q, p = (v / 2).softmax(-1), (z / 2).softmax(-1)
    each = 4 * (q * (q / p).log()).sum(-1)
    torch.testing.assert_close(term, 0.7 * (each[0, :3].sum() + each[1, 0]) / 8)  # of 3 + 1 + 4 places
    tokens = torch.randint(1, 9, (12, 4), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    data = from_arrays(tokens, next_tokens(tokens), num_classes=9)
    federation = federate(data, iid(data.y, 3, seed=0), test_fraction=0.0)
    reads, settings = Reads(9, True), RunSettings(cohort_size=3)
    model = Model(lambda: build("transformer?width=4&heads=1&layers=1", (4,), 9, reads), name="words")
    Job(algorithm=PFedSD(), federation=federation, model=model, task=NextToken(), settings=settings)
    with pytest.raises(SettingError, match="of sequences they would be a vocabulary for each place"):
        PFedSD(teacher_store="soft_predictions").bind(federation, {"words": model})
    other = self_distilled(FedNTD)()
    with pytest.raises(SettingError, match=r"compares the probabilities of classes, .* are tokens"):
        Job(algorithm=other, federation=federation, model=model, task=NextToken(), settings=settings)
