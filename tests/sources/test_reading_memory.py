"""Readers take at most twice the memory of what they read: of the file, unpacked, or of the examples made of it."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOM = 60 << 20  # bytes for all else, which does not grow with the data

READ = """
import re
import numpy, torch, fedloom
from fedloom.sources import load
from fedloom.tables import read_csv
{warm}
peak = lambda: 1024 * int(re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().replace("\\t", " "))[1])
before = peak()
found = {call}
print(peak() - before, sum(part.x.nbytes for part in (found.train, found.test) if part is not None))
"""


def element(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content + bytes(-len(content) % 8)


def svhn(folder: Path) -> tuple[str, int]:
    """300 MiB of digits in train; bytes that deflate shrinks a little."""
    for part, n in (("train", 100_000), ("test", 100)):
        variables = b""
        for name, shape, numbers in (("X", (32, 32, 3, n), 4), ("y", (n, 1), 1)):
            values = np.random.default_rng(0).integers(1, numbers + 1, int(np.prod(shape)), np.uint8).tobytes()
            head = element(6, (9).to_bytes(8, "little")) + element(5, np.array(shape, "<i4").tobytes())
            packed = zlib.compress(element(14, head + element(1, name.encode()) + element(2, values)), 1)
            variables += (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed
        (folder / f"{part}_32x32.mat").write_bytes(b" " * 124 + b"\x00\x01IM" + variables)
    return "load('svhn', {folder!r})", 100_000 * 3072


def leaf(folder: Path) -> tuple[str, int]:
    """100 MiB of text, 200 users."""
    x = np.random.default_rng(0).random((100, 784)).round(3).tolist()
    data = {f"u{u}": {"x": x, "y": [i % 62 for i in range(100)]} for u in range(200)}
    text = json.dumps({"users": list(data), "num_samples": [100] * 200, "user_data": data})
    for part in ("train", "test"):
        (folder / part).mkdir()
    (folder / "train/all.json").write_text(text)
    one = {"users": ["u0"], "num_samples": [62], "user_data": {"u0": {"x": x[:62], "y": list(range(62))}}}
    (folder / "test/all.json").write_text(json.dumps(one))
    return "load('femnist', {folder!r})", len(text)


def words(folder: Path) -> tuple[str, int]:
    """Two columns of 1,000 words, which become 2,000 columns of numbers."""
    rows = "".join(f"w{i % 1000},v{i * 7 % 1000},{i % 2}\n" for i in range(60_000))
    (folder / "t.csv").write_text("a,b,label\n" + rows)
    (folder / "small.csv").write_text("a,b,label\n" + "x,y,0\nz,y,1\n" * 30)
    return "read_csv({folder!r} + '/t.csv', prepare='standard')", 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peaks are read from Linux's /proc")
@pytest.mark.parametrize("made", [svhn, leaf, words], ids=lambda made: made.__name__)
def test_readers_take_at_most_twice_their_data(made: Callable[[Path], tuple[str, int]], tmp_path: Path) -> None:
    call, unpacked = made(tmp_path)
    warm = "read_csv({folder!r} + '/small.csv', prepare='standard')" if made is words else ""  # imports scikit-learn
    script = READ.format(call=call, warm=warm).replace("{folder!r}", repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", script], check=True, text=True, stdout=subprocess.PIPE)
    peak, examples = map(int, done.stdout.split())
    assert examples > 100 << 20 or unpacked > 90 << 20
    assert peak < 2 * max(unpacked, examples) + ROOM, f"{peak / max(unpacked, examples):.2f} times"
