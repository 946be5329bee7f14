"""The schema of settings files: what the classes say, what runs write, and what an editor is to mark."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import fedloom.cli
from fedloom.algorithms import ALGORITHMS
from fedloom.cli.main import main
from fedloom.coordinator.descriptions import plain
from fedloom.core.errors import SettingError
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(fedloom.cli.__file__).parent / "settings.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def wrong(described: dict[str, Any]) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(plain(described))]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_run_writes_down_is_right(name: str) -> None:
    assert wrong(Experiment.of({"algorithm": name}).described()) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.toml")), ids=lambda path: path.stem)
def test_examples_are_right(path: Path) -> None:
    assert wrong(tomllib.loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("described", "where"),
    [
        ({"modle": "lenet"}, "$.modle"),
        ({"model": 3}, "$.model"),
        ({"algorithm": "fedavgg"}, "$.algorithm"),
        ({"model": "lenett"}, "$.model"),
        ({"task": "hinges"}, "$.task"),
        ({"data": {"partition": "shard:2"}}, "$.data.partition"),
        ({"clients": {"sampler": "by_sizes"}}, "$.clients.sampler"),
        ({"run": {"rouns": 3}}, "$.run"),
        ({"run": {"rounds": 0}}, "$.run.rounds"),
        ({"run": {"engine": "fast"}}, "$.run.engine"),
        ({"local": {"lr": -1}}, "$.local.lr"),
        ({"local": {"optimiser": "cosine"}}, "$.local.optimiser"),
        ({"local": {"betas": [0.9]}}, "$.local.betas"),
        ({"data": {"test_fraction": 1}}, "$.data.test_fraction"),
        ({"fedprox": {"nu": 1}}, "$.fedprox"),
        ({"kt_pfl": {"distill": {"lr": 0}}}, "$.kt_pfl.distill.lr"),
    ],
)
def test_mistakes_are_marked(described: dict[str, Any], where: str) -> None:
    assert wrong(described) == [where]
    with pytest.raises(SettingError):
        Experiment.of(described).job()


@pytest.mark.parametrize(
    "described",
    [
        {"run": {"threads": "none"}, "local": {"optimiser": "adam", "betas": [0.8, 0.9]}},
        {"fedbe": {"distill": {"optimiser": {"kind": "adamw", "schedule": "cosine:8?by=step"}}}},
        {"local": {"optimiser": "own:Lion", "schedule": "step:9:0.5", "clip_value": 1}},
        {"model": "lenet,own:Net", "task": "own:Task"},
        {"data": {"partition": "lognormal:2:2:5"}, "clients": {"sampler": "uniform+arriving:5:1"}},
        {"$schema": "settings.schema.json", "algorithm": "own:Method", "Method": {"beta": 1}},
    ],
)
def test_other_ways_to_write_are_right(described: dict[str, Any]) -> None:
    assert wrong(described) == []


def test_a_file_may_name_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.json").write_text('{"$schema": "settings.schema.json", "model": "mlp"}', encoding="utf-8")
    assert Experiment.of(read_settings(tmp_path / "own.json")).model == "mlp"
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_new_settings_come_with_their_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / "mine")]) == 0
    text = (tmp_path / "mine/settings.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema settings.schema.json\n")
    assert json.loads((tmp_path / "mine/settings.schema.json").read_text(encoding="utf-8")) == SCHEMA
    assert wrong(tomllib.loads(text)) == []
    capsys.readouterr()
