"""Frozen parts: which tensors they are, that they are in no `Weights`, and that a head upon them trains as alone."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithms.shared.synthetic import statistics_distance
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.model import Model
from fedloom.data import Normalise
from tiny import federation

LOCAL = fl.Local(epochs=2, batch_size=4, optimiser=fl.SGD(lr=0.1, momentum=0.9, weight_decay=1e-2))


class Net(nn.Module):
    """A body whose arithmetic is exact in float32, so that its features do not depend on the batch, and a head."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5))
        self.body[0].weight.data = torch.randint(-4, 5, (6, 4), generator=g) / 4.0
        self.body[0].bias.data.zero_()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x)))  # type: ignore[no-any-return]


class Head(nn.Module):
    """What is trained of `Net`, alone."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.norm, self.head = copy.deepcopy(net.norm), copy.deepcopy(net.head)

    def features(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x)))  # type: ignore[no-any-return]


def clients(features: Net | None = None) -> fl.Federation:
    """Clients with whole numbers as inputs, or with what the body of a network makes of these."""
    whole = federation()

    def made(e: fl.Examples | None) -> fl.Examples:
        assert e is not None
        x = (e.x * 4).round() / 4
        with torch.no_grad():
            x = x if features is None else features.eval().body(x)
        return fl.Examples(x, e.y, e.num_classes, normalise=Normalise())

    return fl.replace(whole, train=made(whole.train), test=made(whole.test))


def run(algorithm: Any, parts: fl.Federation, model: Any, engine: str = "loop", **more: Any) -> fl.History:
    settings = fl.RunSettings(rounds=2, cohort_size=4, engine=engine, **more)
    return fl.run(algorithm, parts, model, settings)


FORMS = [("loop", "none"), ("loop", "trace"), ("stacked", "none"), ("stacked", "trace"), ("workers", "none")]
METHODS = [fl.FedAvg, fl.Scaffold, fl.FedNTD, fl.PFedSD, fl.FedCurv, fl.MOON, fl.FedDyn, fl.APFLNi]


@pytest.mark.some(1)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form))
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_a_head_upon_a_frozen_body_trains_as_upon_the_bodys_features(method: Any, form: tuple[str, str]) -> None:
    torch.manual_seed(0)
    net = Net()
    net.body.requires_grad_(False)
    engine, compilation = form
    found = [
        run(method(local=LOCAL), parts, Model(module, name="net"), engine, compilation=compilation)
        for parts, module in ((clients(), net), (clients(net), Head(net)))
    ]
    for a, b in zip(*(tree.leaves(history.server) for history in found), strict=True):
        assert torch.equal(a, b)
    first, second = (history.metrics for history in found)
    assert [r["bytes_up"] for r in first[1:]] == [r["bytes_up"] for r in second[1:]]
    assert first[-1]["global_accuracy"] == second[-1]["global_accuracy"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:bf16 needs bf16 arithmetic")
def test_a_frozen_run_in_float64_and_with_autocast() -> None:
    for more in ({"dtype": "float64"}, {"bf16": True}):
        net = Net()
        net.body.requires_grad_(False)
        found = [
            run(fl.FedAvg(local=LOCAL), parts, Model(module, name="net"), **more)
            for parts, module in ((clients(), net), (clients(net), Head(net)))
        ]
        for a, b in zip(*(tree.leaves(history.server) for history in found), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0 if "dtype" in more else 0.02)


class Inside(Net):
    """BatchNorm in the body too, with statistics that training would move."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(6)
        norm.running_mean, norm.running_var = torch.arange(6.0) / 4, torch.tensor([0.25, 1, 4, 0.25, 1, 4])
        self.body.insert(1, norm)


@pytest.mark.some(4)
@pytest.mark.parametrize(("engine", "compilation"), FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_norm_inside_of_the_frozen_part_and_outside(dtype: str, engine: str, compilation: str) -> None:
    """Inside it keeps its statistics, outside it moves them; so does the head alone upon the body's features."""
    torch.manual_seed(0)
    net = Inside()
    net.body.requires_grad_(False)
    more = {"compilation": compilation, "dtype": dtype}
    found = [
        run(fl.FedAvg(local=LOCAL), parts, Model(module, name="net"), engine, **more)
        for parts, module in ((clients(), net), (clients(net), Head(net)))
    ]
    server = found[0].server["net"]
    assert server.buffers.keys() == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert server.buffers["norm.running_mean"].any()
    assert torch.equal(net.body[1].running_mean, torch.arange(6.0) / 4)
    for a, b in zip(*(tree.leaves(history.server) for history in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False))
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.register_buffer("ids", torch.arange(4))
        self.register_buffer("mask", torch.ones(2, 2, dtype=torch.bool))
        self.register_buffer("rotary", torch.rand(3), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)) * self.rotary + self.centre)  # type: ignore[no-any-return]


