"""DENSE: numbers of the authors' code, its synthesis in plain PyTorch, whole runs, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn
from torch.func import grad

import fedloom as fl
from colours import LOCAL, federation, job, mlp, one_shot, rounds, skewed
from fedloom.algorithms.dense import DENSE, Synthesis, generator_losses
from fedloom.algorithms.shared.one_shot import Teachers
from fedloom.algorithms.shared.synthetic import as_bytes
from fedloom.core import tree
from fedloom.core.augment import Augment
from fedloom.core.errors import NonFiniteError, SettingError, SettingWarning
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.local_training import Distill, Local
from fedloom.core.losses import distillation
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import DenseTiny, weights_at

TINY = Model(DenseTiny, name="tiny")
SMALL: dict[str, Any] = {
    "nz": 6,
    "ngf": 4,
    "T_G": 4,
    "synthesis": Distill(batch_size=8, optimiser=Adam(lr=1e-2, betas=(0.5, 0.999))),
    "distill": Distill(batch_size=8, optimiser=SGD(lr=0.05, momentum=0.9)),
    "local": LOCAL,
}


def teachers_of(g: dict[str, Any]) -> Teachers:
    return Teachers(weights=(tree.stack([weights_at(g, f"client{k}/") for k in range(3)]),), models=(TINY,))


# --- the losses


def test_losses_of_the_generator_are_the_authors() -> None:
    """Each term and both totals, and their gradients; the authors sum L_BN over the 3 clients, where (3) has a mean."""
    g = golden("ktpfl_dense/dense_generator_losses")
    x, y, teachers, student = (
        torch.from_numpy(g["x"]),
        torch.from_numpy(g["targets"]),
        teachers_of(g),
        weights_at(g, "student/"),
    )

    def weighed(ce: float, bn: float, div: float) -> Callable[[Tensor], Tensor]:
        def loss(x: Tensor) -> Tensor:
            terms = generator_losses(teachers, TINY, student, x, y)
            return ce * terms[0] + bn * terms[1] + div * terms[2]

        return loss

    cases = {
        "ce": weighed(1, 0, 0),
        "bn": weighed(0, 3, 0),
        "adv": weighed(0, 0, 1),
        "total_bn1_oh1_adv0.5": weighed(1, 3, 0.5),
        "total_bnmean1_oh1_adv0.5": weighed(1, 1, 0.5),
    }
    assert set(cases) == {name.removeprefix("loss/") for name in g if name.startswith("loss/")}
    for name, loss in cases.items():
        np.testing.assert_allclose(loss(x), g[f"loss/{name}"], rtol=1e-5)
        want = g[f"grad_x/{name}"]
        np.testing.assert_allclose(grad(loss)(x), want, rtol=1e-4, atol=1e-4 * abs(want).max())
    np.testing.assert_allclose(teachers.logits(x), g["ensemble_logits"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(teachers.each(lambda f, w: f(w, x)), g["per_client_logits"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(TINY(student, x), g["student_logits"], rtol=1e-5, atol=1e-6)
    apart = teachers.logits(x).argmax(-1) != TINY(student, x).argmax(-1)
    np.testing.assert_array_equal(apart.float(), g["mask"])
    assert 0 < int(apart.sum()) < len(apart)


@pytest.mark.parametrize("T", [1, 3, 20])
def test_the_loss_of_the_student_is_the_authors(T: int) -> None:
    g = golden("ktpfl_dense/dense_kd")
    student, teacher = (torch.from_numpy(g[f"{name}_logits"]) for name in ("student", "teacher"))
    np.testing.assert_allclose(distillation(student, teacher, T).mean(), g[f"loss/T{T}"], rtol=1e-5)
    slope = grad(lambda z: distillation(z, teacher, T).mean())(student)
    np.testing.assert_allclose(slope, g[f"grad_student/T{T}"], rtol=1e-5, atol=1e-6)


def test_images_are_kept_as_the_authors_keep_them() -> None:
    g = golden("ktpfl_dense/dense_image_pool")
    np.testing.assert_array_equal(as_bytes(torch.from_numpy(g["images"])), g["png_uint8"])


# --- an epoch


@pytest.mark.some(1)
@pytest.mark.parametrize(("lambda1", "lambda2"), [(0.0, 0.5), (1.0, 0.5), (0.3, 0.0)])
def test_synthesis_is_plain_pytorch(lambda1: float, lambda2: float) -> None:
    """Adam on the generator and its noise at once, from given ones; the images of the least loss, before its step."""
    g = golden("ktpfl_dense/dense_generator_losses")
    dense = dataclasses.replace(DENSE(**SMALL), lambda1=lambda1, lambda2=lambda2).bind(federation(), {"tiny": TINY})
    start, student, teachers = dense.network.init(5), weights_at(g, "student/"), teachers_of(g)
    rng = torch.Generator().manual_seed(0)
    z, y = torch.randn((8, 6), generator=rng), torch.arange(8) // 2
    at_rest = dense.synthesis.optimiser.init([*start.params.values(), z])
    with executing(Execution()) as seen:
        before = Synthesis(g=start, z=Weights({"z": z}), kept=dense.nothing(start, y))
        found, _ = dense.synthesise(before, at_rest, y, teachers, student)

    def module(network: nn.Module, weights: Weights, training: bool = False) -> nn.Module:
        network.load_state_dict({**weights.params, **weights.buffers})
        return network.train(training)

    clients = [module(DenseTiny(), weights_at(g, f"client{k}/")) for k in range(3)]
    rival, painter = module(DenseTiny(), student), module(fl.models.DenseGenerator(6, 4, 3, 8), start, training=True)
    inputs: list[tuple[nn.BatchNorm2d, Tensor]] = []
    for client in clients:
        for layer in (client.bn1, client.bn2):
            layer.register_forward_pre_hook(lambda layer, args: inputs.append((layer, args[0])))
    noise = z.clone().requires_grad_()
    optimiser = torch.optim.Adam([*painter.parameters(), noise], lr=1e-2, betas=(0.5, 0.999))
    losses, best, least = [], None, np.inf
    for _ in range(4):
        inputs.clear()
        x = painter(noise)
        logits = torch.stack([client(x) for client in clients]).mean(0)
        value, answer = F.cross_entropy(logits, y), rival(x)
        for layer, inner in inputs:
            mean, var = inner.mean((0, 2, 3)), inner.var((0, 2, 3), correction=0)
            value = value + lambda1 / 3 * ((mean - layer.running_mean).norm() + (var - layer.running_var).norm())
        kl = F.kl_div(F.log_softmax(answer, 1), F.softmax(logits, 1), reduction="none").sum(1)
        value = value - lambda2 * ((logits.argmax(1) != answer.argmax(1)) * kl).mean()
        losses.append(float(value.detach()))
        if losses[-1] < least:
            best, least = x.detach(), losses[-1]
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(seen.losses[0], losses, **close)
    np.testing.assert_allclose(found.z.params["z"], noise.detach(), **close)
    for name, p in painter.named_parameters():
        np.testing.assert_allclose(found.g.params[name], p.detach(), **close, err_msg=name)
    assert best is not None
    np.testing.assert_allclose(found.kept.buffers["x"], best, **close)
    np.testing.assert_allclose(found.kept.buffers["loss"], least, **close)
    terms = [float(found.kept.buffers[name]) for name in ("ce", "bn", "div")]
    np.testing.assert_allclose(terms[0] + lambda1 * terms[1] + lambda2 * terms[2], least, **close)


def test_the_student_is_left_alone_by_synthesis() -> None:
    """Its opponent in (4) is in evaluation mode: the epoch's generator steps move none of its statistics."""
    engine = Loop(Population(federation(), {"tiny": TINY}), DENSE(**SMALL))
    seen: list[Any] = []
    made = engine.algorithm
    distilled = type(made).distilled

    def watched(self: Any, server: Any, *args: Any, **more: Any) -> Any:
        seen.append(server.student)
        return distilled(self, server, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DENSE, "distilled", watched)
        after = rounds(engine, 2)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(seen[0]), tree.leaves(after[0][""].student), strict=True))
    assert int(after[1][""].student.buffers["bn1.num_batches_tracked"]) == 1


