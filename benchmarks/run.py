"""Speed as ratios measured in one run (`make bench`): machines are noisy, ratios less so.

Each pair is timed in turn, A B A B ..., and the median of the ratios is printed beside the target; where one is missed,
the exit status is 1. Results of one machine are in docs/benchmarks.md. `--only NAME` runs one part; `--quick` fewer
repetitions. `--beside SRC` runs all that five times with this source and five times with the package in SRC, in turn,
and prints the medians of both.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedloom as fl
from fedloom.coordinator.engine_choice import choose, choose_compilation
from fedloom.coordinator.thread_count import choose_threads
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingWarning
from fedloom.core.fold.execution import threads
from fedloom.data import Normalise, Partition, iid, lognormal
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.engines.stacks import Stacks
from fedloom.engines.workers import Workers
from fedloom.models import build


def images(count: int, shape: tuple[int, ...]) -> fl.Examples:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return fl.from_arrays(x, rng.integers(0, 10, count), num_classes=10, normalise=Normalise(scale=1 / 255))


def simulation(kind: type[Engine], algorithm: Algorithm, examples: fl.Examples, clients: int, model, **more):
    partition: Partition = iid(examples.y, clients, 0)
    federation = fl.Federation(train=examples, partition=partition)
    return kind(Population(federation=federation, models={"model": fl.Model(model)}), algorithm, Options(**more))


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


missed: list[str] = []


def line(name: str, value: str, target: str, ok: bool) -> None:
    verdict = "" if target == "-" else f"   target {target:10s} {'ok' if ok else 'MISSED'}"
    print(f"{name:74s} {value:>24s}{verdict}", flush=True)
    if not ok:
        missed.append(name)


class CNN(nn.Module):
    """PFLlib's network for 28 x 28 images: 5 x 5 convolutions of 32 and 64, a layer of 512."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Sequential(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
        second = nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(first, second, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU())
        self.classifier = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(x))


