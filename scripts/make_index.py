"""Make `fedloom/cli/index.json`, from which the command line answers without importing PyTorch.

    python scripts/make_index.py

To be run where algorithms, models, tasks, partitions or settings have changed; `tests/cli/test_index.py` says when.
"""

from __future__ import annotations

import json
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedloom.algorithms import ALGORITHMS
from fedloom.core.choices import field_types
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment, flat
from fedloom.experiments.parts import parts
from fedloom.experiments.trials import MEASURES, VALIDATION
from fedloom.models import MODELS

TARGET = Path(__file__).parents[1] / "src/fedloom/cli/index.json"


def index() -> dict[str, Any]:
    """What the file holds."""
    return {
        "algorithms": {name: _algorithm(name) for name in ALGORITHMS},
        "settings": _settings(),
        "partitions": catalogue.PARTITIONS,
        "models": list(MODELS),
        "tasks": list(catalogue.TASKS),
        "measures": list(MEASURES),
        "validation": VALIDATION,
    }


def written(found: dict[str, Any]) -> str:
    """The same as text."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _algorithm(name: str) -> dict[str, str]:
    """The first line of its file, and its settings with their defaults."""
    lines = (sys.modules[ALGORITHMS[name].__module__].__doc__ or "").strip().splitlines()
    settings = []
    for key, value in catalogue.hyper_parameters(name).items():
        inner = parts(value) if is_dataclass(value) else {}
        settings += [f"{key}.{part}={_said(its)}" for part, its in inner.items() if its is not None]
        settings += [] if inner else [f"{key}={_said(value)}"]
    return {"what": lines[0], "settings": "  ".join(settings)}


def _said(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _settings() -> dict[str, dict[str, Any]]:
    """Default and, where a setting is one word of a few, choices of every setting that has a place in a file."""
    plain = Experiment()
    out: dict[str, dict[str, Any]] = {"start": {"default": plain.start}}
    out |= {key: {"default": value} for key, value in flat(plain.described()).items()}
    for section in ("data", "clients", "local", "run"):
        for name, kind in field_types(type(getattr(plain, section))).items():
            if get_origin(kind) is Literal:
                out[f"{section}.{name}"]["choices"] = list(get_args(kind))
    return out


if __name__ == "__main__":
    TARGET.write_text(written(index()), encoding="utf-8")
    print(TARGET)