@pytest.mark.slow
def test_pool_grows_and_the_student_passes_over_all_of_it() -> None:
    """Epoch e takes e steps of 8 images, with one momentum; the generator starts anew, and nothing is kept of it."""
    engine = Loop(Population(federation(), {"tiny": TINY}), DENSE(**SMALL))
    after = rounds(engine, 4)
    steps = [int(s[""].student.buffers["bn1.num_batches_tracked"]) for s in after]
    assert steps == [0, 1, 3, 6]
    pool = engine.pool("images")
    assert [(made.x.shape, made.x.dtype) for made in pool] == [((8, 3, 8, 8), torch.uint8)] * 3
    assert all(torch.equal(made.y, made.y.sort().values) for made in pool)
    assert not torch.equal(pool[0].x, pool[1].x)
    assert after[3][""].own == ()
    assert any(float(m.abs().max()) > 0 for m in after[1][""].moments)
    shares = [float((made.said == made.y).double().mean()) for made in pool]
    assert shares[-1] == engine.traffic.noted["server_agree"]


def epochs_of(
    count: int, monkeypatch: pytest.MonkeyPatch, seed: int = 0, **settings: Any
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """What each epoch of a run began with and ended with, its entry of the pool, and the notes of the last."""
    seen: list[Any] = []

    def watched(self: Any, start: Any, moments: Any, y: Any, *more: Any, f: Any = DENSE.synthesise) -> Any:
        made = f(self, start, moments, y, *more)
        seen.append((start, y, made[0], more[:2]))
        return made

    monkeypatch.setattr(DENSE, "synthesise", watched)
    engine = Loop(Population(federation(), {"tiny": TINY}, seed=seed), DENSE(**{**SMALL, **settings}))
    rounds(engine, 1 + count)
    monkeypatch.undo()
    return seen, list(engine.pool("images")), engine.traffic.noted


@pytest.mark.slow
def test_images_of_the_least_loss_enter_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not what the generator makes when it has taken its last step."""
    seen, pool, _ = epochs_of(3, monkeypatch)
    for (_, y, end, _), entry in zip(seen, pool, strict=True):
        assert torch.equal(entry.x, as_bytes(end.kept.buffers["x"]))
        assert torch.equal(entry.y, y)
        last = Loop(Population(federation(), {"tiny": TINY}), DENSE(**SMALL)).algorithm.images(end.g, end.z.params["z"])
        assert not torch.equal(entry.x, as_bytes(last))


@pytest.mark.slow
def test_each_epoch_and_each_seed_draws_generator_noise_and_labels_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [of_epoch for seed in (0, 1) for of_epoch in epochs_of(2, monkeypatch, seed)[0]]
    for what in (
        [start.g.params["l1.0.weight"] for start, *_ in starts],
        [start.z.params["z"] for start, *_ in starts],
        [y for _, y, *_ in starts],
    ):
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(what, 2))


@pytest.mark.some(1)
@pytest.mark.parametrize("schedule", ["pool", "paper"])
def test_how_far_images_are_from_the_statistics_is_said_without_the_term_too(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, _, noted = epochs_of(2, monkeypatch, lambda1=0.0, schedule=schedule)
    *_, (_, y, end, (teachers, student)) = seen
    ce, bn, div = generator_losses(teachers, TINY, student, end.kept.buffers["x"], y)
    assert end.kept.buffers["bn"] == 0  # no step has felt it
    for name, value in (("ce", ce), ("bn", bn), ("div", div)):
        assert noted[f"server_{name}"] == pytest.approx(float(value), rel=1e-5)
    assert bn > 0


@pytest.mark.slow
def test_paper_schedule_goes_on_with_one_generator_and_takes_one_step() -> None:
    engine = Loop(Population(federation(), {"tiny": TINY}), DENSE(**{**SMALL, "schedule": "paper"}))
    after = rounds(engine, 4)
    assert [int(s[""].student.buffers["bn1.num_batches_tracked"]) for s in after] == [0, 1, 2, 3]
    tracked = [int(s[""].own[0].buffers["conv_blocks.0.num_batches_tracked"]) for s in after]
    assert tracked == [0, 4, 8, 12]
    counts = [set(s[""].own[1][0].tolist()) for s in after]  # of Adam, of each tensor
    assert counts == [{0}, {4}, {8}, {12}]


@pytest.mark.slow
def test_momentum_of_the_student_lasts_from_epoch_to_epoch() -> None:
    """In the paper's schedule an epoch is one step: after two with momentum the second is longer than one without."""

    def moved(momentum: float) -> Tensor:
        distill = Distill(batch_size=8, optimiser=SGD(lr=1e-4, momentum=momentum))
        settings = {**SMALL, "schedule": "paper", "distill": distill}
        after = rounds(Loop(Population(federation(), {"tiny": TINY}), DENSE(**settings)), 3)
        return torch.cat(
            [(after[2][""].student.params - after[1][""].student.params)[n].flatten() for n in ("fc.bias",)]
        )

    assert float(moved(0.9).norm()) > 1.5 * float(moved(0.0).norm())


@pytest.mark.slow
def test_images_are_augmented_as_the_clients_augment_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def watched(self: Any, x: Tensor, key: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    monkeypatch.setattr(Augment, "__call__", watched)
    parts = federation()
    parts = dataclasses.replace(parts, train=dataclasses.replace(parts.train, augment=Augment(crop=1)))
    for schedule, count in (("pool", 4 + 1), ("paper", 0)):
        engine = Loop(Population(parts, {"tiny": TINY}), DENSE(**{**SMALL, "schedule": schedule}))
        server = engine.round(engine.init(), range(3), 0)
        seen.clear()
        engine.round(server, range(3), 1)
        assert len(seen) == count


# --- whole runs


@pytest.mark.slow
def test_uploads_are_those_of_one_shot_fedavg() -> None:
    population = Population(federation(), {"tiny": TINY})
    seen: dict[str, dict[int, Any]] = {"DENSE": {}, "FedAvg": {}}
    for algorithm in (DENSE(**SMALL), fl.FedAvg(local=LOCAL)):
        engine, name = Loop(population, algorithm), type(algorithm).__name__
        engine.watch = lambda exchange, name=name: seen[name].update({exchange.client: exchange.trained})
        engine.round(engine.init(), range(3), 0)
    for k in range(3):
        assert all(torch.equal(*pair) for pair in zip(*(tree.leaves(found[k]) for found in seen.values()), strict=True))


@pytest.mark.slow
def test_what_is_written_of_a_run(tmp_path: Path) -> None:
    """One round of uploads; then epochs that ask nobody, with the terms of the loss by name."""
    history = one_shot(DENSE(**SMALL), TINY, rounds=3, directory=tmp_path)
    first, *epochs = history.metrics[1:]
    assert first["clients"] == [0, 1, 2]  # though the sampler would ask one
    assert first["bytes_up"] == 3 * tree.nbytes(TINY.init(0))
    assert set(first["upload_accuracy"]) == {"0", "1", "2"}
    assert max(first["upload_accuracy"].values()) <= 1 >= first["ensemble_accuracy"] >= 0.25
    assert "server_loss" not in first
    for m in epochs:
        assert (m["clients"], m["bytes_up"], m["bytes_down"]) == ([], 0, 0)
        assert m["server_loss"] > 0
        assert m["server_teachers"] == 3
        assert m["server_ce"] > 0 > -m["server_bn"]
        assert m["server_div"] <= 0
        assert 0 <= m["server_agree"] <= 1
        assert "ensemble_accuracy" not in m
    restored = job(DENSE(**SMALL), TINY, rounds=3).restore(tmp_path)
    assert len(restored.engine.pool("images")) == 2


@pytest.mark.slow
def test_a_client_that_does_not_answer_does_not_teach() -> None:
    """What follows is bit for bit as if it had never been asked; the record says who it was, and how many teach."""
    lost = one_shot(DENSE(**SMALL), TINY, rounds=3, faults=lambda r, e, k: "gone" if k == 1 else None)
    assert lost.metrics[1]["failed"] == {"1": "gone"}
    assert [m["server_teachers"] for m in lost.metrics[2:]] == [2, 2]
    population = Population(federation(), {"tiny": TINY})
    fewer = Loop(population, DENSE(**SMALL))
    server = fewer.round(fewer.init(), (0, 2), 0)
    for t in (1, 2):
        server = fewer.round(server, (0, 1, 2), t)
    student = lost.server[""].student
    assert all(torch.equal(*pair) for pair in zip(tree.leaves(student), tree.leaves(server[""].student), strict=True))


def test_where_nobody_answers_nothing_is_learnt() -> None:
    history = one_shot(DENSE(**SMALL), TINY, rounds=3, faults=lambda r, e, k: "gone")
    assert len({m["global_loss"] for m in history.metrics}) == 1
    assert not any("server_loss" in m or "ensemble_accuracy" in m for m in history.metrics)
    assert [m["clients"] for m in history.metrics[1:]] == [[0, 1, 2]] * 3  # and everybody is asked again


@pytest.mark.slow
def test_where_nobody_answers_the_next_round_asks_again() -> None:
    """What follows is an upload from the clients' initial weights, not from the student; and then epochs."""
    late = one_shot(DENSE(**SMALL), TINY, rounds=3, faults=lambda r, e, k: "gone" if r == 0 else None)
    assert [m["clients"] for m in late.metrics[1:]] == [[0, 1, 2], [0, 1, 2], []]
    assert late.metrics[3]["server_teachers"] == 3
    engine, starts = Loop(Population(federation(), {"tiny": TINY}), DENSE(**SMALL)), list[Any]()
    bill, server = engine.bill("local_update"), engine.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bill, "of_request", lambda sent, *a, f=bill.of_request: (starts.append(sent[0]), f(sent, *a))[1])
        engine.round(server, range(3), 1)
    first = TINY.init(int(server[""].key))
    assert all(torch.equal(*pair) for pair in zip(tree.leaves(starts[-1]), tree.leaves(first), strict=True))


@pytest.mark.slow
def test_several_rounds_of_uploads_begin_anew_from_the_student() -> None:
    """Rounds 0 and 3 ask: clients start from the student then; pool and momentum are those since."""
    engine = Loop(Population(federation(), {"tiny": TINY}), DENSE(**{**SMALL, "epochs": 2}))
    starts: list[Any] = []
    engine.watch = lambda exchange: None
    server = engine.init()
    for t in range(5):
        with pytest.MonkeyPatch.context() as patch:
            bill = engine.bill("local_update")
            patch.setattr(
                bill, "of_request", lambda sent, *a, f=bill.of_request: (starts.append(sent[0]), f(sent, *a))[1]
            )
            before, server = server, engine.round(server, range(3), t)
        if t in (0, 3):
            assert engine.traffic.asked == {0, 1, 2}
        else:
            assert not engine.traffic.asked
        if t == 3:
            assert all(
                torch.equal(*p) for p in zip(tree.leaves(starts[-1]), tree.leaves(before[""].student), strict=True)
            )
            assert int(server[""].begun) == 2
            assert all(float(m.abs().max()) == 0 for m in server[""].moments)
    before_tracked, after_tracked = (int(s[""].student.buffers["bn1.num_batches_tracked"]) for s in (before, server))
    assert after_tracked - before_tracked == 1  # a pool of one batch again


class Plain(nn.Module):
    """A network without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 4)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.conv(x)).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


THREE = {
    "tiny": TINY,
    "plain": Model(Plain, name="plain"),
    "wide": Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), name="wide"),
}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pool", "paper"])
def test_three_architectures_teach_one_student(schedule: Any) -> None:
    ends = []
    for engine in (Loop, Stacked, Messages):
        run = engine(
            Population(federation(), THREE, dtype=torch.float64),
            DENSE(**{**SMALL, "schedule": schedule, "student": "plain"}),
        )
        ends.append(rounds(run, 3)[-1][""])
        assert run.algorithm.global_models({"": ends[-1]}, THREE).keys() == {"plain"}
        run.close()
    for other in ends[1:]:
        for a, b in zip(tree.leaves(ends[0]), tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    history = one_shot(DENSE(**SMALL), THREE, rounds=2, settings={"per_client": True})
    assert "mean_accuracy" not in history.metrics[1]
    assert history.last("global_accuracy") is not None
    student = history.server[""].student
    assert TINY.fits(student)  # that of the first client where none is named


def test_a_student_may_have_an_architecture_of_its_own() -> None:
    four = {**THREE, "big": Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.ReLU(), nn.Linear(9, 4)))}
    history = one_shot(DENSE(**{**SMALL, "student": "big"}), four, rounds=3)
    losses = [m["global_loss"] for m in history.metrics]
    assert len(set(losses[1:])) == 3


@pytest.mark.slow
def test_a_server_phase_that_is_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    algorithm = DENSE(**SMALL)
    whole = one_shot(algorithm, TINY, rounds=5, directory=tmp_path / "whole")
    for rounds_done in (1, 2, 3, 5):
        one_shot(algorithm, TINY, rounds=rounds_done, directory=tmp_path / "part", resume=rounds_done > 1)
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    ends = []
    for name in ("whole", "part"):
        assert fl.verify(tmp_path / name).whole
        restored = job(algorithm, TINY, rounds=5).restore(tmp_path / name)
        ends.append((restored.server, [*restored.engine.pool("images")], restored.engine.rows("model", [0, 1, 2])))
        files = sorted(p.name for p in (tmp_path / name / "checkpoints" / "clients").iterdir())
        assert len(files) == 3 + 4  # models and images, each written once
    assert all(torch.equal(*pair) for pair in zip(*map(tree.leaves, ends), strict=True))
    assert whole.metrics[-1]["server_ce"] > 0


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_named_with_its_step() -> None:
    wild = {**SMALL, "distill": Distill(batch_size=8, optimiser=SGD(lr=1e30))}
    with pytest.raises(
        NonFiniteError, match=r"the server, round \d, batch \d: the loss is (nan|inf) in its own training"
    ):
        one_shot(DENSE(**wild), TINY, rounds=4)
    kept = one_shot(DENSE(**wild), TINY, rounds=4, settings={"on_nonfinite": "refuse"}).metrics
    refused = [m for m in kept if "server_refused" in m]
    assert refused
    assert not any("server_ce" in m for m in refused)


@pytest.mark.slow
def test_the_student_is_better_than_the_average_where_labels_are_skewed() -> None:
    """Each client has two of four classes: the average of the models knows little, the student what they all know."""
    local = Local(epochs=10, batch_size=16, optimiser=SGD(lr=0.1, momentum=0.9))
    dense = DENSE(
        local=local,
        generator="small:Painter",
        nz=8,
        ngf=32,
        T_G=10,
        lambda1=0.1,
        synthesis=Distill(batch_size=64, optimiser=Adam(lr=2e-2, betas=(0.5, 0.999))),
        distill=Distill(batch_size=64, optimiser=SGD(lr=0.03, momentum=0.9)),
    )
    average = fl.FedAvg(local=local, aggregation="uniform")
    ends = [
        one_shot(algorithm, Model(mlp), rounds=count, parts=skewed(), settings={"cohort_size": 4, "seed": 1})
        for algorithm, count in ((average, 1), (dense, 11))
    ]
    assert ends[1].last("global_accuracy") > ends[0].last("global_accuracy") + 0.08
    assert ends[1].metrics[1]["mean_accuracy"] == ends[0].last("global_accuracy")  # of the same uploads
    assert ends[1].metrics[1]["ensemble_accuracy"] > max(ends[1].metrics[1]["upload_accuracy"].values())


# --- what is refused


@pytest.mark.slow
def test_refused_or_warned_of_before_work_starts() -> None:
    def start(model: Any = TINY, parts: Any = None, **settings: Any) -> None:
        one_shot(DENSE(**{**SMALL, **settings}), model, rounds=1, parts=parts)

    with pytest.raises(
        SettingError, match="the generator must make examples like the data's, 3 x 8 x 8, got 3 from colours:Vectors"
    ):
        start(generator="colours:Vectors")
    with pytest.raises(SettingError, match="a multiple of 4 pixels wide, got 10"):
        start(parts=federation(size=10))
    with pytest.raises(SettingError, match="student must be one of the run's networks, tiny, got 'resnet18'"):
        start(student="resnet18")
    with pytest.warns(
        SettingWarning, match=r"lambda1 = 1.0 weighs .* there are none in plain, .*: set lambda1 = 0, or"
    ):
        start(THREE["plain"])
    start(THREE["plain"], lambda1=0.0)
    start({n: THREE[n] for n in ("plain", "tiny")})  # one of them has some
    with pytest.warns(SettingWarning, match="no client has one of the classes 4, 5, so that no model knows"):
        start(Model(lambda: nn.Sequential(DenseTiny(), nn.Linear(4, 6)), name="six"), federation(num_classes=6))
    for name, value, message in (
        ("schedule", "both", "schedule must be one of pool, paper"),
        ("T_G", 0, "T_G must be >= 1"),
        ("epochs", 0, "epochs must be >= 1"),
        ("lambda1", -1.0, "lambda1 must be >= 0"),
        ("T", 0.0, "T must be > 0"),
    ):
        with pytest.raises(SettingError, match=message):
            DENSE(**{**SMALL, name: value})
