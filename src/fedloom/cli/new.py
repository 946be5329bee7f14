"""`fedloom new`: custom data, model and settings as files to change; `fedloom schema`: the JSON schema of settings."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedloom.core.errors import SettingError
from fedloom.storage.output import publish

SCHEMA = Path(__file__).with_name("settings.schema.json")
_FILES = {
    "my_data.py": '''\
"""The examples. Replace `examples` by your own; everything else follows its shapes."""

from __future__ import annotations

import numpy as np

import fedloom as fl


def examples() -> fl.Dataset:
    """800 made-up people by age and income (standardised), and whether they bought: 600 to train on, 200 to test."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 2)).astype(np.float32)
    y = (x @ np.array([1.0, 2.0]) + rng.normal(size=800) > 0).astype(np.int64)
    names = ("no", "yes")
    train = fl.from_arrays(x[:600], y[:600], name="people", classes=names)
    test = fl.from_arrays(x[600:], y[600:], name="people", classes=names)
    return fl.Dataset(train, test)
    # a table:            return fl.read_csv("people.csv", label="bought", prepare="standard")
    # a PyTorch data set: return fl.Dataset(fl.from_torch(train), fl.from_torch(test))
''',
    "my_model.py": '''\
"""The network: any module that maps a batch of examples to one logit for each class."""

from __future__ import annotations

from torch import nn


def network() -> nn.Module:
    """Two features in, two classes out."""
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
''',
    "settings.toml": """\
#:schema settings.schema.json
# fedloom run --settings settings.toml --out runs/first      docs/settings.md lists every key
algorithm = "fedavg"
model = "my_model:network"

[data]
source = "my_data:examples"
partition = "dirichlet:0.5"
clients = 10
val_fraction = 0.1          # to choose settings by

[local]
epochs = 2
batch_size = 20
lr = 0.1

[run]
rounds = 10
cohort_size = 5
""",
}


def write(args: argparse.Namespace, console: Console) -> int:
    """Write the files, and print commands that use them."""
    folder = Path(args.directory)
    files = {**_FILES, SCHEMA.name: SCHEMA.read_text(encoding="utf-8")}
    if there := [name for name in files if (folder / name).exists()]:
        raise SettingError(
            f"fedloom new overwrites no file, and {folder} has {', '.join(there)}: name another directory"
        )
    for name, text in files.items():
        console.print(str(publish(folder, name, text.encode("utf-8"))), markup=False, soft_wrap=True)
    lines = (
        f"cd {folder}",
        "fedloom run --settings settings.toml --out runs/first",
        "fedloom compare fedavg pfedsd --settings settings.toml --seed 0,1,2 --out runs/three",
        "fedloom report runs/three",
    )
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    return 0


def schema(args: argparse.Namespace, console: Console) -> int:
    """Print the JSON schema of settings files."""
    print(SCHEMA.read_text(encoding="utf-8"), end="")
    return 0
