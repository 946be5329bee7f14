"""The virtual clock: seconds of a training by formulae of one's own, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import SettingError
from fedloom.core.random import generator
from fedloom.virtual_time.clock import Clock


def clock(text: str, seed: int = 0, clients: int = 8) -> Clock:
    return Clock.of(text, seed, clients)


def took(of: Clock, client: int = 0, round: int = 0, *, examples: float = 500, up: float = 1e6) -> float:
    return of.seconds(client, round, examples, 10, 1e9, 1e6, up)


def test_seconds_are_of_download_computing_and_upload() -> None:
    of = clock("lognormal:example=0.01,spread=0,down=20,up=5")
    assert took(of) == pytest.approx(0.4 + 5 + 1.6, abs=1e-12)  # 8e6 bits / 20e6, 500 * 0.01, 8e6 / 5e6
    assert took(of, examples=0, up=0) == pytest.approx(0.4, abs=1e-12)
    assert took(clock("lognormal:flops=1e9,spread=0")) == pytest.approx(
        1.0
    )  # 1e9 FLOPs; no rates: nothing is waited for


def test_log_normal_speeds_are_drawn_once_for_each_client_by_the_seed() -> None:
    """The same numbers as drawn here by hand, in any number of clients."""
    z = generator(3, "clock", "speed").standard_normal(8)
    line = generator(3, "clock", "rates").standard_normal(8)
    of = clock("lognormal:example=0.01,spread=0.7,down=20,up=5,rates_spread=0.3", seed=3)
    for k in range(8):
        wanted = 5 * math.exp(0.7 * z[k]) + (0.4 + 1.6) / math.exp(0.3 * line[k])
        assert took(of, k) == pytest.approx(wanted, rel=1e-12)
        assert took(of, k) == took(of, k, round=5)
    more = clock("lognormal:example=0.01,spread=0.7,down=20,up=5,rates_spread=0.3", seed=3, clients=20)
    assert [took(more, k) for k in range(8)] == [took(of, k) for k in range(8)]
    assert took(clock("lognormal:example=0.01"), 1) != took(clock("lognormal:example=0.01", seed=1), 1)
    assert took(clock("lognormal:example=0.01,seed=1"), 1) == took(clock("lognormal:example=0.01", seed=1), 1)


def test_half_of_many_clients_are_slower_than_the_median() -> None:
    seconds = clock("lognormal:example=0.01,spread=1", clients=20000).devices.example
    assert np.median(seconds) == pytest.approx(0.01, rel=0.05)
    assert np.std(np.log(seconds)) == pytest.approx(1.0, rel=0.03)


def test_jitter_is_of_each_training() -> None:
    of = clock("lognormal:example=0.01,spread=0,jitter=0.2")
    z = generator(0, "clock", "jitter", 4, 2).standard_normal()
    assert took(of, 2, 4) == pytest.approx(5 * math.exp(0.2 * z), rel=1e-12)
    assert len({took(of, k, t) for k in range(3) for t in range(3)}) == 9


def test_a_deadline_is_of_the_clock() -> None:
    assert clock("lognormal:example=0.01,deadline=60").deadline == 60.0
    assert clock("lognormal:example=0.01").deadline is None


def test_the_files_of_a_clock_have_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("computation,communication\n100,8000\n")
    (tmp_path / "b.csv").write_text("computation,communication\n100,8001\n")
    numbers = [clock(f"trace:{tmp_path}/{name}.csv").files for name in "aab"]
    assert numbers[0] == numbers[1] != numbers[2]
    assert clock("lognormal:example=1").files == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lognormall:example=1", "unknown clock 'lognormall:example=1' (did you mean 'lognormal'?); there are none, "),
        ("lognormal", "needs one of example= (seconds) and flops= (FLOP/s), got 'lognormal': write lognormal:example="),
        ("lognormal:example=1,flops=1", "needs one of example="),
        ("lognormal:example=fast", "example of clock = 'lognormal' is a number, got 'example=fast': write it as in"),
        ("lognormal:example=1,exampel=2", "got 'exampel=2' (did you mean 'example'?)"),
        ("lognormal:example=-1", "example of a clock is 0 or more, got -1 in 'lognormal:example=-1': correct it"),
        ("lognormal:example=1,down=0", "down of a clock is above 0, got 0"),
        ("lognormal:example=1,deadline=0", "deadline of a clock is above 0, got 0"),
        ("lognormal:example=1,there=1.5,cycle=9", "there of a clock is above 0 and at most 1, got 1.5"),
        ("lognormal:example=1,there=0.5", "clients are there for a share of each cycle (there=0.5,cycle=86400), or as"),
        ("classes", "needs classes, or a file of them, got 'classes': write classes:phone=0.7/0.02/20/5"),
        (
            "classes:phone=0.7/0.02/20",
            "is NAME=SHARE/SECONDS/DOWN/UP, numbers all, got 'phone=0.7/0.02/20' in 'classes:ph",
        ),
        ("classes:phone=0.7", "of clock = 'classes' one says, each once, some of classes:phone=0.7/0.02/20/5"),
        ("classes:phone=0.7/0.02/20/fast", "is NAME=SHARE/SECONDS/DOWN/UP, numbers all, got 'phone=0.7/0.02/20/fast'"),
        ("classes:phone=0/0.02/20/5", "a class of devices has a share, Mbit/s down and up above 0, and 0 or more"),
        ("classes:a=1/0.02/20/5,a=1/0.02/20/5", "classes of devices have different names, got one twice in"),
        ("trace", "needs a file, or the folder of a run, got 'trace': write trace:FILE.csv"),
        (
            "measured:nowhere",
            "a measured clock takes the folder of a run of devices, with its audit log, got 'nowhere'",
        ),
        ("trace:nowhere.csv", "a file of devices is a CSV file in UTF-8, got nowhere.csv: "),
    ],
)
def test_what_is_written_otherwise_is_refused(text: str, words: str) -> None:
    with pytest.raises(SettingError) as error:
        clock(text)
    assert words in str(error.value)
