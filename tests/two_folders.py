"""Two devices' folders, the settings and the test set of their server, and the same run on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedloom import verify
from fedloom.data import Federation, by_lists, from_arrays
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings
from fedloom.storage.codec import digest
from fedloom.virtual_time.arrivals_log import NAME, ArrivalsLog

SETTINGS = """
algorithm = "pfedsd"
model = "logistic"
data.classes = 3
local = {epochs = 2, batch_size = 5}
run = {rounds = %d, cohort_size = 2, deadline = 600}
"""
IDS = ["1" * 32, "2" * 32, "3" * 32]


def arrays(seed: int, classes: list[int], count: int) -> Any:
    """(x, y) of three clouds, of which only some are here."""
    rng = np.random.default_rng(seed)
    y = np.resize(classes, count)
    return (2 * np.eye(3, 4)[y] + rng.normal(size=(count, 4))).astype(np.float32), y


def written(folder: Path, rounds: int, devices: int = 2) -> Federation:
    """Two or three devices' folders and the server's test set, and what they are together."""
    (folder / "fed.toml").write_text(SETTINGS % rounds)
    parts = [arrays(k, classes, 30) for k, classes in enumerate(([0, 1], [1, 2], [0, 2])[:devices])]
    for k, (x, y) in enumerate(parts):
        (folder / f"data{k}").mkdir()
        np.savez(folder / f"data{k}" / "mine.npz", x_train=x[:24], y_train=y[:24], x_test=x[24:], y_test=y[24:])
        (folder / f"state{k}").mkdir()
        (folder / f"state{k}" / "id").write_text(IDS[k])
    x, y = arrays(9, [0, 1, 2], 30)
    np.savez(folder / "test.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    starts = range(0, 30 * devices, 30)
    rows = [by_lists([range(a + start, b + start) for start in starts]) for a, b in ((0, 24), (24, 30))]
    test = from_arrays(*arrays(9, [0, 1, 2], 30), num_classes=3)
    return Federation(from_arrays(x, y, num_classes=3), rows[0], test, rows[1])


def of_loop(folder: Path, federation: Federation) -> bytes:
    """metrics.jsonl of the same run on one machine."""
    alone = {"run.engine": "loop", "run.compilation": "none", "run.threads": 1, "run.deadline": None}
    experiment = Experiment.of(read_settings(folder / "fed.toml")).with_all(alone)
    experiment.job(federation).run(folder / "loop")
    return (folder / "loop" / "metrics.jsonl").read_bytes()


def with_run(folder: Path, **said: Any) -> None:
    """Write more into the run's settings, and others in the place of those that are there."""
    run = {"cohort_size": 2, "deadline": 600, **said}
    words = ", ".join(f"{name} = {value!r}".replace("'", '"') for name, value in run.items())
    settings = folder / "fed.toml"
    settings.write_text(settings.read_text().replace("cohort_size = 2, deadline = 600", words))


def unlike_its_log(folder: Path, examples: Any, rounds: int) -> list[str]:
    """In what a run of devices differs from the simulation by its log."""
    out = folder / "out"
    if lines(out / "metrics.jsonl") != rounds + 1:
        return [f"{lines(out / 'metrics.jsonl') - 1} of {rounds} rounds are there"]
    its = Experiment.from_directory(out)
    alone = {
        "run.engine": "loop", "run.threads": 1, "run.deadline": None, "run.checkpoint_every": 100,
        "run.asynchrony": f"{its.run.asynchrony},arrivals={out}",
    }  # fmt: skip
    try:
        history = its.with_all(alone).job(examples).run()
    except Exception as error:
        return [f"the simulation by the log fails: {error}"]
    wrong = [f"not whole: {problem}" for problem in verify(out).problems]
    if ArrivalsLog(out / NAME).ends.get(rounds) != digest(history.server):
        wrong.append("the server's state differs in the end")
    return wrong


def commands(folder: Path, order: list[int], *more: str) -> list[list[str]]:
    """One command a rank; `order`: which device is at which."""
    place = [str(folder / name) for name in ("fed.toml", "out", "test.npz")]
    serve = ["-m", "fedloom", "serve", "--settings", place[0], "--out", place[1], "--test", place[2], *more]
    join = [
        ["-m", "fedloom", "join", "--data", str(folder / f"data{k}"), "--state", str(folder / f"state{k}")]
        for k in order
    ]
    return [serve, *join]


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0
