"""Uploads are clipped whole, one of them changes the sum by the clip norm at most, and noise is as large as it says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.types import Params, Weighted, Weights
from fedloom.privacy.clipped_sums import Mechanism, PrivateSum
from fedloom.privacy.secret_draws import normals
from tiny import LOCAL, federation, linear, mlp

SETTINGS = fl.RunSettings(rounds=2, cohort_size=6, engine="loop", threads=1)


def uploads(values: Tensor) -> Any:
    """K uploads of a model (three tensors, one of whole numbers) and a control variate, of values [K, 7]."""
    k = len(values)
    model = Weights(Params({"a": values[:, :2], "b": values[:, 2:4].reshape(k, 2, 1)}),
                    Params({"mean": values[:, 4:5], "seen": torch.arange(k)}))  # fmt: skip
    return Weighted(model, torch.arange(1.0, k + 1)), Weighted(Params({"c": values[:, 5:]}), torch.ones(k))


SENT = (torch.tensor([1.0, -2.0]), torch.tensor([[0.5], [0.25]]), torch.tensor([3.0]), torch.tensor(9), None)


def summed(values: Tensor, clip: float = 1.0, std: float = 0.0, count: float = 1.0, seed: int = 0) -> PrivateSum:
    like = tree.take(uploads(torch.zeros(1, 7)), 0)
    made = PrivateSum(like, lambda _: SENT, clip, std, count, normals(seed, "test"))
    if len(values):
        made.add(uploads(values))
    return made


def flat(result: Any) -> Tensor:
    """The mean's difference to what was sent, of what is no whole number."""
    leaves = [leaf for leaf in tree.leaves(result) if leaf.is_floating_point()]
    sent = [s for s in SENT if s is None or s.is_floating_point()]
    return torch.cat([(v if s is None else v - s).flatten() for v, s in zip(leaves, sent, strict=True)])


BASE = torch.cat([s.flatten() for s in SENT[:3] if s is not None] + [torch.zeros(2)])


@given(st.integers(1, 6), st.integers(0, 1000), st.floats(-3, 4), st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_one_client_changes_the_sum_by_the_clip_norm_at_most(many: int, seed: int, size: float, clip: float) -> None:
    """In float64, in which sums are made, to 1e-12; as float32 of a mean of numbers up to 3, to 1e-6 a number."""
    draw = torch.Generator().manual_seed(seed)
    values, most = BASE + 10**size * torch.randn(many, 7, generator=draw), 10**clip
    all_of_them, without = summed(values, most), summed(values[1:], most)
    moved = [a - b for a, b in zip(all_of_them._sums, without._sums, strict=True)]
    norm = float(torch.cat([m.flatten() for i, m in enumerate(moved) if i != 3]).norm())
    assert norm <= most * (1 + 1e-12) + 1e-12 * many * most
    apart = float((flat(all_of_them.result()) - flat(without.result())).double().norm())
    assert apart <= most * (1 + 1e-6) + 7 * 1e-6 * (3 + many * most)


def test_an_upload_is_one_vector_and_keeps_its_direction() -> None:
    long = torch.tensor([3.0, 0, 0, 4, 0, 12, 0])
    found = flat(summed(BASE + long[None], clip=1.3).result())
    assert found.norm() == pytest.approx(1.3, rel=1e-5)
    torch.testing.assert_close(found, 0.1 * long, rtol=1e-5, atol=1e-6)
    for wide in (13.0, 50.0):
        found = flat(summed(BASE + long[None], clip=wide).result())
        torch.testing.assert_close(found, long, rtol=1e-6, atol=1e-6)


def test_a_fixed_number_divides_the_sum_and_weights_say_nothing() -> None:
    values = BASE + torch.eye(7)[:2]
    torch.testing.assert_close(flat(summed(values, count=4.0).result()), torch.eye(7)[:2].sum(0) / 4, atol=1e-6, rtol=0)


def test_whole_numbers_stay_what_was_sent() -> None:
    model, _ = summed(BASE + torch.eye(7)).result()
    assert int(model.buffers["seen"]) == 9


def test_noise_is_as_large_as_it_says_and_the_same_when_asked_again() -> None:
    wide = Params({"w": torch.zeros(50, 400)})
    made = PrivateSum(Weighted(wide, torch.ones(())), lambda _: [None], 1.0, 3.0, 10.0, normals(5, 1))
    noise = made.result()["w"]
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    assert abs(float(noise.mean())) < 3 * 0.3 / math.sqrt(noise.numel())
    assert made.result()["w"] is noise
    assert made


def test_no_upload_of_another_kind_is_added() -> None:
    with pytest.raises(fl.FedloomError, match="different architectures"):
        summed(torch.zeros(0, 7)).add((Weighted(Params({"c": torch.zeros(1, 2)}), torch.ones(1)),))


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_noise_of_bits_and_of_the_sum_are_together_what_was_asked_for(noise: float) -> None:
    """Andrew et al., theorem 1; a bit less a half changes its sum by 1/2."""
    how = Mechanism({}, 0.1, 0, 0.5, 0.1, noise, expected=40.0)
    assert how.bits_noise == max(2.0, noise)
    assert (how.sum_noise**-2 + (2 * how.bits_noise) ** -2) ** -0.5 == pytest.approx(noise)
    fixed = dataclasses.replace(how, quantile=None)
    assert fixed.sum_noise == noise
    assert fixed.next_clip(-20.0, normals(0)) == 0.1


def test_bits_of_uploads_within_the_clip_norm_are_counted() -> None:
    values = BASE + torch.tensor([0.5, 2.0, 3.0, 1.0])[:, None] * torch.eye(7)[0]
    assert summed(values, clip=2.0).within == 1.0  # three of four
    assert summed(torch.zeros(0, 7)).within == 0


@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_an_adaptive_clip_norm_reaches_the_quantile(quantile: float) -> None:
    norms = np.random.default_rng(0).lognormal(1, 0.5, 1000)
    how, clips = Mechanism({}, 1.0, 0, quantile, 0.1, 1.0, expected=1000.0), list[float]()
    for round in range(150):
        within = float(np.where(norms <= how.clip, 0.5, -0.5).sum())
        how = dataclasses.replace(how, clip=how.next_clip(within, normals(0, round)))
        clips.append(how.clip)
    assert np.mean(clips[-50:]) == pytest.approx(np.quantile(norms, quantile), rel=0.05)
    assert np.std(clips[-50:]) > 0  # the count has noise


def job(privacy: str, algorithm: Any = None, model: Any = linear, sampler: Any = None, **more: Any) -> fl.Job:
    how = {name: more.pop(name) for name in ("faults",) if name in more}
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL), federation=federation(), model=model,
        settings=dataclasses.replace(SETTINGS, privacy=privacy, **more), sampler=sampler, **how,
    )  # fmt: skip


