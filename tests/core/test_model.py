"""Models as pure functions: padding, dropout, batch normalisation, features and moments."""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

import fedloom as fl
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.model import Model
from fedloom.core.network_checks import check_passes
from fedloom.core.random import fold_in, uniform
from fedloom.core.types import Weights, replace
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.evaluate import classify
from small import clients_of
from tiny import federation


def batch(x: Tensor, padding: int = 0, key: int = 7) -> Batch:
    """A batch of these rows, followed by rows of padding that are copies of the first."""
    mask = torch.arange(len(x) + padding) < len(x)
    x = torch.cat([x, x[:1].expand(padding, *x.shape[1:])])
    return Batch(x=x, y=torch.zeros(len(x), dtype=torch.int64), mask=mask, key=torch.tensor(key), full=padding == 0)


class Norms(nn.Module):
    """BatchNorm over features or over pixels, twice the same layer."""

    def __init__(self, images: bool, affine: bool = True) -> None:
        super().__init__()
        kind = nn.BatchNorm2d if images else nn.BatchNorm1d
        self.first, self.second = kind(3, momentum=0.3, affine=affine), kind(3, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(torch.tanh(self.first(x)) + x)))


def rows(n: int, images: bool, seed: int = 0) -> Tensor:
    shape = (n, 3, 4, 2) if images else (n, 3)
    return torch.from_numpy(np.random.default_rng(seed).normal(1.0, 2.0, size=shape))


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm_is_that_of_torch_on_the_real_rows(images: bool, affine: bool, padding: int) -> None:
    module = Norms(images, affine).double()
    model = Model(module)
    weights, x = model.init(0, torch.float64), rows(5, images)
    rng = torch.Generator().manual_seed(3)  # scales and offsets of 1 and 0 would hide that one is left out
    params = {n: torch.rand(p.shape, generator=rng, dtype=p.dtype) for n, p in weights.params.items()}
    weights = Weights(params=params, buffers=weights.buffers)
    module.load_state_dict({**params, **weights.buffers})
    for step in range(3):
        theirs = module.train()(rows(5, images, step))
        ours, buffers = model.train(weights, batch(rows(5, images, step), padding))
        np.testing.assert_allclose(ours[:5].detach(), theirs.detach(), rtol=1e-12, atol=1e-12)
        weights = Weights(params=weights.params, buffers=buffers)
    for name, value in module.named_buffers():
        np.testing.assert_allclose(weights.buffers[name], value, rtol=1e-12, err_msg=name)
    assert int(weights.buffers["first.num_batches_tracked"]) == 6  # the layer runs twice a pass
    np.testing.assert_allclose(model(weights, x), module.eval()(x).detach(), rtol=1e-12)


