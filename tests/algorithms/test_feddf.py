"""FedDF: numbers of the authors' code for one step of the server, and students of several architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithms.feddf import FedDF, accuracy, ensemble
from fedloom.core.client import Public
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.local_training import Distill, Local
from fedloom.core.losses import divergence, soft_target_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Weights
from fedloom.data import from_arrays
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.small_networks import MLP, Convolutional
from fedloom.testing.subject import federation

CASES = [("fedntd/feddf_server_loss", f"T{T}_", "_", T, (1, 1, 1)) for T in (1, 3)] + [
    ("ktpfl_dense/feddf", "", f"/T{T}/{name}/", T, counts)
    for T in (1, 4)
    for name, counts in (("uniform", (1, 1, 1)), ("w532", (5, 3, 2)))
]


class Table(nn.Module):
    """Logits that are parameters, one row for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[x[:, 0].long()]


def table(rows: np.ndarray) -> Weights:
    return Weights(params={"rows": torch.from_numpy(rows)})


def public(dtype: torch.dtype) -> Public:
    everything = from_arrays(np.arange(5.0)[:, None], np.zeros(5, np.int64), num_classes=6)
    people = fl.Federation(train=everything, partition=fl.Partition.from_lists([range(5)]), public=everything)
    return Population(people, {"table": Model(Table)}, dtype=dtype).public


@pytest.mark.some(12)
@pytest.mark.parametrize("scheme", ["avg_logits", "avg_probs", "avg_losses"])
@pytest.mark.parametrize(("file", "before", "after", "T", "counts"), CASES)
def test_a_step_of_the_server_is_the_authors(
    file: str, before: str, after: str, T: int, counts: tuple[int, ...], scheme: Any
) -> None:
    g = golden(file)
    double = g[next(k for k in g if k.endswith("grad_clipped5"))].dtype == np.float64
    close = {"rtol": 1e-12, "atol": 1e-12} if double else {"rtol": 1e-5, "atol": 1e-6}
    student, teachers = (g[n] if n in g else g[f"{n.rstrip('s')}_logits"] for n in ("student", "teachers"))
    model, examples = Model(Table), public(torch.float64 if double else torch.float32)
    weighted = [(model, table(t)) for t, count in zip(teachers, counts, strict=True) for _ in range(count)]
    target = ensemble(weighted, examples, float(T), scheme)
    batches = examples.shuffled(5, 1, key=0).note("target", target)
    with executing(Execution()) as seen:
        moved = minimise(
            soft_target_loss(model, T), table(student), batches, SGD(lr=1.0, clip=5.0), lr=torch.tensor(1.0)
        )
    name = f"{before}{scheme}{after}"
    np.testing.assert_allclose(student - moved.params["rows"].numpy(), g[f"{name}grad_clipped5"], **close)
    loss = float(seen.losses[0][0])
    if scheme == "avg_losses":  # the mean of the teachers' KL has the teachers' disagreement besides, a constant
        each = F.softmax(torch.stack([w.params["rows"] for _, w in weighted]) / T, -1)
        loss += float(((each * each.log()).mean(0) - target * target.log()).sum(-1).mean())
    np.testing.assert_allclose(loss, g[f"{name}loss"], **close)


@pytest.mark.parametrize("T", [1, 4])
def test_divergence_from_one_teacher(T: int) -> None:
    g = golden("ktpfl_dense/feddf")
    target = ensemble([(Model(Table), table(g["teacher_logits"][0]))], public(torch.float32), float(T), "avg_logits")
    value = divergence(torch.from_numpy(g["student_logits"]) / T, target).mean()
    np.testing.assert_allclose(value, g[f"divergence_first_teacher/T{T}"], rtol=1e-5)


THREE = {n: Model(m, name=n) for n, m in {"narrow": MLP, "wide": lambda: MLP(16), "conv": Convolutional}.items()}
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.05))
DISTILL = Distill(batch_size=8, optimiser=Adam(lr=1e-2, clip=5.0))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_students_of_several_architectures_learn_from_all_teachers(engine: Any) -> None:
    population = Population(federation(), THREE, dtype=torch.float64)  # clients 0 and 3 are narrow, 1 and 4 wide, ...
    after: dict[int, dict[str, Weights]] = {}
    for steps in (0, 60):
        with pytest.warns(UserWarning, match="is FedAvg") if steps == 0 else torch.no_grad():
            run = engine(population, FedDF(steps=steps, local=LOCAL, distill=DISTILL))
        start = run.init()
        after[steps] = run.round(start, (0, 1, 3), 0)[""]
        assert all(torch.equal(t, start[""]["conv"].params[n]) for n, t in after[steps]["conv"].params.items())
    replies: list[tuple[Model, Weights]] = []

    def watch(exchange: Any) -> None:
        replies.append((THREE[population.assignment[exchange.client]], exchange.upload.value))

    run.watch = watch
    run.round(run.init(), (0, 1, 3), 0)
    assert [m.name for m, _ in replies] == ["narrow", "narrow", "wide"]
    target = ensemble(replies, population.public, 1.0, "avg_logits")
    x = population.public.batches.x
    for name in ("narrow", "wide"):
        mean, student = (float(divergence(THREE[name](after[s][name], x), target).mean()) for s in (0, 60))
        assert student < 0.3 * mean


