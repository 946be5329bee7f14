"""Before a run a network is tried as it will be trained; what fails then is refused before anything is written."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedloom as fl
from fedloom.coordinator.job import Job
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.model import Model
from fedloom.data import by_lists
from fedloom.experiments.export import module
from tiny import CLASSES, examples, federation

LOCAL = fl.Local(epochs=1, batch_size=4, optimiser=fl.SGD(lr=0.1))


def job(build: Callable[[], nn.Module] | nn.Module, local: fl.Local = LOCAL, **more: Any) -> Job:
    settings = fl.RunSettings(rounds=2, cohort_size=3, engine=more.pop("engine", "loop"))
    algorithm = more.pop("algorithm", None) or fl.FedAvg(local=local)
    return Job(algorithm=algorithm, federation=more.pop("federation", None) or federation(), model=build,
               settings=settings, **more)  # fmt: skip


class Net(nn.Module):
    """A layer, and what becomes of its answer [B, C] in `then`."""

    def __init__(self, then: Callable[[Any, Tensor], Any] = lambda self, z: z) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, CLASSES), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self, self.layer(x))


class Detached(fl.Classification):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(torch.from_numpy(F.cross_entropy(logits, batch.y, reduction="none").numpy()))


class Noted(fl.Classification):
    """Its loss wants to know what it notes, of training examples alone."""

    def notes(self, y: Tensor) -> dict[str, Tensor]:
        return {"twice": torch.stack([y, y], 1).double()}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if "twice" in batch.notes and logits.requires_grad:
            assert batch.twice.dtype == torch.float32
            logits = logits + batch.twice  # [B, 2] to [B, 3]
        return super().loss(logits, batch)


class Own(fl.Classification):
    """Clients make something else small, which this network does not have."""

    def objective(self, loss: Tensor, count: Tensor, params: Any) -> Tensor:
        return loss + params["head.weight"].square().sum()


WRONG: dict[str, tuple[Callable[[Any, Tensor], Any], Any, str]] = {
    "a tuple": (
        lambda self, z: (z, z) if self.training else z,
        None,
        "in training, TypeError: logits must be a tensor, not tuple",
    ),
    "twice the logits": (
        lambda self, z: torch.cat([z, z], 1) if self.training else z,
        None,
        r"in training, TypeError: logits must be \[2, 3\] as elsewhere, got \[2, 6\]",
    ),
    "no gradient": (lambda self, z: z.detach() if self.training else z, None, "in training, RuntimeError: .* grad"),
    "a loss without": (lambda self, z: z, Detached(), "in training, RuntimeError: Can't call numpy"),
    "a loss of notes": (lambda self, z: z, Noted(), "in training, RuntimeError: The size of tensor a"),
    "an objective": (lambda self, z: z, Own(), "in training, KeyError: 'head.weight'"),
    "one example": (lambda self, z: z.squeeze(), None, r"classes: of one example, TypeError: .* \[1, 3\] as .* \[3\]"),
    "one that trains": (
        lambda self, z: z - z[1] if self.training else z,
        None,
        "classes: in training, of one example, IndexError",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_in_training_alone_is_refused_before_there_is_a_run(wrong: str, tmp_path: Path) -> None:
    then, task, said = WRONG[wrong]
    tried = job(lambda: Net(then), **({} if task is None else {"task": task}))
    with pytest.raises(SettingError, match=said) as found:
        tried.run(tmp_path / "run")
    assert str(found.value).startswith("model Net and task ")
    assert str(found.value).endswith("a model maps a batch of such examples to logits (N, 3) [FL-MODEL-003]")
    assert not (tmp_path / "run").exists()


# ---- networks that keep what they compute


class Keeps(nn.Module):
    """Keeps activations, and learns its shapes from a pass when it is made; `deep`: among others, in a list."""

    def __init__(self, deep: bool = False, probe: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.deep = nn.Linear(4, 5), nn.Linear(5, CLASSES), deep
        if probe:
            self(torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        self.seen: Any = [{"h": h}] if self.deep else h
        return self.b(h)


def called() -> nn.Module:
    network = Keeps(probe=False)
    network(torch.zeros(2, 4)).sum().backward()
    return network


def weight_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has another way now
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, CLASSES))


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    "build",
    [Keeps, lambda: Keeps(deep=True), called(), weight_normed],
    ids=["probed", "in a list", "called", "weight norm"],
)
def test_networks_that_keep_tensors_run(build: Any, engine: str) -> None:
    plain = lambda: Keeps(probe=False)  # noqa: E731
    history = job(build, engine=engine).run()
    if build is Keeps:  # and as if they did not
        assert history.last("global_loss") == job(plain, engine=engine).run().last("global_loss")
    model = Model(build)
    weights, x = model.init(0), examples(5).x
    exported = module(model, weights)
    torch.testing.assert_close(exported(x), model(weights, x))


@pytest.mark.parametrize("kind", ["train", "eval", "features"])
def test_a_pass_leaves_nothing_in_the_network(kind: str) -> None:
    """A tensor that `vmap` has ended, or the graph of somebody's batch, must not outlive its pass."""
    model = Model(lambda: Keeps(probe=False))
    weights, x = model.init(0), examples(5).x
    batch = Batch(x=x, y=torch.zeros(5).long(), mask=torch.ones(5, dtype=torch.bool), key=torch.tensor(0), full=True)
    passes: dict[str, Callable[[], Any]] = {
        "train": lambda: (model.train(weights, batch), model.train_calling(weights, batch, lambda net, x: net(x))),
        "eval": lambda: (model(weights, x), model.moments(weights, x)),
        "features": lambda: (model.features(weights, x, "a"), model.train_features(weights, batch, "a")),
    }
    passes[kind]()
    for network in (model._training, model._frozen):
        assert not hasattr(network, "seen")


