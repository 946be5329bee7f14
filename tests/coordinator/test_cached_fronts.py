"""The frozen front computed once: the same bits as in every pass, and where it is not used, why."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from fedloom.coordinator import Job, cached_fronts as front
from fedloom.coordinator.replay import RoundReplay
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.augment import Augment
from fedloom.core.errors import ClientError
from fedloom.core.model import Model
from fedloom.data import Growing, LabelDrift, Normalise, OffsetDrift
from fedloom.evaluate import classify
from fedloom.experiments.export import module as exported
from tiny import federation

LOCAL = fl.Local(epochs=2, batch_size=4, optimiser=fl.SGD(lr=0.1, momentum=0.9, weight_decay=1e-2))
FORMS = [("loop", "none"), ("loop", "trace"), ("stacked", "none"), ("stacked", "trace"), ("workers", "none")]
METHODS = [fl.FedAvg, fl.Scaffold, fl.FedNTD, fl.PFedSD]
seen: list[int] = []  # rows of each call of a `Counted`


class Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        seen.append(len(x))
        return x.relu()


class Exact(nn.Module):
    """A body whose arithmetic is exact in float32, so that its outputs do not depend on the batch, and a head."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6, bias=False), *more, Counted())
        self.body[0].weight.data = torch.randint(-4, 5, (6, 4), generator=g) / 4.0
        self.norm, self.drop, self.head = nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.body(x))))  # type: ignore[no-any-return]


class Images(nn.Module):
    """Convolutions, the last of which and the head are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.last, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.body(x)).relu().flatten(1))  # type: ignore[no-any-return]


def clients(shape: tuple[int, ...] = (4,), **more: Any) -> fl.Federation:
    """The clients of `federation`, with quarters of whole numbers as inputs."""
    whole, size = federation(**more), int(torch.tensor(shape).prod())

    def made(e: fl.Examples) -> fl.Examples:
        x = ((e.x * 4).round() / 4).repeat(1, -(-size // 4))[:, :size].reshape(-1, *shape)
        return fl.Examples(x, e.y, e.num_classes, normalise=Normalise())

    assert whole.test is not None
    return fl.replace(whole, train=made(whole.train), test=made(whole.test))


def job(module: nn.Module, algorithm: Any = None, parts: Any = None, frozen: str = "body", **more: Any) -> Job:
    task = {"task": more.pop("task")} if "task" in more else {}
    settings = fl.RunSettings(**{"rounds": 3, "cohort_size": 4, "engine": "loop", "compilation": "none"} | more)
    algorithm = algorithm or fl.FedAvg(local=LOCAL)
    model = Model(module, name="net", frozen=frozen)
    return Job(algorithm=algorithm, federation=parts or clients(), model=model, settings=settings, **task)


def said(history: fl.History) -> str:
    return str(history.manifest["front"]["net"])


def assert_same(module: nn.Module, begins: str, **more: Any) -> fl.History:
    """Run with the front once and in every pass: the same bits, and that the first was computed once."""
    once, always = (job(module, front=how, **more).run() for how in ("auto", "off"))
    assert said(once).startswith(begins)
    assert said(always) == "computed in every pass, front = 'off'"
    for a, b in zip(*(tree.leaves(h.server) for h in (once, always)), strict=True):
        assert torch.equal(a, b)
    for k in always.clients:
        for a, b in zip(*(tree.leaves(h.clients[k]) for h in (once, always)), strict=True):
            assert torch.equal(a, b)
    assert once.metrics == always.metrics
    return once


@pytest.mark.some(1)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form))
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_a_front_of_exact_arithmetic_gives_the_same_bits(method: Any, form: tuple[str, str]) -> None:
    engine, compilation = form
    more = {"engine": engine, "compilation": compilation, "algorithm": method(local=LOCAL)}
    assert_same(Exact(), "body, computed once for each example", **more)


@pytest.mark.slow
def test_a_front_of_examples_that_arrive_and_whose_labels_drift_gives_the_same_bits() -> None:
    parts = clients(arrives=Growing(0.3, 4), drift=LabelDrift(2))
    assert_same(Exact(), "body, computed once for each example", parts=parts, rounds=4)


def test_there_is_no_front_of_inputs_that_drift() -> None:
    parts = clients(drift=OffsetDrift(0.25))
    assert said(job(Exact(), parts=parts).run()) == "computed in every pass, since inputs drift"


@pytest.mark.some(1)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form))
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_a_front_of_convolutions_gives_the_same_bits(method: Any, form: tuple[str, str]) -> None:
    """In a stack it depends on the machine whether convolutions do, and the front is in every pass where not."""
    engine, compilation = form
    torch.manual_seed(0)
    more = {"engine": engine, "compilation": compilation, "algorithm": method(local=LOCAL)}
    assert_same(Images(), "" if engine == "stacked" else "body", parts=clients((1, 8, 8)), **more)


@pytest.mark.slow
def test_other_types_and_methods_with_features_and_public_examples() -> None:
    assert_same(Exact(), "body, computed once", dtype="float64")
    assert_same(Exact(), "body, computed once", algorithm=fl.MOON(local=LOCAL, feature="body"))
    assert_same(Exact(), "body, computed once", algorithm=fl.Centralised(local=LOCAL))
    assert_same(Exact(), "body, computed once", per_client=True, stateless=True)
    parts = clients()
    assert_same(
        Exact(), "body, computed once", parts=fl.replace(parts, public=parts.test), algorithm=fl.FedDF(local=LOCAL)
    )


class Short(nn.Module):
    """Another front than that of `Exact`, of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5, bias=False), nn.Linear(5, 3)
        self.first.weight.data = torch.arange(20.0).reshape(5, 4).remainder(7) / 4 - 1

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).relu())  # type: ignore[no-any-return]