def test_batch_norm_gradients_ignore_padding() -> None:
    module = Norms(False).double()
    model, x = Model(module), rows(5, False)
    weights = model.init(0, torch.float64)
    grads = []
    for padding in (0, 4):
        params = {n: p.clone().requires_grad_() for n, p in weights.params.items()}
        b = batch(x, padding)
        logits, _ = model.train(Weights(params=params, buffers=weights.buffers), b)
        grads.append(torch.autograd.grad(b.mean(logits.square().sum(-1)), list(params.values())))
    for plain, padded in zip(*grads, strict=True):
        np.testing.assert_allclose(plain, padded, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("pixels", [False, True], ids=["features", "one pixel"])
def test_one_value_a_channel_leaves_running_statistics_alone(pixels: bool, padding: int) -> None:
    """It has no variance; after it a batch of five moves them as if it were the first."""
    model = Model(Norms(pixels))
    weights, one = model.init(0, torch.float64), rows(1, False, 1)
    five = batch(rows(5, pixels))
    logits, buffers = model.train(weights, batch(one[..., None, None] if pixels else one, padding))
    assert bool(torch.isfinite(logits).all())
    assert {n for n, b in buffers.items() if torch.equal(b, weights.buffers[n])} == set(weights.buffers)
    later, first = (model.train(Weights(weights.params, b), five)[1] for b in (buffers, weights.buffers))
    assert all(torch.equal(b, first[n]) and not torch.equal(b, weights.buffers[n]) for n, b in later.items())


def test_one_example_with_pixels_is_measured_as_in_torch() -> None:
    module = Norms(True).double()
    model = Model(module)
    _, buffers = model.train(model.init(0, torch.float64), batch(rows(1, True), 2))
    module.train()(rows(1, True))
    for name, value in module.named_buffers():
        np.testing.assert_allclose(buffers[name], value, rtol=1e-12, err_msg=name)


def test_a_cumulative_mean_does_not_count_what_is_not_measured() -> None:
    module = nn.BatchNorm1d(3, momentum=None).double()
    model = Model(module)
    weights = model.init(0, torch.float64)
    for seed, n in enumerate((1, 5, 1, 4)):
        weights = Weights(weights.params, model.train(weights, batch(rows(n, False, seed), 2))[1])
        if n > 1:
            module.train()(rows(n, False, seed))
    for name, value in module.named_buffers():
        np.testing.assert_allclose(weights.buffers[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_a_last_batch_of_one_is_not_measured_on_any_engine(engine: Any, compilation: str) -> None:
    """Clients of 9, 8, 5 and 6 examples in batches of 4: one has a batch of one where others have four, two or none."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)), rng.integers(2, size=n)) for n in (9, 8, 5, 6)]
    model = Model(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), name="net")
    local = fl.Local(epochs=1, batch_size=4, optimiser=fl.SGD(lr=0.1))
    run = engine(
        clients_of(data, model=model, num_classes=2), fl.LocalOnly(local=local), Options(compilation=compilation)
    )
    run.round(run.init(), range(4), 0)
    for k, (x, _) in enumerate(data):
        module = nn.BatchNorm1d(3).double()
        for part in torch.from_numpy(x).split(4):
            if len(part) > 1:
                module(part)
        for name, value in module.named_buffers():
            np.testing.assert_allclose(run.states[k].buffers[f"0.{name}"], value, rtol=1e-12, err_msg=name)


class Moves(nn.Module):
    """Buffers that a forward assigns: a count of batches, a mean of weights, of a layer within; one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2)
        self.body.register_buffer("moving", torch.zeros(3))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.register_buffer("m", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.training:
            self.n = self.n + 1
            self.body.moving = 0.9 * self.body.moving + 0.1 * self.body[0].weight.detach().sum(1)
            self.m += 1
        return self.head(h - self.body.moving * self.n)


@pytest.mark.some(1)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_buffers_that_a_forward_assigns_are_those_of_torch(engine: Any, compilation: str) -> None:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)), rng.integers(2, size=n)) for n in (9, 8, 5, 6)]
    model = Model(Moves, name="net")
    local = fl.Local(epochs=2, batch_size=4, optimiser=fl.SGD(lr=0.1))
    people = clients_of(data, model=model, num_classes=2)
    run = engine(people, fl.LocalOnly(local=local), Options(compilation=compilation))
    server, start = run.init(), run.runtime.initial("net")
    for t in range(2):
        server = run.round(server, range(4), t)
    for k, (x, y) in enumerate(data):
        module = Moves().double().train()
        module.load_state_dict({**start.params, **start.buffers})
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2 * 2):
            for part, labels in zip(torch.from_numpy(x).split(4), torch.from_numpy(y).split(4), strict=True):
                optimiser.zero_grad()
                F.cross_entropy(module(part), labels).backward()
                optimiser.step()
        for name, value in module.state_dict().items():
            ours = {**run.states[k].params, **run.states[k].buffers}[name]
            np.testing.assert_allclose(ours, value, rtol=1e-9, err_msg=f"{name} of client {k}")


def test_buffers_are_kept_in_every_pass_of_training() -> None:
    model = Model(Moves())
    weights, x = model.init(0), rows(4, False).float()
    plain = model.train(weights, batch(x))[1]
    assert {n: int(b.sum()) for n, b in plain.items() if n != "body.moving"} == {"n": 1, "m": 1}
    assert not any(b.requires_grad for b in plain.values())
    for other in (
        model.train_features(weights, batch(x), "body")[1],
        model.train_calling(weights, batch(x), lambda network, x: network(x))[1],
    ):
        assert all(torch.equal(b, plain[name]) for name, b in other.items())
    model(Weights(weights.params, plain), x)  # evaluation moves none
    assert not any(b.any() for b in weights.buffers.values())


