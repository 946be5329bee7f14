"""One hour on a GPU, unattended in eight minutes: what every part measures is a row of a file, and a row is not redone.

    python benchmarks/gpu.py --out gpu                 # on a GPU; again, after a stop, goes on
    python benchmarks/gpu.py --out small --device cpu --small
    python benchmarks/gpu.py --out gpu --report        # the table of the rows that are there

`--out` holds rows.jsonl and report.md. A part that fails or takes too long costs its own rows alone: it is computed in
a process of its own, and its error becomes a row, which is tried anew by the next call.

Data are random bytes of the shapes that are named, since speed does not depend on them. `share` is of the rate at which
the same device multiplies large matrices of the same numbers, measured in the part `machine`, never of a data sheet.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rows
import torch
import torch.nn.functional as F
from rows import Row
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import fedloom as fl
from fedloom.core.local_training import Distill
from fedloom.core.types import replace
from fedloom.data import Normalise, Partition, Tokens, iid, next_tokens
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.models import build
from fedloom.models.sequences import CausalTransformer
from fedloom.testing import Subject

ENGINES: dict[str, tuple[Any, dict[str, Any]]] = {
    "loop": (Loop, {}),
    "loop, bf16": (Loop, {"bf16": True}),
    "stacked": (Stacked, {}),
    "stacked, bf16": (Stacked, {"bf16": True}),
    "stacked, traced": (Stacked, {"compilation": "trace"}),
}


@dataclass(frozen=True)
class Size:
    """How much is computed: on a GPU, or in small to try all parts on a CPU."""

    products: int = 8192  # rows of the matrices whose product gives the rate
    clients: tuple[int, ...] = (10, 100)
    examples: int = 500  # of a client
    repeat: int = 3
    chunks: tuple[int, ...] = (5, 10, 20, 50, 100)
    fedntd: tuple[int, int] = (200, 5)  # rounds, epochs
    public: tuple[int, int, int] = (100, 5, 5)  # clients, rounds, epochs
    writers: tuple[int, int] = (3400, 1500)  # clients, rounds
    adapted: tuple[int, int, int] = (1000, 256, 3)  # clients, width, rounds


SMALL = Size(512, (2,), 50, 1, (1, 2), (2, 1), (4, 1, 1), (20, 2), (6, 16, 2))


@dataclass(frozen=True)
class Place:
    """Where and how much."""

    device: torch.device
    size: Size

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one call, until the device has finished."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def peak(self) -> float:
        """MiB that were in use at most: on a GPU since `forget`, else of this process since it began."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    def forget(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