def several(**more: Any) -> Job:
    """Clients in turn of two architectures with fronts of their own, and of one without."""
    torch.manual_seed(0)
    networks = {"exact": (Exact(), "body"), "short": (Short(), "first"), "plain": (nn.Linear(4, 3), "")}
    models = {name: Model(module, name=name, frozen=frozen) for name, (module, frozen) in networks.items()}
    return replace(job(nn.Linear(4, 3), frozen="", **more), model=models)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("method", "form"),
    [(method, form) for i, method in enumerate(METHODS) for j, form in enumerate(FORMS) if (i + j) % 2 == 0],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value.__name__,
)
def test_several_architectures_have_a_front_each(method: Any, form: tuple[str, str]) -> None:
    engine, compilation = form
    more = {"engine": engine, "compilation": compilation, "algorithm": method(local=LOCAL), "rounds": 6}
    parts = clients(val_fraction=0.2)
    once, always = (several(front=how, parts=parts, per_client=True, **more).run() for how in ("auto", "off"))
    assert once.manifest["front"].keys() == {"exact", "short"}
    assert once.manifest["front"]["exact"].startswith("body, computed once")
    assert once.manifest["front"]["short"].startswith("first, computed once")
    for a, b in zip(*(tree.leaves((h.server, dict(h.clients))) for h in (once, always)), strict=True):
        assert torch.equal(a, b)
    assert once.metrics == always.metrics
    assert once.per_client == always.per_client


@pytest.mark.slow
def test_architectures_behind_fronts_are_given_the_examples_of_a_round() -> None:
    parts = clients(arrives=Growing(0.3, 5), drift=LabelDrift(2))
    once, always = (several(front=how, parts=parts, rounds=8).run() for how in ("auto", "off"))
    assert once.manifest["front"]["exact"].startswith("body, computed once")
    assert once.manifest["front"]["short"].startswith("first, computed once")
    assert once.metrics == always.metrics


@pytest.mark.slow
def test_one_of_several_architectures_may_have_no_front() -> None:
    whole = several(rounds=8, front="off")
    models = dict(whole.population.models) | {"short": Model(Residual(), name="short", frozen="body")}
    once, always = (
        replace(whole, model=models, settings=replace(whole.settings, front=how)).run() for how in ("auto", "off")
    )
    assert once.manifest["front"]["short"] == f"computed in every pass, {ALONE}"
    assert once.manifest["front"]["exact"].startswith("body, computed once")
    assert once.metrics == always.metrics


class Evaluates(fl.FedAvg):
    requires = fl.Requires(front=False)

    def round(self, server: Any, cohort: Any) -> Any:
        new = super().round(server, cohort)
        model = cohort.groups[0].model
        cohort.evaluate("mine", lambda x: model(new, x))
        return new


def test_of_several_architectures_none_is_evaluated_on_the_inputs_of_others() -> None:
    with pytest.raises(
        fl.SettingError, match=r"mine_exact, .* would be evaluated on inputs of none .*: set front = 'off'"
    ):
        several(rounds=8, algorithm=Evaluates(local=LOCAL)).run()


