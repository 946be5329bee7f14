"""What many tests share: the golden files and small federations."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from fedloom.analyses.analysed_run import AnalysedRun, ReplayedRound

os.environ["HF_HUB_OFFLINE"] = "1"  # before it is read, by the first test that imports the hub: none asks for its files
GOLDEN = Path(__file__).parent / "tests" / "golden"
FIRST = ("test_flower.py", "test_battery.py", "test_ranks.py", "test_write.py", "test_writing.py", "test_runs.py")


def golden(name: str) -> dict[str, Any]:
    """A golden file as a dict of arrays, e.g. golden("fedntd/ntd_loss"), or what a .json file holds.

    No test reads these files in another way: tests/reading.py finds by these calls which files are read.
    """
    if name.endswith(".json"):
        return json.loads((GOLDEN / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage, which costs a third of the time: all that is made of 15,000 tests stays."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of a test as slow but for a few, where `@pytest.mark.some(n)` says how many `make test` runs.

    They are spread over all of them, from one that the test's name decides, so that the values of a cross product are
    met somewhere: of 12 cases (4 algorithms x 3 engines), some(4) runs the 1st, 4th, 7th and 10th, or the 2nd, 5th, ...

    What takes longest comes `FIRST`, so that nobody waits for it in the end: `make test-all` keeps this order. CI runs
    a `--share` of what is slow, another one with each commit.
    """
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    cases = dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("some"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, several in cases.items():
        (count,) = several[0].get_closest_marker("some").args  # type: ignore[union-attr]
        kept = {(len(several) * i // count + zlib.crc32(name.encode())) % len(several) for i in range(count)}
        for i, item in enumerate(several):
            if i not in kept:
                item.add_marker(pytest.mark.slow)
    if (share := config.getoption("share")) > 1:
        slow = [item.nodeid for item in items if item.get_closest_marker("slow")]
        if left := out_of_turn(slow, share, commit_of(config.rootpath)):
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
            items[:] = [item for item in items if item.nodeid not in left]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", type=int, default=1, metavar="N", help="run each Nth slow test, in turn from commit to commit"
    )


def out_of_turn(names: Sequence[str], share: int, commit: str) -> set[str]:
    """Return the names of cases that are left out at a commit: three of four with a share of 4."""
    turn = zlib.crc32(commit.encode())
    return {name for name in names if (zlib.crc32(name.encode()) - turn) % share}


def commit_of(root: Path) -> str:
    """Return the commit that is there, nothing where nobody can tell."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    except OSError:  # there is no git
        return ""
    return found.stdout.strip()


@pytest.fixture(autouse=True)
def _alike_wherever() -> None:
    """A test begins alike whatever ran before it: which tests share a process depends on how fast they are.

    One thread, since tests run side by side on few cores; global generators at their beginning, from which networks
    take weights that a test makes without a seed.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def _modules_of_one_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test wrote and imported: another test of the process may write one of that name."""
    path, known, written = list(sys.path), set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`trained("fedntd", "--model", "lenet")`: the directory of a small run, made once."""
    from analysed import maker  # which imports the command line, that few tests need

    return maker(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def lenet_run(trained: Callable[..., Path]) -> AnalysedRun:
    """Three rounds of FedNTD with a small convolutional network, to be analysed."""
    from fedloom.analyses import AnalysedRun

    return AnalysedRun.of(trained("fedntd", "--model", "lenet"))


@pytest.fixture(scope="session")
def lenet_round(lenet_run: AnalysedRun) -> ReplayedRound:
    """The last round of that run."""
    return lenet_run.replayed()


@pytest.fixture
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns; a module asks for it by `pytestmark = pytest.mark.usefixtures("_eighty_columns")`."""
    monkeypatch.setenv("COLUMNS", "80")
