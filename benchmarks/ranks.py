"""What ranks cost and gain: a round's overhead, and the efficiency of two ranks of one thread on two cores.

    torchrun --master-port=29500 --nproc-per-node=3 benchmarks/ranks.py gloo
    mpirun -np 3 python benchmarks/ranks.py mpi

Rank 0 is the server, two ranks compute. Overhead: ten clients with a model of 3.5 MB and one example each, the time of
a round beyond half of the loop's. Efficiency: 10 of 100 clients of 600 images, LeNet and PFLlib's CNN, the time of the
loop on one thread over twice that of the ranks. Both in turn, A B A B ..., in one run; the exit status is 1 where a
target is missed. Beside it stands how much slower the loop is where two processes run one each: cores share caches.
`--best`: the best round of each counts, not the median: for a machine that others use too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import torch
from run import images, line, made, missed, simulation
from torch import nn

import fedloom as fl
from fedloom.core.algorithm import Algorithm
from fedloom.engines.engine import Engine
from fedloom.engines.loop import Loop
from fedloom.ranks.launched import communication
from fedloom.ranks.rank_engine import MPI, Gloo, Ranks

KINDS: dict[str, type[Ranks]] = {"gloo": Gloo, "mpi": MPI}
BATCH = {"lenet": 20, "cnn": 10}
Seconds = Callable[[Sequence[float]], float]


def timed(engine: Engine, cohort: Sequence[int]) -> float:
    """Seconds of a round."""
    start = time.perf_counter()
    engine.round(engine.init(), cohort, 0)
    return time.perf_counter() - start


def compared(
    kind: type[Ranks],
    algorithm: Algorithm,
    examples: fl.Examples,
    clients: int,
    model,
    repeat: int,
    of: Seconds,
    **more,
) -> tuple[float, float] | None:
    """Seconds of a round of ten clients: of the loop on one thread, and of ranks; None at ranks that compute."""
    loop, ranks = (simulation(each, algorithm, examples, clients, model, **more) for each in (Loop, kind))
    cohort = range(0, clients, clients // 10)
    if rank := communication(kind.transport).rank:
        both = of([timed(loop, cohort) for _ in range(repeat + 1)][1:])
        if rank == 1:
            line("the loop on one thread, at two ranks at once", f"{both:.2f} s", "-", True)
        ranks.serve()
        return None
    ranks.open()
    seen = [(timed(loop, cohort), timed(ranks, cohort)) for _ in range(repeat + 1)][1:]
    ranks.close()
    return of([a for a, _ in seen]), of([b for _, b in seen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transport", choices=KINDS)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--best", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, of = KINDS[args.transport], min if args.best else statistics.median
    server = not communication(kind.transport).rank
    once = fl.FedAvg(local=fl.Local(epochs=1, batch_size=10, optimiser=fl.SGD(lr=0.01)))
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 1116, bias=False))  # noqa: E731  # 3.5 MB
    found = compared(kind, once, images(10, (1, 28, 28)), 10, wide, 3 * args.repeat, of)
    if found is not None:
        loop, ranks = found
        ms = 1e3 * (ranks - loop / 2)
        name = f"{args.transport}: a round's overhead, 10 clients of 3.5 MB, 2 ranks ({1e3 * loop:.0f} ms on the loop)"
        line(name, f"{ms:.0f} ms", "<= 150 ms", ms <= 150)
    for model, batch in BATCH.items():
        local = fl.Local(epochs=1, batch_size=batch, optimiser=fl.SGD(lr=0.01, momentum=0.9, weight_decay=1e-5))
        build = lambda model=model: made(model, (1, 28, 28))  # noqa: E731
        found = compared(
            kind, fl.FedAvg(local=local), images(60_000, (1, 28, 28)), 100, build, args.repeat, of, compilation="trace"
        )
        if found is not None:
            share = found[0] / (2 * found[1])
            name = f"{args.transport}: efficiency of 2 ranks, {model}, 10 of 100 clients"
            line(name, f"{share:.2f}  ({found[0]:.2f} / {found[1]:.2f} s)", ">= 0.85", share >= 0.85)
    if server and missed:
        sys.exit(f"{len(missed)} targets missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