def test_what_may_be_kept_is_shared_by_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "IN_MEMORY", 2 * 150 * 4 * 5)  # of each what the outputs of `Short` take, and no more
    made = Coordinator(several(rounds=8))
    assert "in files of" in made.assembly.fronts["exact"]
    assert made.assembly.fronts["short"].endswith("in memory")
    size = made.assembly.trained.examples_of("short").train.x.shape[1]
    assert (size, made.assembly.trained.examples_of("plain").train.x.shape[1]) == (5, 4)


@pytest.mark.slow
def test_the_front_is_computed_once_for_each_example(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for rounds in (5, 10):
        seen.clear()
        job(Exact(), rounds=rounds).run()
        counts.append(sum(seen))
    assert counts[0] == counts[1]
    rows: list[int] = []
    monkeypatch.setattr(front._Choice, "_problem", lambda *args: rows.append(len(seen)))  # all before is to try it
    seen.clear()
    job(Exact(), rounds=5).run()
    assert seen[rows[0] :] == [90, 60]  # the examples of all clients, and the test set
    seen.clear()
    job(Exact(), rounds=10, front="off").run()
    assert sum(seen) > counts[0]


class ByBatch(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 2**-20 * len(x))


@pytest.mark.slow
def test_the_largest_front_whose_bits_agree_is_taken() -> None:
    torch.manual_seed(0)
    assert_same(Exact(nn.ReLU(), ByBatch(6, 6)), "body.0 to body.1, computed once")
    only = nn.Sequential(ByBatch(4, 6), nn.Linear(6, 3))
    assert said(job(only, frozen="0").run()).startswith(
        "computed in every pass, since 0 gives other last bits in batch"
    )


class Residual(Exact):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) + x[:, :3]


class Twice(Exact):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + self.body(x))  # type: ignore[no-any-return]


class Trained(Exact):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)) if self.training else self.body(x))  # type: ignore[no-any-return]


class Copied(Exact):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x * 1)))  # type: ignore[no-any-return]


class Doubled(Exact):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x))) * (2 if x.shape[1] == 4 else 1)


@dataclass(frozen=True)
class Reads(fl.Classification):
    def loss(self, logits: Tensor, batch: Any) -> Tensor:
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none") + batch.x.flatten(1).sum(1) * 0)


ALONE = "since no frozen layers, and they alone, are given the network's input"
REASONS: dict[str, tuple[nn.Module, dict[str, Any], str]] = {
    "residual": (Residual(), {}, ALONE),
    "twice": (Twice(), {}, ALONE),
    "another input": (Copied(), {}, ALONE),
    "trained front": (Exact(), {"frozen": "norm"}, ALONE),
    "the rest looks at it": (Doubled(), {}, "since body is not all that the rest of the network depends on"),
    "dropout in front": (nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Linear(4, 3)), {"frozen": "1"}, ALONE),
    "task": (Exact(), {"task": Reads()}, "since body is given what the loss of Reads reads too"),
    "layer": (
        Exact(), {"algorithm": fl.MOON(local=LOCAL, feature="body.0")}, "since body has the layer 'body.0', which MOON",
    ),
    "bfloat16": (Exact(), {"bf16": True}, "since training is in bfloat16"),
    "compiled": (Exact(), {"engine": "stacked", "compilation": "compile"}, "since steps are compiled"),
    "short": (Exact(), {"rounds": 1}, "since the run computes"),
    "not finite": (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), {"frozen": "0"}, "since 0 returns numbers that"),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_where_it_is_not_used_the_reason_is_said(name: str) -> None:
    net, more, why = REASONS[name]
    if name == "not finite":
        net[0].bias.data.fill_(torch.inf)  # type: ignore[index,union-attr]
        more = {**more, "on_nonfinite": "refuse"}
    made = job(net, **more)
    assert said_of(made).startswith(f"computed in every pass, {why}")


def said_of(made: Job) -> str:
    return Coordinator(made).assembly.fronts["net"]