def test_which_tensors_belong_to_the_network() -> None:
    model = Model(Tables, frozen="body")
    weights = model.init(0)
    assert [*weights.params] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert [*weights.buffers] == [
        "seen", "centre", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    ]  # fmt: skip
    frozen = model.bind(0).frozen
    assert {"ids", "mask", "rotary", "body.0.weight", "body.1.running_var", "body.2.running_mean"} <= set(frozen)
    assert (model.num_params, model.num_frozen) == (14, 18)
    assert model.fits(weights)
    assert not model.fits(fl.Weights({**weights.params, "body.0.bias": torch.ones(3)}, weights.buffers))


def test_frozen_modules_stay_in_evaluation_mode_and_others_do_not() -> None:
    module = Tables()
    module.body[1].running_mean.fill_(5)
    model = Model(module, frozen="body")
    x = torch.randn(6, 3)
    batch = Batch(x=x, y=torch.zeros(6).long(), mask=torch.ones(6).bool(), key=torch.tensor(1), full=True)
    _, moved = model.train(model.init(0), batch)
    assert set(moved) == set(model.buffers)
    assert not torch.equal(moved["norm.running_mean"], model.init(0).buffers["norm.running_mean"])
    assert torch.equal(model.bind(0).frozen["body.1.running_mean"], torch.full((3,), 5.0))


def test_frozen_values_of_a_function_follow_the_seed_and_are_there_once() -> None:
    model = Model(Net, frozen="body")
    with pytest.raises(SettingError, match=r"the frozen tensors of Net were drawn by a run.*history\.module\(\)"):
        model(model.init(0), torch.ones(2, 4))
    assert model.bind(3) is model.bind(3)
    assert model.bind(3) is not model.bind(4)
    assert model.bind(3, torch.float64).frozen["body.0.weight"].dtype == torch.float64
    whole = Model(Net).init(3)
    torch.testing.assert_close(model.bind(3)(model.init(3), torch.ones(2, 4)), Model(Net)(whole, torch.ones(2, 4)))
    plain = Model(Net)
    assert plain.bind(3) is plain
    drawn = Model(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), frozen="0")
    assert torch.equal(drawn.bind(3).frozen["0.weight"], drawn.whole(3)["0.weight"])
    assert not torch.equal(drawn.bind(3).frozen["0.weight"], drawn.bind(4).frozen["0.weight"])
    gc.collect()
    assert not model._bound  # nobody keeps what nobody uses


def test_a_network_without_a_part_to_train_is_refused() -> None:
    with pytest.raises(SettingError, match="Net has none: leave some of them out of what is frozen"):
        Model(Net, frozen="*")
    with pytest.raises(SettingError, match="'bdy' matches no tensor of Net"):
        Model(Net, frozen="bdy")


