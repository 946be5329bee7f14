"""The battery over every algorithm and variant, and tests that the battery itself can fail."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from colours import federation as images
from fedloom import algorithms
from fedloom.algorithms import (
    IFCA,
    KDNTD,
    MOON,
    APFLDeng,
    APFLNi,
    Ditto,
    FedALA,
    FedAlign,
    FedAvg,
    FedAvgFT,
    FedAvgM,
    FedBABU,
    FedBE,
    FedCurv,
    FedCurvNi,
    FedDF,
    FedDyn,
    FedFomo,
    FedGKD,
    FedMD,
    FedMDKT,
    FedMeta,
    FedNova,
    FedNTD,
    FedNTDMSE,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    KTpFL,
    KTpFLWeights,
    LGFedAvg,
    PerFedAvg,
    PFedDF,
    PFedMe,
    PFedSD,
    Scaffold,
    SimPFL,
    TopKPFL,
)
from fedloom.algorithms.pfedsd import self_distilled
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.augment import Augment
from fedloom.core.client import Client, on_client
from fedloom.core.errors import FedloomError
from fedloom.core.fold import fold, minimise
from fedloom.core.local_training import Digest, Distill, Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.requires import GlobalOnly
from fedloom.core.types import Weighted, Weights
from fedloom.data import Growing, LabelDrift, OffsetDrift, Window
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.tasks import MultiLabel, Regression
from fedloom.testing import CHECKS, Subject, check
from fedloom.testing.compare import differ
from fedloom.testing.small_networks import Normalised
from small import ONE_SHOT, DenseTiny

pytestmark = pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")

KNOWLEDGE: dict[str, Any] = {
    "distill": Digest(epochs=2, batch_size=8, optimiser=SGD(lr=0.02)), "num_public": 13, "tau": 2.0,
}  # fmt: skip
ALGORITHMS: dict[str, Any] = {
    **{name: kind() for name, kind in algorithms.ALGORITHMS.items()},  # and with settings by which more happens
    "fedavg_uniform_server_buffers": FedAvg(aggregation="uniform", buffers="server"),
    "fedavg_local_buffers": FedAvg(buffers="local"),
    "fedavg_personal_head": FedAvg(shared="* !head.*"),
    "scaffold_uniform_steps": Scaffold(aggregation="uniform", divisor="steps", server_lr=0.5),
    "fedntd": FedNTD(beta=0.7, tau=2.0),
    "fedprox": FedProx(mu=0.5),
    "fedprox_stragglers": FedProx(mu=0.5, drop_percent=0.5),
    "fedprox_dropped": FedProx(mu=0.5, drop_percent=0.5, stragglers="dropped"),
    "fednova_released_uniform": FedNova(variance_reduction="released", aggregation="uniform"),
    "fedavgm": FedAvgM(momentum=0.7, server_lr=0.5),
    "feddyn": FedDyn(alpha=0.3),
    "kd_ntd": KDNTD(lam=0.3, beta=0.7, tau=2.0),
    "fedntd_mse": FedNTDMSE(beta=0.2, reduction="class_sum"),
    "fedcurv": FedCurv(lam=0.8, fisher_size=10),
    "fedcurv_uniform": FedCurv(lam=0.8, aggregation="uniform"),
    "fedcurv_ni": FedCurvNi(mu=0.8),
    "moon": MOON(mu=2.0, tau=0.7),
    "moon_uniform_random": MOON(mu=2.0, tau=0.7, aggregation="uniform", previous="random"),
    "pfedsd": PFedSD(lam=0.5, T=3.0),
    "pfedsd_personal_head": PFedSD(lam=0.5, T=3.0, shared="* !head.*", buffers="local"),
    "pfedsd_soft_predictions": PFedSD(
        lam=0.5, T=3.0, teacher_store="soft_predictions", teacher_max_age=1, kd_warmup_rounds=2
    ),
    "pfedsd_weights": PFedSD(lam=0.5, transfer="weights", teacher_max_age=1, kd_warmup_rounds=2),
    "fedprox_self_distilled": self_distilled(FedProx)(mu=0.5, lam=0.5, T=2.0),
    "fedper": FedPer(personal_layers="head.*"),
    "fedrep": FedRep(head_epochs=1),
    "fedbabu": FedBABU(finetune_epochs=1),
    "fedbabu_head": FedBABU(finetune="head", finetune_epochs=3, aggregation="uniform"),
    "lg_fedavg": LGFedAvg(global_modules="head.*"),
    "lg_fedavg_pretrained_self_distilled": self_distilled(LGFedAvg)(
        global_modules="head.*", pretrain_rounds=1, lam=0.5, T=2.0
    ),
    "fedavg_ft": FedAvgFT(ft_epochs=1, ft_lr=0.02),
    "fedavg_ft_head": FedAvgFT(ft_part="head"),
    "pfedme": PFedMe(lam=5.0, K=2, alpha_p=0.1, eta=0.05, beta=1.5),
    "ditto": Ditto(lam=0.5, personal_epochs=1),
    "fedgkd_received": FedGKD(M=1, gamma=0.5),
    "ifca_three": IFCA(k=3, aggregation="samples"),
    "fedala_all": FedALA(p=0, s=50.0, max_passes=12),
    "fedfomo": FedFomo(M=2, epsilon=0.5),
    "fedmeta": FedMeta(alpha=0.1, beta=0.05, inner_steps=2, support=0.7),
    "fedmeta_first": FedMeta(alpha=0.1, beta=0.05, order="first", aggregation="uniform"),
    "per_fedavg": PerFedAvg(alpha=0.1, beta=0.05),
    "per_fedavg_hf": PerFedAvg(alpha=0.1, beta=0.05, form="hf", delta=0.01),
    "feddf": FedDF(steps=3, T=2.0, distill=Distill(batch_size=8, optimiser=Adam(lr=1e-3, clip=0.5))),
    "feddf_uniform_losses": FedDF(
        steps=3, T=3.0, scheme="avg_losses", aggregation="uniform", distill=Distill(batch_size=8, optimiser=SGD(lr=0.1))
    ),
    "feddf_validated": FedDF(
        steps=4, validation=6, every=1, patience=2, distill=Distill(batch_size=8, optimiser=Adam(lr=1e-2))
    ),
    "pfeddf": PFedDF(steps=3, distill=Distill(batch_size=8, optimiser=Adam(lr=1e-3))),
    "fedbe": FedBE(
        steps=6,
        swa_start=2,
        swa_every=2,
        num_sampled=3,
        distill=Distill(batch_size=8, optimiser=SGD(lr=0.05, momentum=0.9)),
    ),
    **ONE_SHOT,
    "dense_paper_several_uploads": dataclasses.replace(ONE_SHOT["dense"], schedule="paper", epochs=1),
    "fedalign": FedAlign(mu=0.3, width=0.5),
    "apfl_ni": APFLNi(mu=0.5, lam=0.5, z=0, forced_rounds=(0, 1), window=2, delta_mu=9.0, delta_sigma=9.0),
    "fedproto": FedProto(lam=2.0, inference="prototypes"),
    "fedproto_last_epoch": FedProto(lam=2.0, proto_from="last_epoch", proto_weighting="uniform"),
    "apfl_deng": APFLDeng(alpha_init=0.4, alpha_update="every_step", lr_alpha=0.2),
    "apfl_deng_first_step": APFLDeng(alpha_update="first_step_of_round", aggregation="samples"),
    "apfl_ni_watches_everyone": APFLNi(
        z=0, decomposition="third", estimator="per_batch", forced_rounds=(0,), window_loss="global_all_clients"
    ),
    "kt_pfl": KTpFL(**KNOWLEDGE),
    "kt_pfl_weights": KTpFLWeights(lam=50.0, rho=0.3),
    "sim_pfl": SimPFL(**KNOWLEDGE),
    "topk_pfl": TopKPFL(**KNOWLEDGE),
    "fedmd": FedMD(distill=KNOWLEDGE["distill"], num_public=13, public_epochs=1, private_passes=1),
    "fedmd_without_labels": FedMD(distill=KNOWLEDGE["distill"], num_public=13, public_epochs=0, private_passes=0),
    "fedmd_kt": FedMDKT(**KNOWLEDGE),
}


VARIANTS = frozenset(
    {
        "fedavg_uniform_server_buffers",
        "fedavg_local_buffers",
        "fedavg_personal_head",
        "scaffold_uniform_steps",
        "fedprox_stragglers",
        "fedprox_dropped",
        "fednova_released_uniform",
        "fedcurv_uniform",
        "moon_uniform_random",
        "pfedsd_personal_head",
        "pfedsd_weights",
        "fedavg_ft_head",
        "fedbabu_head",
        "fedmeta_first",
        "fedproto_last_epoch",
        "apfl_deng_first_step",
        "apfl_ni_watches_everyone",
        "feddf_uniform_losses",
        "feddf_validated",
        "fedmd_without_labels",
    }
)
"""Settings of algorithms that stand beside them, which change a weight, a mean or a part, not what is kept or asked."""

OF_VARIANTS = (
    "engines_agree",
    "tracing_agrees",
    "normalisation_and_dropout",
    "neutral_is_fedavg",
    "only_the_cohort_changes",
    "payloads_travel",
    "saved_runs_continue",
    "clients_may_drop_out",
)
"""What such settings can break of an algorithm that passes all checks."""


REPRESENTATIVES = {  # one for each shape of what is kept and what is exchanged
    "scaffold": "server and clients keep weights, two uploads",
    "fedcurv": "what may be absent goes down and comes up",
    "moon": "a client keeps its last model",
    "pfedsd": "a client's model is its own, and teaches",
    "fedper": "a part of the network is shared",
    "pfedme": "a client trains two models",
    "fedfomo": "each client is sent others",
    "fedmeta": "a derivative of a derivative",
    "feddf": "the server trains",
    "dense": "the server makes examples, after one round",
    "apfl_ni": "clients change how they train, by what the server has seen",
    "kt_pfl": "predictions travel, in several exchanges",
}
"""Those whose battery `make test` runs; that of the others, and what is traced, is left to the slow tests."""
SOME = [*REPRESENTATIVES][::4]  # upon frozen parts, data that change and other tasks


def in_a_hurry(algorithm: str, check: str) -> bool:
    """Whether `make test` runs it: an eighth of each representative's checks, each check of one or two."""
    if algorithm not in REPRESENTATIVES or check == "tracing_agrees":
        return False
    return ([*REPRESENTATIVES].index(algorithm) + [*CHECKS].index(check)) % 8 == 0


