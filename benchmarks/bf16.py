"""bf16 against float32 on this processor, in one thread: products, client-steps, where time goes, accuracy.

    python benchmarks/bf16.py rates steps profile          # minutes
    python benchmarks/bf16.py accuracy --rounds 60         # three seeds of each, paired

Each pair is timed in turn, A B A B ..., and the median of the ratios counts. Accuracy is of FedAvg on Fashion-MNIST in
small (20 clients of two shards, 5 a round); the interval is that of Student's t over the paired seeds. Where a
processor has no bf16 arithmetic, PyTorch computes the same numbers slowly.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from run import images, made, pairs, simulation
from torch import nn
from torch.profiler import ProfilerActivity, profile

import fedloom as fl
from fedloom.core.fold.execution import threads
from fedloom.engines.loop import Loop
from fedloom.evaluate.student_t import student_quantile

CASES = {"fedntd_cnn, batch 50": ("fedntd_cnn", (3, 32, 32), 50), "PFLlib's CNN, batch 10": ("cnn", (1, 28, 28), 10)}
LAST = 10  # rounds whose mean is a run's number
KINDS = {
    "convolutions": ("conv",), "products": ("addmm", "aten::mm", "linear"), "casts": ("_to_copy", "aten::to", "copy_"),
    "pooling": ("pool",), "optimiser": ("_fused", "_foreach", "add_", "mul_"),
}  # fmt: skip


def has_bf16() -> bool:
    return any(has for name, has in torch.cpu.get_capabilities().items() if "bf16" in name)


def rates() -> None:
    """GFLOP/s of products of square matrices, and of a convolution in channels_last."""
    for name, shape, flops in (("256", (256, 256), 2 * 256**3), ("1024", (1024, 1024), 2 * 1024**3)):
        wide = torch.randn(shape)
        half = wide.bfloat16()
        a, b, ratio = pairs(lambda w=wide: w @ w, lambda h=half: h @ h, 5)
        print(
            f"product of {name}: float32 {flops / a / 1e9:.1f}, bf16 {flops / b / 1e9:.1f} GFLOP/s, {ratio:.2f} times"
        )
    x = torch.randn(50, 64, 16, 16).to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 5, 5).to(memory_format=torch.channels_last)
    less = (x.bfloat16(), w.bfloat16())
    a, b, ratio = pairs(lambda: F.conv2d(x, w), lambda: F.conv2d(*less), 3)
    flops = 2 * 50 * 64 * 64 * 25 * 12 * 12
    print(f"convolution: float32 {flops / a / 1e9:.1f}, bf16 {flops / b / 1e9:.1f} GFLOP/s, {ratio:.2f} times")


def client_step(model: str, shape: tuple[int, ...], batch: int, steps: int, **more: bool) -> Callable[[], None]:
    """One epoch of one client, as a run computes it on the loop."""
    local = fl.Local(epochs=1, batch_size=batch, optimiser=fl.SGD(lr=0.01, momentum=0.9))
    examples = images(batch * steps, shape)
    run = simulation(Loop, fl.FedAvg(local=local), examples, 1, lambda: made(model, shape), **more)
    server = run.init()

    def work() -> None:
        with threads(1):
            run.round(server, [0], 0)

    return work


def steps(count: int, repeat: int) -> None:
    for name, case in CASES.items():
        a, b, ratio = pairs(client_step(*case, count), client_step(*case, count, bf16=True), repeat)
        print(f"{name}: float32 {1e3 * a / count:.1f}, bf16 {1e3 * b / count:.1f} ms a step, {ratio:.2f} times")


def profiled(count: int) -> None:
    """Shares of CPU time by kind of operation."""
    for name, case in CASES.items():
        for bf16 in (False, True):
            work = client_step(*case, count, bf16=bf16)
            work()
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                work()
            times = {e.key: e.self_cpu_time_total for e in seen.key_averages()}
            whole, shares = sum(times.values()), dict.fromkeys([*KINDS, "others"], 0.0)
            for key, spent in times.items():
                kind = next((kind for kind, words in KINDS.items() if any(w in key for w in words)), "others")
                shares[kind] += spent / whole
            text = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in shares.items())
            print(f"{name}, {'bf16' if bf16 else 'float32'}: {text}")


def accuracy(model: str, rounds: int, epochs: int, seeds: int) -> None:
    """Mean accuracy of the last rounds: two shards a client make single rounds differ by tens of points."""
    train, test = fl.fashion_mnist_small()
    parts = fl.shards(train.y, num_clients=20, shards_per_client=2, seed=0)
    federation = fl.federate(train, parts, test=test, test_fraction=0.2)
    local = fl.Local(epochs=epochs, batch_size=50, optimiser=fl.SGD(lr=0.02, momentum=0.9))
    found: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
    for seed in range(seeds):
        for bf16 in found:
            settings = fl.RunSettings(
                rounds=rounds, cohort_size=5, seed=seed, bf16=bf16, engine="loop", threads=1, eval_every=1
            )
            start = time.perf_counter()
            network: Callable[[], nn.Module] = lambda: made(model, (1, 28, 28))  # noqa: E731
            last = fl.run(fl.FedAvg(local=local), federation, network, settings).metrics[-LAST:]
            found[bf16].append(
                tuple(statistics.fmean(m[f"{of}_accuracy"] for m in last) for of in ("global", "personal"))
            )
            seconds = time.perf_counter() - start
            print(
                f"{model}, seed {seed}, {'bf16' if bf16 else 'float32'}: {found[bf16][-1]}, {seconds:.0f} s", flush=True
            )
    for at, which in enumerate(("global", "personal")):
        differences = [100 * (b[at] - a[at]) for a, b in zip(found[False], found[True], strict=True)]
        half = student_quantile(0.975, seeds - 1) * statistics.stdev(differences) / seeds**0.5
        wide, less = (statistics.fmean(100 * one[at] for one in found[bf16]) for bf16 in (False, True))
        text = (
            f"float32 {wide:.2f}, bf16 {less:.2f}, difference {statistics.fmean(differences):+.2f} +- {half:.2f} points"
        )
        print(f"{model}, {which} accuracy, last {LAST} of {rounds} rounds, {seeds} seeds: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("rates", "steps", "profile", "accuracy"))
    parser.add_argument("--steps", type=int, default=4, help="of a client")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["mlp"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = torch.cpu.get_capabilities()
    print(f"{about.get('cpu_name')}, bf16 arithmetic: {'yes' if has_bf16() else 'no'}; torch {torch.__version__}")
    for part in args.parts:
        if part == "rates":
            rates()
        elif part == "steps":
            steps(args.steps, args.repeat)
        elif part == "profile":
            profiled(args.steps)
        else:
            for model in args.models:
                accuracy(model, args.rounds, args.epochs, args.seeds)


if __name__ == "__main__":
    main()
