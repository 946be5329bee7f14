"""Noise in each upload: how long a vector is at most, what noise it gets, of which entropy, and what is counted."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.func import vmap

from fedloom.core.errors import SettingError
from fedloom.core.types import Params
from fedloom.privacy.local_noise import SENSITIVITY, LocalNoise, Releases

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def sent(rule: LocalNoise, values: dict[str, Tensor], key: int = 5) -> Params:
    client: Any = SimpleNamespace(key=torch.tensor(key))
    found, _ = rule.encode(client, Params(values), rule.init(Params(values)))
    return found


def norm(values: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in values.values()))


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=6, max_size=6), st.lists(NUMBERS, min_size=6, max_size=6), st.floats(1e-3, 1e3))
def test_any_two_data_sets_of_a_client_move_its_upload_by_two_clip_norms_at_most(
    one: list[float], other: list[float], clip: float
) -> None:
    rule = LocalNoise(clip=clip, noise=1.0)
    a, b = (
        rule.clipped({"w": torch.tensor(v[:4]).reshape(2, 2).double(), "b": torch.tensor(v[4:]).double()})
        for v in (one, other)
    )
    assert norm({name: a[name] - b[name] for name in a}) <= SENSITIVITY * clip * (1 + 1e-12)
    assert norm(a) <= clip * (1 + 1e-12)


def test_a_set_of_tensors_is_one_vector_that_keeps_its_direction() -> None:
    rule = LocalNoise(clip=1.0, noise=0.0)
    found = sent(rule, {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])})
    assert [*found["w"].tolist(), *found["b"].tolist()] == pytest.approx([0.6, 0.0, 0.8])
    short = {"w": torch.tensor([0.3, -0.1]), "b": torch.tensor(0.2)}
    assert all(torch.equal(t, short[name]) for name, t in sent(rule, short).items())
    for wrong in (math.nan, math.inf):
        assert not any(t.any() for t in sent(rule, {"w": torch.tensor([wrong, 1.0]), "b": torch.tensor(0.2)}).values())
    assert not sent(LocalNoise(clip=0.0, noise=0.0), {"w": torch.ones(3)})["w"].any()


@pytest.mark.parametrize("secret", [False, True])
def test_noise_is_as_large_as_it_says_in_each_number(secret: bool) -> None:
    rule = LocalNoise(clip=0.5, noise=3.0, secret=secret)
    found = sent(rule, {"w": torch.zeros(200, 100), "b": torch.zeros(20_000)})
    assert found["w"].dtype == torch.float32
    for t in found.values():
        assert float(t.std()) == pytest.approx(1.5, rel=0.03)
        assert abs(float(t.mean())) < 0.05
    assert not torch.equal(found["w"].flatten(), found["b"])
    again = sent(rule, {"w": torch.zeros(200, 100), "b": torch.zeros(20_000)})
    assert torch.equal(found["w"], again["w"]) is not secret
    assert rule.entropy == ("of the system" if secret else "of the run's seed")


def test_noise_is_of_each_client_by_itself_in_a_stack() -> None:
    rule, keys = LocalNoise(clip=1.0, noise=2.0), torch.tensor([5, 6, 7])
    w = torch.arange(12.0).reshape(3, 4)

    def one(key: Tensor, w: Tensor) -> Tensor:
        client: Any = SimpleNamespace(key=key)
        found: Tensor = rule.encode(client, Params({"w": w}), ())[0]["w"]
        return found

    stacked = vmap(one)(keys, w)
    for k in range(3):
        assert torch.allclose(stacked[k], sent(rule, {"w": w[k]}, int(keys[k]))["w"])
    assert len({*stacked.flatten().tolist()}) == 12


def test_a_device_keeps_another_secret_with_each_upload() -> None:
    rule, client = LocalNoise(clip=1.0, noise=1.0, secret=True), SimpleNamespace(key=torch.tensor(0))
    values = Params({"w": torch.ones(2)})
    kept = rule.init(values)
    _, new = rule.encode(client, values, kept)  # type: ignore[arg-type]
    assert kept.shape == new.shape == (4,)
    assert kept.dtype == new.dtype == torch.int64
    assert not torch.equal(kept, new)
    assert LocalNoise(clip=1.0, noise=1.0).init(values) == ()


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(SettingError, match=r"noise is for numbers with a fraction, .* whole ones in 'n'"):
        sent(LocalNoise(clip=1.0, noise=1.0), {"n": torch.ones(3, dtype=torch.int64)})


def asked(clients: list[int], method: str = "update") -> Any:
    runtime = SimpleNamespace(encoders=SimpleNamespace(sets={"update": 2, "look": 0}))
    return SimpleNamespace(
        clients=clients, call=SimpleNamespace(method=method), engine=SimpleNamespace(runtime=runtime)
    )


def test_what_clients_are_asked_for_is_counted_in_each_round_by_itself() -> None:
    link = Releases(LocalNoise(clip=1.0, noise=1.0))
    link.begin([0, 1, 2])
    assert link.lost(asked([0, 1])) == link.lost(asked([2])) == link.lost(asked([0], "look")) == {}
    assert link.most == 2
    link.end_round([0, 1, 2])
    link.lost(asked([0, 1]))
    assert link.most == 2
    link.counted = 2
    with pytest.raises(SettingError, match="tried before the run, 2, and update asks for 4: take another method"):
        link.lost(asked([1]))
    link.begin([0, 1])
    with pytest.raises(SettingError, match="update asks others than those of the round"):
        link.lost(asked([1, 2]))