def test_a_buffer_that_is_computed_from_weights_holds_no_graph() -> None:
    class Means(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = self.weight.mean()
            return super().forward(x)

    model = Model(Means())
    weights = model.init(0)
    for p in weights.params.values():
        p.requires_grad_()
    mean = model.train(weights, batch(rows(4, False).float()))[1]["mean"]
    assert torch.equal(mean, weights.params["weight"].detach().mean())
    assert not mean.requires_grad


def test_what_a_normalisation_has_moved_may_be_assigned_before() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.norm.running_mean = self.norm.running_mean / 2
            return self.norm(x)

    module = Again().double()
    module.norm.running_mean += 1
    model = Model(module)
    _, ours = model.train(model.init(0, torch.float64), batch(rows(5, False)))
    module.train()(rows(5, False))
    for name, value in module.named_buffers():
        np.testing.assert_allclose(ours[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("flat", ["flatten", "view"])
def test_a_buffer_of_pixels_is_kept_in_either_layout(flat: str) -> None:
    class Centred(Viewing):
        def __init__(self) -> None:
            super().__init__(1, flat)
            self.register_buffer("written", torch.zeros(1, 1, 5, 5))
            self.register_buffer("assigned", torch.zeros(1, 1, 5, 5))

        def forward(self, x: Tensor) -> Tensor:
            self.written.add_(x[:1])
            self.assigned = self.assigned + x[:1]
            return super().forward(x)

    model, x = Model(Centred()), torch.rand(3, 1, 5, 5)
    _, after = model.train(model.init(0), batch(x))
    assert torch.equal(after["written"], x[:1])
    assert torch.equal(after["assigned"], x[:1])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda x: x.mean(0), r"assigns torch.float32 \[4\] to 'm', which was made as torch.float32 \[\]"),
        (lambda x: x.mean().double(), r"assigns torch.float64 \[\] to 'm'"),
    ],
    ids=["shape", "dtype"],
)
def test_a_buffer_that_becomes_another_is_refused(value: Any, said: str) -> None:
    class Becomes(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.register_buffer("m", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.m = value(x)
            return super().forward(x)

    model = Model(Becomes())
    with pytest.raises(SettingError, match=f"a buffer keeps its shape and dtype, and Becomes {said}.*: register it as"):
        model.train(model.init(0), batch(torch.ones(3, 4)))


def test_train_leaves_its_arguments_alone() -> None:
    model = Model(Norms(False))
    weights = model.init(0)
    before = tree.map_tree(torch.clone, weights)
    model.train(weights, batch(rows(5, False).float()))
    for a, b in zip(tree.leaves(weights), tree.leaves(before), strict=True):
        assert torch.equal(a, b)


def test_stacked_training_is_that_of_each() -> None:
    model = Model(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    )
    weights = [model.init(seed, torch.float64) for seed in range(3)]
    batches = [batch(rows(n, False, n), 6 - n, key=n) for n in (4, 6, 1)]
    dims: Any = Batch(x=0, y=0, mask=0, key=0, progress=0)  # type: ignore[arg-type]
    together = tree.stack([Batch(x=b.x, y=b.y, mask=b.mask, key=b.key) for b in batches])
    logits, buffers = vmap(model.train, in_dims=(0, dims))(tree.stack(weights), together)
    for k, n in enumerate((4, 6, 1)):
        alone, moved = model.train(weights[k], batch(rows(n, False, n), key=n))
        np.testing.assert_allclose(logits[k, :n].detach(), alone.detach(), rtol=1e-10, atol=1e-12)
        for name, value in moved.items():
            np.testing.assert_allclose(buffers[name][k], value, rtol=1e-10)


class Drops(nn.Module):
    """Two dropouts and nothing to learn from."""

    def __init__(self, kind: Any = nn.Dropout, p: float = 0.3) -> None:
        super().__init__()
        self.one, self.two = kind(p), kind(p)
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.one(x), self.two(x)]) * self.w


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.Dropout, (40, 50)), (nn.Dropout1d, (20, 50, 3)), (nn.Dropout2d, (20, 50, 2, 2))]
)
def test_dropout(kind: Any, shape: tuple[int, ...]) -> None:
    model, x = Model(Drops(kind)), torch.ones(shape)
    weights = model.init(0)
    first, _ = model.train(weights, batch(x))
    again, _ = model.train(weights, batch(x))
    padded, _ = model.train(weights, batch(x, padding=5))
    other, _ = model.train(weights, batch(x, key=8))
    assert torch.equal(first, again)
    assert torch.equal(first, padded[:, : len(x)])
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])  # every site its own bits
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert torch.equal(model(weights, x), torch.stack([x, x]))  # nothing in evaluation mode
    kept = (first != 0).double()
    if kind is not nn.Dropout:  # whole channels
        assert bool(((kept.flatten(3).mean(-1) == 0) | (kept.flatten(3).mean(-1) == 1)).all())
        kept = kept.flatten(3)[..., 0]
    assert float(kept.mean()) == pytest.approx(0.7, abs=4 * (0.21 / kept.numel()) ** 0.5)


