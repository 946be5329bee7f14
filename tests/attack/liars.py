"""What the default bounds of `fedloom serve` refuse: of honest clients nothing, of one liar what its norm shows.

    python tests/attack/liars.py honest                 # every algorithm, IID and two classes a client; minutes
    python tests/attack/liars.py honest --only fedavg kt_pfl
    python tests/attack/liars.py liar                   # one of twelve, eight kinds; a minute

Clients hold 60 images of the demonstration's data each, as 7 x 7 pixels. `honest` exits with 1 if an upload was
refused. `liar` runs FedAvg with devices of this process, which register and answer as over the wire.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithms import ALGORITHMS, FedAvg
from fedloom.core import tree
from fedloom.core.types import Weighted
from fedloom.data import by_lists, federate, iid
from fedloom.deploy.device import Controller, ModelManager
from fedloom.deploy.registration import Registration, cap_of
from fedloom.deploy.server.device_registry import Registry
from fedloom.engines.message_bytes import head_of, unseal
from fedloom.engines.runtime import Runtime
from fedloom.engines.upload_bounds import BOUND_OF_DEVICES, Measured, bound
from fedloom.experiments import catalogue
from fedloom.testing.in_process import fleet_of, population_of, token_of
from tampering import with_upload

CLIENTS, EACH, LIAR = 12, 60, 5
LOCAL = fl.Local(epochs=2, batch_size=20, optimiser=fl.SGD(lr=0.05, momentum=0.9))
DISTILL = fl.Distill(batch_size=20, optimiser=fl.Adam(lr=1e-3))
KNOWLEDGE: dict[str, Any] = {
    "distill": fl.Digest(epochs=2, batch_size=20, optimiser=fl.SGD(lr=0.02)), "num_public": 60, "tau": 2.0,
}  # fmt: skip
DREAMS: dict[str, Any] = {"generator": "small:Painter", "nz": 5, "ngf": 7, "synthesis": DISTILL, "distill": DISTILL}
OWN: dict[str, dict[str, Any]] = {
    "feddf": {"steps": 5, "distill": DISTILL},
    "pfeddf": {"steps": 5, "distill": DISTILL},
    "fedbe": {"steps": 6, "swa_start": 2, "swa_every": 2, "num_sampled": 3, "distill": DISTILL},
    "dense": {"T_G": 3, "epochs": 1, **DREAMS},
    "fed_dafl": {"steps": 3, **DREAMS},
    "fed_adi": {"steps": 3, "synthesis": DISTILL, "distill": DISTILL},
    "kt_pfl": KNOWLEDGE,
    "sim_pfl": KNOWLEDGE,
    "topk_pfl": KNOWLEDGE,
    "fedmd_kt": KNOWLEDGE,
    "fedmd": {"distill": KNOWLEDGE["distill"], "num_public": 60, "public_epochs": 1, "private_passes": 1},
    "fedper": {"personal_layers": "head.*"},
    "lg_fedavg": {"global_modules": "head.*"},
    "fedalign": {"width": 0.5},
}
LIES: dict[str, tuple[float | None, int | None]] = {  # factor on the upload, examples that are registered
    "honest": (None, None),
    "x -1": (-1.0, None),
    "x -10": (-10.0, None),
    "x -100": (-100.0, None),
    "x -1e6": (-1e6, None),
    "x 1e30": (1e30, None),
    "registers 1e6": (None, 1_000_000),
    "registers 1e6, x -1": (-1.0, 1_000_000),
    "NaN": (float("nan"), None),
}


class Network(nn.Module):
    """Two layers, with all that an algorithm may ask of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(49, 32), nn.Linear(32, 10)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.hidden(x))

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.features(x)
        return x, z, self.head(z)

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        x, n = before[:, : int(width * 49)], int(width * 32)
        return x, torch.tanh(F.linear(x, self.hidden.weight[:n, : x.shape[1]], self.hidden.bias[:n]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def federation(kind: str) -> fl.Federation:
    """Twelve clients; `kind`: "iid", or "two" classes each."""
    found = catalogue.data("fashion_mnist_small")

    def small(examples: fl.Examples) -> fl.Examples:
        x = F.avg_pool2d(examples.x.float().reshape(-1, 1, 28, 28) / 255, 4).flatten(1)
        return fl.Examples((x - 0.28) / 0.3, examples.y, 10, name="7 x 7")

    assert found.test is not None
    train, test = small(found.train), small(found.test)
    rows = np.random.default_rng(0).permutation(len(train))
    own, public = train.select(rows[: CLIENTS * EACH]), train.select(rows[CLIENTS * EACH :][:100])
    parts = iid(own.y, CLIENTS, 0) if kind == "iid" else by_lists(_two_classes(own.y.numpy()))
    return federate(
        own, parts, test=test.select(np.arange(400)), test_fraction=0.2, val_fraction=0.2, public=public,
        public_labels=True, seed=0,
    )  # fmt: skip


def _two_classes(y: Any) -> list[Any]:
    """Rows of each client: classes 0 and 1 of the first, 2 and 3 of the second, ...; fewer clients have the last."""
    of_class = [np.flatnonzero(y == c) for c in range(10)]
    whose = [[k for k in range(CLIENTS) if k % 5 == c // 2] for c in range(10)]
    parts = [
        dict(zip(ks, np.array_split(rows, len(ks)), strict=True)) for rows, ks in zip(of_class, whose, strict=True)
    ]
    return [np.concatenate([part[k] for part in parts if k in part]) for k in range(CLIENTS)]


def honest(kinds: list[str], names: list[str], rounds: int, bound: float) -> int:
    """How many uploads of honest clients were refused, over all algorithms; each is printed."""
    worst, refused = [0.0], 0

    def noted(found: Measured, request: Any, its: Any, medians: Any, real: Any = Measured.beyond) -> dict[int, str]:
        ratios = [float(n.max()) / m for n, m in zip(found.norms.T, medians, strict=True) if m]
        worst[0] = max([worst[0], *ratios])
        return real(found, request, its, medians)

    Measured.beyond = noted
    for kind in kinds:
        people = federation(kind)
        for name in names:
            start, worst[0] = time.perf_counter(), 0.0
            settings = fl.RunSettings(
                rounds=rounds, cohort_size=CLIENTS, eval_every=rounds, engine="stacked", threads=1,
                on_nonfinite="refuse", bound=f"refuse:median:{bound:g}",
            )  # fmt: skip
            history = fl.run(ALGORITHMS[name](local=LOCAL, **OWN.get(name, {})), people, Network, settings)
            lost = sum(len(m.get("failed", {})) for m in history.metrics)
            refused += lost
            last = history.metrics[-1]
            accuracy = last.get("global_accuracy") or last.get("personal_accuracy") or float("nan")
            print(
                f"{kind:4} {name:16} refused {lost:3}   largest {worst[0]:6.2f} x median   "
                f"accuracy {accuracy:.3f}   {time.perf_counter() - start:5.1f} s",
                flush=True,
            )
    print(f"refused in all: {refused}")
    return refused


def one_liar(kind: str, lie: str, rounds: int, bound: float | None, folder: Path) -> tuple[float, int, int]:
    """(accuracy of the global model, answers of the liar that were refused, those of others) of FedAvg on devices."""
    factor, claimed = LIES[lie]
    people = federation(kind)
    algorithm, job = FedAvg(local=LOCAL), None
    found = []
    for k in range(CLIENTS):
        roles = (people.partition, people.local_test, people.local_val)
        counts = [tuple(map(int, part.counts(people.train.y, 10)[k])) for part in roles if part is not None]
        if k == LIAR and claimed is not None:
            counts[0] = tuple(n * claimed // sum(counts[0]) for n in counts[0])
        found.append(Registration(f"{k:032x}", *counts, (49,), "float32"))
    cap = cap_of(found) if bound is not None else 1_000_000
    registry = Registry.of("a" * 32, [one.with_cap(cap) for one in found], ["net"], cap=cap)
    settings = fl.RunSettings(
        rounds=rounds, cohort_size=CLIENTS, eval_every=rounds, engine="devices", compilation="none", threads=1,
        on_nonfinite="refuse", bound="none" if bound is None else f"refuse:median:{bound:g}",
    )  # fmt: skip
    here = dataclasses.replace(settings, engine="loop", compilation="auto")
    population = fl.Job(algorithm=algorithm, federation=people, model={"net": Network}, settings=here).population

    def device(k: int, name: str) -> Callable[[bytes], bytes]:
        runtime = Runtime(population_of(population, k), algorithm)
        true = Controller(name, token_of(name), runtime, ModelManager(folder / str(k), runtime.fresh(0)))

        def lied(upload: Any) -> Any:
            size = int(registry.devices[k].train and sum(registry.devices[k].train))
            times = 1.0 if factor is None else factor
            value = tree.map_tree(lambda t: (t * times).to(t.dtype), upload.value)
            return Weighted(value=value, weight=torch.full_like(upload.weight, size))

        def answer(data: bytes) -> bytes:
            method = head_of(unseal(data, token_of(name), 1 << 30))["method"]
            said = true(data)
            return with_upload(said, token_of(name), lied) if k == LIAR and method == "local_update" else said

        return answer if lie != "honest" else true

    fleet = fleet_of({name: device(k, name) for k, name in enumerate(registry.names)})
    whole = registry.federation(people.test)
    job = fl.Job(algorithm=algorithm, federation=whole, model={"net": Network}, settings=settings, fleet=fleet)
    history = job.run()
    lost = [k for m in history.metrics for k in m.get("failed", {})]
    its = lost.count(str(LIAR))
    return float(history.metrics[-1]["global_accuracy"]), its, len(lost) - its


def liars(kinds: list[str], rounds: int, bound: float) -> int:
    """Print the accuracy beside one liar of each kind, with the bounds and without; how many of the others it lost."""
    innocent = 0
    for kind in kinds:
        for lie in LIES:
            said = []
            for most in (bound, None):
                with tempfile.TemporaryDirectory() as folder:
                    accuracy, its, others = one_liar(kind, lie, rounds, most, Path(folder))
                innocent += others if most is not None else 0
                said.append(f"{accuracy:.3f} (refused {its} of its answers, {others} of others)")
            print(f"{kind:4} {lie:20} bounded {said[0]}   unbounded {said[1]}", flush=True)
    print(f"honest answers refused beside a liar: {innocent}")
    return innocent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("honest", "liar"))
    federated = [name for name, kind in ALGORITHMS.items() if not kind().requires.one_place]
    parser.add_argument("--only", nargs="+", default=federated)
    parser.add_argument("--kinds", nargs="+", choices=("iid", "two"), default=["iid", "two"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bound", type=float, default=bound(BOUND_OF_DEVICES).most)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.what == "liar":
        return int(liars(args.kinds, args.rounds, args.bound) > 0)
    return int(honest(args.kinds, args.only, args.rounds, args.bound) > 0)


if __name__ == "__main__":
    sys.exit(main())
