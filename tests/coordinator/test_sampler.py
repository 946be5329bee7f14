"""Who is asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import golden

from fedloom import FedAvg, Job, RunSettings
from fedloom.coordinator.sampler import (
    Arriving,
    Available,
    BySize,
    DeviceSampler,
    FixedList,
    SeededByRound,
    Uniform,
)
from fedloom.core.errors import SettingError
from fedloom.core.random import generator
from tiny import federation, linear

EVERY: dict[str, Callable[[int], DeviceSampler]] = {
    "uniform": Uniform,
    "by_round": lambda seed: SeededByRound(),
    "by_size": BySize,
    "available": lambda seed: Available(0.3, 24, seed),
    "arriving": lambda seed: Arriving(BySize(seed), 40, 3),
}


def sizes(n: int) -> np.ndarray:
    """1 to 20 examples each, read-only as a run passes them."""
    out = 1 + np.arange(n) * 7 % 20
    out.flags.writeable = False
    return out


# ---- all of them


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("cohort", [1, 7, 30])
def test_samplers_name_distinct_clients(name: str, cohort: int) -> None:
    for t in range(20):
        clients = EVERY[name](1)(t, sizes(100), cohort)
        assert all(type(k) is int for k in clients)
        assert len(clients) == len(set(clients)) <= cohort
        assert set(clients) <= set(range(100))
        assert name == "available" or len(clients) == cohort


@pytest.mark.parametrize("name", EVERY)
def test_samplers_are_functions_of_their_fields_and_the_round(name: str) -> None:
    def draws(seed: int) -> list[tuple[int, ...]]:
        return [tuple(EVERY[name](seed)(t, sizes(1000), 10)) for t in range(5)]

    assert draws(0) == draws(0)
    assert len({*draws(0), *draws(1)}) == (5 if name == "by_round" else 10)
    assert [tuple(EVERY[name](0)(t, sizes(1000), 10)) for t in (4, 2)] == [draws(0)[4], draws(0)[2]]


# ---- uniform


def test_seeded_by_round_is_the_rule_of_the_fedntd_authors() -> None:
    g = golden("fedntd/client_sampling")
    for name, (n, k) in {"n100_r0.1": (100, 10), "n200_r0.05": (200, 10)}.items():
        got = [SeededByRound()(r, sizes(n), k) for r in range(200)]
        assert got == g[name].tolist(), name


def test_seeded_by_round_is_the_rule_of_fedprox() -> None:
    g = golden("pfedsd_apfl/fedprox_client_selection")
    for n in (23, 100, 200, 1000):
        got = [SeededByRound()(r, sizes(n), 10) for r in range(6)]
        assert got == g[f"N{n}_K10_unsorted"].tolist()


def test_seeded_by_round_leaves_the_global_generator_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    SeededByRound()(3, sizes(100), 10)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def test_uniform_draws_as_it_always_has() -> None:
    for t in range(3):
        want = generator(7, "cohort", t).choice(1000, 10, replace=False)
        assert Uniform(7)(t, sizes(1000), 10) == want.tolist()


def test_uniform_asks_everybody_equally_often() -> None:
    counts = np.bincount([k for t in range(2000) for k in Uniform(0)(t, sizes(20), 5)], minlength=20)
    # 2,000 rounds at 1/4: a standard deviation of 19.4
    assert np.abs(counts - 500).max() < 5 * 19.4


# ---- by size


def test_by_size_draws_in_proportion_to_examples() -> None:
    given = np.array([10, 0, 20, 30, 40])
    firsts = [BySize(3)(t, given, 3)[0] for t in range(4000)]
    share = np.bincount(firsts, minlength=5) / 4000
    assert np.abs(share - given / 100).max() < 5 * 0.008  # a standard deviation of at most 0.0078


def test_by_size_draws_the_second_among_the_others() -> None:
    pairs = [BySize(0)(t, np.array([1, 1, 2]), 2) for t in range(4000)]
    third = np.mean([2 in pair for pair in pairs])
    assert abs(third - (1 / 2 + 2 * 1 / 4 * 2 / 3)) < 5 * 0.0059  # first, or second after either of the others


def test_by_size_finds_the_small_beside_a_giant() -> None:
    given = np.ones(50, np.int64)
    given[7] = 10**9
    given.flags.writeable = False
    clients = BySize(0)(0, given, 50)
    assert clients[0] == 7
    assert sorted(clients) == list(range(50))


def test_by_size_passes_over_clients_without_examples() -> None:
    assert sorted(BySize(0)(0, np.array([0, 3, 0, 1]), 3)) == [1, 3]


# ---- lists


def test_a_list_is_followed() -> None:
    chosen = FixedList(((3, 1), (), (0,)))
    assert [chosen(t, sizes(4), 2) for t in range(3)] == [[3, 1], [], [0]]


@pytest.mark.parametrize(
    ("lists", "arriving", "spares", "words"),
    [
        (((0,), (1,)), None, 0, "lists the clients of 2 rounds, the run has 3: list them for every round"),
        (((0,), (1,)), (5, 1), 0, "lists the clients of 2 rounds, the run has 3: list them for every round"),
        (((0,), (1,), (2, 6)), None, 0, r"lists client 6 for round 3, and there are the clients 0\.\.5 by then"),
        (((0,), (3,), (2,)), (2, 1), 0, r"lists client 3 for round 2, and there are the clients 0\.\.2 by then"),
        (((0,), (1,), (2,)), None, 1, "spares = 1 are drawn beyond the cohort, and a list names who is asked"),
    ],
)
def test_a_list_that_does_not_fit_the_run_shows_before_it(
    lists: tuple[tuple[int, ...], ...], arriving: tuple[int, int] | None, spares: int, words: str
) -> None:
    sampler: DeviceSampler = FixedList(lists)
    sampler = sampler if arriving is None else Arriving(sampler, *arriving)
    settings = RunSettings(rounds=3, cohort_size=2, spares=spares)
    with pytest.raises(SettingError, match=words):
        Job(algorithm=FedAvg(), federation=federation(), model=linear, settings=settings, sampler=sampler)


# ---- availability


@pytest.mark.parametrize(("share", "period"), [(0.3, 24), (0.5, 7), (1.0, 5), (0.25, 4)])
def test_a_client_is_up_once_a_day_for_its_share(share: float, period: int) -> None:
    day = np.array([Available(share, period, 2).up(np.arange(500), t) for t in range(2 * period)])
    np.testing.assert_array_equal(day[:period], day[period:])
    rounds = day[:period].sum(0)
    assert set(rounds) <= {int(np.floor(share * period)), int(np.ceil(share * period))}
    assert rounds.mean() == pytest.approx(share * period, abs=0.2)
    starts = (day[:period] & ~np.roll(day[:period], 1, axis=0)).sum(0)
    assert set(starts) == {0 if share == 1 else 1}  # one stretch, not several
    assert share == 1 or len(np.unique(day, axis=1).T) >= period  # clients differ in phase
    assert np.abs(day.mean(1) - share).max() < 5 * np.sqrt(0.25 / 500)  # at every hour


@pytest.mark.some(1)
@pytest.mark.parametrize("n", [60, 5000])
def test_only_available_clients_are_asked_each_equally_often(n: int) -> None:
    chosen, counts = Available(0.5, 6, 1), np.zeros(n, int)
    for t in range(600):
        clients = chosen(t, sizes(n), 10)
        assert len(clients) == 10
        assert chosen.up(np.array(clients), t).all()
        counts[clients] += 1
    mean = 6000 / n  # about Poisson; rounds differ a little in how many are up
    assert np.abs(counts - mean).max() < 6 * np.sqrt(mean) + 0.2 * mean
    assert counts.var() < 1.2 * mean


def test_where_few_are_up_all_of_them_are_asked() -> None:
    chosen = Available(0.1, 10, 0)
    for t in range(20):
        up = np.flatnonzero(chosen.up(np.arange(30), t))
        assert sorted(chosen(t, sizes(30), 20)) == up.tolist()
    assert chosen(0, sizes(1), 1) == []
    rare = Available(1e-3, 10, 0)  # looks at 20,016 of 30,000 clients first, and then at all
    assert sorted(rare(1, sizes(30_000), 50)) == np.flatnonzero(rare.up(np.arange(30_000), 1)).tolist()


# ---- arrivals


@pytest.mark.parametrize("inner", [Uniform(0), BySize(0), SeededByRound(), Available(1.0, 1)])
def test_clients_that_are_not_there_yet_are_not_asked(inner: DeviceSampler) -> None:
    chosen = Arriving(inner, first=3, per_round=4)
    for t in range(10):
        there = min(30, 3 + 4 * t)
        clients = chosen(t, sizes(30), 5)
        assert len(clients) == min(5, there)
        assert max(clients) < there
    assert chosen(9, sizes(30), 5) == inner(9, sizes(30), 5)  # all have arrived


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FixedList(((1,), (2,)))(2, sizes(4), 1),
            "entry for every round, got 2 for round 3: add entries, or run 2",
        ),
        (lambda: FixedList(((1,), (0, 4)))(1, sizes(4), 1), r"that exist, 0\.\.3 in round 2, got \[0, 4\]"),
        (lambda: Arriving(FixedList(((2,),)), 2, 1)(0, sizes(10), 1), r"0\.\.1 in round 1, got \[2\]"),
        (lambda: FixedList(((0,), (1, 1))), r"distinct numbers from 0, got \[.*\] for round 2"),
        (lambda: FixedList(((0,), (0, -1))), r"distinct numbers from 0, got \[.*\] for round 2"),
        (lambda: Available(0.0, 24), r"must be in \(0, 1\], got 0.0: try 0.3"),
        (lambda: Available(1.1, 24), r"must be in \(0, 1\], got 1.1: try 0.3"),
        (lambda: Available(float("nan"), 24), "share must be finite, got nan"),
        (lambda: Available(0.3, 0), "must be >= 1 round, got 0: try 24"),
        (lambda: Arriving(Uniform(), 0, 1), "got first = 0, per_round = 1"),
        (lambda: Arriving(Uniform(), 1, -1), "got first = 1, per_round = -1"),
    ],
)
def test_what_no_sampler_can_do_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()