@pytest.mark.parametrize(("p", "value"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_at_its_ends(p: float, value: float) -> None:
    model = Model(Drops(p=p))
    out, _ = model.train(model.init(0), batch(torch.ones(4, 4)))
    assert bool((out == value).all())


def test_dropout_bits_look_independent() -> None:
    """Of neighbours in a row, of rows, of sites, of keys: agreement as of fair coins."""
    keys = [fold_in(torch.tensor(123456789 << 8), step) for step in range(3)]
    draws = torch.stack([uniform(k, site, torch.Size((64, 64))) for k in keys for site in range(3)])
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    bits = (draws >= 0.5).double() - 0.5
    n = bits[0].numel()
    flat = bits.flatten(1)
    correlation = flat @ flat.T / n * 4 - torch.eye(len(flat))
    assert float(correlation.abs().max()) < 5 / n**0.5
    for lag in (1, 2, 63, 64, 128):
        assert abs(float((flat[:, lag:] * flat[:, :-lag]).mean() * 4)) < 5 / flat[:, lag:].numel() ** 0.5
    assert float(draws.mean()) == pytest.approx(0.5, abs=5 * (1 / 12 / draws.numel()) ** 0.5)


class Draws(nn.Module):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.w, self.draw = nn.Parameter(torch.ones(())), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x) * self.w


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: x + torch.rand(x.shape),
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: F.alpha_dropout(x, 0.5, training=True),
        lambda x: F.gumbel_softmax(x),
        lambda x: x + torch.empty_like(x).normal_(),
    ],
)
def test_random_numbers_inside_a_model_are_refused(draw: Any) -> None:
    model = Model(Draws(draw))
    with pytest.raises(SettingError, match=r"draws random numbers.*nn\.Dropout"):
        model.train(model.init(0), batch(torch.ones(4, 4)))


@pytest.mark.parametrize(
    "layer",
    [
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_size=1),
    ],
)
def test_layers_that_draw_out_of_sight_are_refused(layer: nn.Module) -> None:
    model = Model(nn.Sequential(layer, nn.Linear(4, 4)))
    with pytest.raises(SettingError, match=r"draws random numbers.*layer's dropout to 0"):
        model.train(model.init(0), batch(torch.ones(4, 4, 4)))


def test_attention_without_dropout_is_allowed() -> None:
    model = Model(Draws(lambda x: F.scaled_dot_product_attention(x, x, x)))
    logits, _ = model.train(model.init(0), batch(torch.ones(4, 4)))
    assert logits.shape == (4, 4)


def test_init_follows_the_seed_and_leaves_the_global_state_alone() -> None:
    before = torch.random.get_rng_state()
    model = Model(lambda: nn.Linear(3, 2))
    one, same, other = model.init(1), model.init(1), model.init(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.params["weight"], same.params["weight"])
    assert not torch.equal(one.params["weight"], other.params["weight"])
    assert model.init(1, torch.float64).params["weight"].dtype == torch.float64


def noise(draw: Any) -> Any:
    """A maker of a network whose weights are drawn by `draw`, of a shape."""

    def make() -> nn.Module:
        module = nn.Linear(3, 2)
        with torch.no_grad():
            module.weight.copy_(torch.as_tensor(draw((2, 3))))
        return module

    return make


GLOBAL = {
    "torch": torch.rand,
    "numpy": lambda shape: np.random.standard_normal(shape),
    "random": lambda shape: [[random.gauss(0, 1) for _ in range(shape[1])] for _ in range(shape[0])],
    "a generator seeded by numpy's": lambda shape: np.random.default_rng(np.random.randint(2**31)).random(shape),
}
OWN = {
    "unseeded": lambda shape: np.random.default_rng().random(shape),
    "of torch": lambda shape: torch.rand(shape, generator=SHARED),
    "the system's": lambda shape: np.frombuffer(os.urandom(shape[0] * shape[1]), np.uint8).reshape(shape) / 255,
    "the clock": lambda shape: np.full(shape, time.perf_counter_ns() % 10**6),
    "a count": lambda shape: np.full(shape, float(next(COUNT))),
}
SHARED, COUNT = torch.Generator().manual_seed(0), itertools.count()


