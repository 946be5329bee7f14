"""Samplers by name."""

from __future__ import annotations

import pytest

from fedloom.coordinator.sampler import Arriving, Available, BySize, DeviceSampler, FixedList, SeededByRound, Uniform
from fedloom.core.errors import SettingError
from fedloom.experiments.catalogue import sampler


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("uniform", Uniform(5)),
        ("by_round", SeededByRound()),
        ("by_size", BySize(5)),
        ("available:0.3:24", Available(0.3, 24, 5)),
        ("list:0,1,2;;3", FixedList(((0, 1, 2), (), (3,)))),
        ("uniform+arriving:20:5", Arriving(Uniform(5), 20, 5)),
        ("available:1:2+arriving:20:0", Arriving(Available(1.0, 2, 5), 20, 0)),
    ],
)
def test_samplers_by_name(text: str, made: DeviceSampler) -> None:
    assert sampler(text, 5) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom", "unknown sampler 'unifrom' (did you mean 'uniform'?); there are uniform, by_round, "),
        ("", "unknown sampler ''; there are uniform"),
        ("uniform:3", "is written uniform, got 'uniform:3'"),
        ("available:0.3", "is written available:SHARE:PERIOD, got 'available:0.3'"),
        ("available:0.3:1.5", "is written available:SHARE:PERIOD, got 'available:0.3:1.5'"),
        ("available:2:24", "must be in (0, 1], got 2.0"),
        ("list:1,x", "is written list:0,1,2;3,4,5, got 'list:1,x'"),
        ("list:1,1", "distinct numbers"),
        (
            "by_size+ariving:1:2",
            "unknown end of a sampler '+ariving:1:2' (did you mean '+arriving'?); there are +arr",
        ),
        ("by_size+arriving:1", "is written +arriving:FIRST:PER_ROUND, got 'by_size+arriving:1'"),
        ("by_size+arriving:0:1", "got first = 0"),
    ],
)
def test_names_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        sampler(text, 0)
    assert message in str(caught.value)
