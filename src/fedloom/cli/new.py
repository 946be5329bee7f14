"""`fedloom new`: custom data, model, settings or method as files to change; `fedloom schema`: the JSON schema."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedloom.cli.index import INDEX
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
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


_METHOD = '''\
"""CLASS: one sentence that says what it does.

Authors. *Title.* Venue, year. Link, number of the algorithm.

    client       w_k: local training on F_k(v) + mu / 2 ||v - w||^2 from w, the model that was received
    server       w <- sum_k (n_k / n) w_k

Down: w. Up: w_k. Kept by the client: nothing. mu = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class CLASS(fl.Algorithm[fl.Weights, tuple[()]]):
    """FedAvg with a pull to the received model. In brackets: states of the server and of a client (here nothing)."""

    mu: fl.NonNegative = 0.1
    """Pull to the received model; 0: none."""

    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0.0}  # with these values it is FedAvg; {}: with none

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    # A client that keeps something: return its first state from init_client(self, initial, model, key), read it as
    # client.state, and return the new one from local_update in the place of ().

    @fl.on_client
    def local_update(
        self, client: fl.Client[tuple[()]], w: fl.Weights
    ) -> tuple[tuple[()], fl.Weighted[fl.Weights]]:
        task_loss = client.loss

        def held(v: fl.Weights, batch: fl.Batch, w: fl.Weights) -> fl.BatchLoss:
            return task_loss(v, batch) + self.mu / 2 * (v.params - w.params).sq_norm()

        w_k = self.train(client, w, w, loss=held)  # from w; the second w is handed on to `held`
        return (), client.weigh(w_k, "samples")

    def round(self, server: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        mean: fl.Weights = cohort.reduce(self.local_update, server).mean
        return mean

    # A model for each client: return it from personal(self, client, sent: fl.Weights).

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
'''
_TEST = '''\
"""CLASS keeps the promises of every algorithm, and does what its equations say."""

from __future__ import annotations

import numpy as np
from MODULE import CLASS
from torch import nn

import fedloom as fl
from fedloom.testing import check


def test_promises() -> None:
    assert check(CLASS()) == {}  # no check that does not apply


def test_the_pull_holds_clients_back() -> None:
    rng = np.random.default_rng(0)
    examples = fl.from_arrays(rng.normal(size=(80, 5)).astype(np.float32), np.arange(80) % 2)
    federation = fl.federate(examples, fl.iid(examples.y, 4, seed=0), test_fraction=0.25)
    settings = fl.RunSettings(rounds=1, cohort_size=4, seed=0, threads=1)

    def trained(mu: float, lr: float) -> fl.Params:
        local = fl.Local(epochs=5, batch_size=10, optimiser=fl.SGD(lr=lr, momentum=0.0))
        server = fl.run(CLASS(mu=mu, local=local), federation, lambda: nn.Linear(5, 2), settings).server
        (weights,) = server.values()  # of the only architecture
        return weights.params

    start = trained(mu=1.0, lr=1e-12)
    moved = [float((trained(mu, lr=0.1) - start).sq_norm()) for mu in (0.01, 1.0)]
    assert moved[1] < 0.9 * moved[0]


if __name__ == "__main__":  # or by pytest, with all other tests
    test_promises()
    test_the_pull_holds_clients_back()
    print("CLASS keeps its promises")
'''


def write(args: argparse.Namespace, console: Terminal) -> int:
    """Write the files, and print commands that use them."""
    if str(args.directory) == "method":
        return _write_method(args.name, console)
    if args.name is not None:
        raise SettingError(
            f"fedloom new takes one directory, or the word method and a name, got {args.directory} {args.name}: "
            f"fedloom new method {args.name}"
        )
    folder = Path(args.directory)
    files = {**_FILES, SCHEMA.name: SCHEMA.read_text(encoding="utf-8")}
    lines = (
        f"cd {folder}",
        "fedloom run --settings settings.toml --out runs/first",
        "fedloom compare fedavg pfedsd --settings settings.toml --seed 0,1,2 --out runs/three",
        "fedloom report runs/three",
    )
    _publish(folder, files, lines, "name another directory", console)
    return 0


def _write_method(name: str | None, console: Terminal) -> int:
    """Write the file of a method and its test into the current folder."""
    if name is None:
        raise SettingError("fedloom new method takes the name of the method: fedloom new method mine")
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise SettingError(
            f"a method is named by a word of letters, digits and _, such as mine or FedMine, got {name!r}"
        )
    module = name.lower()
    if module in INDEX["algorithms"]:
        raise SettingError(f"{module} is an algorithm of fedloom: name yours otherwise, such as my_{module}")
    if not Path(f"{module}.py").exists() and find_spec(module) is not None:
        raise SettingError(f"{module}.py would hide the module {module} of Python: name the method my_{module}")
    kind = name if any(c.isupper() for c in name) else "".join(word.capitalize() for word in name.split("_"))
    texts = {f"{module}.py": _METHOD, f"test_{module}.py": _TEST}
    files = {file: text.replace("CLASS", kind).replace("MODULE", module) for file, text in texts.items()}
    lines = (
        f"python test_{module}.py",
        f"fedloom compare fedavg {module}:{kind} --partition dirichlet:0.1 --out runs/{module}",
    )
    _publish(Path(), files, lines, "name the method otherwise", console)
    return 0


def _publish(folder: Path, files: Mapping[str, str], lines: Sequence[str], remedy: str, console: Terminal) -> None:
    """Write files that are not there yet, and print them and the commands that come next."""
    if there := [name for name in files if (folder / name).exists()]:
        raise SettingError(f"fedloom new overwrites no file, and {folder} has {', '.join(there)}: {remedy}")
    for name, text in files.items():
        console.print(str(publish(folder, name, text.encode("utf-8"))))
    for line in lines:
        console.print(f"  {line}", highlight=False)


def schema(args: argparse.Namespace, console: Terminal) -> int:
    """Print the JSON schema of settings files."""
    print(SCHEMA.read_text(encoding="utf-8"), end="")
    return 0