def images(count: int, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> fl.Examples:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    y = rng.integers(0, classes, count)
    return fl.from_arrays(x, y, num_classes=classes, normalise=Normalise(scale=1 / 255))


def flops_of(network: nn.Module, x: Tensor) -> int:
    """FLOPs of products and convolutions of the gradient of a batch."""
    with FlopCounterMode(display=False) as counted:
        network(x).square().sum().backward()
    return counted.get_total_flops()


# Parts: each yields (case, numbers); a case that is `done` is left out.


def machine(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """The device, and the rate of large matrix products in TFLOP/s."""
    n, gpu = at.size.products, at.device.type == "cuda"
    name = torch.cuda.get_device_name(at.device) if gpu else f"CPU, {torch.get_num_threads()} threads"
    total = torch.cuda.get_device_properties(at.device).total_memory / 2**30 if gpu else 0.0
    yield "device", {"name": name, "torch": torch.__version__, "GiB": round(total, 1)}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(n, n, device=at.device, dtype=dtype)
        at.seconds(lambda a=a: a @ a)
        took = min(at.seconds(lambda a=a: a @ a) for _ in range(5))
        yield f"product, {str(dtype).removeprefix('torch.')}", {"tflops": 2 * n**3 / took / 1e12}


def agreement(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """Each method on this device beside the CPU, in float64: the largest difference of a tensor after three rounds.

    The CPU's numbers are those of the sources: tests/algorithms compares them with the authors'.
    """
    for name, method in fl.algorithms.ALGORITHMS.items():
        if name in done:
            continue
        try:
            subject = Subject.of(small(method()))
            cpu = subject.run(Loop)
            there = subject.run(Stacked, subject.population(device=at.device))
            yield name, {"difference": largest(of(cpu), of(there))}
        except Exception as error:  # of one method, whose row says it
            yield name, {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def of(trail: Any) -> Any:
    """What a run has made: the server's numbers, those of the clients, and their personal models."""
    return trail.servers[-1], trail.states[-1], trail.personal


class Painter(nn.Module):
    """A generator of the 12 numbers of the small federation's examples."""

    def __init__(self, nz: int, ngf: int, channels: int, size: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(nz, ngf), nn.Linear(ngf, channels)

    def forward(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.last(torch.tanh(self.first(z))))


def small(method: Any) -> Any:
    """The method, whose server trains for a few steps, and paints what the small federation has."""
    brief: Row = {
        "generator": "gpu:Painter", "nz": 5, "ngf": 7, "T_G": 3, "steps": 3,
        "synthesis": Distill(batch_size=6, optimiser=fl.Adam(lr=0.02)),
        "distill": Distill(batch_size=4, optimiser=fl.SGD(lr=0.01, momentum=0.9)),
    }  # fmt: skip
    if not hasattr(method, "synthesis"):
        return method
    return replace(method, **{name: value for name, value in brief.items() if hasattr(method, name)})


def largest(a: Any, b: Any) -> float:
    """The largest difference of two trees, relative to the larger of 1 and the tensor's largest number."""
    pairs = zip(fl.core.tree.leaves(a), fl.core.tree.leaves(b), strict=True)
    return max((differ(x, y) for x, y in pairs), default=0.0)


def differ(x: Any, y: Any) -> float:
    if not isinstance(x, Tensor):
        return 0.0 if type(x) is not float else abs(x - y)
    x, y = x.double().cpu(), y.double().cpu()
    return float((x - y).abs().max() / max(1.0, float(x.abs().max()))) if x.numel() else 0.0


def engines(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """Client-steps a second of each engine beside a plain loop on the same device: FedNTD's CNN, batches of 50."""
    network = functools.partial(build, "fedntd_cnn", (3, 32, 32), 10)
    local = fl.Local(epochs=2, batch_size=min(50, at.size.examples))
    flops = flops_of(network(), torch.zeros(local.batch_size, 3, 32, 32))
    for count in at.size.clients:
        examples = images(at.size.examples * count)
        steps = count * 2 * -(-at.size.examples // local.batch_size)
        federation = fl.Federation(train=examples, partition=iid(examples.y, count, 0))
        population = Population(federation=federation, models={"cnn": fl.Model(network)}, device=at.device)
        by_hand = plain(at, network, examples, count, local)
        at.seconds(by_hand)
        for method in (fl.FedAvg(local=local), fl.FedNTD(local=local)):
            for form, (kind, settings) in ENGINES.items():
                case = f"{type(method).__name__}, {count} clients, {form}"
                if case in done:
                    continue
                run = kind(population, method, Options(**settings))
                server = run.init()
                first = at.seconds(lambda run=run, server=server, c=count: run.round(server, range(c), 0))
                at.forget()
                pairs = [
                    (at.seconds(by_hand), at.seconds(lambda run=run, s=server, c=count: run.round(s, range(c), 1)))
                    for _ in range(at.size.repeat)
                ]
                ours = statistics.median(b for _, b in pairs)
                yield (
                    case,
                    {
                        "client-steps/s": steps / ours,
                        "of the plain loop of FedAvg": statistics.median(a / b for a, b in pairs),
                        "tflops": flops * steps / ours / 1e12,
                        "number": "bfloat16" if "bf16" in form else "float32",
                        "first round, s": first,
                        "peak, MiB": at.peak(),
                    },
                )


def plain(at: Place, network: Callable[[], nn.Module], examples: fl.Examples, clients: int, local: fl.Local) -> Any:
    """FedAvg's local training as a careful person writes it: resident tensors, fused SGD, client after client."""
    memory = torch.channels_last if at.device.type == "cpu" else torch.contiguous_format
    x = examples.normalise(examples.x.to(at.device), torch.float32).contiguous(memory_format=memory)
    y, size = examples.y.to(at.device), len(examples) // clients

    def train() -> None:
        for k in range(clients):
            module = network().to(at.device, memory_format=memory)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5, fused=True)
            for _ in range(local.epochs):
                for some in (size * k + torch.randperm(size, device=at.device)).split(local.batch_size):
                    optimiser.zero_grad()
                    F.cross_entropy(module(x[some]), y[some]).backward()
                    optimiser.step()

    return train


def memory(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """A stack by its chunk: seconds and memory of a round of FedAvg, beside what `step_bytes` expects."""
    from fedloom.engines.memory import step_bytes

    count = max(at.size.chunks)
    network, local = functools.partial(build, "fedntd_cnn", (3, 32, 32), 10), fl.Local(epochs=1, batch_size=50)
    examples = images(at.size.examples * count)
    federation = fl.Federation(train=examples, partition=iid(examples.y, count, 0))
    population = Population(federation=federation, models={"cnn": fl.Model(network)}, device=at.device)
    expected = step_bytes(population.models["cnn"], population, 50) / 2**20
    for chunk in at.size.chunks:
        if f"chunk {chunk}" in done:
            continue
        run = Stacked(population, fl.FedAvg(local=local), Options(chunk=chunk))
        server = run.init()
        run.round(server, range(count), 0)
        at.forget()
        took = at.seconds(lambda run=run, server=server: run.round(server, range(count), 1))
        yield f"chunk {chunk}", {"round, s": took, "peak, MiB": at.peak(), "expected, MiB": expected * chunk}


def whole(at: Place, method: Any, federation: fl.Federation, network: Any, **settings: Any) -> Row:
    """Seconds of a whole run with default settings, its start and its evaluation included."""
    asked = fl.RunSettings(device=str(at.device), **settings)
    at.forget()
    found: list[fl.History] = []
    took = at.seconds(lambda: found.append(fl.run(method, federation, network, asked)))
    history = found[0]
    rounds = [sum(record["seconds"].values()) for record in history.timing[1:]]
    return {
        "seconds": took,
        "a round, s": statistics.median(rounds),
        "engine": history.engine,
        "accuracy": history.metrics[-1].get("global_accuracy"),
        "peak, MiB": at.peak(),
    }


def fedntd(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """FedNTD as in its study: 10 of 100 clients, shards of two, tested on 10,000 images every round. Goal: 10 s."""
    rounds, epochs = at.size.fedntd
    train = images(100 * at.size.examples)
    federation = fl.federate(train, fl.shards(train.y, 100, 2, 0), test=images(20 * at.size.examples))
    network = functools.partial(build, "fedntd_cnn", (3, 32, 32), 10)
    method = fl.FedNTD(local=fl.Local(epochs=epochs, batch_size=50))
    for form, more in {"float32": {}, "bf16": {"bf16": True}}.items():
        if form not in done:
            row = whole(at, method, federation, network, rounds=rounds, cohort_size=10, **more)
            yield form, {**row, "goal, s": 10, "rounds": rounds}


def public(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """BlazeFL's public case: 100 clients, all in 5 rounds, 5 epochs, batches of 50, 62,006 parameters. Goal: 3 s."""
    clients, rounds, epochs = at.size.public
    train = images(clients * at.size.examples)
    federation = fl.federate(train, iid(train.y, clients, 0), test=images(20 * at.size.examples))
    network = functools.partial(build, "lenet", (3, 32, 32), 10)
    method = fl.FedAvg(local=fl.Local(epochs=epochs, batch_size=50))
    for form, more in {"float32": {}, "bf16": {"bf16": True}}.items():
        if form not in done:
            row = whole(at, method, federation, network, rounds=rounds, cohort_size=clients, **more)
            yield form, {**row, "goal, s": 3, "rounds": rounds}


class Writers(nn.Module):
    """The network of FLUTE's and FedML's FEMNIST: two 3 x 3 convolutions, a layer of 128; 1,206,590 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.early, self.late = nn.Dropout(0.25), nn.Dropout(0.5)
        self.wide, self.classifier = nn.Linear(9216, 128), nn.Linear(128, 62)

    def forward(self, x: Tensor) -> Tensor:
        x = self.early(F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)).flatten(1)
        return self.classifier(self.late(F.relu(self.wide(x))))


def femnist(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """FEMNIST's shape: 10 of 3,400 writers, 1,500 rounds, an epoch of batches of 20. FLUTE took 502 s; goal: 60 s."""
    if "float32" in done:
        return
    clients, rounds = at.size.writers
    sizes = np.clip(np.random.default_rng(0).normal(227, 89, clients).astype(int), 20, 500)
    ends = np.cumsum([0, *sizes])
    partition = Partition(indptr=ends, indices=np.arange(ends[-1]), name="in order", seed=None)
    federation = fl.federate(images(int(ends[-1]), (1, 28, 28), 62), partition, test=images(2000, (1, 28, 28), 62))
    method = fl.FedAvg(local=fl.Local(epochs=1, batch_size=20))
    row = whole(at, method, federation, Writers, rounds=rounds, cohort_size=10, eval_every=50)
    yield "float32", {**row, "goal, s": 60, "rounds": rounds}


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it: W x + B A x."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def speaker(width: int) -> nn.Module:
    """A transformer of next characters whose linear layers are frozen but for adapters of rank 8."""
    network = CausalTransformer(82, 82, length=80, width=width, next_token=True).requires_grad_(False)
    for module in list(network.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear) and name != "classifier":
                setattr(module, name, Adapted(layer, 8))
    return network


def adapters(at: Place, done: set[str]) -> Iterator[tuple[str, Row]]:
    """A thousand clients, all in each round, who train adapters of a transformer."""
    if "float32" in done:
        return
    clients, width, rounds = at.size.adapted
    tokens = np.random.default_rng(0).integers(1, 82, (16 * clients, 80)).astype(np.int16)
    examples = fl.from_arrays(tokens, next_tokens(tokens), num_classes=82, normalise=Tokens())
    federation = fl.Federation(examples, fl.data.by_lists(np.array_split(np.arange(len(tokens)), clients)))
    method = fl.FedAvg(local=fl.Local(epochs=1, batch_size=8, optimiser=fl.Adam(lr=1e-3)))
    found: list[fl.History] = []
    settings = fl.RunSettings(rounds=rounds, cohort_size=clients, device=str(at.device))
    at.forget()
    run = lambda: found.append(  # noqa: E731
        fl.run(method, federation, fl.Model(functools.partial(speaker, width)), settings, task=fl.NextToken())
    )
    took = at.seconds(run)
    rounds_took = [sum(record["seconds"].values()) for record in found[0].timing[1:]]
    yield (
        "float32",
        {
            "seconds": took,
            "a round, s": statistics.median(rounds_took),
            "engine": found[0].engine,
            "clients": clients,
            "peak, MiB": at.peak(),
        },
    )


PARTS: dict[str, tuple[Callable[[Place, set[str]], Iterator[tuple[str, Row]]], int]] = {  # and seconds at most
    "machine": (machine, 30),
    "public": (public, 60),
    "fedntd": (fedntd, 90),
    "engines": (engines, 120),
    "memory": (memory, 45),
    "adapters": (adapters, 60),
    "agreement": (agreement, 90),
    "femnist": (femnist, 240),
}


def compute(part: str, at: Place, done: set[str]) -> None:
    """Print the rows of a part as they come."""
    warnings.simplefilter("ignore")
    for case, numbers in PARTS[part][0](at, done):
        rows.say(part, case, numbers)


def report(found: list[Row]) -> str:
    """The rows as Markdown, a table for each part."""
    rates = {row["case"]: row["tflops"] for row in found if row["part"] == "machine" and "tflops" in row}
    out = ["# fedloom on one device\n"]
    for part, (kind, _) in PARTS.items():
        mine = [dict(row) for row in found if row["part"] == part and row["case"]]
        for row in mine:
            if (rate := rates.get(f"product, {row.get('number')}")) is not None:
                row["share"] = row["tflops"] / rate
        out.append(f"\n## {part}\n\n{(kind.__doc__ or '').splitlines()[0]}\n\n{rows.table(mine) if mine else ''}")
        out += [f"\n**Not whole**: {row['error']}" for row in found if row["part"] == part and not row["case"]]
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the rows and the report")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes with which all parts are tried on a CPU")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts, in this order")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all; parts for which no time is left wait")
    parser.add_argument("--report", action="store_true", help="write the report of the rows that are there")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--done", default="[]", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        compute(
            args.part, Place(torch.device(args.device), SMALL if args.small else Size()), set(json.loads(args.done))
        )
        return
    if args.out is None:
        parser.error("--out FOLDER is where the rows are kept")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.report:
        (args.out / "report.md").write_text(report(rows.read(args.out)))
        return
    until = time.monotonic() + 60 * args.minutes
    for part in args.only:
        left = until - time.monotonic()
        if left < 10:
            print(f"no time is left for {part}: call again", flush=True)
            continue
        words = ["--part", part, "--device", args.device, *(["--small"] if args.small else [])]
        command = [__file__, *words, "--done", json.dumps(rows.done(args.out, part))]
        rows.measure(part, args.out, command, min(left, PARTS[part][1] * (1 if args.device != "cpu" else 5)))
        (args.out / "report.md").write_text(report(rows.read(args.out)))


if __name__ == "__main__":
    main()
