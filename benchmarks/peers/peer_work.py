"""The work that all programs beside this do: cases, and the folder in which each program finds one and leaves its
answer. NumPy alone, so that every environment reads it.

A program is called `python peer_NAME.py FOLDER ROUNDS` and prints one line of JSON: seconds of each round, what
computed them, its versions. It leaves the trained parameters in the folder; `run_peers.py` computes their loss.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Case:
    """FedAvg of all `clients` in each round, each with `size` examples of `shape`, SGD without momentum."""

    name: str
    words: str
    network: str
    clients: int
    size: int
    shape: tuple[int, int, int]
    batch_size: int
    epochs: int
    lr: float
    rounds: int

    @property
    def steps(self) -> int:
        """Steps of all clients in one round."""
        return self.clients * self.epochs * -(-self.size // self.batch_size)


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
CASES = {
    case.name: case
    for case in (
        Case("logistic10", "logistic, 10 clients of 600, batch 10", "logistic", 10, 600, GREY, 10, 1, 0.03, 100),
        Case("logistic100", "logistic, 100 clients of 600, batch 10", "logistic", 100, 600, GREY, 10, 1, 0.03, 20),
        Case("lenet", "LeNet, 10 clients of 200, batch 20", "lenet", 10, 200, GREY, 20, 1, 0.03, 20),
        Case("cnn", "PFLlib's CNN, 10 clients of 200, batch 10", "cnn", 10, 200, GREY, 10, 1, 0.03, 5),
        Case("blazefl", "BlazeFL's: LeNet, 100 clients of 500, batch 50", "lenet", 100, 500, COLOUR, 50, 5, 0.1, 5),
    )
}
# The order of batches makes no difference where a batch is all that a client has: all must end with the same loss.
SAME = {
    name: Case(f"same-{name}", f"{name}, one batch a client", name, 4, 24, shape, 24, 3, 0.1, 3)
    for name, shape in (("logistic", GREY), ("lenet", COLOUR), ("cnn", GREY))
}


def layers(network: str, shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters as PyTorch has them: weights (O, I, H, W) or (O, I), biases."""
    channels, side, _ = shape
    if network == "logistic":
        return [(10, channels * side * side), (10,)]
    first, second, widths = {"lenet": (6, 16, (120, 84, 10)), "cnn": (32, 64, (512, 10))}[network]
    out: list[tuple[int, ...]] = [(first, channels, 5, 5), (first,), (second, first, 5, 5), (second,)]
    inputs = second * (((side - 4) // 2 - 4) // 2) ** 2
    for width in widths:
        out += [(width, inputs), (width,)]
        inputs = width
    return out


def make(case: Case, folder: Path) -> None:
    """Write a case: ten patterns under noise as bytes (N, C, H, W), labels, and the parameters with which all begin."""
    rng = np.random.default_rng(0)
    count = case.clients * case.size
    patterns = rng.integers(0, 256, (10, *case.shape), dtype=np.uint8)
    y = rng.integers(0, 10, count)
    x = rng.integers(0, 256, (count, *case.shape), dtype=np.uint8)
    x -= x // 4
    x += patterns[y] // 4
    parameters = {
        f"{i:02d}": rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(np.prod(shape[1:])) or 1)
        for i, shape in enumerate(layers(case.network, case.shape))
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    np.savez(folder / "start.npz", **parameters)
    (folder / "case.json").write_text(json.dumps(asdict(case)), encoding="utf-8")


class Work:
    """A case in a folder. Examples lie one client's after the other's; values are between -1 and 1."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        fields = json.loads((self.folder / "case.json").read_text(encoding="utf-8"))
        self.case = Case(**{**fields, "shape": tuple(fields["shape"])})

    @functools.cached_property
    def bytes(self) -> np.ndarray:
        return np.load(self.folder / "x.npy")

    @functools.cached_property
    def y(self) -> np.ndarray:
        return np.load(self.folder / "y.npy")

    @functools.cached_property
    def x(self) -> np.ndarray:
        """float32, (N, C, H, W)."""
        x = self.bytes.astype(np.float32)
        x /= np.float32(127.5)
        x -= np.float32(1)
        return x

    def rows(self, client: int) -> slice:
        return slice(client * self.case.size, (client + 1) * self.case.size)

    def start(self) -> list[np.ndarray]:
        with np.load(self.folder / "start.npz") as file:
            return [file[name] for name in sorted(file.files)]

    def answer(self, seconds: list[float], parameters: list[np.ndarray], form: str, *packages: str) -> None:
        """Leave the trained parameters, in the order and shapes of `start`, and print the line."""
        np.savez(self.folder / "end.npz", **{f"{i:02d}": np.asarray(p, np.float32) for i, p in enumerate(parameters)})
        versions = {name: metadata.version(name) for name in packages}
        print(
            json.dumps(
                {"seconds": seconds, "form": form, "versions": {**versions, "python": platform.python_version()}}
            )
        )


def called() -> tuple[Work, int]:
    """Return what the command line names: the work, and how many rounds."""
    sys.stdout.flush()
    return Work(sys.argv[1]), int(sys.argv[2])


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Clock:
    """Seconds between its marks."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last = time.perf_counter()

    def mark(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now