def test_what_an_earlier_pass_has_left_is_not_read() -> None:
    """A hidden state that goes on from one batch to the next would go on from one client to the next."""

    def then(self: Any, z: Tensor) -> Tensor:
        z = z + getattr(self, "last", 0.0)
        self.last = z.detach().mean()
        return z

    model = Model(lambda: Net(then))
    weights, x = model.init(0), examples(5).x
    first = model(weights, x)
    assert torch.equal(model(weights, x), first)


class Frozen(nn.Module):
    """Computes from its parameters when it is made, and reads that ever after."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, CLASSES)
        self.double = self.a.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + x @ self.double.T


def test_a_network_that_reads_what_does_not_follow_its_weights_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"that of Frozen reads what was computed .*, double \(.*register as a buffer"
    ):
        job(Frozen).check()


def test_a_buffer_that_was_computed_is_a_buffer() -> None:
    network = Net()
    network.register_buffer("scale", network.layer.weight.sum() * 0 + 2)
    weights = Model(network).init(0)
    assert float(weights.buffers["scale"]) == 2
    assert not weights.buffers["scale"].requires_grad


# ---- batches of one example


class Normed(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module] = lambda: nn.BatchNorm1d(5)) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 5), norm(), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.norm(self.a(x))))


def sizes(*each: int) -> fl.Federation:
    ends = np.cumsum([0, *each])
    lists = [list(range(a, b)) for a, b in itertools.pairwise(ends.tolist())]
    return fl.federate(examples(int(ends[-1])), by_lists(lists), test_fraction=0)


def warned(*args: Any, **more: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        job(*args, **more).check()
    return [str(w.message) for w in found if issubclass(w.category, SettingWarning)]


def test_batches_of_one_example_are_warned_of_where_they_are_not_measured() -> None:
    nine = {"federation": sizes(9, 8, 13, 6)}
    (said,) = warned(Normed, **nine)
    assert "got a last batch of one at 2 of 4 clients, such as 9 examples in batches of 4: set another" in said
    (said,) = warned(Normed, fl.Local(batch_size=1), federation=sizes(8, 8, 8))
    assert "stay as they began, got batch_size = 1: set 2 or more" in said
    assert not warned(Normed, federation=sizes(8, 7, 6))
    assert not warned(Normed, fl.Local(batch_size=4, steps=2), **nine)  # the third batch is never reached
    assert warned(Normed, fl.Local(batch_size=4, steps=3), **nine)
    pooled = fl.Centralised(local=LOCAL)
    assert not warned(Normed, algorithm=pooled, federation=sizes(9, 5, 2))
    (said,) = warned(Normed, algorithm=pooled, federation=sizes(8, 5, 8))
    assert "at 1 of 1 clients, such as 21 examples" in said


@pytest.mark.parametrize(
    "norm",
    [
        nn.Identity,
        lambda: nn.LayerNorm(5),
        lambda: nn.BatchNorm1d(5, track_running_stats=False),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten()),  # five values of an example
        lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()),
    ],
    ids=["none", "layer", "no statistics", "five values", "by example"],
)
def test_other_networks_are_not_warned_of(norm: Callable[[], nn.Module]) -> None:
    assert not warned(lambda: Normed(norm), federation=sizes(9, 8, 7))
    assert not warned(lambda: Normed(norm), fl.Local(batch_size=1), federation=sizes(9, 8, 7))


def test_only_clients_with_such_a_network_count() -> None:
    models = {"with": Normed, "without": lambda: Normed(nn.Identity)}
    assert not warned(models, federation=sizes(8, 9, 8, 9))  # in turn
    (said,) = warned(models, federation=sizes(9, 9, 8, 9))
    assert "at 1 of 2 clients" in said


# ---- networks that keep, look across the batch, or of which no step can be taken


@pytest.mark.parametrize("engine", ["auto", "loop", "stacked", "workers"])
def test_what_reaches_another_client_is_refused_before_there_is_a_run(engine: Any, tmp_path: Path) -> None:
    def then(self: Any, z: Tensor) -> Tensor:
        z = z + getattr(self, "last", 0.0)
        self.last = z.detach().mean(0)
        return z

    with pytest.raises(SettingError, match=r"Net answers otherwise in training after others \(it keeps 'last'"):
        job(lambda: Net(then), engine=engine).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_adds_up_is_warned_of_once() -> None:
    def then(self: Any, z: Tensor) -> Tensor:
        self.seen.append(z.detach().mean())
        return z

    def logs() -> nn.Module:
        network = Net(then)
        network.seen = []
        return network

    (said,) = warned(logs)
    assert said.startswith(
        "what a forward keeps in attributes is put back after each pass, and Net changes 'seen' with"
    )
    assert "register as a buffer" in said


def test_a_network_is_tried_on_different_examples_where_there_are_some() -> None:
    """Of one class, and where the network's first layer sees nothing but zeros."""
    one = fl.from_arrays(np.ones((30, 4), np.float32) * np.arange(30, dtype=np.float32)[:, None], np.zeros(30, int),
                         num_classes=CLASSES)  # fmt: skip

    def then(self: Any, z: Tensor) -> Tensor:
        if not hasattr(self, "first"):
            self.first = z.detach().mean(0)
        return z - self.first

    for parts in (one, one.select(np.arange(2))):
        people = fl.federate(parts, by_lists([range(len(parts))]), test_fraction=0)
        with pytest.raises(SettingError, match="it keeps 'first'"):
            Job(algorithm=fl.FedAvg(local=LOCAL), federation=people, model=lambda: Net(then),
                settings=fl.RunSettings(rounds=1, cohort_size=1)).check()  # fmt: skip