class LSTM(nn.Module):
    """The rows of a 28 x 28 image, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classifier = nn.LSTM(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(x.flatten(1).unflatten(1, (28, 28)))[0][:, -1])


@dataclass(frozen=True)
class Case:
    """A run with default settings, of each of so many `rounds`. `plain`: so much faster than a plain loop, where the
    number of rounds is the default too.
    """

    name: str
    model: str
    sizes: Sequence[int]
    rounds: Sequence[int] = (200,)
    cohort: int = 10
    batch_size: int = 10
    shape: tuple[int, ...] = (1, 28, 28)
    plain: float | None = None
    forms: Sequence[str] = ("loop, none", "loop, trace", "stacked, none", "stacked, trace", "stacked, compile")

    def build(self) -> nn.Module:
        return made(self.model, self.shape)

    def data(self) -> tuple[fl.Examples, Partition]:
        """Random images, one client's after the other's."""
        ends = np.cumsum([0, *self.sizes])
        partition = Partition(indptr=ends, indices=np.arange(ends[-1]), name="in order", seed=None)
        return images(int(ends[-1]), self.shape), partition


def made(model: str, shape: tuple[int, ...]) -> nn.Module:
    return {"lstm": LSTM, "cnn": CNN}[model]() if model in ("lstm", "cnn") else build(model, shape, 10)


FEW = ("loop, none", "loop, trace", "stacked, none", "stacked, trace")
IMAGES = ("loop, trace", "stacked, trace", "workers, none", "workers, trace")
KINDS = {kind.name: kind for kind in (Loop, Stacked, Workers, Stacks)}


def cases() -> list[Case]:
    """MNIST-1000: the sizes of FedProx's partition of MNIST, 90 % of each to train on."""
    labels = np.random.default_rng(0).integers(0, 10, 70_000)
    mnist = [max(1, 9 * int(n) // 10) for n in lognormal(labels, 1000, 0, sigma=1.5).sizes]
    return [
        Case("logistic, 10 clients of 600", "logistic", [600] * 10, rounds=(200, 10_000), plain=3),
        Case("logistic, 100 clients of 600", "logistic", [600] * 100, rounds=(50, 2000), cohort=100, plain=7,
             forms=(*Case.forms, "stacks, trace", "stacks, compile")),
        Case("logistic, MNIST-1000 sizes", "logistic", mnist, plain=1, forms=FEW),
        Case("MLP, 10 clients of 200", "mlp", [200] * 10, plain=1),
        Case("LSTM, 10 clients of 200", "lstm", [200] * 10, forms=("loop, none", "stacked, none", "workers, none")),
        Case("LeNet, 10 clients of 200", "lenet", [200] * 10, forms=IMAGES),
        Case("CNN, 10 clients of 200", "cnn", [200] * 10, forms=IMAGES),
        Case("FedNTD CNN, 3 clients of 200", "fedntd_cnn", [200] * 3, cohort=3, batch_size=50, shape=(3, 32, 32),
             forms=IMAGES),
        Case("FedNTD CNN, 10 clients of 500", "fedntd_cnn", [500] * 10, batch_size=50, shape=(3, 32, 32),
             forms=("loop, trace", "workers, trace")),
    ]  # fmt: skip


def forms(repeat: int, alone: str | None = None) -> None:
    """Every form in which a case can be run, the one that the defaults pick, and a plain loop with DataLoader.

    Clients of uint8 images, one epoch, FedAvg; each round is whole: plan, training, aggregation. One cohort, or six
    where clients differ, is gone through once, which traces and compiles, then `repeat` times. A form costs what the
    whole run would.
    """
    for case in cases():
        if alone is None:  # each in a process of its own: what compiling costs there is what it costs a run
            command = [sys.executable, __file__, "--only", "forms", "--case", case.name, "--repeat", str(repeat)]
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
                printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            print("".join(row for row in printed.stdout.splitlines(True) if not row.startswith("torch ")), end="")
            if printed.returncode:
                missed.append(case.name)
                print(printed.stderr[-500:])
            continue
        if case.name != alone:
            continue
        examples, partition = case.data()
        local = fl.Local(epochs=1, batch_size=case.batch_size, optimiser=fl.SGD(lr=0.03))
        federation, model = fl.Federation(train=examples, partition=partition), fl.Model(case.build)
        rng = np.random.default_rng(1)
        few = 6 if len(set(case.sizes)) > 1 else 1
        cohorts = [sorted(rng.choice(len(case.sizes), case.cohort, replace=False)) for _ in range(few)]
        steps = sum(-(-case.sizes[k] // case.batch_size) for cohort in cohorts for k in cohort)
        works: dict[str, Callable[[], float]] = {"plain": plain_loop(case, examples, partition.indptr, cohorts)}
        closing: list[Engine] = []
        for form in case.forms:
            engine, compilation = form.split(", ")
            population = Population(federation, {"model": model})
            algorithm = fl.FedAvg(local=local)
            run = KINDS[engine](population, algorithm, Options(compilation=compilation))
            works[form] = rounds_of(run, cohorts, choose_threads(KINDS[engine], algorithm, population, case.cohort))
            closing.append(run)
        first = {form: work() for form, work in works.items()}
        turns = [{form: work() for form, work in works.items()} for _ in range(repeat)]
        later = {form: statistics.median(turn[form] for turn in turns) for form in works}
        for run in closing:
            run.close()
        for form in works:
            us = 1e6 * later[form] / steps
            line(f"{case.name}: {form} (first {len(cohorts)} rounds {first[form]:.1f} s)", f"{us:.0f} us", "-", True)
        population = Population(federation, {"model": model})
        kind, why = choose("auto", population, local, case.cohort)

        def pick(rounds: int) -> str:
            return f"{kind.name}, {choose_compilation(kind, population, local, case.cohort, rounds)}"  # noqa: B023

        if case.plain is not None:
            default = pick(fl.RunSettings().rounds)
            ratio = statistics.median(turn["plain"] / turn[default] for turn in turns)
            line(f"{case.name}: {default} beside plain", f"{ratio:.2f}x", f">= {case.plain}x", ratio >= case.plain)
        for rounds in case.rounds:
            picked = pick(rounds)
            cost = {form: first[form] + (rounds / few - 1) * later[form] for form in case.forms}
            best = min(cost, key=cost.__getitem__)
            slower = 100 * (cost[picked] / cost[best] - 1)
            print(f"{case.name}, {rounds} rounds: auto picks {picked} ({why}); the best form is {best}")
            line(f"{case.name}, {rounds} rounds: auto", f"{slower:.0f} % slower than best", "<= 5 %", slower <= 5)


def plain_loop(
    case: Case, examples: fl.Examples, ends: np.ndarray, cohorts: Sequence[Sequence[int]]
) -> Callable[[], float]:
    """Seconds of what everybody writes; it gets floats that are normalised already."""
    x = examples.normalise(examples.x, torch.float32)

    def train() -> None:
        for k in itertools.chain(*cohorts):
            module = case.build()
            optimiser = torch.optim.SGD(module.parameters(), lr=0.03)
            data = TensorDataset(x[ends[k] : ends[k + 1]], examples.y[ends[k] : ends[k + 1]])
            for a, b in DataLoader(data, batch_size=case.batch_size, shuffle=True):
                optimiser.zero_grad()
                F.cross_entropy(module(a), b).backward()
                optimiser.step()

    return lambda: seconds(train)


def rounds_of(run: Engine, cohorts: Sequence[Sequence[int]], count: int | None = None) -> Callable[[], float]:
    """Seconds of rounds on so many threads; None: as many as PyTorch takes."""
    server = run.init()

    def train() -> None:
        with threads(count):
            for t, cohort in enumerate(cohorts):
                run.round(server, cohort, t)

    return lambda: seconds(train)


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def handwritten(
    examples: fl.Examples, rows: torch.Tensor, epochs: int, model: str = "fedntd_cnn", batch_size: int = 50
) -> Callable[[], None]:
    """What a careful person writes for one client: channels_last, fused SGD, resident float tensors."""
    x = examples.normalise(examples.x[rows], torch.float32).contiguous(memory_format=torch.channels_last)
    y = examples.y[rows]

    def train() -> None:
        module = made(model, tuple(x.shape[1:])).to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5, fused=True)
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(batch_size):
                optimiser.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimiser.step()

    return train


def side_by_side(repeat: int) -> None:
    """Rounds of ten clients of 200 images with default settings beside a hand-written loop, and workers 1 and 2."""
    local_of = {"lenet": fl.Local(batch_size=20), "cnn": fl.Local(batch_size=10)}
    targets = {"lenet": 1.2, "cnn": 1.3}
    for model, local in local_of.items():
        examples = images(2000, (1, 28, 28))
        one = dataclasses.replace(local, epochs=1, optimiser=fl.SGD(lr=0.01, momentum=0.9, weight_decay=1e-5))
        algorithm = fl.FedAvg(local=one)
        rows = [torch.tensor(iid(examples.y, 10, 0).rows(k)) for k in range(10)]
        loops = [handwritten(examples, r, 1, model, local.batch_size) for r in rows]

        def by_hand(loops=loops) -> None:
            for loop in loops:
                loop()

        def build_it(model=model) -> nn.Module:
            return made(model, (1, 28, 28))

        engines = [
            simulation(Workers, algorithm, examples, 10, build_it, compilation="trace", workers=count)
            for count in (None, 1, 2)
        ]
        population = engines[0].population
        kind, _ = choose("auto", population, one, 10)
        form = choose_compilation(kind, population, one, 10, fl.RunSettings().rounds)
        assert (kind, form) == (Workers, "trace"), "the engines above are not the default"
        default, alone, two = (whole_round(engine) for engine in engines)
        a, b, ratio = pairs(by_hand, default, repeat)
        per = 1e6 / (10 * -(-200 // local.batch_size))
        name = {"lenet": "LeNet, batch 20", "cnn": "CNN, batch 10"}[model]
        line(
            f"{name}: hand-written channels_last loop / default",
            f"{ratio:.2f}x  ({a * per:.0f} / {b * per:.0f} us)",
            f">= {targets[model]}x",
            ratio >= targets[model],
        )
        _, _, ratio = pairs(alone, two, repeat)
        line(f"{name}: workers 1 / workers 2", f"{ratio:.2f}x", "-", True)
        for engine in engines:
            engine.close()


def whole_round(run: Engine) -> Callable[[], None]:
    server, everyone = run.init(), range(run.population.num_clients)

    def work() -> None:
        run.round(server, everyone, 0)

    return work


def convolutions(repeat: int) -> None:
    """The FedNTD CNN at batch 50: the loop engine, bf16, what the teacher of FedNTD costs. And a net with BatchNorm."""
    examples = images(500, (3, 32, 32))

    def client(algorithm: Algorithm, model: str = "fedntd_cnn", **more) -> Callable[[], None]:
        run = simulation(Loop, algorithm, examples, 1, lambda: made(model, (3, 32, 32)), **more)
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
    one = fl.Local(epochs=1, batch_size=50)
    normed = "wrn16_1"
    a, b, ratio = pairs(client(fl.FedAvg(local=one), normed), handwritten(examples, rows, 1, normed), repeat)
    line(
        "WRN-16-1 (BatchNorm), loop / hand-written",
        f"{ratio:.3f}  ({a * 100:.1f} / {b * 100:.1f} ms a step)",
        "<= 1.10",
        ratio <= 1.10,
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

        saved = fold.run_one, fold.run_stack, accuracy._pass
        fold.run_one, fold.run_stack, accuracy._pass = map(timed, saved)
        try:
            settings = fl.RunSettings(  # in one process, which sees what the folds take
                rounds=8,
                cohort_size=cohort,
                engine="auto" if model == "logistic" else "loop",
                compilation="compile" if model == "logistic" else "auto",
            )
            marks: list[tuple[float, float]] = []
            fl.run(
                fl.FedAvg(local=local), federation, lambda m=model, s=shape: build(m, s, 10), settings,
                on_round=lambda h, marks=marks, inside=inside: marks.append((time.perf_counter(), inside[0])),
            )  # fmt: skip
        finally:
            fold.run_one, fold.run_stack, accuracy._pass = saved
        shares = [1 - (b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(marks[1:])]
        share = statistics.median(shares)
        line(f"overhead: {name}", f"{100 * share:.1f} % of a round", "<= 5 %", share <= 0.05)


def decomposed(repeat: int) -> None:
    """APFL (Ni) with default settings beside a plain loop of it, and beside the loop engine: logistic regression, the
    sizes of MNIST-1000, 10 clients a round, 5 epochs of batches of 10; rounds in which all parts are trained.
    """
    case = next(case for case in cases() if case.name == "logistic, MNIST-1000 sizes")
    examples, partition = case.data()
    local = fl.Local(epochs=5, batch_size=10, optimiser=fl.SGD(lr=0.03))
    population = Population(fl.Federation(train=examples, partition=partition), {"model": fl.Model(case.build)})
    rng = np.random.default_rng(1)
    cohorts = [sorted(rng.choice(len(case.sizes), case.cohort, replace=False)) for _ in range(6)]
    steps = 5 * sum(-(-case.sizes[k] // 10) for cohort in cohorts for k in cohort)
    works = {"plain": plain_apfl(examples, partition.indptr, cohorts)}
    kind, _ = choose("auto", population, local, case.cohort)

    def add(engine: type[Engine], form: str) -> str:
        run = engine(population, fl.APFLNi(local=local), Options(compilation=form))
        works[f"{engine.name}, {form}"] = after_warm_up(run, cohorts)
        return f"{engine.name}, {form}"

    default, loop = (
        add(engine, choose_compilation(engine, population, local, case.cohort, fl.RunSettings().rounds))
        for engine in (kind, Loop)
    )
    compiled = add(Stacked, "compile")
    first = {form: work() for form, work in works.items()}
    turns = [{form: work() for form, work in works.items()} for _ in range(repeat)]
    for form in works:
        us = 1e6 * statistics.median(turn[form] for turn in turns) / steps
        line(f"APFL (Ni), MNIST-1000 sizes: {form} (first 6 rounds {first[form]:.1f} s)", f"{us:.0f} us", "-", True)
    for form, other, target in ((default, "plain", 1.5), (compiled, "plain", 4.0), (default, loop, 1.0)):
        name = f"APFL (Ni), MNIST-1000 sizes: {form} beside {other}"
        ratio = statistics.median(turn[other] / turn[form] for turn in turns)
        line(name, f"{ratio:.2f}x", f">= {target}x", ratio >= target)


def evaluating(repeat: int) -> None:
    """Every client evaluated by a model of its own, after 10 rounds of APFL (Ni) with the sizes of MNIST-1000, a tenth
    held out: with default settings, beside the loop engine and beside a plain loop over models that are there already.
    """
    case = next(case for case in cases() if case.name == "logistic, MNIST-1000 sizes")
    local = fl.Local(epochs=5, batch_size=10, optimiser=fl.SGD(lr=0.03))
    federation = fl.federate(*case.data(), test_fraction=0.1)
    population = Population(federation, {"model": fl.Model(case.build)})
    kind, _ = choose("auto", population, local, case.cohort)
    form = choose_compilation(kind, population, local, case.cohort, fl.RunSettings().rounds)
    works: dict[str, Callable[[], object]] = {}
    for engine in (
        kind(population, fl.APFLNi(local=local), Options(compilation=form)),
        Loop(population, fl.APFLNi(local=local)),
    ):
        server = engine.init()
        for t in range(10):
            server = engine.round(server, range(10 * t, 10 * t + 10), t)
        works[engine.name] = functools.partial(engine.evaluate_counts, server, range(len(case.sizes)), 10)
    held = federation.local_test
    x, y = federation.train.normalise(federation.train.x, torch.float32).flatten(1), federation.train.y
    rows = [torch.from_numpy(held.rows(k).copy()) for k in range(len(case.sizes))]
    weights = torch.randn(len(rows), 10, 784)

    def plain() -> list[int]:
        return [int((F.linear(x[mine], w).argmax(1) == y[mine]).sum()) for mine, w in zip(rows, weights, strict=True)]

    for other, work, target in (("loop", works["loop"], 2.5), ("plain", plain, 0.0)):
        a, b, ratio = pairs(work, works[kind.name], repeat)
        value = f"{ratio:.2f}x  ({1e3 * a:.0f} / {1e3 * b:.0f} ms)"
        name = f"1,000 clients evaluated: {other} / {kind.name}, {form}"
        line(name, value, f">= {target}x" if target else "-", ratio >= target)


def after_warm_up(run: Engine, cohorts: Sequence[Sequence[int]]) -> Callable[[], float]:
    """Seconds of rounds that come after the first three, in which importance is measured and nothing decomposed."""
    servers = [run.init()]
    for t in range(3):
        servers.append(run.round(servers[-1], cohorts[t], t))

    def train() -> None:
        for t, cohort in enumerate(cohorts):
            run.round(servers[-1], cohort, 3 + t)

    return lambda: seconds(train)


def plain_apfl(examples: fl.Examples, ends: np.ndarray, cohorts: Sequence[Sequence[int]]) -> Callable[[], float]:
    """Seconds of what everybody writes: W_S, r_k and W_k as parameters, importance all ones."""
    x = examples.normalise(examples.x, torch.float32).flatten(1)
    own: dict[int, list[torch.Tensor]] = {}

    def logits(parts: Sequence[torch.Tensor], a: torch.Tensor) -> torch.Tensor:
        w, b, r, own_w, own_b = parts
        m = torch.sigmoid(r)
        return F.linear(a, w * m[:, None] + own_w, b * m + own_b)

    def train() -> None:
        shared, importance = [torch.zeros(10, 784), torch.zeros(10)], [torch.ones(10, 784), torch.ones(10)]
        for cohort in cohorts:
            total = [torch.zeros_like(p) for p in shared]
            for k in cohort:
                a, b = slice(ends[k], ends[k + 1]), ends[k + 1] - ends[k]
                mine = own.get(k, [torch.ones(10), 0.27 * shared[0], 0.27 * shared[1]])
                parts = [p.clone().requires_grad_() for p in (*shared, *mine)]
                with torch.no_grad():
                    F.cross_entropy(logits(parts, x[a]), examples.y[a])
                optimiser = torch.optim.SGD(parts, lr=0.03)
                for _ in range(5):
                    for inputs, y in DataLoader(TensorDataset(x[a], examples.y[a]), batch_size=10, shuffle=True):
                        optimiser.zero_grad()
                        pull = sum((f * (p - q) ** 2).sum() for f, p, q in zip(importance, parts, shared, strict=False))
                        (F.cross_entropy(logits(parts, inputs), y) + 0.5 * pull).backward()
                        optimiser.step()
                done = [p.detach() for p in parts]
                own[k] = done[2:]
                total = [t + float(b) * p for t, p in zip(total, done, strict=False)]
            count = sum(int(ends[k + 1] - ends[k]) for k in cohort)
            shared = [t / count for t in total]

    return lambda: seconds(train)


def frozen(repeat: int) -> None:
    """A round of FedNTD on its CNN with a frozen body, evaluation included: in every pass, and computed once."""
    examples = images(2000, (3, 32, 32))
    federation = fl.federate(examples, iid(examples.y, 10, 0), test=images(500, (3, 32, 32)))
    local = fl.Local(epochs=5, batch_size=50)

    def rounds(front: str) -> tuple[float, float]:
        """(seconds of a later round, of the whole run with what comes before its first round)"""
        model = fl.Model(functools.partial(build, "fedntd_cnn", (3, 32, 32), 10), name="cnn", frozen="body")
        settings = fl.RunSettings(rounds=3, cohort_size=5, engine="loop", compilation="none", front=front)
        start = time.perf_counter()
        history = fl.run(fl.FedNTD(local=local), federation, model, settings)
        seen = [sum(record["seconds"].values()) for record in history.timing[1:]]
        return statistics.median(seen), time.perf_counter() - start

    found = [(rounds("off"), rounds("auto")) for _ in range(repeat)]
    for i, (what, target) in enumerate((("a round", 5.0), ("three rounds and what comes before", 1.0))):
        ratio = statistics.median(off[i] / auto[i] for off, auto in found)
        always, once = (statistics.median(each[k][i] for each in found) for k in (0, 1))
        value = f"{ratio:.2f}  ({always:.2f} / {once:.2f} s)"
        line(f"FedNTD CNN, frozen body, {what}: every pass / once", value, f">= {target:g}", ratio >= target)


def busy(repeat: int) -> None:
    """A round on a quiet machine and beside one and two processes that never rest, in turn: on the threads of the
    rule, and for comparison on two, and on four and eight, which stand for more threads than cores that are free.
    """
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]

    def work_beside(count: int) -> None:
        for i, process in enumerate(others):
            process.send_signal(signal.SIGCONT if i < count else signal.SIGSTOP)

    try:
        work_beside(0)
        for case in cases()[:2]:
            examples, partition = case.data()
            local = fl.Local(epochs=1, batch_size=case.batch_size, optimiser=fl.SGD(lr=0.03))
            federation, model = fl.Federation(train=examples, partition=partition), fl.Model(case.build)
            population, algorithm = Population(federation, {"model": model}), fl.FedAvg(local=local)
            run = Stacked(population, algorithm, Options(compilation="trace"))
            rule, cohort = choose_threads(Stacked, algorithm, population, case.cohort), [[*range(case.cohort)]]
            steps = sum(-(-size // case.batch_size) for size in case.sizes)
            rounds_of(run, cohort, rule)()  # traces
            for threads in (rule, 2, 4, 8):
                timed, found = rounds_of(run, cohort, threads), list[list[float]]()
                for _ in range(repeat):
                    found.append([])
                    for count in range(3):
                        work_beside(count)
                        found[-1].append(1e6 * timed() / steps)
                us = ", ".join(f"{statistics.median(turn[count] for turn in found):.0f}" for count in range(3))
                ratio, mine = statistics.median(turn[1] / turn[0] for turn in found), threads is rule
                name = f"{case.name}: {threads} threads{' by the rule' if mine else ''}, beside 0, 1, 2: {us} us"
                line(name, f"{ratio:.2f}x", "<= 1.6x" if mine else "-", ratio <= 1.6 or not mine)
    finally:
        for process in others:
            process.kill()


PARTS = {
    "forms": forms,
    "busy": busy,
    "decomposed": decomposed,
    "judging": evaluating,
    "workers": side_by_side,
    "convolutions": convolutions,
    "frozen": frozen,
    "overhead": overhead,
}


def beside(other: str, words: Sequence[str], times: int = 5) -> None:
    """Print the first number of each line, as the median of runs with the source `other` and with this one, in turn.

    A source with a benchmarks/run.py beside it is measured by that, since this one may ask for what came later.
    """
    sources = {"before": other, "after": str(Path(fl.__file__).parents[1])}
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(times):
        for which, source in sources.items():
            own = Path(source).parent / "benchmarks" / "run.py"
            command = [sys.executable, str(own if own.exists() else __file__), *words]
            environment = {**os.environ, "PYTHONPATH": source}
            printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            rows = [row for row in printed.stdout.splitlines() if len(row) > 74]
            if not rows:
                sys.exit(f"nothing was measured {which}: {' '.join(command)}\n{printed.stderr}")
            for row in rows:
                name, value = re.sub(r" \(first .*? s\)", "", row[:74]).strip(), row[74:].split()
                if value and re.fullmatch(r"[0-9.]+x?", value[0]):
                    numbers = found.setdefault(name, {which: [] for which in sources})[which]
                    numbers.append(float(value[0].rstrip("x")))
    print(f"{'medians':74s} {'before':>10s} {'after':>10s} {'change':>8s}")
    for name, numbers in found.items():
        if all(numbers.values()):
            old, new = (statistics.median(numbers[which]) for which in sources)
            print(f"{name:74s} {old:10.4g} {new:10.4g} {100 * (new / old - 1) if old else 0.0:+7.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help="one case of the part forms, in this process")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--beside", metavar="SRC", help="a folder that holds another version of the package")
    args = parser.parse_args()
    if args.beside:
        words = [*(["--only", args.only] if args.only else []), *(["--quick"] if args.quick else [])]
        beside(args.beside, words + (["--case", args.case] if args.case else []))
        return
    warnings.simplefilter("ignore", SettingWarning)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, part in PARTS.items():
        if args.only in (None, name):
            repeat = args.repeat or (3 if args.quick else 9)
            forms(repeat, args.case) if args.case else part(repeat)
    if missed:
        sys.exit(f"{len(missed)} targets missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