def test_augmented_inputs_other_networks_and_methods_that_need_the_front() -> None:
    images = clients((1, 8, 8))
    augmented = fl.replace(images, train=replace(images.train, augment=Augment(flip=True)))
    assert said_of(job(Images(), parts=augmented)) == "computed in every pass, since inputs are augmented"
    two = {n: Model(Exact(), name=n, frozen="body") for n in ("net", "other")}
    shared = replace(job(Exact(), parts=fl.replace(clients(), public=clients().test)), model=two)
    why = "computed in every pass, since several architectures are given the same public examples"
    assert Coordinator(shared).assembly.fronts == dict.fromkeys(two, why)
    pooled = replace(job(Exact(), algorithm=fl.Centralised(local=LOCAL)), model=two)
    why = "computed in every pass, since Centralised trains one of several architectures"
    assert Coordinator(pooled).assembly.fronts == dict.fromkeys(two, why)
    for method in (fl.DENSE, fl.FedADI, fl.FedDAFL, fl.FedAlign):
        assert method().requires.front

    class Mixes(fl.FedAvg):
        requires = fl.Requires(front=True)

    why = "computed in every pass, since Mixes gives networks inputs of its own, or calls their parts"
    assert said_of(job(Exact(), algorithm=Mixes(local=LOCAL))) == why

    class Own(fl.FedAvg):
        """Nobody but its author knows what it gives its networks."""

    class Trusted(Own):
        requires = fl.Requires(front=False)

    why = "computed in every pass, since Own is of your own and does not say Requires(front=False)"
    assert said_of(job(Exact(), algorithm=Own(local=LOCAL))) == why
    assert "computed once" in said_of(job(Exact(), algorithm=Trusted(local=LOCAL)))


def test_nothing_is_said_of_a_network_without_frozen_parts() -> None:
    assert "front" not in job(Exact(), frozen="").run().manifest


def test_beyond_the_bound_of_memory_outputs_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "IN_MEMORY", 1000)
    made, files = [], front._on_disk
    monkeypatch.setattr(front, "_on_disk", lambda *args, **more: made.append(files(*args, **more)) or made[-1])
    history = assert_same(Exact(), "body, computed once for each example, 0.0 MiB in files of ")
    assert "in files of" in said(history)
    assert [t.shape for t in made] == [(90, 6), (60, 6)]
    monkeypatch.setattr(front, "ON_DISK", 1000)
    assert "more than is kept on disk" in said_of(job(Exact()))


def test_runs_of_one_comparison_share_the_outputs() -> None:
    parts, net, jobs = clients(), Exact(), []
    for algorithm in (fl.FedAvg(local=LOCAL), fl.Scaffold(local=LOCAL)):
        jobs.append(Coordinator(job(net, algorithm=algorithm, parts=parts)))
    first, second = (c.assembly.trained.federation for c in jobs)
    assert first is second
    assert first is not parts


class Reader(fl.FedAvg):
    requires = fl.Requires(front=False)

    @fl.on_client
    def local_update(self, client: fl.Client[Any], sent: fl.Weights) -> Any:
        client.model.features(sent, client.train.x[:2], "0")
        return super().local_update(client, sent)


def test_a_user_who_reads_a_layer_that_is_left_out_is_told() -> None:
    net = nn.Sequential(*Exact().body, nn.Linear(6, 3))
    with pytest.raises(ClientError, match="layer '0' is frozen and computed once"):
        job(net, algorithm=Reader(local=LOCAL), frozen="0").run()


@pytest.mark.slow
def test_a_run_goes_on_and_is_replayed_and_exported_with_the_whole_network(tmp_path: Path) -> None:
    net = Exact()
    whole = assert_same(net, "body, computed once")
    job(net, rounds=2).run(tmp_path / "run")
    job(net, rounds=3).run(tmp_path / "run", resume=True)
    end = job(net, rounds=3, front="off").restore(tmp_path / "run").global_weights()["net"]
    for a, b in zip(*map(tree.leaves, (end, whole.server["net"])), strict=True):
        assert torch.equal(a, b)
    past = RoundReplay(job(net), tmp_path / "run").replay(3)
    found = job(net)
    model, test = found.population.models["net"], found.federation.test
    assert test is not None
    for weights in past.trained().values():
        assert past.population.models["net"](weights, test.x).shape == (60, 3)
    accuracy = classify(model, end, fl.Classification(), test).accuracy
    assert accuracy == whole.metrics[-1]["global_accuracy"]
    network = exported(model, end)
    assert torch.equal(network(test.x), model(end, test.x))
    changed = copy.deepcopy(net)
    changed.body[0].weight.data += 1
    with pytest.raises(fl.SettingError, match="began with other weights"):
        job(changed, rounds=4).run(tmp_path / "run", resume=True)