def generators() -> Any:
    legacy: Any = np.random.get_state()
    return random.getstate(), legacy[1].tolist(), legacy[2:], torch.random.get_rng_state().tolist()


@pytest.mark.parametrize("kind", GLOBAL)
def test_init_follows_the_seed_whatever_draws_and_generators_stay(kind: str) -> None:
    random.gauss(0, 1), np.random.standard_normal()  # they keep a second number for the next call
    before = generators()
    one, again, other = (Model(noise(GLOBAL[kind])).init(seed).params["weight"] for seed in (2**40 + 7, 2**40 + 7, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert before == generators()


def test_generators_stay_where_a_network_cannot_be_made() -> None:
    random.random(), np.random.random()  # where no seed puts them
    before = generators()
    with pytest.raises(ZeroDivisionError):
        Model(noise(lambda shape: 1 / 0))
    assert before == generators()


@pytest.mark.parametrize("kind", OWN)
def test_weights_that_follow_no_seed_are_refused(kind: str) -> None:
    with pytest.raises(
        SettingError, match=r"makes the same one from the same seed, got make, which makes another 'weight' when it is "
        r"called again: draw from the global generators of torch, numpy or random"
    ):  # fmt: skip
        Model(noise(OWN[kind]))


def test_weights_that_follow_no_seed_are_refused_before_a_run() -> None:
    with pytest.raises(SettingError, match="makes the same one from the same seed"):
        fl.run(fl.FedAvg(), federation(), noise(OWN["unseeded"]), fl.RunSettings(rounds=1, cohort_size=2))


def test_constants_of_a_network_and_missing_numbers_are_the_same_again() -> None:
    def make() -> nn.Module:
        module = nn.Linear(3, 2)
        module.register_buffer("gaps", torch.tensor([float("nan"), 1.0]), persistent=False)
        return module

    assert Model(make).init(0).params["weight"].shape == (2, 3)

    def moving() -> nn.Module:
        module = make()
        module.gaps[1] = next(COUNT)  # type: ignore[index,operator]
        return module

    with pytest.raises(SettingError, match="makes another 'gaps'"):
        Model(moving)


def test_a_module_keeps_its_own_weights() -> None:
    module = nn.Linear(3, 2)
    model = Model(module)
    start = model.init(0)
    assert torch.equal(start.params["weight"], module.weight)
    with torch.no_grad():
        module.weight.zero_()
        start.params["weight"].zero_()
    assert bool(model.init(1).params["weight"].any())


def test_a_model_needs_parameters() -> None:
    with pytest.raises(ValueError, match="needs parameters to train, ReLU has none"):
        Model(nn.ReLU())


class WithFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.drop(torch.tanh(self.body(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def test_features() -> None:
    model, x = Model(WithFeatures), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    weights = model.init(0)
    z = model.features(weights, x)
    assert z.shape == (5, 4)
    assert torch.allclose(F.linear(z, weights.params["head.weight"], weights.params["head.bias"]), model(weights, x))
    with pytest.raises(TypeError, match=r"has no method features\(x\)"):
        Model(nn.Linear(3, 2)).features(Model(nn.Linear(3, 2)).init(0), x)


@pytest.mark.parametrize("name", ["features", "drop"])
def test_features_of_the_pass_that_trains(name: str) -> None:
    """The same dropout bits as in `train`: what the method or layer returns, not a second pass."""
    model, x = Model(WithFeatures), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    weights = model.init(0)
    (logits, z), _ = model.train_features(weights, batch(x), name)
    assert torch.equal(logits, model.train(weights, batch(x))[0])
    assert torch.equal(logits, F.linear(z, weights.params["head.weight"], weights.params["head.bias"]))
    assert 0 < int((z == 0).sum()) < z.numel()
    assert torch.equal(model.features(weights, x, name), model.features(weights, x))
    (again, _), _ = model.train_features(weights, batch(x), "body")  # nothing stays tapped
    assert torch.equal(again, logits)


def test_features_that_a_layer_is_given() -> None:
    """Of the pass that trains, too; the layer may write on its input, and the network may be that layer alone."""
    model, x = Model(WithFeatures), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    weights = model.init(0)
    assert model.offers("input:head")
    assert not model.offers("input:tail")
    assert torch.equal(model.features(weights, x, "input:head"), model.features(weights, x))
    (logits, z), _ = model.train_features(weights, batch(x), "input:head")
    assert torch.equal(logits, F.linear(z, weights.params["head.weight"], weights.params["head.bias"]))
    inplace = Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)))
    assert inplace.features(inplace.init(0), x, "input:1").min() < 0
    alone = Model(nn.Linear(3, 2))
    assert torch.equal(alone.features(alone.init(0), x, "input:"), x)
    with pytest.raises(TypeError, match=r"no method input:tail\(x\) and no layer 'input:tail'"):
        model.features(weights, x, "input:tail")


def test_features_are_what_a_layer_returns_though_the_next_one_writes_over_it() -> None:
    inplace, apart = (Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=i), nn.Linear(4, 2))) for i in (True, False))
    weights, x = inplace.init(0), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    z = inplace.features(weights, x, "0")
    assert z.min() < 0
    assert torch.equal(z, apart.features(weights, x, "0"))
    (_, trained), _ = inplace.train_features(weights, batch(x), "0")
    assert torch.equal(trained, z)


