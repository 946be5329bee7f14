"""Make `fedloom/cli/settings.schema.json`, by which editors complete and check settings files.

    python scripts/make_schema.py

It is made of the classes and of docs/settings.md, whose meanings of keys editors show. To be run where algorithms or
settings have changed; `tests/cli/test_schema.py` says when.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator.settings import RunSettings
from fedloom.core.choices import field_types, settable
from fedloom.core.optimiser import SGD, Adam, Local, Optimiser
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import ClientSettings, DataSettings, Experiment, flat
from fedloom.experiments.parts import OPTIMISERS

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src/fedloom/cli/settings.schema.json"
Schema = dict[str, Any]


def schema() -> Schema:
    """What the file holds: JSON Schema, draft 2020-12."""
    defaults = flat(Experiment().described())
    keys = {f"{section}.{name}": found for section, found in _sections().items() for name, found in found.items()}
    for key, meaning in _meanings().items():
        keys.setdefault(key, {"type": "string"})["description"] = meaning
    for key, value in defaults.items():
        if key in keys:
            keys[key]["default"] = value
    top = {key: found for key, found in keys.items() if "." not in key}
    top["algorithm"] = {**top["algorithm"], "anyOf": [{"enum": list(ALGORITHMS)}, {"pattern": ":"}]}
    sections = {
        name: _table({key.partition(".")[2]: found for key, found in keys.items() if key.startswith(f"{name}.")})
        for name in _sections()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of a fedloom run",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, **top, **sections, **{n: _algorithm(n) for n in ALGORITHMS}},
        "additionalProperties": {"type": "object", "description": "settings of an algorithm of your own"},
        "$defs": {"optimiser": _optimiser()},
    }


def written(found: Schema) -> str:
    """The same as text."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _sections() -> dict[str, dict[str, Schema]]:
    kinds = {"data": DataSettings, "clients": ClientSettings, "local": Local, "run": RunSettings}
    return {name: _fields(kind) for name, kind in kinds.items()}


def _algorithm(name: str) -> Schema:
    """The table of an algorithm; what it trains beside local training is a table in it."""
    kind, found = ALGORITHMS[name], {}
    types = field_types(kind, bounds=True)
    for key, value in catalogue.hyper_parameters(name).items():
        if dataclasses.is_dataclass(value):
            found[key] = _table(_fields(type(value)))
        elif settable(types[key]):
            found[key] = _value(types[key]) | {"default": value}
    said = (sys.modules[kind.__module__].__doc__ or "").strip().splitlines()[0]
    return _table(found) | {"description": said}


def _fields(kind: type) -> dict[str, Schema]:
    """The settings of a class; those of an optimiser stand beside them."""
    types, out = field_types(kind, bounds=True), {}
    for field in dataclasses.fields(kind):
        its = types[field.name]
        if field.init and isinstance(its, type) and issubclass(its, Optimiser):
            beside = [] if issubclass(kind, Optimiser) else [SGD, Adam]
            for one in beside:
                out |= {name: said for name, said in _fields(one).items() if name not in types}
            words = [{"enum": [name for name, one in OPTIMISERS.items() if one in beside]}] if beside else []
            out[field.name] = {"anyOf": [*words, {"$ref": "#/$defs/optimiser"}]}
        elif field.init and settable(its):
            out[field.name] = _value(its)
    return out


def _optimiser() -> Schema:
    """An optimiser as a table of its kind and its fields."""
    every = {name: said for one in OPTIMISERS.values() for name, said in _fields(one).items()}
    return _table({"kind": {"enum": list(OPTIMISERS)}, **every})


def _value(kind: Any) -> Schema:
    """One setting: pydantic's schema of its type; TOML has no null, and "none" is one."""
    found = TypeAdapter(kind).json_schema()
    if {"type": "null"} in found.get("anyOf", ()):
        found["anyOf"].append({"const": "none"})
    return found


def _table(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _meanings() -> dict[str, str]:
    """What docs/settings.md says of each key, without its links."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\) ?\| ?", line) for line in page.splitlines() if line.startswith("| `")]
    found = {row[1].strip("`"): row[5] for row in rows if len(row) == 7 and row[5]}
    return {key: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "") for key, text in found.items()}


if __name__ == "__main__":
    TARGET.write_text(written(schema()), encoding="utf-8")
    print(TARGET)
