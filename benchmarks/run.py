"""Speed as ratios measured in one run (`make bench`): machines are noisy, ratios less so.

Each pair is timed in turn, A B A B ..., and the median of the ratios is printed beside the target. Results of one
machine are in docs/benchmarks.md. `--only NAME` runs one part; `--quick` fewer repetitions.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import fedloom as fl
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingWarning
from fedloom.data import Normalise, Partition, iid
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.simulated import Simulation
from fedloom.engines.stacked import Stacked
from fedloom.models import build


def images(count: int, shape: tuple[int, ...]) -> fl.Examples:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return fl.from_arrays(x, rng.integers(0, 10, count), num_classes=10, normalise=Normalise(scale=1 / 255))


def simulation(kind: type[Simulation], algorithm: Algorithm, examples: fl.Examples, clients: int, model, **more):
    partition: Partition = iid(examples.y, clients, 0)
    federation = fl.Federation(train=examples, partition=partition)
    return kind(Population(federation=federation, models={"model": fl.Model(model)}), algorithm, **more)


def pairs(a: Callable[[], None], b: Callable[[], None], repeat: int) -> tuple[float, float, float]:
    """(median seconds of a, of b, median of a / b), in turn after one warm-up each."""
    a(), b()
    seen = []
    for _ in range(repeat):
        start = time.perf_counter()
        a()
        middle = time.perf_counter()
        b()
        seen.append((middle - start, time.perf_counter() - middle))
    return (
        statistics.median(s for s, _ in seen),
        statistics.median(s for _, s in seen),
        statistics.median(s / t for s, t in seen),
    )


def line(name: str, value: str, target: str, ok: bool) -> None:
    print(f"{name:62s} {value:>28s}   target {target:14s} {'ok' if ok else 'MISSED'}", flush=True)


def logistic(repeat: int) -> None:
    """Logistic regression, batch 10, 600 MNIST-shaped examples a client: a plain loop with DataLoader, and the stack.

    The plain loop gets floats that are normalised already; the stack normalises uint8 images in every batch.
    """
    local = fl.Local(epochs=1, batch_size=10, optimiser=fl.SGD(lr=0.1))
    build_model = lambda: build("logistic", (1, 28, 28), 10)  # noqa: E731
    for clients, targets in ((100, {"trace": 5, "compile": 12}), (10, {"trace": 3, "compile": 8})):
        examples = images(clients * 600, (1, 28, 28))
        x = examples.normalise(examples.x, torch.float32)
        few = min(clients, 10)

        def plain(x=x, y=examples.y, few=few) -> None:
            for k in range(few):
                module = build_model()
                optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
                rows = slice(600 * k, 600 * k + 600)
                loader = DataLoader(TensorDataset(x[rows], y[rows]), batch_size=10, shuffle=True)
                for a, b in loader:
                    optimiser.zero_grad()
                    F.cross_entropy(module(a), b).backward()
                    optimiser.step()

        for compilation, target in (("none", None), *targets.items()):
            run = simulation(Stacked, fl.FedAvg(local=local), examples, clients, build_model, compilation=compilation)
            server = run.init()
            start = time.perf_counter()
            run.round(server, range(clients), 0)
            first = time.perf_counter() - start
            stack = functools.partial(run.round, server, range(clients), 1)
            a, b, ratio = pairs(plain, stack, repeat)
            ratio *= clients / few
            us = [1e6 * t / (60 * n) for t, n in ((a, few), (b, clients))]
            name = f"logistic, {clients} clients, {compilation} (first round {first:.1f} s), whole round"
            text = f"{ratio:.1f}x  ({us[0]:.0f} -> {us[1]:.1f} us)"
            line(name, text, f">= {target}x" if target else "-", target is None or ratio >= target)


def handwritten(examples: fl.Examples, rows: torch.Tensor, epochs: int) -> Callable[[], None]:
    """What a careful person writes for one client: channels_last, fused SGD, resident float tensors."""
    x = examples.normalise(examples.x[rows], torch.float32).contiguous(memory_format=torch.channels_last)
    y = examples.y[rows]

    def train() -> None:
        module = build("fedntd_cnn", (3, 32, 32), 10).to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5, fused=True)
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(50):
                optimiser.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimiser.step()

    return train


def convolutions(repeat: int) -> None:
    """The FedNTD CNN at batch 50: the loop engine, bf16, and what the teacher of FedNTD costs."""
    examples, model = images(500, (3, 32, 32)), lambda: build("fedntd_cnn", (3, 32, 32), 10)

    def client(algorithm: Algorithm, **more) -> Callable[[], None]:
        run = simulation(Loop, algorithm, examples, 1, model, **more)
        server = run.init()
        return lambda: run.round(server, [0], 0)

    five = fl.Local(epochs=5, batch_size=50)
    rows = torch.tensor(iid(examples.y, 1, 0).rows(0))
    a, b, ratio = pairs(client(fl.FedAvg(local=five)), handwritten(examples, rows, 5), repeat)
    line(
        "FedNTD CNN, loop / hand-written",
        f"{ratio:.3f}  ({a * 20:.1f} / {b * 20:.1f} ms a step)",
        "<= 1.05",
        ratio <= 1.05,
    )
    _, _, ratio = pairs(client(fl.FedAvg(local=five)), client(fl.FedAvg(local=five), bf16=True), repeat)
    line("FedNTD CNN, float32 / bf16 autocast", f"{ratio:.2f}x", ">= 1.4x", ratio >= 1.4)
    _, _, ratio = pairs(client(fl.FedNTD(local=five)), client(fl.FedAvg(local=five)), repeat)
    line("FedNTD / FedAvg, E = 5", f"{ratio:.3f}", "<= 1.12", ratio <= 1.12)


def overhead(repeat: int) -> None:
    """The share of a round outside local training (folds) and evaluation's forward passes."""
    import fedloom.core.fold as fold
    import fedloom.evaluate.accuracy as accuracy

    cases = {
        "FedNTD CNN, 10 clients of 500": ("fedntd_cnn", (3, 32, 32), 10, 10, 500, fl.Local(epochs=5)),
        "LeNet, 10 of 100 clients of 500": ("lenet", (1, 28, 28), 100, 10, 500, fl.Local(epochs=5)),
        "logistic, compiled, 100 clients of 600": ("logistic", (1, 28, 28), 100, 100, 600, fl.Local(batch_size=10)),
    }
    for name, (model, shape, clients, cohort, size, local) in cases.items():
        examples = images(clients * size, shape)
        federation = fl.federate(examples, iid(examples.y, clients, 0), test=images(2000, shape), test_fraction=0.2)
        inside = [0.0]

        def timed(fn: Callable, inside=inside) -> Callable:
            def call(*args, **kwargs):
                start = time.perf_counter()
                try:
                    return fn(*args, **kwargs)
                finally:
                    inside[0] += time.perf_counter() - start

            return call

        saved = fold.run_one, fold.run_stack, accuracy._evaluate
        fold.run_one, fold.run_stack, accuracy._evaluate = map(timed, saved)
        try:
            settings = fl.RunSettings(
                rounds=8, cohort_size=cohort, compilation="compile" if model == "logistic" else "none"
            )
            marks: list[tuple[float, float]] = []
            fl.run(
                fl.FedAvg(local=local), federation, lambda m=model, s=shape: build(m, s, 10), settings,
                on_round=lambda h, marks=marks, inside=inside: marks.append((time.perf_counter(), inside[0])),
            )  # fmt: skip
        finally:
            fold.run_one, fold.run_stack, accuracy._evaluate = saved
        shares = [1 - (b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(marks[1:])]
        share = statistics.median(shares)
        line(f"overhead: {name}", f"{100 * share:.1f} % of a round", "<= 5 %", share <= 0.05)


def code_lines(repeat: int) -> None:
    """Code lines of each algorithm file: without blanks, comments, docstrings, imports."""
    for path in sorted(Path(fl.__file__).parent.joinpath("algorithms").glob("*.py")):
        if path.name != "__init__.py":
            text = path.read_text(encoding="utf-8")
            skip: set[int] = set()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                    skip.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            rows = enumerate(text.splitlines(), 1)
            code = [row for number, row in rows if row.strip() and number not in skip]
            count = sum(not row.strip().startswith("#") and not row.startswith(("import ", "from ")) for row in code)
            line(f"code lines of algorithms/{path.name}", str(count), "<= 60", count <= 60)


PARTS = {"logistic": logistic, "convolutions": convolutions, "overhead": overhead, "lines": code_lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore", SettingWarning)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, part in PARTS.items():
        if args.only in (None, name):
            part(3 if args.quick else 9)


if __name__ == "__main__":
    main()