def test_features_of_layers() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(self.conv(x)).mean((2, 3)))

    nested = Model(nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), nn.Flatten(), nn.Linear(16, 2)))
    assert nested.layers == ("0", "0.0", "0.1", "1", "2")
    assert nested.offers("0.1")
    assert not nested.offers("features")
    weights, x = nested.init(0), torch.ones(5, 3, 2, 2)
    assert torch.equal(nested.features(weights, x, "0.1"), nested.features(weights, x, "1"))  # flattened
    model = Model(Twice)
    with pytest.raises(TypeError, match=r"one call of 'conv'.*Twice calls it 2 times"):
        model.features(model.init(0), x, "conv")
    with pytest.raises(TypeError, match=r"no method missing\(x\) and no layer 'missing'"):
        model.features(model.init(0), x, "missing")
    with pytest.raises(TypeError, match=r"one call of 'extra_repr'.*Twice calls it 0 times"):
        model.features(model.init(0), x, "extra_repr")


def test_moments_are_those_of_the_inputs_of_each_batch_norm() -> None:
    model = Model(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4)))
    weights, x = model.init(0, torch.float64), rows(6, False)
    logits, moments = model.moments(weights, x)
    assert torch.equal(logits, model(weights, x))
    assert list(moments) == ["1", "3"]
    z = F.linear(x, weights.params["0.weight"], weights.params["0.bias"])
    mean, var = moments["1"]
    np.testing.assert_allclose(mean, z.mean(0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(var, z.var(0, correction=0), rtol=1e-12)


def test_shared_parameters_are_trained_as_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.tanh(self.one(x)))

    model, x = Model(Tied), torch.ones(2, 3)
    weights = model.init(0)
    assert sorted(weights.params) == ["one.bias", "one.weight", "two.bias"]
    zeroed = Weights(params={n: torch.zeros_like(p) for n, p in weights.params.items()})
    assert not bool(model(zeroed, x).any())
    assert not bool(model.train(zeroed, batch(x))[0].any())


def test_a_network_moves_no_generator_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(*_: Any) -> None:
        raise AssertionError("a generator of the GPU is seeded")

    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, moved)
    monkeypatch.setattr(torch, "manual_seed", moved)
    Model(lambda: nn.Linear(3, 2)).init(1)


def test_a_function_that_makes_a_network_makes_it_on_the_cpu() -> None:
    with pytest.raises(SettingError, match=r"on the CPU, where the run's seed governs its weights, got meta"):
        Model(lambda: nn.Linear(3, 2, device="meta"))


def test_init_is_that_of_float32_whatever_the_default() -> None:
    model = Model(lambda: nn.Linear(3, 2))
    want, before = model.init(1), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found, new = model.init(1), Model(lambda: nn.Linear(3, 2)).init(1)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)
    for other in (found, new):
        assert torch.equal(want.params["weight"], other.params["weight"])