def run_with(algorithm: Any, frozen: str = "body") -> fl.History:
    return run(algorithm, federation(), Model(Net(), name="net", frozen=frozen))


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a list of words": (lambda: Model(Net, frozen=["body"]), r"frozen is words in one text, .*, got \['body'\]: join"),  # type: ignore[arg-type]
    "factors": (lambda: Model(Net, factors="first"), "factors must be one of second, both, got 'first': train one"),  # type: ignore[arg-type]
    "the last none": (lambda: Model(Net, frozen="* !last:0"), "the last N layers are written last:N with N >= 1, got"),
    "shared": (
        lambda: run_with(fl.FedAvg(local=LOCAL, shared="* !body")),
        "'body' matches frozen tensors of net alone: write patterns of its layers, norm, head, a kind of layers",
    ),
    "personal": (
        lambda: run_with(fl.FedPer(local=LOCAL, personal_layers="norm"), "body norm"),
        "'norm' matches frozen tensors of net alone: write patterns of its layers, head, a kind of layers",
    ),
    "nothing to decompose": (
        lambda: run_with(fl.APFLNi(local=LOCAL), "* !norm"),
        "APFLNi decomposes linear and convolutional layers, and net has none: give it a network that has, or train it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(name: str) -> None:
    made, words = MISTAKES[name]
    with pytest.raises(SettingError, match=words):
        made()


def test_a_pattern_that_misses_normalisation_layers_is_warned_of() -> None:
    class Two(Net):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.down = nn.BatchNorm1d(6), nn.Sequential(nn.BatchNorm1d(6))

    words = r"'bn\*' matches 1 of the 3 BatchNorm1d layers of net, without norm, down\.0: write 'norm' for all norm"
    with pytest.warns(SettingWarning, match=words):
        Model(Two, name="net", frozen="body bn*")


def two_groups(start: fl.Weights, only: set[str], batches: Any, loss: Any) -> dict[str, Tensor]:
    """Plain PyTorch: an optimiser for a part of the parameters."""
    params = {n: p.clone().requires_grad_(n in only) for n, p in start.params.items()}
    optimiser = torch.optim.SGD([p for n, p in params.items() if n in only], lr=0.1, momentum=0.9, weight_decay=1e-2)
    for x, y in batches:
        optimiser.zero_grad()
        loss(params, x, y).backward()
        optimiser.step()
    return {n: p.detach() for n, p in params.items()}


def pulled(g: Any, w: Any) -> Any:
    """Pull towards 0; the gradient of what is not trained is 0, so the first factor is 1."""
    return (1 + g["2.weight"].abs().sum()) * g + 0.5 * w


class Phases(fl.FedAvg):
    """Trains the head, then the body: two phases as a user writes them."""

    @fl.on_client
    def local_update(self, client: fl.Client[Any], sent: fl.Weights) -> Any:
        w = self.received(client, sent)
        w = self.train(client, w, only="last:1")
        w = self.train(client, w, w.params, loss=None, only="0", correct=pulled)
        return self.answer(client, w)


@pytest.mark.parametrize(("engine", "compilation"), FORMS)
def test_training_a_part_is_that_of_plain_pytorch(engine: str, compilation: str) -> None:
    parts, seen = federation(clients=3), []

    def plain(k: int, start: fl.Weights) -> dict[str, Tensor]:
        def loss(p: Any, x: Tensor, y: Tensor) -> Tensor:
            z = torch.tanh(x.double() @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T + p["2.bias"]
            return nn.functional.cross_entropy(z, y)

        rows = torch.as_tensor(parts.partition.rows(k))
        x, y = parts.train.x[rows], parts.train.y[rows]
        w = two_groups(start, {"2.weight", "2.bias"}, [(x, y)], loss)
        then = fl.Weights(w)

        def corrected(p: Any, x: Tensor, y: Tensor) -> Tensor:
            pull = sum((p[n] * 0.5 * then.params[n]).sum() for n in ("0.weight", "0.bias"))
            return loss(p, x, y) + pull

        return two_groups(then, {"0.weight", "0.bias"}, [(x, y)], corrected)

    local = fl.Local(epochs=1, batch_size=100, optimiser=fl.SGD(lr=0.1, momentum=0.9, weight_decay=1e-2))
    model = Model(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), name="net")
    settings = fl.RunSettings(rounds=1, cohort_size=3, engine=engine, compilation=compilation, dtype="float64")
    history = fl.run(Phases(local=local), parts, model, settings)
    from fedloom.core.random import derive

    start = tree.cast(model.init(derive(0, "init")), dtype=torch.float64)
    sizes = parts.partition.sizes
    for k in range(3):
        seen.append(plain(k, start))
    for name, p in history.server["net"].params.items():
        mean = sum(float(n) * w[name] for n, w in zip(sizes, seen, strict=True)) / float(sizes.sum())
        torch.testing.assert_close(p, mean, rtol=1e-12, atol=1e-14)


def test_the_rest_of_a_network_stays_to_the_last_bit() -> None:
    class HeadOnly(fl.FedAvg):
        @fl.on_client
        def local_update(self, client: fl.Client[Any], sent: fl.Weights) -> Any:
            return self.answer(client, self.train(client, self.received(client, sent), only="last:1"))

    model = Model(Net(), name="net")
    end, start = run(HeadOnly(local=LOCAL), federation(), model).server["net"], model.init(0)
    for name in start.params:
        assert torch.equal(end.params[name], start.params[name]) is (not name.startswith("head"))


def test_a_word_of_only_that_chooses_nothing_is_refused() -> None:
    class Wrong(fl.FedAvg):
        @fl.on_client
        def local_update(self, client: fl.Client[Any], sent: fl.Weights) -> Any:
            return self.answer(client, self.train(client, self.received(client, sent), only="haed"))

    with pytest.raises(SettingError, match="'haed' matches no tensor of net"):
        run(Wrong(local=LOCAL), federation(), Model(Net(), name="net"))


def test_a_forward_that_writes_on_frozen_tensors_is_refused_before_the_run() -> None:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("histogram", torch.zeros(3, dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.histogram += 1
            return super().forward(x)

    with pytest.raises(SettingError, match=r"share the frozen tensors of a network, and net writes on 'histogram'"):
        run(fl.FedAvg(local=LOCAL), federation(), Model(Counts(), name="net"))


def test_images_are_compared_with_the_statistics_of_frozen_layers() -> None:
    """DENSE's L_BN, of a network whose BatchNorm is trained and of one whose BatchNorm is frozen."""
    x = torch.randn(6, 4)
    whole, frozen = (Model(Net(), frozen=words) for words in ("", "norm"))
    expected = statistics_distance(whole, whole.init(0), x)[1]
    assert torch.equal(statistics_distance(frozen, frozen.init(0), x)[1], expected)
    assert expected > 0


def test_constants_of_a_function_need_no_seed_unless_they_are_random() -> None:
    class Ordered(nn.Module):
        def __init__(self, random: bool) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)
            self.register_buffer("order", torch.randperm(3) if random else torch.arange(3).flip(0))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x[:, self.order])  # type: ignore[no-any-return]

    plain, drawn = Model(lambda: Ordered(random=False)), Model(lambda: Ordered(random=True))
    assert plain(plain.init(0), torch.ones(2, 3)).shape == (2, 2)
    with pytest.raises(SettingError, match="were drawn by a run"):
        [Model(lambda: Ordered(random=True)).frozen for _ in range(2)]
    assert torch.equal(drawn.bind(5).frozen["order"], drawn.bind(5).frozen["order"])