class Sparse(nn.Module):
    def __init__(self, sparse: bool = True, functional: bool = False) -> None:
        super().__init__()
        self.table, self.head, self.functional = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, CLASSES), functional

    def forward(self, x: Tensor) -> Tensor:
        ids = x.abs().long().clamp(max=8)
        h = F.embedding(ids, self.table.weight, sparse=True) if self.functional else self.table(ids)
        return self.head(h.mean(1))


@pytest.mark.parametrize("optimiser", [fl.SGD(lr=0.1), fl.SGD(lr=0.1, momentum=0.9), fl.Adam(lr=0.1)])
def test_sparse_gradients_are_refused_by_name(optimiser: Any, tmp_path: Path) -> None:
    local = fl.Local(batch_size=4, optimiser=optimiser)
    with pytest.raises(
        SettingError, match="take dense gradients, and Sparse has sparse ones of table: write sparse=Fa"
    ):
        job(Sparse, local).run(tmp_path / "run")
    with pytest.raises(SettingError, match="take dense gradients, and Sparse has sparse ones: write sparse=False"):
        job(lambda: Sparse(False, True), local).check()
    assert not (tmp_path / "run").exists()
    job(lambda: Sparse(False), local).check()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_is_refused_by_name(reentrant: bool, tmp_path: Path) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Any:
            return checkpoint(lambda z: torch.tanh(z @ self.layer.weight), self.layer(x), use_reentrant=reentrant)

    with pytest.raises(SettingError, match=r"activation checkpointing .* and Checkpointed uses it: leave torch.utils"):
        job(Checkpointed).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_lazy_layers_are_refused_by_name() -> None:
    lazy = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, CLASSES))
    with pytest.raises(SettingError, match=r"Sequential has lazy layers.*\(0.weight, 0.bias, 1.weight and 3 more\)"):
        Model(lazy)
    lazy(torch.zeros(2, 4))
    job(lazy).check()


