"""Lengths as figures say them."""

from __future__ import annotations

from fedloom_papers.reproduction.run_lengths import length


def test_lengths_and_seeds_are_said_from_the_least_to_the_most() -> None:
    assert length([40, 40], 100, [1]) == "40 of 100 rounds, 1 seed"
    assert length([40, 20, 30], 100, [2, 1]) == "20 to 40 of 100 rounds, 1 to 2 seeds"
    assert length([200], 200, [2]) == "200 of 200 rounds, 2 seeds"
