"""Arguments that several commands take."""

from __future__ import annotations

import argparse

import pytest

from fedloom.display.arguments import count, directory, file, round_or_best


def test_counts_and_rounds_are_numbers_of_a_person() -> None:
    assert (count("1"), count("20"), round_or_best("best"), round_or_best("-3"), round_or_best("7")) == (
        1,
        20,
        "best",
        -3,
        7,
    )
    for wrong in ("0", "-1", "1.5", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="is a number of at least 1, got"):
            count(wrong)
    for wrong in ("last", "1.5", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="is the number of a round, or best, got"):
            round_or_best(wrong)


def test_places_are_on_this_machine() -> None:
    assert (directory("runs/a"), file("f.csv")) == ("runs/a", "f.csv")
    with pytest.raises(argparse.ArgumentTypeError, match="is empty; name a directory"):
        directory("")
    with pytest.raises(argparse.ArgumentTypeError, match="is not a file here"):
        file("s3://bucket/f.csv")