def cases() -> list[Any]:
    """Every algorithm with its checks, one algorithm after the other, so that its checks share runs."""
    return [
        pytest.param(*case, marks=[] if in_a_hurry(*case) else [pytest.mark.slow], id="-".join(case))
        for algorithm in ALGORITHMS
        for check in (OF_VARIANTS if algorithm in VARIANTS else CHECKS)
        for case in [(algorithm, check)]
    ]


@functools.lru_cache(maxsize=1)  # the tests of one algorithm follow each other, and its runs hold programs
def subject(algorithm: str) -> Subject:
    """Checks of one algorithm share the runs in which nothing is unusual."""
    return Subject.of(ALGORITHMS[algorithm])


def test_every_algorithm_goes_through_the_whole_battery_once() -> None:
    whole = {type(a) for name, a in ALGORITHMS.items() if name not in VARIANTS}
    assert set(ALGORITHMS) >= VARIANTS
    assert whole >= {type(ALGORITHMS[name]) for name in VARIANTS}
    assert set(OF_VARIANTS) <= set(CHECKS)


@pytest.mark.some(6)
@pytest.mark.parametrize(("algorithm", "name"), cases())
def test_battery(algorithm: str, name: str) -> None:
    why = CHECKS[name](subject(algorithm))
    if why is not None:
        pytest.skip(why)
    if name == "tracing_agrees":
        really_traced(subject(algorithm))