def servers(history: fl.History) -> list[Tensor]:
    return tree.leaves(history.server)


@pytest.mark.parametrize("method", [fl.FedAvg, fl.Scaffold, fl.FedAdam])
def test_without_noise_and_with_a_wide_bound_it_is_the_uniform_mean(method: Any) -> None:
    made = method(local=LOCAL) if method is fl.FedAdam else method(local=LOCAL, aggregation="uniform")
    found = job("central:noise=0,delta=1e-5,clip=1e9", made, dtype="float64").run()
    plain = job("none", made, dtype="float64").run()
    assert found.series("epsilon").tolist()[0] == 0
    assert found.metrics[-1]["epsilon"] is None  # infinite
    for a, b in zip(servers(found), servers(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
@pytest.mark.parametrize("method", [fl.FedAvg, fl.Scaffold, fl.PFedSD])
def test_it_is_the_same_on_engines(method: Any, engine: Any) -> None:
    made = method(local=LOCAL)
    found = job("central:noise=1,delta=1e-5,clip=adaptive:0.5", made, engine=engine, cohort_size=3).run()
    on_loop = job("central:noise=1,delta=1e-5,clip=adaptive:0.5", made, cohort_size=3).run()
    for name in ("epsilon", "clip_norm"):
        assert found.series(name).tolist() == on_loop.series(name).tolist()
    for a, b in zip(servers(found), servers(on_loop), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def moved(history: fl.History) -> list[float]:
    """How far each tensor of the server is from where the same seed begins."""
    return [float(leaf.double().abs().sum()) for leaf in servers(history)]


class Nobody:
    """A sampler that asks nobody."""

    def __call__(self, round: int, sizes: Any, cohort_size: int) -> list[int]:
        return []


def test_a_round_has_noise_whoever_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """That nobody was asked, or nobody answered, would tell of the one client who might have been."""
    lost = job("central:noise=1,delta=1e-5,clip=0.5", rounds=1, faults=fl.Unreliable(lost=1.0)).run()
    monkeypatch.setattr("fedloom.privacy.secret_draws.Poisson.__call__", Nobody.__call__)
    nobody = job("central:noise=1,delta=1e-5,clip=0.5", rounds=1).run()
    assert nobody.metrics[1]["clients"] == []
    still = job("central:noise=0,delta=1e-5,clip=0.5", rounds=1).run()
    assert moved(nobody) != moved(still)
    assert moved(lost) == moved(nobody)


def test_each_architecture_has_noise_in_each_round() -> None:
    models = {"small": lambda: mlp(3), "large": lambda: mlp(4)}
    found = job("central:noise=1,delta=1e-5,clip=0.5", model=models, rounds=1, cohort_size=1).run()
    still = job("central:noise=0,delta=1e-5,clip=0.5", model=models, rounds=1, cohort_size=1).run()
    assert all(a != b for a, b in zip(moved(found), moved(still), strict=True))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_statistics_are_clipped_and_counters_stay() -> None:
    found = job("central:noise=1,delta=1e-5,clip=0.5", model=normalised, rounds=1).run()
    (server,) = found.server.values()
    assert int(server.buffers["1.num_batches_tracked"]) == 0
    assert not torch.equal(server.buffers["1.running_mean"], torch.zeros(4))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(fl.FedAvg):
    """FedAvg that does something else in the third of five rounds, which is not tried."""

    does: str = ""

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        if cohort.round == 2 and self.does == "gather":
            cohort.gather(self.local_update, self.down(w))
        if cohort.round == 2 and self.does == "second":
            _ = cohort.reduce(self.local_update, self.down(w)).mean
        found = w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
        if cohort.round == 2 and self.does == "gather after":
            cohort.gather(self.local_update, self.down(w))
        return found


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("second", "promised for one mean in a round, and Later takes another one of local_update in round 3: leave"),
        ("gather", "promised for means alone, and Later asks for each upload in round 3: leave privacy out"),
        ("gather after", "promised for means alone, and Later asks for each upload in round 3: leave privacy out"),
    ],
)
def test_what_the_trial_has_not_seen_ends_the_run(does: str, message: str) -> None:
    with pytest.raises(fl.SettingError, match=message):
        job("central:noise=1,delta=1e-5,clip=0.5", Later(local=LOCAL, does=does), rounds=5).run()


def test_sums_alone_are_refused() -> None:
    with pytest.raises(fl.SettingError, match="clips each upload, got partial_sums = 2: leave one of them out"):
        job("central:noise=1,delta=1e-5,clip=0.5", partial_sums=2).check()
