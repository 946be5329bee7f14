"""BlazeFL: the FedAvg that comes with it, data resident. A thread a core where Python runs without its global lock,
else a process a core.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.multiprocessing as mp
from peer_networks import held, load, network, parameters_of
from peer_work import Clock, Work, called, cores

PROCESSES = not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()


class Batches:
    """One client's batches, in a new order at each pass."""

    def __init__(self, x, y, batch_size, generator) -> None:
        self.dataset, self.x, self.y, self.batch_size, self.generator = range(len(x)), x, y, batch_size, generator

    def __iter__(self):
        for rows in torch.randperm(len(self.x), generator=self.generator).split(self.batch_size):
            yield self.x[rows], self.y[rows]


class Data:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def get_dataloader(self, type_, cid, batch_size, generator=None):
        work, _, x, y = held(self.folder)
        return Batches(x[work.rows(cid)], y[work.rows(cid)], batch_size, generator)

    def set_dataset(self, type_, cid, dataset) -> None:
        pass


class Selector:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def select_model(self, model_name):
        return network(Work(self.folder).case)


def main() -> None:
    from blazefl.contrib import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer, FedAvgThreadPoolClientTrainer

    work, rounds = called()
    case, folder = work.case, str(work.folder)
    torch.set_num_threads(1)
    held(folder)
    selector, data = Selector(folder), Data(folder)
    both = {
        "model_selector": selector,
        "model_name": "",
        "dataset": data,
        "num_clients": case.clients,
        "device": "cpu",
        "batch_size": case.batch_size,
        "seed": 0,
    }
    handler = FedAvgBaseServerHandler(global_round=rounds, sample_ratio=1.0, **both)
    load(handler.model, work.start())
    common = {**both, "epochs": case.epochs, "lr": case.lr, "num_parallels": cores()}
    if PROCESSES:
        trainer = FedAvgProcessPoolClientTrainer(state_dir=Path(tempfile.mkdtemp(prefix="blazefl")), **common)
    else:
        trainer = FedAvgThreadPoolClientTrainer(**common)
    trainer.progress_fn = lambda jobs: jobs
    clock = Clock()
    for _ in range(rounds):
        trainer.local_process(handler.downlink_package(), handler.sample_clients())
        for package in trainer.uplink_package():
            handler.load(package)
        clock.mark()
    form = f"{cores()} {'processes' if PROCESSES else 'threads'}"
    work.answer(clock.seconds, parameters_of(handler.model), form, "blazefl", "torch")


if __name__ == "__main__":
    mp.set_start_method("fork")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