def really_traced(subject: Subject) -> None:
    """Its run, which the check has made, was not computed step by step after a warning."""
    trail = subject.run(Stacked, compilation="trace")
    assert trail.right
    engine = trail.engine
    assert len(engine.runtime.programs) >= 2  # of training and of evaluating at least
    graphs = [getattr(program, "__self__", None) for program in engine.runtime.programs.values()]
    assert all(isinstance(graph, torch.fx.GraphModule) for graph in graphs)


def but(check: str) -> list[str]:
    return [name for name in OF_VARIANTS if name != check]


def by_pairs(algorithms: Iterable[str], values: Iterable[str], checks: Iterable[str]) -> list[Any]:
    """A third of the cases (algorithm, value, check) of three values: any two of a case meet, not any three.

    Each algorithm has each check upon one of the values, the next algorithm upon the next: those of 6 algorithms and 7
    checks are 42 of 126. `make test` runs every sixth, and nothing that is traced.
    """
    found = [
        (algorithm, value, name)
        for i, algorithm in enumerate(algorithms)
        for j, value in enumerate(values)
        for k, name in enumerate(checks)
        if (i + j + k) % 3 == 0
    ]
    return [
        pytest.param(*case, marks=[] if n % 6 == 0 and case[2] != "tracing_agrees" else [pytest.mark.slow])
        for n, case in enumerate(found)
    ]


