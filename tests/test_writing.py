"""Networks and tasks that write on all that they are given: their runs are those of their pure twins, bit for bit.

In PyTorch `x.mul_(0.5)` as the first line of a forward is harmless, since a DataLoader makes each batch anew.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from fedloom import (
    DENSE,
    SGD,
    Adam,
    Classification,
    Examples,
    FedAvg,
    FedDF,
    Federation,
    FedMD,
    FedNTD,
    History,
    KTpFL,
    LocalOnly,
    Model,
    PFedSD,
    RunSettings,
    export,
)
from fedloom.analyses.measures import class_activations, features, gradient, hessian_product, logits
from fedloom.coordinator import Job, verify
from fedloom.coordinator.data_advice import check_plausible
from fedloom.coordinator.replay import RoundReplay
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.local_training import Digest, Distill
from fedloom.core.task import check_padding, loss_of
from fedloom.core.task_measures import sums_of
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.evaluate import classify, rate_rows
from fedloom.testing import Subject
from fedloom.testing.small_networks import CLASSES, FEATURES
from small import Painter
from test_battery import ALGORITHMS, REPRESENTATIVES
from tiny import LOCAL, examples, federation, population

pytestmark = pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")


class Net(nn.Module):
    """Half of the input through two layers; one that `writes` leaves nothing of its input and counts its passes."""

    def __init__(self, writes: bool, inputs: int = FEATURES, width: int = 8) -> None:
        super().__init__()
        self.writes = writes
        self.hidden, self.norm = nn.Linear(inputs, width), nn.BatchNorm1d(width)
        self.head = nn.Linear(width, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def taken(self, x: Tensor) -> Tensor:
        half = x * 0.5
        if self.writes:
            x.fill_(9.0)
        if self.writes and not self.training:
            self.seen.add_(1)  # evaluation must leave no trace either
        return half

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.hidden(self.taken(x))))

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = self.taken(x)
        z = torch.tanh(self.norm(self.hidden(half)))
        return half, z, self.head(z)

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        x, n = before[:, : int(width * FEATURES)], int(width * len(self.hidden.bias))
        return x, torch.tanh(F.linear(x, self.hidden.weight[:n, : x.shape[1]], self.hidden.bias[:n]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Evaluate(Classification):
    """Cross-entropy of which a part depends on the inputs; one that `writes` leaves nothing of what it is given."""

    writes: bool

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        each = F.cross_entropy(logits + 0.0, batch.y + 0, reduction="none") + 0.1 * batch.x.flatten(1).mean(1)
        value = batch.mean(each * (1.0 + 0.1 * batch.x.flatten(1).amax(1)))
        if self.writes:
            for given in (logits, batch.x, batch.y, batch.key):
                given.fill_(1)
        return value

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        right = logits.argmax(-1) == y
        if self.writes:
            logits.fill_(1.0), y.fill_(1)
        return right


class Writer(Painter):
    """A generator that leaves nothing of the noise it is given."""

    def forward(self, z: Tensor) -> Tensor:
        made = super().forward(z * 1.0)
        z.fill_(9.0)
        return made


def twin(writes: bool, **settings: Any) -> Model:
    return Model(lambda: Net(writes, **settings), name="net")


def stored(f: Federation) -> list[Tensor]:
    """All that belongs to the data."""
    return [t for e in (f.train, f.test, f.public) if e is not None for t in (e.x, e.y)]


class Untouched:
    """While it is open, nothing that is stored changes."""

    def __init__(self, *kept: Any) -> None:
        self.kept = kept
        self.before = copy.deepcopy(kept)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            assert same(self.kept, self.before)


def same(a: Any, b: Any) -> bool:
    """Whether two trees of tensors are the same, bit for bit."""
    (mine, spec), (theirs, other) = tree.flatten(a), tree.flatten(b)
    return spec == other and all(
        torch.equal(u.nan_to_num(), v.nan_to_num()) if isinstance(u, Tensor) else u == v
        for u, v in zip(mine, theirs, strict=True)
    )


# --- each algorithm, on clients


def ended(name: str, kind: Any, writes: bool, **how: Any) -> tuple[Any, ...]:
    """What a battery's run of twins leaves behind."""
    algorithm = ALGORITHMS[name]
    if writes and hasattr(algorithm, "generator"):
        algorithm = dataclasses.replace(algorithm, generator=f"{__name__}:Writer")
    subject = Subject.of(algorithm, {"net": twin(writes)})
    population = subject.population(task=Evaluate(writes))
    with Untouched(*stored(population.federation)):
        trail = subject.run(kind, population, with_evaluation=True, **how)
    return trail.servers, trail.states, trail.personal, trail.right


WAYS = ((Loop, "none"), (Stacked, "trace"), (Stacked, "none"))
CASES = [(name, *way) for name in REPRESENTATIVES for way in WAYS]