class Attends(nn.Module):
    """Attention without a layer: its dropout is in one function."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.project, self.dropout = nn.Linear(4, 12), dropout

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, x = self.project.weight, self.project.bias, x[None]
        one = torch.eye(4)
        return F.multi_head_attention_forward(
            x, x, x, 4, 2, weight, bias, None, None, False, self.dropout, one, None, self.training, need_weights=False
        )[0][0]


def ones(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.ones(3, 4, dtype=dtype), torch.full((3, 4), 2.0, dtype=dtype)


@pytest.mark.parametrize(
    "forward",
    [lambda x: x * random.random(), lambda x: x * np.random.rand(), lambda x: x.multinomial(4, True).float()],
    ids=["python", "numpy", "torch"],
)
def test_random_numbers_are_found_wherever_they_are_drawn(forward: Any) -> None:
    model = Model(Draws(forward))
    with pytest.raises(SettingError, match=r"The forward of Draws draws random numbers.*dropout to 0"):
        check_passes(model, ones, torch.float32)


class Encoder(nn.Module):
    """A layer that attends to 3 words of 4 numbers, with dropout inside attention and beside it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x, x, x)[0] if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        return self.head((z[0] if isinstance(z, tuple) else z).mean(1))


RANDOM_LAYERS = {
    "attention": lambda p: nn.MultiheadAttention(4, 2, dropout=p, batch_first=True),
    "encoder": lambda p: nn.TransformerEncoderLayer(4, 2, 8, dropout=p, batch_first=True),
    "lstm": lambda p: nn.LSTM(4, 2, num_layers=3, dropout=p, bidirectional=True, batch_first=True),
    "gru": lambda p: nn.GRU(4, 4, num_layers=2, dropout=p, batch_first=True),
    "rnn": lambda p: nn.RNN(4, 4, num_layers=2, dropout=p, bias=False, batch_first=True),
}


@pytest.mark.parametrize("layer", RANDOM_LAYERS)
def test_dropout_inside_a_layer_follows_the_key_of_the_client(layer: str) -> None:
    model, x = Model(Encoder(RANDOM_LAYERS[layer](0.4)).double()), torch.randn(5, 3, 4, dtype=torch.float64)
    weights, before = model.init(0, torch.float64), torch.get_rng_state()
    check_passes(model, lambda dtype: (x.to(dtype), 1 + x.to(dtype)), torch.float64)
    one, same, other = (model.train(weights, batch(x, key=key))[0] for key in (7, 7, 8))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    padded = model.train(weights, batch(x, padding=2))[0]
    torch.testing.assert_close(padded[:5], one, rtol=1e-12, atol=1e-14)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("layer", RANDOM_LAYERS)
def test_layers_whose_dropout_is_governed_compute_what_they_compute_in_torch(layer: str) -> None:
    """With hardly any dropout, p = 1e-12, what is left is PyTorch's own arithmetic without dropout."""
    given, plain = (Encoder(RANDOM_LAYERS[layer](p)).double() for p in (1e-12, 0.0))
    plain.load_state_dict(given.state_dict())
    model, x = Model(given), torch.randn(5, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(model.train(model.init(0, torch.float64), batch(x))[0], plain(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.eye(3).bool()}])
def test_attention_with_dropout_takes_the_arguments_of_torch(more: Any) -> None:
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    model = Model(Draws(lambda x: F.scaled_dot_product_attention(x, x + 1, x, dropout_p=1e-12, **more)))
    own = F.scaled_dot_product_attention(x, x + 1, x, **more)
    torch.testing.assert_close(model.train(model.init(0, torch.float64), batch(x))[0], own, rtol=1e-10, atol=1e-12)


def test_the_share_of_attention_that_is_dropped() -> None:
    p, n = 0.3, 200
    values = torch.eye(n, dtype=torch.float64).expand(4, n, n)  # so that the answer is the attention itself
    model = Model(Draws(lambda x: F.scaled_dot_product_attention(x * 0, x * 0, x, dropout_p=p)))
    kept = model.train(model.init(0, torch.float64), batch(values))[0]
    assert float((kept == 0).double().mean()) == pytest.approx(p, abs=0.01)
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept[kept != 0], 1 / n / (1 - p)))


def test_dropout_that_would_follow_the_padding_is_refused() -> None:
    model = Model(Draws(lambda x: F.dropout(x.T, 0.5, True).T))
    with pytest.raises(StackingError, match=r"needs its 7 examples in the first dimension, got \[4, 7\]"):
        model.train(model.init(0), batch(torch.ones(5, 4), padding=2))
    model.train(model.init(0), batch(torch.ones(5, 4)))