class Attending(nn.Module):
    """Three words of four numbers that attend to each other, with dropout inside attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.25, batch_first=True)
        self.head = nn.Linear(12, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        words = x.view(-1, 3, 4)
        return torch.tanh(self.attention(words, words, words, need_weights=False)[0].flatten(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


NETWORKS = {
    "frozen": Model(Normalised, name="frozen", frozen="hidden"),  # BatchNorm and dropout learn on
    "frozen_norm": Model(Normalised, name="frozen_norm", frozen="norm"),
    "attending": Model(Attending, name="attending"),
}


@functools.lru_cache(maxsize=1)
def upon(algorithm: str, network: str) -> Subject:
    return Subject.of(ALGORITHMS[algorithm], {network: NETWORKS[network]})


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("algorithm", "network", "name"),
    by_pairs(SOME, NETWORKS, but("normalisation_and_dropout")),  # which brings a network of its own
)
def test_battery_upon_frozen_parts_and_dropout_in_attention(algorithm: str, network: str, name: str) -> None:
    why = CHECKS[name](upon(algorithm, network))
    if why is not None:
        pytest.skip(why)


CHANGING: dict[str, dict[str, Any]] = {
    "window": {"arrives": Window(0.8, 3)},
    "labels": {"arrives": Growing(0.8, 3), "drift": LabelDrift(1, share=0.6, seed=1)},
    "features": {"drift": OffsetDrift(0.3)},
}
"""Data that change within the three rounds of the battery; 5 examples are 4 at first."""


@functools.lru_cache(maxsize=1)
def with_changes(algorithm: str, changes: str) -> Subject:
    return Subject.of(ALGORITHMS[algorithm], **CHANGING[changes])


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("algorithm", "changes", "name"),
    [
        case
        for case in by_pairs((*SOME, "pfedsd_soft_predictions"), CHANGING, but("neutral_is_fedavg"))
        if case.values[:2] != ("pfedsd_soft_predictions", "features")  # refused
    ],
)
def test_battery_upon_data_that_change(algorithm: str, changes: str, name: str) -> None:
    why = CHECKS[name](with_changes(algorithm, changes))
    if why is not None:
        pytest.skip(why)


NEEDS_CLASSES = {"pfedsd", "feddf", "dense", "kt_pfl"}  # they compare distributions over classes
TASKS = {"regression": Regression(), "multi_label": MultiLabel(), "huber": Regression(error="huber")}


@functools.lru_cache(maxsize=1)
def learning(algorithm: str, task: str) -> Subject:
    return Subject.of(ALGORITHMS[algorithm], task=TASKS[task])


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("algorithm", "task", "name"),
    by_pairs([a for a in SOME if a not in NEEDS_CLASSES], TASKS, OF_VARIANTS),
)
def test_battery_on_numbers_and_several_labels(algorithm: str, task: str, name: str) -> None:
    why = CHECKS[name](learning(algorithm, task))
    if why is not None:
        pytest.skip(why)


# What the server of an algorithm draws; one that is not named here draws nothing.
DRAWN: dict[str, set[str]] = {
    **{name: {"stragglers"} for name in ("fedprox_stragglers", "fedprox_dropped")},
    **{name: {"public"} for name in ("feddf", "feddf_uniform_losses", "feddf_validated", "pfeddf")},
    **{name: {"public"} for name in ("kt_pfl", "sim_pfl", "topk_pfl", "fedmd", "fedmd_without_labels", "fedmd_kt")},
    "fedbe": {"draws", "public"},
    "fedfomo": {"candidates"},
    "dense": {"own", "drawn", "synthesis", "generator", "distil"},
    "dense_paper_several_uploads": {"own", "drawn", "synthesis", "distil"},
    "fed_adi": {"own", "drawn", "synthesis", "distil"},
    "fed_dafl": {"own", "noise", "shown"},
}
UNUSED = {  # drawn, and without effect here
    ("dense", "own"),  # each epoch begins with another generator
    ("fed_adi", "own"),  # there is none
    ("feddf_validated", "public"),  # no student is better than the mean
    ("dense_paper_several_uploads", "synthesis"),  # nothing is augmented
}


def drawn(name: str, other: tuple[str, int] | None = None) -> tuple[dict[str, list[int]], Any]:
    """In which rounds the server of an algorithm drew, by purpose, and what all states are in the end; with another
    number for the purpose and the round `other`.
    """
    asked, honest = dict[str, list[int]](), AskedCohort.key

    def key(self: AskedCohort, purpose: str) -> int:
        asked.setdefault(purpose, []).append(self.round)
        return honest(self, purpose) + ((purpose, self.round) == other)

    population, cohorts = subject(name).population(), subject(name).cohorts
    if name in ("dense", "dense_paper_several_uploads", "fed_adi"):  # images, which are augmented
        parts = images()
        augmented = dataclasses.replace(parts.train, augment=Augment(crop=1))
        population = Population(dataclasses.replace(parts, train=augmented), {"tiny": Model(DenseTiny, name="tiny")})
        cohorts = ((0, 1, 2),) * 4
    engine = Loop(population, subject(name).algorithm)
    server = engine.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AskedCohort, "key", key)
        for t, cohort in enumerate(cohorts):
            server = engine.round(server, cohort, t)
    return asked, (server, dict(engine.states))


@pytest.mark.some(1)
@pytest.mark.parametrize("name", DRAWN)
def test_what_a_server_draws_depends_on_the_purpose_and_the_round(name: str) -> None:
    """Of each purpose the number of the newest round matters: none is a constant, or an earlier round's."""
    asked, end = drawn(name)
    assert set(asked) == DRAWN[name]
    for purpose, rounds in asked.items():
        _, other = drawn(name, (purpose, rounds[-1]))
        assert differ(end, other) != ((name, purpose) in UNUSED), f"{purpose} in round {rounds[-1]}"


