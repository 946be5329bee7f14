"""The index, the schema and the tables of docs/settings.md say what the classes declare."""

from __future__ import annotations

import argparse
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedloom.algorithms import ALGORITHMS
from fedloom.analyses import ANALYSES
from fedloom.cli.flags import add_settings
from fedloom.core.local_training import Distill
from fedloom.core.optimiser import SGD
from fedloom.core.setting import flag_of, sentences, setting
from fedloom.experiments import catalogue
from fedloom.experiments.catalogue import ARRIVING, PARTITIONS, SAMPLERS
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import flat

ROOT = Path(__file__).parents[2]
MADE = runpy.run_path(str(ROOT / "scripts" / "make_index.py"))


def test_what_is_made_of_declarations_is_up_to_date() -> None:
    for path, text in MADE["made"]().items():
        assert path.read_text(encoding="utf-8") == text, f"settings have changed: python scripts/make_index.py ({path})"


def test_every_setting_is_declared_with_a_sentence_and_has_a_row_of_the_page() -> None:
    keys = {key for key in flat(Experiment().described()) if not key.startswith("fedavg.")}
    assert keys <= set(MADE["DECLARED"]) | {"algorithm"}
    rows = {line.split("`")[1] for line in MADE["PAGE"].read_text(encoding="utf-8").splitlines() if line[:3] == "| `"}
    assert rows >= set(MADE["DECLARED"])
    assert all(one.sentence.endswith(".") for one in MADE["DECLARED"].values())


def test_every_flag_is_that_of_a_setting() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    flags = {action.dest: action.option_strings[-1] for action in parser._actions}
    declared = {key: one.flag for key, one in MADE["DECLARED"].items() if one.flag}
    assert declared.items() <= flags.items()
    assert set(flags) - set(declared) == {
        "help",
        "settings",
        "set",
        "seeds",
        "out",
        "resume",
        "track",
        "debug",
        "script",
    }
    assert "0.9 is 90 %." in " ".join(parser.format_help().split())


def test_the_file_of_an_algorithm_says_what_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    told = MADE["told"]
    assert told("fedbe")["paper"] == "Chen and Chao, ICLR 2021"
    assert told("kt_pfl")["what it is"].endswith("; personal; several architectures; public data; classes")
    assert [told("moon")[n] for n in ("class", "up", "client keeps", "FedAvg")] == [
        "`MOON`", "the model", "its last model", "mu = 0 is FedAvg",
    ]  # fmt: skip
    without = {name for name in ALGORITHMS if told(name)["paper"] == "-"}
    assert without == {"fedavg_stored", "local_only", "centralised"}
    text = str(sys.modules["fedloom.algorithms.moon"].__doc__)
    monkeypatch.setattr("fedloom.algorithms.moon.__doc__", text.replace("Kept by the client", "Kept"))
    with pytest.raises(ValueError, match="the file of moon must say: Down: "):
        told("moon")


def test_the_page_of_an_algorithm_is_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    page, methods, place = MADE["METHODS"].read_text(encoding="utf-8"), MADE["methods"], MADE["OF_METHODS"] / "moon.md"
    before = MADE["method_pages"]()
    travels = "Down: a. Up: b. Kept by the client: c."
    text = f"Name: it is `moon`.\n\nAs in `fedavg`\n(docs/ktpfl.md).\n\n    w <- `fedavg`\n\n{travels}"
    monkeypatch.setattr("fedloom.algorithms.moon.__doc__", text)
    after = MADE["method_pages"]()
    assert (
        after[place]
        .partition("-->\n\n")[2]
        .startswith("# Name\n\nName: it is `moon`.\n\n| | |\n|---|---|\n| on the command line | `moon` |\n")
    )
    assert "| in Python | `fl.MOON` ([source](../../src/fedloom/algorithms/moon.py)) |\n| family |" in after[place]
    said = f"As in [`fedavg`](fedavg.md) ([docs/ktpfl.md](../ktpfl.md)).\n\n    w <- `fedavg`\n\n{travels}"
    assert f"\n## Method\n\n{said}\n\n## Settings\n\n- `mu=1.0`: " in after[place]
    assert {path for path in after if after[path] != before[path]} == {place}
    row = "| [moon](algorithms/moon.md) | Name: it is moon | - | "
    lines = [[one for one in text.splitlines() if not one.startswith(row[:7])] for text in (page, methods(page))]
    assert lines[0] == lines[1]
    assert f"\n{row}" in methods(page)


def test_a_default_stands_on_the_page_as_python_writes_it() -> None:
    part = Distill(batch_size=128, optimiser=SGD(lr=0.01, momentum=0.9))
    written = "fl.Distill(batch_size=128, optimiser=fl.SGD(lr=0.01, momentum=0.9))"  # its rate too, which is SGD's own
    assert [MADE["expression"](value) for value in (part, "a", (0, 1))] == [written, '"a"', "(0, 1)"]


def test_what_is_taken_from_docstrings_is_there() -> None:
    said = [p.sentence for p in PARTITIONS.values()]
    said += [MADE["_first"](one.make) for one in (*SAMPLERS.values(), ARRIVING)]
    said += [MADE["_first"](measure) for measure in ANALYSES.values()]
    assert [text for text in said if not text.endswith(".")] == []


@dataclass(frozen=True, kw_only=True)
class Base:
    size: int = setting(3, "--size N", "some")
    """How
    large."""
    plain: int = 1


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    size: int = 4
    other: bool = setting(False, "--other")
    """Another one."""


def test_a_declaration_is_inherited() -> None:
    assert sentences(Derived) == {"size": "How large.", "other": "Another one."}
    assert [flag_of(Derived, name) for name in ("size", "plain", "other")] == [
        ("--size", "N", "some"), ("", "", ""), ("--other", "", ""),
    ]  # fmt: skip
    assert Derived().size == 4
    assert Derived.other is False


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_of_an_algorithm_has_a_sentence(name: str) -> None:
    said = sentences(ALGORITHMS[name])
    assert [key for key in catalogue.hyper_parameters(name) if not said.get(key, "").endswith(".")] == []