def test_one_architecture_alone_hears_the_others() -> None:
    population = Population(federation(), THREE, dtype=torch.float64)
    ends = [Loop(population, FedDF(steps=5, local=LOCAL, distill=DISTILL)) for _ in range(2)]
    alone, together = (run.round(run.init(), c, 0)[""] for run, c in zip(ends, [(0, 3), (0, 1, 3)], strict=True))
    assert not torch.equal(alone["narrow"].params["head.weight"], together["narrow"].params["head.weight"])


@pytest.mark.slow
def test_a_run_measures_the_global_model_of_each_architecture() -> None:
    people, settings = federation(), fl.RunSettings(rounds=1, cohort_size=6, seed=0)
    evaluated = fl.Federation(**{**vars(people), "test": people.train})
    history = fl.run(FedDF(steps=2, local=LOCAL, distill=DISTILL), evaluated, THREE, settings)
    assert 0 <= history.last("global_accuracy") <= 1
    assert history.last("personal_accuracy") is not None
    assert set(history.server[""]) == set(THREE)


@pytest.mark.slow
def test_one_student_begins_at_random_and_learns_from_all() -> None:
    """In one round, as DENSE's comparator: others only send, and it alone is evaluated."""
    population = Population(federation(), THREE, dtype=torch.float64)
    run = Loop(population, FedDF(steps=60, local=LOCAL, distill=DISTILL, student="wide"))
    uploads: list[tuple[Model, Weights]] = []
    run.watch = lambda e: uploads.append((THREE[population.assignment[e.client]], e.upload.value))
    start = run.init()
    end = run.round(start, (0, 1, 2), 0)
    models = run.algorithm.global_models(end, THREE)
    assert set(models) == {"wide"}
    begun = run.algorithm.global_models(start, THREE)["wide"]
    assert not torch.equal(begun.params["head.weight"], start[""]["wide"].params["head.weight"])
    target = ensemble(uploads, population.public, 1.0, "avg_logits")
    x = population.public.batches.x
    before, after = (float(divergence(THREE["wide"](w, x), target).mean()) for w in (begun, models["wide"]))
    assert after < 0.3 * before
    one = Loop(population, FedDF(steps=1, local=LOCAL, distill=DISTILL, student="wide")).round(start, (0, 1, 2), 0)
    gap = (one[""][""].params - begun.params).values()
    assert 0 < max(float(t.abs().max()) for t in gap) < 0.011  # a step of Adam at 0.01, from where it began
    means = Loop(population, FedDF(steps=1, local=LOCAL, distill=DISTILL, student="narrow"))
    other = means.round(means.init(), (0, 1, 2), 0)[""]
    assert torch.equal(
        other["wide"].params["head.weight"], end[""]["wide"].params["head.weight"]
    )  # the mean, as it came
    lost = Loop(
        population, FedDF(steps=1, local=LOCAL, distill=DISTILL, student="wide"), Options(faults=lambda r, e, k: "gone")
    )
    nothing = lost.round(start, (0, 1, 2), 0)
    assert torch.equal(nothing[""][""].params["head.weight"], begun.params["head.weight"])
    with pytest.raises(SettingError, match="student must be one of the run's networks, narrow, wide, conv, got 'big'"):
        FedDF(student="big").init(THREE, 0, num_clients=2)