@pytest.mark.some(1)
@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {*DRAWN} - VARIANTS))
def test_other_servers_draw_nothing(name: str) -> None:
    assert drawn(name)[0] == {}


@pytest.mark.slow
def test_adam_and_clipping_agree_too() -> None:
    local = Local(epochs=2, batch_size=4, optimiser=Adam(lr=0.01, clip=0.5, weight_decay=1e-3))
    for name in ("engines_agree", "tracing_agrees", "empty_steps_change_nothing"):
        assert CHECKS[name](Subject.of(FedAvg(), local=local)) is None


@pytest.mark.slow
def test_check_runs_everything_and_names_what_does_not_apply() -> None:
    assert check(FedAvg) == {"neutral_is_fedavg": "declares no neutral settings"}


# --- what is broken must be seen to be broken

_COUNTER: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Broken(Algorithm[Weights, Weights]):
    """FedAvg with personal weights; each subclass breaks one promise."""

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return initial

    def loss(self, client: Client[Weights]) -> Any:
        return task_loss(client.model, client.task)

    def kept(self, client: Client[Weights], trained: Weights) -> Weights:
        return trained

    @on_client
    def local_update(self, client: Client[Weights], sent: Weights) -> tuple[Weights, Weighted[Weights]]:
        trained = minimise(self.loss(client), sent, client.train, self.local.optimiser, lr=client.lr)
        return self.kept(client, trained), Weighted(value=trained, weight=client.num_examples)

    def round(self, server: Weights, cohort: Any) -> Weights:
        return cohort.reduce(self.local_update, server).mean

    def evaluation_payload(self, server: Weights, model: Model) -> Weights:
        return server

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return client.state


