"""Networks that draw, keep or write: what reaches another client or another run is refused, what is honest is not."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.network_checks import alike, awake, check_passes
from fedloom.core.types import Params, Weights


class Net(nn.Module):
    """Two layers, and something between them: `between(self, h)` of h [B, 5]; `start(self)` before."""

    def __init__(self, between: Callable[[Any, Tensor], Any], start: Callable[[Any], Any] = lambda self: None) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(4, 5), nn.Linear(5, 3), between
        start(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self, torch.tanh(self.a(x))))  # type: ignore[no-any-return]


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 2, 4, generator=draw, dtype=dtype)
    return x, other


def check(network: nn.Module | Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> list[str]:
    return check_passes(Model(network), inputs, dtype)


# ---- what is kept from pass to pass

SHARED: list[Tensor] = []


def since(kept: Any, h: Tensor) -> Tensor:
    """What moved since the last mean in a list or a deque, which takes the new one."""
    past = kept[-1] if kept else torch.zeros(5)
    kept.append(h.detach().mean(0))
    return h - past


def in_a_dict(self: Any, h: Tensor) -> Tensor:
    past = self.memory.get("mean", 0.0)
    self.memory["mean"] = h.detach().mean(0)
    return h - past


def in_an_array(self: Any, h: Tensor) -> Tensor:
    past = torch.from_numpy(self.memory.copy()).to(h.dtype)
    self.memory[:] = h.detach().mean(0).numpy()
    return h - past


def in_a_tensor(self: Any, h: Tensor) -> Tensor:
    past = self.memory.clone()
    self.memory.copy_(h.detach().mean(0))
    return h - past


def assigned(self: Any, h: Tensor) -> Tensor:
    past = 0.0 if self.memory is None else self.memory
    self.memory = h.detach().mean(0)
    return h - past


def of_the_first(self: Any, h: Tensor) -> Tensor:
    if self.memory is None:
        self.memory = h.detach().mean(0)
    return h - self.memory


def of_a_step(self: Any, h: Tensor) -> Tensor:
    self.memory += 1
    return h / self.memory


def in_training(self: Any, h: Tensor) -> Tensor:
    """Normalise by the batch in training, by what was kept there in evaluation."""
    if self.training:
        self.memory = 0.9 * self.memory + 0.1 * h.detach().mean(0)
        return h
    return h - self.memory


def in_evaluation(self: Any, h: Tensor) -> Tensor:
    return h if self.training else since(self.memory, h)


class Store:
    """An object that is no module, and is called."""

    def __init__(self) -> None:
        self.means: list[Tensor] = []

    def __call__(self, h: Tensor) -> Tensor:
        return since(self.means, h)


class OfAClass(Net):
    memory: ClassVar[list[Tensor]] = []

    def __init__(self) -> None:
        super().__init__(lambda self, h: since(OfAClass.memory, h))


def of_a_closure() -> nn.Module:
    memory: list[Tensor] = []
    return Net(lambda self, h: since(memory, h))


def within_a_layer() -> nn.Module:
    network = Net(lambda self, h: self.inner.between(self.inner, h))
    network.inner = Net(lambda self, h: since(self.memory, h), keeps([]))
    return network


def keeps(value: Any) -> Callable[[Any], None]:
    return lambda self: setattr(self, "memory", value)


def default(self: Any, h: Tensor, kept: list[Tensor] = []) -> Tensor:  # noqa: B006
    return since(kept, h)


KEEPING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "list": (lambda: Net(lambda self, h: since(self.memory, h), keeps([])), "'memory'"),
    "deque": (lambda: Net(lambda self, h: since(self.memory, h), keeps(collections.deque(maxlen=2))), "'memory'"),
    "dict": (lambda: Net(in_a_dict, keeps({})), "'memory'"),
    "array": (lambda: Net(in_an_array, keeps(np.zeros(5))), "'memory'"),
    "tensor": (lambda: Net(in_a_tensor, keeps(torch.zeros(5))), "'memory'"),
    "attribute": (lambda: Net(assigned, keeps(None)), "'memory'"),
    "first batch": (lambda: Net(of_the_first, keeps(None)), "'memory'"),
    "counter": (lambda: Net(of_a_step, keeps(0)), "'memory'"),
    "iterator": (lambda: Net(lambda self, h: h / next(self.memory), keeps(itertools.count(1))), "'memory'"),
    "object": (lambda: Net(lambda self, h: self.memory(h), keeps(Store())), "'memory'"),
    "read in evaluation": (lambda: Net(in_training, keeps(torch.zeros(5))), "evaluation .*'memory'"),
    "in evaluation": (lambda: Net(in_evaluation, keeps([])), "evaluation .*'memory'"),
    "layer": (within_a_layer, "'inner.memory'"),
    "buffer that was None": (
        lambda: Net(assigned, lambda self: self.register_buffer("memory", None)),
        "'memory'",
    ),
    "class": (OfAClass, "'OfAClass.memory'"),
    "closure": (of_a_closure, "'memory of a closure'"),
    "global": (lambda: Net(lambda self, h: since(SHARED, h)), "'the global SHARED'"),
    "default": (lambda: Net(default), "'a default of default'"),
    "nothing that is seen": (
        lambda: Net(lambda self, h: h * float(np.random.default_rng().random())),
        "keeps something beside its attributes",
    ),
}


@pytest.mark.parametrize("kind", KEEPING)
def test_a_network_that_answers_by_what_it_saw_before_is_refused(kind: str) -> None:
    build, said = KEEPING[kind]
    with pytest.raises(
        SettingError, match=f"(Net|OfAClass) answers otherwise in .*{said}.* register as a buffer"
    ) as found:
        check(build)
    assert ("in evaluation" in str(found.value)) is ("evaluation" in said)


def maps(self: Any, h: Tensor) -> Tensor:
    self.maps, self.log["h"] = h.softmax(-1), h
    return h


def table(self: Any, h: Tensor) -> Tensor:
    if self.memory is None:
        self.memory = torch.arange(5.0)
    if not hasattr(self, "late"):
        self.register_buffer("late", torch.arange(5.0), persistent=False)
    return h + (self.memory + self.late).to(h.dtype)


def steps(self: Any, h: Tensor) -> Tensor:
    if self.training:
        self.n = self.n + 1
    return h / (1 + self.n)


def clamped(self: Any, h: Tensor) -> Tensor:
    if self.training:
        self.a.weight.clamp_(-0.1, 0.1)
    return h


class Switches(Net):
    """Is told whether it trains, as layers are that merge their adapters in evaluation."""

    def train(self, mode: bool = True) -> Switches:
        self.memory = mode
        return super().train(mode)


HONEST: dict[str, Callable[[], nn.Module]] = {
    "attention maps": lambda: Net(maps, lambda self: setattr(self, "log", {})),
    "tables": lambda: Net(table, keeps(None)),
    "a table in a buffer": lambda: Net(table, lambda self: self.register_buffer("memory", None)),
    "a step in a buffer": lambda: Net(steps, lambda self: self.register_buffer("n", torch.zeros(()))),
    "clamped weights": lambda: Net(clamped),
    "a teacher in a list": lambda: Net(lambda self, h: h + self.memory[0].weight.to(h.dtype), keeps([nn.Linear(5, 1)])),
    "layers in a list": lambda: Net(lambda self, h: h, lambda self: setattr(self, "layers", [self.a, self.b])),
    "a generator of its making": lambda: Net(lambda self, h: h, keeps([np.random.default_rng(0), random.Random(0)])),
    "a mode": lambda: Switches(lambda self, h: h if self.memory else 2 * h),
    "the batch": lambda: Net(lambda self, h: h - h.mean(0)),
}


@pytest.mark.parametrize("kind", HONEST)
def test_what_reaches_nobody_is_taken_without_a_word(kind: str) -> None:
    assert check(HONEST[kind]) == []
    assert check(HONEST[kind], torch.float64) == []


def test_attributes_that_add_up_are_named_though_no_answer_shows_it() -> None:
    def logs(self: Any, h: Tensor) -> Tensor:
        self.seen.append(h.detach().mean())
        self.steps, self.last = self.steps + 1, h
        return h if self.steps < 100 else 0 * h

    def start(self: Any) -> None:
        self.seen, self.steps, self.last = [], 0, None

    assert check(Net(logs, start)) == ["seen", "steps"]


def test_a_difference_of_rounding_is_none() -> None:
    """In float32 half of the pass is lost to rounding, and more or less of it from pass to pass; not in float64."""

    def rounded(self: Any, h: Tensor) -> Tensor:
        self.memory = 1 - self.memory
        large = 1e5 + 7e4 * self.memory
        return (h + large) - large

    network = Net(rounded, keeps(0))
    assert check(network) == ["memory"]
    with pytest.raises(SettingError, match="answers otherwise in training"):
        check(Net(lambda self, h: rounded(self, h.float()).to(self.a.weight.dtype), keeps(0)))


def test_what_cannot_be_computed_in_float64_is_judged_as_it_is() -> None:
    def single(self: Any, h: Tensor) -> Tensor:
        return since(self.memory, h @ torch.eye(5))

    with pytest.raises(SettingError, match="answers otherwise in training after others"):
        check(Net(single, keeps([])))


# ---- what is drawn


def drawing(name: str, made: Any, draw: Callable[[Any], float]) -> Callable[[], nn.Module]:
    return lambda: Net(lambda self, h: h * (draw(getattr(self, name)) < 2), lambda self: setattr(self, name, made))


class OfGlobal(Net):
    def __init__(self) -> None:
        super().__init__(lambda self, h: h * (GENERATOR.random() < 2))


GENERATOR = np.random.default_rng(0)


def noise_of_a_closure() -> nn.Module:
    own = np.random.RandomState(0)
    return Net(lambda self, h: h * (own.rand() < 2))


# Their draws change nothing here: that they are drawn is seen of the generator alone.
DRAWING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "numpy": (drawing("rng", np.random.default_rng(0), lambda g: g.random()), "'rng'"),
    "twister": (drawing("rng", np.random.Generator(np.random.MT19937(0)), lambda g: g.random()), "'rng'"),
    "bits": (drawing("rng", np.random.PCG64(0), lambda g: g.random_raw() * 0), "'rng'"),
    "old numpy": (drawing("rng", np.random.RandomState(0), lambda g: g.rand()), "'rng'"),
    "python": (drawing("rng", random.Random(0), lambda g: g.random()), "'rng'"),
    "torch": (
        drawing("rng", torch.Generator(), lambda g: float(torch.normal(0.0, 0.1, (1,), generator=g))),
        "'rng'",
    ),
    "nested": (drawing("rng", [{"own": (np.random.default_rng(0),)}], lambda g: g[0]["own"][0].random()), "'rng'"),
    "method": (drawing("draw", np.random.default_rng(0).random, lambda draw: draw()), "'draw'"),
    "closure": (noise_of_a_closure, "'between', 'own of a closure'"),
    "global": (OfGlobal, "'the global GENERATOR'"),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_a_generator_of_a_network_is_seen_wherever_it_is(kind: str) -> None:
    build, name = DRAWING[kind]
    with pytest.raises(SettingError, match=f"The forward of (Net|OfGlobal), by {name}, draws random .*dropout to 0"):
        check(build)


def test_a_generator_of_evaluation_is_seen() -> None:
    def noisy(self: Any, h: Tensor) -> Tensor:
        return h if self.training else h * (self.rng.random() < 2)

    with pytest.raises(SettingError, match="by 'rng', draws random numbers"):
        check(Net(noisy, lambda self: setattr(self, "rng", random.Random(0))))


# ---- what is written on


def test_a_parameter_that_is_another_tensor_is_refused() -> None:
    """PyTorch would train the new one, or go on from its values."""

    def anew(self: Any, h: Tensor) -> Tensor:
        if self.training:
            self.b.weight = nn.Parameter(self.b.weight.detach() / 2)
        return h

    def data(self: Any, h: Tensor) -> Tensor:
        if self.training:
            self.b.weight.data = self.b.weight.data / 2
        return h

    for between in (anew, data):
        with pytest.raises(SettingError, match=r"Net assigns 'b.weight': .* write on it in place \(self.weight.clamp_"):
            check(Net(between))


def test_a_frozen_tensor_that_is_assigned_is_refused() -> None:
    def counts(self: Any, h: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return h

    network = Net(counts, lambda self: self.register_buffer("seen", torch.zeros(5, dtype=torch.int64)))
    with pytest.raises(SettingError, match=r"Net assigns 'seen': .* register what it counts as a buffer of one number"):
        check(network)


# ---- how answers are compared


def test_answers_are_alike_up_to_the_rounding_of_their_dtype() -> None:
    one = torch.tensor([1000.0, 1.0, torch.nan])
    assert alike(one, one + torch.tensor([0.05, 0.05, 0.0]))
    assert not alike(one, one + torch.tensor([0.0, 0.2, 0.0]))
    assert not alike(one, one.double())
    assert not alike(one.double(), one.double() + 1e-3)
    assert alike(one.double(), one.double() + 1e-6)
    assert not alike(one, torch.tensor([1000.0, torch.nan, torch.nan]))
    assert not alike(one, one[:2])
    assert not alike({"a": one}, {"b": one})
    assert alike(torch.zeros(3), torch.full((3,), 1e-8))  # of what is 0 up to rounding
    assert not alike(torch.zeros(3), torch.full((3,), 1e-5))
    assert not alike(torch.tensor([3]), torch.tensor([4]))
    assert alike(torch.zeros(0), torch.zeros(0))


def test_what_begins_at_0_is_moved_before_a_network_is_tried() -> None:
    given = {"w": torch.zeros(2, 400), "b": torch.zeros(400), "o": torch.tensor([0.0, 1.0])}
    weights = Weights(params=Params(given), buffers=Params(m=torch.zeros(3)))
    woken = awake(weights)
    assert 0.03 < float(woken.params["w"].std()) < 0.07  # 400 ** -0.5
    assert 0.08 < float(woken.params["b"].std()) < 0.12
    assert woken.params["o"] is given["o"]
    assert not weights.params["w"].any()
    assert not woken.buffers["m"].any()
    hidden = Net(lambda self, h: since(self.memory, h), keeps([]))
    nn.init.zeros_(hidden.b.weight)
    with pytest.raises(SettingError, match="'memory'"):
        check(hidden)
