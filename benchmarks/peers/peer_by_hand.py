"""What a careful person writes in PyTorch: a process a core, which lives through all rounds and trains its clients one
by one (logistic regression: all at once by the formula of the gradient), parameters in shared memory.
"""

from __future__ import annotations

import torch
import torch.multiprocessing as mp
from peer_networks import held, load, parameters_of, train, train_stack
from peer_work import Clock, called, cores
from torch import Tensor

PROCESSES = cores()


def serve(folder: str, rank: int, shared: Tensor, sums: Tensor, begin, done) -> None:
    """Train every PROCESSES-th client in each round and leave the sum of their parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    work, module, x, y = held(folder)
    case = work.case
    flat = [p.numel() for p in module.parameters()]
    mine = range(rank, case.clients, PROCESSES)
    stack = [torch.stack([t[work.rows(k)] for k in mine]) for t in (x, y)] if case.network == "logistic" else []
    while True:
        begin.wait()
        start = [p.view(q.shape) for p, q in zip(shared.split(flat), module.parameters(), strict=True)]
        total = torch.zeros_like(shared)
        if stack:
            w, b = (p.expand(len(mine), *p.shape).contiguous() for p in start)
            train_stack(w, b, *stack, case)
            total = torch.cat([w.sum(0).flatten(), b.sum(0)])
        else:
            for k in mine:
                load(module, start)
                train(module, x[work.rows(k)], y[work.rows(k)], case)
                total += torch.cat([p.detach().contiguous().view(-1) for p in module.parameters()])
        sums[rank].copy_(total)
        done.wait()


def main() -> None:
    work, rounds = called()
    _, module, _, _ = held(str(work.folder))  # once, before the processes begin
    load(module, work.start())
    shared = torch.cat([torch.from_numpy(p).flatten() for p in parameters_of(module)]).share_memory_()
    sums = torch.zeros(PROCESSES, len(shared)).share_memory_()
    context = mp.get_context("fork")
    begin, done = context.Barrier(PROCESSES + 1), context.Barrier(PROCESSES + 1)
    children = [
        context.Process(target=serve, args=(str(work.folder), rank, shared, sums, begin, done), daemon=True)
        for rank in range(PROCESSES)
    ]
    clock = Clock()
    for child in children:
        child.start()
    for _ in range(rounds):
        begin.wait()
        done.wait()
        shared.copy_(sums.sum(0) / work.case.clients)
        clock.mark()
    for child in children:
        child.kill()
    flat = [p.numel() for p in module.parameters()]
    load(module, [p.view(q.shape) for p, q in zip(shared.split(flat), module.parameters(), strict=True)])
    how = "all clients of a process at once" if work.case.network == "logistic" else "client after client"
    work.answer(clock.seconds, parameters_of(module), f"{PROCESSES} processes, {how}", "torch", "numpy")


if __name__ == "__main__":
    main()