class ReadsEverybodysRows(Broken):
    def kept(self, client: Client[Weights], trained: Weights) -> Weights:
        return trained + client.train.x.mean() * trained


class AveragesPadding(Broken):
    def loss(self, client: Client[Weights]) -> Any:
        model = client.model

        def loss(weights: Weights, batch: Any) -> Any:
            logits, buffers = model.train(weights, batch)
            return F.cross_entropy(logits, batch.y), Weights(params=weights.params, buffers=buffers)

        return loss


class MovesWithoutAnswers(Broken):
    def round(self, server: Weights, cohort: Any) -> Weights:
        replies = cohort.reduce(self.local_update, server, at_least=0)
        return replies.mean if replies else 0.5 * server


class DrawsGlobally(Broken):
    def round(self, server: Weights, cohort: Any) -> Weights:
        return (1.0 + 0.01 * torch.rand(())) * super().round(server, cohort)


class Remembers(Broken):
    """Keeps something outside its states."""

    def round(self, server: Weights, cohort: Any) -> Weights:
        if cohort.round == 0:
            _COUNTER.clear()
        _COUNTER.append(1)
        return 1.0 / len(_COUNTER) * super().round(server, cohort)

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        _COUNTER.clear()
        return model.init(key)


class Grows(Broken):
    def kept(self, client: Client[Weights], trained: Weights) -> Weights:
        return tree.map_tree(lambda t: torch.cat([t, t]) if t.ndim else t, trained)

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return sent


class KeepsComplexNumbers(Broken):
    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return self.kept(None, initial)

    def kept(self, client: Any, trained: Weights) -> Weights:
        return tree.map_tree(lambda t: t.to(torch.complex128), trained)

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return sent


class CountsTheLost(Broken):
    def round(self, server: Weights, cohort: Any) -> Weights:
        return (1.0 + 0.01 * len(cohort.ids)) * super().round(server, cohort)


@dataclass(frozen=True, kw_only=True)
class NeutralIsNot(Broken):
    mu: float = 1.0

    neutral: ClassVar[Any] = {"mu": 0.0}

    def round(self, server: Weights, cohort: Any) -> Weights:
        return 0.999 * super().round(server, cohort)

    def global_weights(self, server: Weights) -> Weights:
        return server


class PersonalIsNot(NeutralIsNot):
    """The global model is FedAvg's; clients are evaluated by another, whatever mu is."""

    def round(self, server: Weights, cohort: Any) -> Weights:
        return Broken.round(self, server, cohort)

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return 1.5 * sent