def test_the_student_may_have_a_network_that_no_client_has() -> None:
    """As where they are new, or fewer than networks, which clients are given in turn."""
    population, names = Population(federation(), THREE), ["narrow", "wide"]
    assert [population.assignment[k] for k in (0, 1)] == names
    late = Options(absent=lambda t: {k for k, name in enumerate(population.assignment) if name not in names})
    run = Loop(population, FedDF(steps=1, local=LOCAL, distill=DISTILL, student="conv"), late)
    before = run.init()[""][""].params
    after = run.round(run.init(), (0, 1), 0)[""][""].params
    assert any(not torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "steps must be >= 0, got -1"),
        ({"T": 0.0}, "T must be > 0, got 0.0"),
        ({"scheme": "mean"}, "scheme must be one of avg_logits, avg_probs, avg_losses, got 'mean'"),
        ({"aggregation": "median"}, "aggregation must be one of samples, uniform, got 'median'"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FedDF(**settings)


def test_refused_federations() -> None:
    with pytest.raises(SettingError, match="public examples"):
        fl.Job(algorithm=FedDF(), federation=fl.replace(federation(), public=None), model=THREE)
    with pytest.raises(SettingError, match="tells architectures by name"):
        FedDF().init({"a": Model(MLP), "b": Model(lambda: MLP(16), name="MLP")}, 0, num_clients=2)


# ---- validation


def validated(**settings: Any) -> FedDF:
    return FedDF(local=LOCAL, distill=DISTILL, validation=6, **settings)


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_the_student_that_is_best_on_validation_is_kept(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same steps as without validation, as far as it goes; a student is tried after every second one."""
    population = Population(federation(), {"narrow": THREE["narrow"]}, dtype=torch.float64)
    run = engine(population, validated(steps=8, every=2, patience=100))
    seen: list[tuple[float, Weights]] = []

    def watched(model: Model, weights: Weights, held: Any) -> float:
        seen.append((accuracy(model, weights, held), weights))
        return seen[-1][0]

    monkeypatch.setattr("fedloom.algorithms.feddf.accuracy", watched)
    end = run.round(run.init(), (0, 1, 2), 0)[""]["narrow"]
    assert len(seen) == 5  # the mean itself, and after 2, 4, 6 and 8 steps
    best = max(seen, key=lambda s: s[0])[1]  # the first of equals
    assert all(torch.equal(end.params[n], t) for n, t in best.params.items())


def test_validation_and_learning_divide_the_public_examples() -> None:
    population = Population(federation(), THREE, dtype=torch.float64)
    whole = population.public
    learnt, held = validated().divided(whole)
    assert held is not None
    rows = torch.cat([learnt.batches.x, held.x[held.examples]])
    assert len(learnt.batches.x) == 14
    assert torch.equal(rows.sort(0).values, whole.batches.x.sort(0).values)
    where = [(whole.batches.x == x).all(1).nonzero().item() for x in held.x]
    assert torch.equal(held.y, whole.batches.y[where])
    assert whole.batches.y.any()


def test_steps_end_when_patience_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies 0.5 (the mean), 0.6, 0.6, 0.5: after two checks without a better one, it is over."""
    scores = iter([0.5, 0.6, 0.6, 0.5, 0.9])
    monkeypatch.setattr("fedloom.algorithms.feddf.accuracy", lambda *args: next(scores))
    population = Population(federation(), {"narrow": THREE["narrow"]}, dtype=torch.float64)
    run = Loop(population, validated(steps=40, every=3, patience=6))
    run.round(run.init(), (0, 1), 0)
    assert next(scores) == 0.9


def test_chunks_of_steps_are_the_steps() -> None:
    """A student that is never stopped and best at the end has learnt as one without validation, if nothing is drawn."""
    population = Population(federation(), {"narrow": THREE["narrow"]}, dtype=torch.float64)
    batches = population.public.shuffled(8, 7, key=3).note("target", torch.full((20, 3), 1 / 3, dtype=torch.float64))
    parts = [batches.part(a, b) for a, b in ((0, 3), (3, 6), (6, 9))]
    assert [int(p.num_steps) for p in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([p.order for p in parts]), batches.order)


@pytest.mark.parametrize(
    ("labels", "validation", "message"),
    [
        (
            False,
            6,
            "FedDF validates its students on labelled public examples, validation = 6 of them, .* set data.publ",
        ),
        (True, 20, "FedDF learns from the public examples that are not for validation, .* = 20 leaves none of 20: low"),
    ],
)
def test_validation_is_refused(labels: bool, validation: int, message: str) -> None:
    people = fl.Federation(**{**vars(federation()), "public_labels": labels})
    with pytest.raises(SettingError, match=message):
        Loop(Population(people, THREE), FedDF(validation=validation))


def test_another_schedule_takes_the_place_of_the_cosine() -> None:
    def end(schedule: str) -> Tensor:
        population = Population(federation(), {"narrow": THREE["narrow"]}, dtype=torch.float64)
        distill = fl.replace(DISTILL, optimiser=fl.replace(DISTILL.optimiser, schedule=schedule))
        run = Loop(population, FedDF(local=LOCAL, distill=distill, steps=8))
        params = run.round(run.init(), (0, 1), 0)[""]["narrow"].params
        return torch.cat([t.flatten() for t in params.values()])

    assert torch.equal(end("constant"), end("cosine:8?by=step"))
    assert not torch.equal(end("constant"), end("exponential:0.5?by=step"))
