"""Clipped, rounded and noisy uploads as words: how far one client moves a sum, and that masks change no bit of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import fedloom as fl
from fedloom.core.errors import RefusedError
from fedloom.core.types import Weighted
from fedloom.privacy.fixed_point import OutOfRange
from fedloom.privacy.masked_in_process import masked_sum
from fedloom.privacy.masked_terms import Terms
from fedloom.privacy.noisy_sums import NoisyAggregation, NoisyMean, NoisyUploads

ASKED = NoisyAggregation(8.0, clip=0.5, noise=1.0, least=4, seed=0)


def uploads(values: Any) -> Any:
    """Two parts of an upload each, with weights that must not count."""
    whole = torch.as_tensor(np.asarray(values), dtype=torch.float32)
    weight = torch.arange(1.0, 1 + len(whole))
    return (Weighted(value=whole[:, :2], weight=weight), Weighted(value=whole[:, 2:], weight=weight))


def nothing_sent(values: Any) -> list[None]:
    return [None, None]


def words(asked: NoisyAggregation, values: Any, clients: int = 5) -> list[np.ndarray]:
    fixed = asked.fixed(float(clients), clients)
    moved = asked.moved(uploads(values), nothing_sent)
    return [fixed.words(moved, i) for i in range(len(values))]


class Still(NoisyUploads):
    """Rounded uploads, with noise that is nearly none."""

    def scale(self, dimension: int) -> int:
        return 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-100, 100), min_size=3, max_size=40), st.sampled_from([0.001, 0.5, 30.0]), st.integers(0, 1000)
)
def test_one_client_changes_a_sum_by_no_more_than_its_bound(values: list[float], clip: float, seed: int) -> None:
    """In whole numbers, with coarse grids and fine ones: with its upload and with zeros in its place."""
    asked = replace(ASKED, clip=clip, most=1000.0 * clip, seed=seed, bits=32)
    fixed = NoisyUploads(asked, 5.0, 5)
    vector = np.array(values)
    norm = max(float(np.linalg.norm(vector)), 1e-9)
    rounded = fixed._rounded(vector * min(1.0, clip / norm) * fixed.point.scale)
    assert math.sqrt((rounded.astype(object) ** 2).sum()) <= fixed.norm(len(vector))
    assert np.abs(rounded - vector * min(1.0, clip / norm) * fixed.point.scale).max() <= 1 + 1e-6


def test_rounding_is_right_on_average_and_done_again_beyond_its_bound() -> None:
    """At 64 numbers of 0.5, norms of more than sqrt(16 + 16 + 4 + 4) are about as likely as not."""
    fixed = Still(ASKED, 5.0, 5)
    half = np.full(64, 0.5)
    found = np.array([fixed._rounded(half) for _ in range(400)])
    assert found.mean() == pytest.approx(0.5, abs=0.02)
    assert set(found.ravel().tolist()) == {0, 1}
    tight = replace(ASKED, clip=1e-9)  # whose bound is that of noise of rounding alone: half of 64 and 4
    kept = np.array([NoisyUploads(tight, 5.0, 5)._rounded(half).sum() for _ in range(50)])
    assert kept.max() <= 64 / 4 + 8 / 2 + 1


def test_the_masked_sum_is_the_clear_one_bit_for_bit() -> None:
    values = np.random.default_rng(3).normal(size=(5, 7))
    each = words(ASKED, values)
    clear = np.sum(each, axis=0, dtype=each[0].dtype)
    assert np.array_equal(masked_sum(dict(enumerate(each))), clear)
    assert np.array_equal(np.sum(words(ASKED, values), axis=0, dtype=each[0].dtype), clear)
    assert not np.array_equal(np.sum(words(replace(ASKED, round=1), values), axis=0, dtype=each[0].dtype), clear)
    system = [words(replace(ASKED, seed=None), values)[0] for _ in range(2)]
    assert not np.array_equal(*system)


def test_the_mean_is_that_of_clipped_uploads_with_noise_of_its_clients() -> None:
    values = np.random.default_rng(4).normal(size=(5, 4000))
    clipped = 0.5 * values / np.linalg.norm(values, axis=1, keepdims=True)
    for noise in (1.0, 0.01):
        mean = NoisyMean(replace(ASKED, noise=noise), 5, nothing_sent)
        mean.add(uploads(values))
        found = torch.cat(mean.result()).double().numpy()
        expected = noise * 0.5 * np.sqrt(5 / 4) / 5  # noise is sized for four, and five add theirs
        assert (found - clipped.mean(0)).std() == pytest.approx(expected, rel=0.05)
        assert mean.dimension == 4000
        assert mean.fixed.scale(4000) / mean.fixed.point.scale == pytest.approx(noise * 0.5 / 2, rel=1e-3)


def test_what_was_sent_is_added_again_and_types_stay() -> None:
    sent = torch.full((2,), 3.0)
    values = np.zeros((5, 4))
    values[:, :2] = 3.0
    mean = NoisyMean(replace(ASKED, noise=1e-3), 5, lambda uploads: [sent, None])
    mean.add(uploads(values[:2]))
    mean.add(uploads(values[2:4]))
    assert mean
    mean.add(uploads(values[4:]))
    first, second = mean.result()
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, sent, atol=1e-2, rtol=0)
    torch.testing.assert_close(second, torch.zeros(2), atol=1e-2, rtol=0)


def test_fewer_than_noise_is_sized_for_are_no_sum() -> None:
    mean = NoisyMean(ASKED, 5, nothing_sent)
    mean.add(uploads(np.zeros((3, 4))))
    assert not mean
    mean.add(uploads(np.zeros((1, 4))))
    assert mean


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_becomes_no_words(bad: float) -> None:
    with pytest.raises(OutOfRange, match="an upload is not finite"):
        words(ASKED, [[1.0, 2.0, bad]])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (replace(ASKED, most=0.6), r"clipped at 0.5, with noise, are up to .* has range=0.6: raise the range to 1\.\d"),
        (replace(ASKED, noise=1000.0), r"mean of 4 clients, .* has range=8: raise the range to \d{4}"),
        (
            replace(ASKED, most=8e7, bits=32),
            r"steps of 0\.25, which is too coarse for 100 numbers clipped at 0.5 with a",
        ),
        (replace(ASKED, noise=1e-9), "with a noise of .* steps by each client: lower the range, or add bits=64"),
        (replace(ASKED, clip=1.0, most=6.0, bits=64), r"a client's noise is up to 2.55 steps of .*: write bits=32"),
    ],
)
def test_ranges_without_room_and_grids_too_coarse_are_refused(asked: NoisyAggregation, why: str) -> None:
    with pytest.raises(fl.SettingError, match=why):
        asked.fixed(5.0, 5).check(100)
    ASKED.fixed(5.0, 5).check(100)


def test_the_range_that_is_named_is_enough() -> None:
    fixed = replace(ASKED, most=0.6).fixed(5.0, 5)
    with pytest.raises(fl.SettingError) as caught:
        fixed.check(100)
    named = float(str(caught.value).rpartition(" ")[2])
    replace(ASKED, most=named).fixed(5.0, 5).check(100)


def test_a_device_answers_no_sum_of_fewer_than_its_noise_is_sized_for() -> None:
    few = Terms.of(bytes(16), 4, 32, 8)
    asked = replace(ASKED, least=7)
    with pytest.raises(RefusedError, match="noise is sized for 7 devices or more, and this sum would be shown of 5: "):
        asked.check(few, 8)
    asked.check(Terms.of(bytes(16), 4, 32, 8, least=7), 8)
    many = Terms.of(bytes(16), 4, 32, 400, least=390)  # of whom each knows its neighbours alone
    assert many.threshold == many.neighbours // 2 + 1
    asked.check(many, 400)
