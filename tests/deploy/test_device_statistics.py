"""Statistics of devices as messages: honest ones come as they were sent, and what no rows can have is refused."""

from __future__ import annotations

import copy
import json
import math
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedloom.core.errors import RefusedError
from fedloom.deploy.device_statistics import (
    CommonTotals,
    FirstStatistics,
    SecondStatistics,
    read_moments,
    read_preparation,
    to_bytes,
)
from fedloom.deploy.statistics_fields import MAX_COLUMNS
from fedloom.storage.strict_json import parse
from fedloom.tables.statistics import BINS, CommonPreparation, Spread, Summary, Total

FRAME = pd.DataFrame(
    {
        "age": [31.0, 77.0, np.nan, 50.0, 50.0],
        "moment": 1.7e9 + np.array([0.1, 0.4, 0.2, 0.9, 0.3]),
        "empty": np.full(5, np.nan),
        "ward": ["east", "north", "east", np.nan, "west"],
    }
)
OTHER = FRAME.assign(age=[20.0, 95.0, 61.0, 18.0, 40.0], moment=1.7e9 + np.arange(5.0))
TARGETS = np.array([[1.0, -4.0], [2.0, 5.0], [3.0, 6.0], [4.0, 7.0], [5.5, 8.0]])
COMMON = Summary.added([Summary.of(FRAME), Summary.of(OTHER)])
TOTALS = CommonTotals(COMMON.numbers, (3.0, 4.0))


def first(frame: pd.DataFrame = FRAME, least: int = 1, least_clients: int = 1) -> FirstStatistics:
    sums = tuple(TARGETS.sum(0).tolist())
    return FirstStatistics(len(frame), Summary.of(frame, least), least, sums, least_clients=least_clients)


def second(frame: pd.DataFrame = FRAME) -> SecondStatistics:
    squares = np.square(TARGETS - np.array(TOTALS.targets)).sum(0)
    return SecondStatistics(Spread.of_columns(frame, COMMON), tuple(squares.tolist()))