def test_dropout_of_a_packed_sequence_is_refused() -> None:
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.1, batch_first=True)
    packed = lambda x: nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 2), batch_first=True)  # noqa: E731

    class Packing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(packed(x))[1][0][-1]  # type: ignore[no-any-return]

    model = Model(Packing())
    with pytest.raises(SettingError, match="lstm of a packed sequence draws random numbers"):
        model.train(model.init(0), batch(torch.ones(3, 2, 4)))


def test_dropout_inside_a_function_is_governed() -> None:
    for dropout in (0.1, 0.0):
        model, before = Model(Attends(dropout)), torch.get_rng_state()
        check_passes(model, ones, torch.float32)
        assert torch.equal(torch.get_rng_state(), before)


def test_governed_dropout_is_no_draw() -> None:
    model = Model(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)))
    check_passes(model, ones, torch.float32)


class Viewing(nn.Module):
    """A convolution and a linear layer of what it returns, `flat` by view or by flatten; notes what it is given."""

    by_pixels: ClassVar[list[bool]] = []

    def __init__(self, channels: int, flat: str) -> None:
        super().__init__()
        self.conv, self.head, self.flat = nn.Conv2d(channels, 6, 3), nn.Linear(6 * 9, 4), flat

    def forward(self, x: Tensor) -> Tensor:
        self.by_pixels.append(x.stride(1) == 1)  # the channels of a pixel beside each other
        x = torch.relu(self.conv(x))
        return self.head(x.view(len(x), -1) if self.flat == "view" else x.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "workers", "stacked"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_forward_may_view_what_a_convolution_returns(channels: int, engine: Any) -> None:
    """Which channels_last, the layout of folds and evaluation, does not admit: the numbers are those of a flatten."""
    rng = np.random.default_rng(0)
    data = fl.from_arrays(rng.normal(size=(80, channels, 5, 5)).astype(np.float32), np.arange(80) % 4)
    federation = fl.federate(data, fl.iid(data.y, 4, seed=0), test=data)
    settings = fl.RunSettings(rounds=2, cohort_size=4, engine=engine, compilation="trace")
    local = fl.Local(epochs=2, batch_size=8, optimiser=fl.SGD(lr=0.1))
    viewed, flattened = (
        fl.run(fl.FedAvg(local=local), federation, lambda flat=flat: Viewing(channels, flat), settings)
        for flat in ("view", "flatten")
    )
    assert viewed.last("global_loss") == pytest.approx(flattened.last("global_loss"), abs=1e-6)
    assert viewed.last("personal_accuracy") == pytest.approx(flattened.last("personal_accuracy"), abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_network_without_convolutions_may_view_its_images(engine: Any) -> None:
    class Plain(nn.Module):
        def __init__(self, flat: str) -> None:
            super().__init__()
            self.head, self.flat = nn.Linear(75, 4), flat

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.view(x.size(0), -1) if self.flat == "view" else x.flatten(1))

    rng = np.random.default_rng(0)
    data = fl.from_arrays(rng.normal(size=(80, 3, 5, 5)).astype(np.float32), np.arange(80) % 4)
    federation = fl.federate(data, fl.iid(data.y, 4, seed=0), test=data)
    settings = fl.RunSettings(rounds=2, cohort_size=4, engine=engine, compilation="trace")
    losses = [
        fl.run(fl.FedAvg(), federation, lambda flat=flat: Plain(flat), settings).last("global_loss")
        for flat in ("view", "flatten")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_lie_by_pixels_wherever_the_forward_takes_them(channels: int) -> None:
    data = fl.from_arrays(np.zeros((9, channels, 5, 5), np.float32), np.arange(9) % 4)
    for flat, expected in (("flatten", True), ("view", False)):
        module = Viewing(channels, flat)
        model = Model(module)
        seen = module.by_pixels
        classify(model, model.init(0), fl.Classification(), data)
        assert seen[-1] is expected
        x = data.x.clone(memory_format=torch.channels_last)
        assert model(model.init(0), x).shape == (9, 4)
        assert seen[-1] is expected
        assert model.features(model.init(0), x, "conv").shape == (9, 54)
        assert model.moments(model.init(0), x)[0].shape == (9, 4)
        seen.clear()
        model.train(model.init(0), replace(batch(x), x=x))
        assert seen == [expected]


def test_the_last_recurrent_layer_drops_nothing() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.gru(x)[0].flatten(1)  # type: ignore[no-any-return]

    model = Model(Last())
    assert bool((model.train(model.init(0), batch(torch.randn(5, 3, 4)))[0] != 0).all())