@pytest.mark.some(1)
@pytest.mark.parametrize(("name", "kind", "how"), CASES)
def test_each_algorithm_is_that_of_the_pure_twins(name: str, kind: Any, how: Any) -> None:
    mine, pure = (ended(name, kind, writes, compilation=how) for writes in (True, False))
    assert same(mine, pure)


# --- whole runs


def data() -> Federation:
    return federation(public=examples(24, seed=2), public_labels=True, val_fraction=0.2)


SETTINGS = RunSettings(rounds=2, cohort_size=3, seed=0, threads=1, per_client=True, compilation="none")
KNOWLEDGE: dict[str, Any] = {"distill": Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.05)), "num_public": 11}


def ran(f: Federation, writes: bool, algorithm: Any = None, folder: Path | None = None, **settings: Any) -> History:
    with Untouched(*stored(f)):
        return fl.run(
            algorithm or FedAvg(local=LOCAL), f, twin(writes, inputs=4), dataclasses.replace(SETTINGS, **settings),
            task=Evaluate(writes), directory=folder, progress=False, resume=folder is not None and folder.exists(),
        )  # fmt: skip


def alike(a: History, b: History) -> bool:
    return a.metrics == b.metrics and a.per_client == b.per_client and same(a.server, b.server)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (FedAvg(local=LOCAL), {"engine": "loop"}),
        pytest.param(FedNTD(local=LOCAL), {"engine": "stacked", "compilation": "trace"}, marks=pytest.mark.slow),
        pytest.param(PFedSD(local=LOCAL), {"engine": "workers"}, marks=pytest.mark.slow),
        (LocalOnly(local=LOCAL), {"engine": "stacked"}),
        pytest.param(KTpFL(local=LOCAL, **KNOWLEDGE), {"engine": "loop"}, marks=pytest.mark.slow),
        pytest.param(FedMD(local=LOCAL, **KNOWLEDGE), {"engine": "loop"}, marks=pytest.mark.slow),
        (
            FedDF(local=LOCAL, steps=4, distill=Distill(batch_size=8, optimiser=Adam(lr=1e-2)), validation=6, every=2),
            {"engine": "stacked"},
        ),
        (dataclasses.replace(ALGORITHMS["dense"], local=LOCAL), {"engine": "loop", "rounds": 3}),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, fl.Algorithm) else v["engine"],
)
def test_runs_are_those_of_the_pure_twins(algorithm: Any, settings: Any) -> None:
    both, alone = data(), data()
    mine = ran(both, True, algorithm, **settings)
    assert alike(mine, ran(alone, False, algorithm, **settings))
    if type(algorithm) in (FedAvg, DENSE):  # the next method of a comparison gets the same data
        assert alike(mine, ran(both, True, algorithm, **settings))


@pytest.mark.slow
def test_resumed_replayed_and_verified(tmp_path: Path) -> None:
    pure = ran(data(), False, rounds=4)
    ran(data(), True, folder=tmp_path / "run")
    f = data()
    assert alike(ran(f, True, folder=tmp_path / "run", rounds=4), pure)
    assert verify(tmp_path / "run").whole
    settings = dataclasses.replace(SETTINGS, rounds=4)
    job = Job(
        algorithm=FedAvg(local=LOCAL), federation=f, model=twin(True, inputs=4), settings=settings, task=Evaluate(True)
    )
    with Untouched(*stored(f)):
        again = RoundReplay(job, tmp_path / "run").replay(4)
    assert same(again.after, pure.server)


# --- what else gives tensors to networks and tasks


def test_evaluation_analyses_and_landscapes() -> None:
    some, out = examples(40), []
    for writes in (True, False):
        model, task = twin(writes, inputs=4), Evaluate(writes)
        weights = model.init(0)
        v = torch.linspace(-1.0, 1.0, sum(p.numel() for p in weights.params.values()))
        with Untouched(some.x, some.y, weights):
            found = classify(model, weights, task, some)
            rate = rate_rows(lambda x: model(weights, x), task, "accuracy", some, torch.device("cpu"), torch.float32)  # noqa: B023
            out.append(
                [
                    found.loss, *found.right.tolist(), rate,
                    *map(torch.as_tensor, (features(model, weights, some), logits(model, weights, some))),
                    {n: torch.as_tensor(a) for n, a in class_activations(model, weights, some).items()},
                    gradient(model, weights, task, some), hessian_product(model, weights, task, some)(v),
                ]
            )  # fmt: skip
    assert same(*out)


@pytest.mark.parametrize("stored", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4,), (1, 2, 2)])
def test_each_way_in_which_inputs_are_stored(stored: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (10 * torch.rand(30, *shape, generator=torch.Generator().manual_seed(0))).to(stored)
    some, out = Examples(x, torch.arange(30) % CLASSES, CLASSES), []
    for writes in (True, False):
        model = Model(lambda: nn.Sequential(Flat(writes), nn.Linear(4, CLASSES)))  # noqa: B023
        with Untouched(some.x, some.y):
            found = classify(model, model.init(0), Evaluate(writes), some)
        out.append([found.loss, *found.right.tolist()])
    assert out[0] == out[1]


class Flat(nn.Module):
    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: Tensor) -> Tensor:
        return (x.mul_(0.5) if self.writes else x * 0.5).flatten(1)