def sent(described: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the other end reads it."""
    return parse(to_bytes(described))


# ---- honest


@pytest.mark.parametrize("least", [1, 2])
def test_statistics_come_as_they_were_sent(least: int) -> None:
    own = first(least=least)
    assert "null" in json.dumps(own.described())
    found = FirstStatistics.read(sent(own.described()), 5, 2)
    assert found == own
    assert found.digest() == own.digest() != first(OTHER).digest()
    assert CommonTotals.read(sent(TOTALS.described()), own) == TOTALS
    for frame in (FRAME, OTHER):
        counted = SecondStatistics.read(sent(second(frame).described()), first(frame), TOTALS)
        assert counted.targets == second(frame).targets
        for name, spread in second(frame).numbers.items():
            assert counted.numbers[name].squares == spread.squares
            np.testing.assert_array_equal(counted.numbers[name].bins, spread.bins)


def test_how_many_devices_must_have_a_word_comes_as_it_was_sent() -> None:
    own = first(least_clients=2)
    assert FirstStatistics.read(sent(own.described()), 5, 2) == own
    assert "least_clients" not in first().described()
    made = CommonPreparation(least_clients=2).fit([FRAME, OTHER])
    assert read_preparation(sent(made.described())) == made


@pytest.mark.parametrize("seed", range(40))
def test_what_rounding_moves_is_no_lie(seed: int) -> None:
    """Columns of any size and place, of few rows or many, some of them constant on a device and another elsewhere."""
    rng = np.random.default_rng(seed)
    scale, far = 10.0 ** rng.integers(-30, 30), 10.0 ** rng.integers(0, 9)
    frames = []
    for number, rows in enumerate(rng.integers(1, 2000, 3)):
        spread = 0.1 * number + rng.standard_normal(rows) * (rng.random() < 0.8)
        frames.append(pd.DataFrame({"x": scale * (far + spread), "y": np.round(spread * scale, 40)}))
    common = Summary.added([Summary.of(frame) for frame in frames])
    for frame in frames:
        own = FirstStatistics(len(frame), Summary.of(frame), 1, (math.fsum(frame["x"]),))
        assert FirstStatistics.read(sent(own.described()), len(frame), 1) == own
        totals = CommonTotals(common.numbers, (common.numbers["x"].mean,))
        spreads = Spread.of_columns(frame, common)
        told = SecondStatistics(spreads, (float(np.square(frame["x"] - totals.targets[0]).sum()),))
        SecondStatistics.read(sent(told.described()), own, totals)


def test_a_preparation_and_moments_come_as_they_were_sent() -> None:
    made = CommonPreparation(2).fit([FRAME, OTHER])
    assert read_preparation(sent(made.described())).digest() == made.digest()
    assert read_moments({"mean": [1.5, -2], "deviation": [0.5, 0]}, 2) == ((1.5, -2.0), (0.5, 0.0))


# ---- what no rows can have


def changed(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(message)
    *way, last = path.split("/")
    place: Any = out
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    return out


MANY = {f"c{k}": [0, 0.0, None, None] for k in range(MAX_COLUMNS + 1)}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rows", 6, "statistics are over all 5 training examples that a device registers, got 6: register the same"),
        ("rows", True, "got True: register"),
        ("more", 1, "least, least_clients, columns, numbers, words, targets, text, got 'more': leave it out"),
        ("least", 0, "least is an integer >= 1, got 0: write least=5"),
        ("least_clients", True, "least_clients is an integer >= 1, got True: write least_clients=2"),
        ("numbers", [], r"totals of columns are an object of JSON, got \[\]: send one"),
        ("numbers/age", [4, 208.0, 31.0], "a column has .count, sum, smallest, largest. with a count of 0 to 5, got"),
        ("numbers/age/0", -1, r"with a count of 0 to 5, got \[-1, 208.0, 31.0, 77.0\] of 'age': count the training"),
        ("numbers/age/0", 6, "with a count of 0 to 5"),
        ("numbers/age/0", 4.0, "with a count of 0 to 5"),
        ("numbers/age/1", 123.9, "4 numbers from 31 to 77 add up to 124 to 308, got the sum 123.9 of 'age': send that"),
        ("numbers/age/1", 308.1, "4 numbers from 31 to 77 add up to 124 to 308, got the sum 308.1 of 'age'"),
        ("numbers/age/2", 78.0, "4 numbers from 78 to 77 add up to"),
        ("numbers/age/2", None, "a total of 'age' must be a number of at most 3.5e.38 a value, got None: send another"),
        ("numbers/age/2", "31", "must be a number of at most"),
        ("numbers/age/3", 3.6e38, r"values are at most 3.5e\+38, got 3.6e\+38 in 'age': use another unit"),
        ("numbers/age/3", 1e40, "must be a number of at most"),
        ("numbers/empty/1", 5.0, "a column without numbers has the sum 0 and null for its ends, got"),
        ("numbers/empty/2", 0.0, "a column without numbers has the sum 0 and null"),
        ("numbers/ward", [0, 0.0, None, None], "a table has at most 1,024 columns with different names, got 5: leave"),
        ("numbers", MANY, "a table has at most 1,024 columns with different names, got 1,026"),
        ("numbers/" + "x" * 1001, [0, 0, None, None], "is a text of at most 1000 characters, got 'xxx"),
        ("words", None, "words of columns are an object of JSON, got None"),
        ("words/ward", ["east"], "words of 'ward' are an object of JSON, got"),
        ("words/ward/east", 3, "each of 5 rows has one word or a gap, got 6 in 'ward': count each row once"),
        ("words/ward/east", 1, "each of 5 rows has one word or a gap, got 4 in 'ward'"),
        ("words/ward/east", -2, "words are counted in whole numbers from 1 .least., got -2 in 'ward': count rows"),
        ("words/ward/east", 2.0, "words are counted in whole numbers"),
        ("words/ward/" + "x" * 1001, 0, "is a text of at most 1000 characters"),
        ("words/ward", {f"w{k}": 1 for k in range(1001)}, "a column has at most 1,000 different words, got 1,001 in"),
        ("targets", [1.0], r"sums of targets are a list of 2 numbers, got \[1.0\]: send one for each target"),
        ("targets/0", "a lot", "sums of targets must be a number"),
        ("targets/0", 1e40, r"targets are at most 3.5e\+38, got the sum 1e\+40 of 5: use another unit"),
    ],
)  # fmt: skip
def test_first_statistics_that_no_rows_can_have_are_refused(path: str, value: Any, words: str) -> None:
    message = changed(first().described(), path, value)
    with pytest.raises(RefusedError, match=words):
        FirstStatistics.read(message, 5, 2)


def test_words_that_are_to_be_withheld_are_refused() -> None:
    message = first(least=2).described()
    assert message["words"] == {"ward": {"east": 2}}
    with pytest.raises(RefusedError, match=r"words are counted in whole numbers from 2 \(least\), got 1 in 'ward'"):
        FirstStatistics.read(changed(message, "words/ward/west", 1), 5, 2)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_no_json(word: str) -> None:
    text = json.dumps(first().described()).replace("77.0", word)
    with pytest.raises(ValueError, match="numbers must be finite"):
        parse(text.encode())


BINS_OF_AGE = second().numbers["age"].bins


def moved(to: int) -> list[int]:
    """Return the bins of ages, of which the smallest is in another one."""
    out = BINS_OF_AGE.tolist()
    out[out.index(1)] = 0
    out[to] += 1
    return out


def swapped() -> list[int]:
    """Return bins with the same ends, whose inner numbers add up to too much."""
    out = BINS_OF_AGE.tolist()
    place = out.index(2)
    out[place], out[int(np.flatnonzero(BINS_OF_AGE)[-1])] = 0, 3
    return out


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("numbers/age", None, "the spread of 'age' are an object of JSON, got None"),
        ("numbers/ward", {}, "spreads are of the columns of numbers that were asked for, and 'ward' is on one side"),
        ("numbers/age/more", 1, "have the entries squares, bins, got 'more'"),
        ("numbers/age/bins", [4], r"numbers are counted in 1,024 bins from 0, got \[4\] of 'age': send these"),
        ("numbers/age/bins/0", -1, "numbers are counted in 1,024 bins from 0"),
        ("numbers/age/bins/0", 1.0, "numbers are counted in 1,024 bins from 0"),
        ("numbers/age/bins/500", 1, "4 numbers are counted once each, got 5 in the bins of 'age'"),
        ("numbers/age/bins", moved(0), "smallest and the largest number are in bins 172 and 784, got bins 0 to 784"),
        ("numbers/age/bins", moved(1023), "in bins 172 and 784, got bins 425 to 1023 of 'age': count"),
        ("numbers/age/bins", swapped(), "numbers in these bins add up to 261.* to 262.*, got 208 of 'age'"),
        ("numbers/age/squares", 9e3, "squared distances of these numbers from 49.1.* add up to .*, got 9000 of 'age'"),
        ("numbers/age/squares", 3.0, "squared distances of these numbers from"),
        ("numbers/age/squares", -1.0, "squared distances of these numbers from"),
        ("numbers/age/squares", 1e90, "the squares of 'age' must be a number"),
        ("numbers/empty/squares", 1.0, "no numbers have no squared distances, got 1 of 'empty': send 0"),
        ("numbers/empty/bins/3", 1, "0 numbers are counted once each, got 1 in the bins of 'empty'"),
        ("targets", [1.0], "squares of targets are a list of 2 numbers"),
        ("targets/1", 0.7, "squared distances of 5 targets with the mean 4.4 from 4 add up to at least 0.8, got 0.7"),
        ("targets/1", -1e-3, "add up to at least 0.8, got -0.001: send those of the same rows"),
    ],
)  # fmt: skip
def test_counts_that_do_not_fit_what_was_said_before_are_refused(path: str, value: Any, words: str) -> None:
    message = changed(second().described(), path, value)
    with pytest.raises(RefusedError, match=words):
        SecondStatistics.read(message, first(), TOTALS)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            "numbers/height",
            [1, 1.0, 1.0, 1.0],
            "totals are of columns that this device has, got 'height': leave others",
        ),
        (
            "numbers/age",
            [3, 99.0, 18.0, 95.0],
            "totals of a column hold those of each device, and 'age' has fewer numbers or a smaller",
        ),
        ("numbers/age/2", 32.0, "'age' has fewer numbers or a smaller range than on this one: it answers no range"),
        ("numbers/age/3", 76.0, "'age' has fewer numbers or a smaller range than on this one"),
        ("targets", [], "means of targets are a list of 2 numbers"),
        ("numbers/age/1", 1.0, "add up to"),
    ],
)
def test_a_device_answers_no_totals_without_its_own(path: str, value: Any, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        CommonTotals.read(changed(TOTALS.described(), path, value), first())


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("least", "1", "least is an integer >= 1, got '1'"),
        ("least_clients", 0, "least_clients is an integer >= 1, got 0"),
        ("numbers/age/deviation", 0.0, "a scale has a deviation above 0 and counts gaps, got"),
        ("numbers/age/gaps", -1, "a scale has a deviation above 0 and counts gaps"),
        ("numbers/age/mean", None, "mean of 'age' must be a number"),
        ("numbers/age/__class__", 1, "have the entries fill, mean, deviation, gaps, got '__class__'"),
        ("words/ward", "east", "words of a column are a list of at most 1,000 without repetition, got 'east' of"),
        ("words/ward", ["east", "east"], "words of a column are a list of at most 1,000 without repetition"),
        ("words/ward", list(map(str, range(1001))), "words of a column are a list of at most 1,000"),
        ("words/ward", [5], "a word is a text of at most 1000 characters, got 5"),
        ("words/age", ["old"], "columns with different names, got 5"),
    ],
)
def test_what_is_no_preparation_is_refused(path: str, value: Any, words: str) -> None:
    message = changed(json.loads(json.dumps(CommonPreparation().fit([FRAME]).described())), path, value)
    with pytest.raises(RefusedError, match=words):
        read_preparation(message)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (None, "moments of targets are an object of JSON, got None"),
        ({"mean": [1.0], "deviation": [1.0, 1.0]}, "mean of targets are a list of 2 numbers"),
        ({"mean": [1.0, 1.0], "deviation": [1.0, -1.0]}, "deviations are at least 0, got -1"),
    ],
)
def test_what_are_no_moments_is_refused(message: Any, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        read_moments(message, 2)


def test_long_messages_are_refused_before_they_are_sent() -> None:
    with pytest.raises(RefusedError, match=r"take at most 16,777,216 bytes, got 16,777,2\d\d: leave columns out"):
        to_bytes({"word": "x" * (1 << 24)})


@pytest.mark.parametrize("seed", range(3))
def test_fuzzed_statistics_are_refused_or_are_some(seed: int) -> None:
    """Bytes that were changed at random: what is still read has counts and sums that rows can have."""
    rng, sound = Random(seed), to_bytes(first().described())
    read = 0
    for _ in range(400):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 2, 4))):
            data[rng.randrange(len(data))] = rng.choice(b'0123456789-.,:[]{}"en')
        try:
            found = FirstStatistics.read(parse(bytes(data)), 5, 2)
        except (RefusedError, ValueError):
            continue
        read += 1
        for total in [] if found.summary is None else found.summary.numbers.values():
            assert total == Total(0, 0.0, math.inf, -math.inf) or math.isfinite(total.mean)
            assert Spread.of(np.array([total.smallest]), total).bins.sum() == 1 if total.count else BINS
    assert read
