"""What a reader of an algorithm must know is counted by one rule."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/concepts.py"))
concepts = SCRIPT["concepts"]

SAMPLE = """
from __future__ import annotations
import torch.nn.functional as F
import torch.utils
from fedloom import Algorithm, state

@state
class Server:
    w: int

class Mine(Algorithm):
    mu: float = 0.1
    mixed = True

    def round(self, server, cohort):
        self.local.counter = 1                       # `counter` is written, not read
        replies = cohort.reduce(self.update, server.w, server.state)
        return F.relu(replies.mean) + self.mu + self.__class__.mixed + torch.utils.state
"""


def test_names_are_counted_once_and_what_the_file_defines_not_at_all() -> None:
    assert concepts(SAMPLE) == (
        {"F", "torch", "Algorithm", "state"},
        {"local", "reduce", "update", "relu", "mean", "utils"},
    )


def test_names_of_the_library_count_as_if_they_were_imported() -> None:
    assert concepts("import fedloom as fl\nfl.Client, fl.Client, fl.tree.take") == (set(), {"Client", "tree", "take"})


def test_star_imports_are_refused() -> None:
    with pytest.raises(ValueError, match="a star import hides names"):
        concepts("from fedloom import *")


def test_scaffold_asks_half_of_what_it_did() -> None:
    before = concepts((Path(__file__).parent / "scaffold_before.txt").read_text(encoding="utf-8"))
    assert [len(names) for names in before] == [22, 19]
    now = concepts((ROOT / "src/fedloom/algorithms/scaffold.py").read_text(encoding="utf-8"))
    assert sum(len(names) for names in now) <= 23


THIRD_MORE = 22 * 4 // 3  # than SCAFFOLD asks
BASELINES = (
    "fedbn",
    "fedrep",
    "fedbabu",
    "fedexp",
    "q_fedavg",
    "fedsam",
    "fml",
    "fedlc",
)
MORE = {"ditto": 31, "fedrod": 32, "fedgkd": 36, "ifca": 39, "apfl_deng": 40, "fedala": 53, "fedproto": 64}


@pytest.mark.parametrize(("name", "most"), [*((name, THIRD_MORE) for name in BASELINES), *MORE.items()])
def test_the_baselines_of_tables_ask_little(name: str, most: int) -> None:
    """At most a third more than SCAFFOLD; of those that ask more, no more than they do."""
    text = (ROOT / f"src/fedloom/algorithms/{name}.py").read_text(encoding="utf-8")
    assert sum(len(names) for names in concepts(text)) <= most
    assert len(text.splitlines()) <= 130


def test_it_prints_a_line_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    SCRIPT["main"](sorted((ROOT / "src/fedloom/algorithms").glob("fed[ap]*.py")))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][-1] == "fedavg_stored"
    counts = [int(line.split()[1]) for line in lines]
    assert counts == sorted(counts, reverse=True)
