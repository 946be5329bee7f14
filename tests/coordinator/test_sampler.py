"""Who is asked."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import golden
from fedloom.coordinator import SeededByRound, Uniform


def test_seeded_by_round_is_the_rule_of_the_fedntd_authors() -> None:
    g = golden("fedntd/client_sampling")
    for name, (n, k) in {"n100_r0.1": (100, 10), "n200_r0.05": (200, 10)}.items():
        got = [SeededByRound()(r, n, k) for r in range(200)]
        assert got == g[name].tolist(), name


def test_seeded_by_round_is_the_rule_of_fedprox() -> None:
    g = golden("pfedsd_apfl/fedprox_client_selection")
    for n in (23, 100, 200, 1000):
        got = [SeededByRound()(r, n, 10) for r in range(6)]
        assert got == g[f"N{n}_K10_unsorted"].tolist()


def test_seeded_by_round_leaves_the_global_generator_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    SeededByRound()(3, 100, 10)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


@pytest.mark.parametrize("cohort", [1, 7, 30])
def test_uniform_names_distinct_clients(cohort: int) -> None:
    for t in range(20):
        clients = Uniform(1)(t, 30, cohort)
        assert len(clients) == len(set(clients)) == cohort
        assert set(clients) <= set(range(30))


def test_uniform_is_a_function_of_seed_and_round() -> None:
    draws = {(s, t): tuple(Uniform(s)(t, 1000, 10)) for s in range(3) for t in range(5)}
    assert draws == {(s, t): tuple(Uniform(s)(t, 1000, 10)) for s in range(3) for t in range(5)}
    assert len(set(draws.values())) == len(draws)


def test_uniform_asks_everybody_equally_often() -> None:
    counts = np.bincount([k for t in range(2000) for k in Uniform(0)(t, 20, 5)], minlength=20)
    # 2,000 rounds at 1/4: a standard deviation of 19.4
    assert np.abs(counts - 500).max() < 5 * 19.4