def test_each_pass_leaves_its_input_and_passes_gradients_on() -> None:
    model = twin(True, inputs=4)
    weights, x = model.init(0), torch.ones(5, 4)
    real = torch.ones(5, dtype=torch.bool)
    batch = Batch(x=x, y=real.long(), mask=real, key=torch.zeros((), dtype=torch.int64), full=True)
    passes: dict[str, Callable[[Tensor], Any]] = {
        "call": lambda x: model(weights, x),
        "features": lambda x: model.features(weights, x),
        "calling": lambda x: model.calling(weights, x, lambda network, x: network(x)),
        "moments": lambda x: model.moments(weights, x)[0],
        "train": lambda x: model.train(weights, dataclasses.replace(batch, x=x))[0],
        "train_features": lambda x: model.train_features(weights, dataclasses.replace(batch, x=x))[0][0],
    }
    for name, run in passes.items():
        given = torch.rand(5, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        before = given.detach().clone()
        run(given).square().sum().backward()
        assert torch.equal(given, before), name
        assert given.grad is not None, name
        assert bool(given.grad.any()), name
    assert not weights.buffers["seen"]


def test_a_task_writes_on_copies_alone() -> None:
    task, z = Evaluate(True), torch.rand(6, CLASSES)
    x, y, real = torch.rand(6, 4), torch.arange(6) % CLASSES, torch.ones(6, dtype=torch.bool)
    key, note = torch.zeros((), dtype=torch.int64), torch.rand(6)
    batch = Batch(x=x, y=y, mask=real, key=key, notes={"margin": note})
    with Untouched(x, y, z, real, key, note):
        assert loss_of(task, z, batch) == loss_of(Evaluate(False), z, batch)
        assert torch.equal(sums_of(task, ["accuracy"], z, y)["accuracy"], z.argmax(1) == y)
        check_padding(task, z, x, y)
        assert loss_of(Noted(), z, batch) == note.sum() + 6


class Noted(Classification):
    """Reads and spoils what stands beside a batch."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        total = batch.margin.sum() + batch.mask.sum()
        batch.notes["margin"].zero_(), batch.mask.zero_()
        assert "margin" in batch.notes
        assert not batch.margin.any()
        with pytest.raises(AttributeError, match=r"no annotation 'margins', only \['margin'\]"):
            batch.margins  # noqa: B018
        return dataclasses.replace(batch, x=batch.x + 1).x.sum() * 0 + total


def test_examples_are_as_they_were_after_a_function_that_wrote_on_them() -> None:
    batches = population(parts=data()).public.rows(torch.arange(24), 8)
    with Untouched(batches.x):
        assert not batches.predict(lambda x: x.zero_()).any()
    assert batches.x.any()


@pytest.mark.slow
def test_an_exported_network_leaves_its_input(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    kinds = []
    for writes in (True, False):
        model = Model(lambda: nn.Sequential(Flat(writes), nn.Linear(4, CLASSES)))  # noqa: B023
        path = export(model, model.init(0), tmp_path / f"{writes}.onnx", example=(4,))
        graph = onnx.load(path).graph
        kinds.append(([o.name for o in graph.output], [n.op_type for n in graph.node]))
    assert kinds[0] == kinds[1]


class Late(nn.Module):
    """Empties its input after its first layer has taken it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        with torch.no_grad():
            x.data.zero_()
        return out  # type: ignore[no-any-return]


def test_scales_are_those_that_the_first_layer_took() -> None:
    few = examples(60)
    large = dataclasses.replace(few, x=100 * few.x)
    f = fl.federate(large, fl.iid(large.y, 3, seed=0), test=large)
    with Untouched(*stored(f)), pytest.warns(SettingWarning, match="features of sizes far from 1"):
        check_plausible(f, [Model(Late)], Classification())


class Renormed(nn.Module):
    """Shortens its weights in place, as `nn.Embedding(max_norm=...)` does, in training or whenever it is called."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always, self.layer = always, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.always or self.training:
            with torch.no_grad():
                self.layer.weight.clamp_(-9.0, 9.0)  # nothing changes, yet
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_network_that_writes_on_its_parameters_in_evaluation_is_refused() -> None:
    with pytest.raises(SettingError, match=r"Renormed writes on 'layer.weight'.*self.training alone"):
        fl.run(FedAvg(local=LOCAL), data(), lambda: Renormed(True), SETTINGS, progress=False)
    fl.run(FedAvg(local=LOCAL), data(), lambda: Renormed(False), SETTINGS, progress=False)
