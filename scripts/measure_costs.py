"""Measure what a round of each algorithm costs, as multiples of FedAvg's: bytes down, bytes up, work on the clients.

    python scripts/measure_costs.py [ALGORITHM ...]

It writes scripts/costs.json, from which `scripts/make_index.py` makes what `fedloom algorithms` and the docs say; with
names, it renews these alone. Four clients with about 100 images each train LeNet by the default settings; all of
them take part. It is the fifth round that counts, and of methods with one round of uploads the first. Work: floating
point operations of matrix products and convolutions in what runs on the clients, without evaluation and without what
the server computes. An algorithm that LeNet does not suit has no number.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import SettingError
from fedloom.engines.loop import Loop
from fedloom.engines.message import Call
from fedloom.engines.server_side import Send
from fedloom.experiments.experiment import Experiment

COSTS = Path(__file__).with_name("costs.json")
ROUNDS = 5
_SERVER = {  # work of the server that is not counted, cut short
    "dense": {"T_G": 1, "epochs": 1},
    "fed_dafl": {"steps": 1, "synthesis.batch_size": 16},
    "fed_adi": {"steps": 1, "synthesis.batch_size": 16},
    "feddf": {"steps": 1},
    "pfeddf": {"steps": 1},
    "fedbe": {"steps": 30, "swa_start": 1},
}


def measured(name: str) -> tuple[float, float, float]:
    """Return bytes down, bytes up and floating point operations on the clients of one round of an algorithm."""
    kind, works = ALGORITHMS[name], list[float]()
    answers = Loop.answers

    def counted(self: Loop, call: Call, clients: Sequence[int], send: Send) -> Iterator[Any]:
        for k in clients:
            with FlopCounterMode(display=False) if call.round == rounds - 1 else nullcontext() as counter:
                found = list(answers(self, call, [k], send))
            works.append(float(counter.get_total_flops()) if counter else 0.0)
            yield from found

    rounds = 1 if kind().requires.everyone else ROUNDS
    described: dict[str, Any] = {
        "algorithm": name,
        "model": "lenet",
        "data": {
            "clients": 4,
            "partition": "iid",
            "examples": 600,
            "val_fraction": 0.1,
            "public": 100,
            "public_labels": True,
        },
        "run": {"engine": "loop", "cohort_size": 4, "threads": 1, "eval_every": 100, "compilation": "none"},
    }
    experiment = Experiment.of(described | ({name: _SERVER[name]} if name in _SERVER else {}))
    with warnings.catch_warnings(), patch.object(Loop, "answers", counted):
        warnings.simplefilter("ignore")
        metrics = experiment.changed("run.rounds", rounds + 1).job().run().metrics  # the last round evaluates, too
    one = next(record for record in metrics if record["round"] == rounds)
    return float(one["bytes_down"]), float(one["bytes_up"]), sum(works)


def main(names: Sequence[str]) -> int:
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    base = measured("fedavg")
    for name in names or ALGORITHMS:
        try:
            found = measured(name)
        except SettingError as error:
            print(f"{name:16} {error}")
            continue
        down, up, work = (round(mine / its, 2) for mine, its in zip(found, base, strict=True))
        known[name] = {"down": down, "up": up, "work": work}
        print(f"{name:16} down {down:6.2f} up {up:6.2f} work {work:6.2f}", flush=True)
        lines = [f" {json.dumps(one)}: {json.dumps(known[one])}" for one in ALGORITHMS if one in known]
        COSTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