class PersonalIsDeclared(PersonalIsNot):
    neutral = GlobalOnly(NeutralIsNot.neutral)


class PersonalIsDeclaredInVain(PersonalIsDeclared):
    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return sent


class StandsStill(Broken):
    def kept(self, client: Client[Weights], trained: Weights) -> Weights:
        return client.state

    def round(self, server: Weights, cohort: Any) -> Weights:
        super().round(server, cohort)
        return server


class BranchesOnValues(Broken):
    def kept(self, client: Client[Weights], trained: Weights) -> Weights:
        return trained if client.num_examples > 10 else client.state


class ComputesInFloat64(Broken):
    def kept(self, client: Client[Weights], trained: Weights) -> Weights:
        return tree.map_tree(lambda t: t.double() if t.is_floating_point() else t, trained)

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return sent


class NormalisesPadding(Broken):
    """Statistics over all rows, padding included."""

    def loss(self, client: Client[Weights]) -> Any:
        model = client.model

        def loss(weights: Weights, batch: Any) -> Any:
            logits, buffers = model.train(weights, batch)
            logits = logits - logits.mean(0)
            value = batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
            return value, Weights(params=weights.params, buffers=buffers)

        return loss


class CountsTraces(Broken):
    """Computes something else at every call, which a trace freezes."""

    def loss(self, client: Client[Weights]) -> Any:
        model, task = client.model, client.task

        def loss(weights: Weights, batch: Any) -> Any:
            _COUNTER.append(1)
            logits, _ = model.train(weights, batch)
            return task.loss(logits, batch) * (1.0 + 1e-3 * len(_COUNTER))

        return loss

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        _COUNTER.clear()
        return model.init(key)


class FeelsOtherArchitectures(Broken):
    def round(self, server: Weights, cohort: Any) -> Weights:
        return (1.0 + 0.01 * len(cohort.engine.states)) * super().round(server, cohort)


class FeelsTheOrder(Broken):
    """Remembers who was asked first; a cohort that kept the caller's order would tell."""

    def round(self, server: Weights, cohort: Any) -> Weights:
        asked = next(f.frame.f_locals["clients"] for f in inspect.stack() if "clients" in f.frame.f_locals)
        return (1.0 + 0.01 * asked[0]) * super().round(server, cohort)


class ReadsTestRows(Broken):
    @property
    def evaluation_training(self) -> Local:
        return self.local

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return client.train.x.mean() * client.state