def test_complex_parameters_are_refused_and_complex_constants_are_not() -> None:
    class Turned(Net):
        def __init__(self, learnt: bool) -> None:
            super().__init__(lambda self, z: z * self.turn.abs())
            turn = torch.ones(CLASSES, dtype=torch.complex64)
            self.turn = nn.Parameter(turn, requires_grad=learnt)

    with pytest.raises(SettingError, match=r"are real numbers, got complex ones, turn of Turned: keep both parts as"):
        Model(lambda: Turned(True))
    job(lambda: Turned(False)).check()


def test_a_wrapper_for_several_devices_is_refused_with_the_way_out() -> None:
    with pytest.raises(SettingError, match=r"DataParallel is wrapped for several, by DataParallel: give .* net.module"):
        Model(nn.DataParallel(Net()))
    with pytest.raises(SettingError, match=r"Sequential is wrapped for several"):
        Model(lambda: nn.Sequential(nn.DataParallel(Net())))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_network_is_tried_in_the_dtype_of_the_run(dtype: str) -> None:
    def then(self: Any, z: Tensor) -> Tensor:
        return z @ torch.eye(CLASSES, dtype=getattr(torch, dtype))

    def of(used: str) -> Job:
        return Job(algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=lambda: Net(then),
                   settings=fl.RunSettings(rounds=1, cohort_size=3, dtype=used))  # fmt: skip

    of(dtype).run()
    other = "float64" if dtype == "float32" else "float32"
    with pytest.raises(SettingError, match="do not take the data"):
        of(other).check()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager"])
def test_a_compiled_network_is_tried_as_it_is_written(backend: str) -> None:
    def then(self: Any, z: Tensor) -> Tensor:
        self.seen.append(z.detach().mean(0))
        return z - self.seen[0]

    def keeps() -> nn.Module:
        network = Net(then)
        network.seen = []
        return network

    plain = job(Net, engine="stacked").run()
    compiled = job(lambda: torch.compile(Net(), backend=backend), engine="stacked").run()
    assert compiled.last("global_loss") == pytest.approx(plain.last("global_loss"), abs=1e-6)
    with pytest.raises(SettingError, match=r"_orig_mod\.seen"):
        job(lambda: torch.compile(keeps(), backend=backend)).check()
