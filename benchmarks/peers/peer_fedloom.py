"""fedloom by default settings."""

from __future__ import annotations

import numpy as np
from peer_networks import load, network, parameters_of
from peer_work import Clock, called

import fedloom as fl
from fedloom.data import Normalise, Partition


def main() -> None:
    work, rounds = called()
    case = work.case
    examples = fl.from_arrays(work.bytes, work.y, num_classes=10, normalise=Normalise(scale=1 / 127.5, mean=(1.0,)))
    ends = np.arange(0, len(work.y) + 1, case.size)
    partition = Partition(indptr=ends, indices=np.arange(len(work.y)), name="in order", seed=None)
    module = network(case)
    load(module, work.start())
    local = fl.Local(epochs=case.epochs, batch_size=case.batch_size, optimiser=fl.SGD(lr=case.lr))
    clock = Clock()
    history = fl.run(
        fl.FedAvg(local=local),
        fl.Federation(train=examples, partition=partition),
        module,
        fl.RunSettings(rounds=rounds, cohort_size=case.clients),
        on_round=lambda _: clock.mark(),
        progress=False,
    )
    trained = history.networks.module(history.server)
    work.answer(clock.seconds, parameters_of(trained), f"{history.engine}: {history.engine_reason}", "torch", "numpy")


if __name__ == "__main__":
    main()