BROKEN: dict[str, tuple[type[Broken], str]] = {
    "engines_agree": (BranchesOnValues, "data-dependent control flow"),
    "float32_agrees": (ComputesInFloat64, "got float64 .* in the place of float32"),
    "tracing_agrees": (CountsTraces, "traced stack must agree"),
    "architectures_mix": (FeelsOtherArchitectures, "must not depend on clients of other architectures"),
    "normalisation_and_dropout": (NormalisesPadding, "BatchNorm and dropout: server state after round 0"),
    "neutral_is_fedavg": (NeutralIsNot, "must be FedAvg"),
    "data_stay_private": (ReadsEverybodysRows, "padding or shared tables leak"),
    "evaluation_rows_stay_unused": (
        ReadsTestRows,
        "on the rows that clients are evaluated on .*: a personal model does",
    ),
    "only_the_cohort_changes": (StandsStill, "neither the server nor the clients .* changed"),
    "empty_steps_change_nothing": (AveragesPadding, "rows of padding must change nothing"),
    "order_of_cohort_is_immaterial": (FeelsTheOrder, "the order of a cohort must change nothing"),
    "states_keep_their_shape": (Grows, "must return a new state like the one that init_client makes"),
    "payloads_travel": (KeepsComplexNumbers, "is a torch.complex128; payloads and states hold tensors of"),
    "saved_runs_continue": (Remembers, "a resumed run must be the same"),
    "clients_may_drop_out": (CountsTheLost, "must count as never selected"),
    "rounds_may_be_empty": (MovesWithoutAnswers, "no client responded, the server must not change"),
    "seeds_govern": (DrawsGlobally, "the same seed must give the same bits"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CHECKS)
def test_broken_algorithms_fail(name: str) -> None:
    broken, message = BROKEN[name]
    with pytest.raises((AssertionError, FedloomError, AttributeError), match=message):
        CHECKS[name](Subject.of(broken()))


@pytest.mark.slow
def test_personal_models_are_neutral_too_or_declared_not_to_be() -> None:
    neutral = CHECKS["neutral_is_fedavg"]
    with pytest.raises(AssertionError, match=r"must evaluate clients by FedAvg's models .*neutral = GlobalOnly"):
        neutral(Subject.of(PersonalIsNot()))
    assert neutral(Subject.of(PersonalIsDeclared())) is None
    with pytest.raises(AssertionError, match=r"declares GlobalOnly settings, and .* declare them as a plain mapping"):
        neutral(Subject.of(PersonalIsDeclaredInVain()))
    with pytest.warns(UserWarning, match=r"with mu = 0.0 is FedAvg but for the models by which clients are evaluated"):
        PersonalIsDeclared(mu=0.0)


@pytest.mark.slow
def test_sound_algorithms_of_users_pass() -> None:
    assert check(Broken) == {"neutral_is_fedavg": "declares no neutral settings"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "name", "said"),
    [
        (CountsTraces, "tracing_agrees", "the traced stack must agree with the loop"),  # an AssertionError
        (BranchesOnValues, "engines_agree", "ClientError: .*data-dependent control flow"),  # one of fedloom's
        (NormalisesPadding, "normalisation_and_dropout", "IndexError: gone"),  # one of Python's
    ],
)
def test_a_broken_promise_comes_with_its_name(
    broken: type[Broken], name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {name: CHECKS[name]}
    if "gone" in said:

        def gone(subject: Subject) -> str | None:
            """What it promises."""
            raise IndexError("gone")

        checks = {name: gone}
    monkeypatch.setattr("fedloom.testing.CHECKS", checks)
    with pytest.raises(AssertionError, match=rf"^{broken.__name__} does not pass '{name}' \(.+\.\): {said}") as found:
        check(broken)
    assert found.value.__cause__ is not None


class SelectsByValidation(Broken):
    """Evaluated by its own model or the global one, whichever has the lower loss on its validation rows."""

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        model = client.model

        def more(total: Any, batch: Any, own: Weights, sent: Weights) -> Any:
            of_own, of_sent = (F.cross_entropy(model(w, batch.x), batch.y, reduction="none") for w in (own, sent))
            return total + torch.where(batch.mask, of_own - of_sent, 0.0).sum()

        zero = torch.zeros((), dtype=sent.params["head.bias"].dtype)
        worse = fold(more, zero, client.val, client.state, sent) > 0
        return tree.map_tree(lambda own, s: torch.where(worse, s, own), client.state, sent)


class FineTunes(Broken):
    """Evaluated by the global model after one more local training."""

    @property
    def evaluation_training(self) -> Local:
        return self.local

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
        return minimise(self.loss(client), sent, client.train, self.local.optimiser, lr=client.lr)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SelectsByValidation, FineTunes])
def test_personal_may_select_and_train(kind: type[Broken]) -> None:
    subject = Subject.of(kind())
    for name in (
        "engines_agree",
        "tracing_agrees",
        "architectures_mix",
        "evaluation_rows_stay_unused",
        "payloads_travel",
    ):
        assert CHECKS[name](subject) is None
    assert CHECKS["data_stay_private"](subject) is None


def test_test_rows_in_the_place_of_validation_rows_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Population.held_out_batches
    monkeypatch.setattr(Population, "held_out_batches", lambda self, ids, kind, t: honest(self, ids, "test", t))
    with pytest.raises(AssertionError, match="a personal model does"):
        CHECKS["evaluation_rows_stay_unused"](Subject.of(SelectsByValidation))
