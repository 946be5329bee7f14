"""A short form of `fuzz.py`, and that it notices what it is there for. The full form is run by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and /proc")


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_damaged_input_is_refused_or_read_as_what_it_is() -> None:
    pytest.importorskip("PIL")
    done = fuzz("payloads", "mat", "pickles", "npz", "csv", "png", "leaf", "kept", "--cases", "120", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for line in lines:
        assert "cases 120," in line
        assert "accepted 0" not in line  # damage that leaves nothing whole finds little
        assert "refused 0" not in line


@pytest.mark.slow
def test_what_is_bad_is_noticed_and_named() -> None:
    """Cases 6 and 8 are not bad; which case is what follows from the seed alone."""
    done = fuzz("broken", "--first", "5", "--cases", "9", "--seconds", "0.3")
    assert done.returncode == 1
    named = dict(line.strip().split(": ", 1) for line in done.stdout.splitlines()[:-1])
    assert {case: what.split("(")[0] for case, what in named.items()} == {
        "case 5": "TooLongError",
        "case 7": "KeyError",
        "case 9": "MemoryError behind FormatError",
        "case 10": "MemoryError behind MemoryError",
        "case 11": "ended by signal 11",
        "case 12": "ended by signal 11",
        "case 13": "MemoryError behind FormatError",
    }
    assert "cases 9, refused 2, accepted 0, bad 7," in done.stdout
