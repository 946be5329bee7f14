"""pfl-research: its simulated backend in a process a core (torchrun), users' tensors resident; it trains on a user's
batches in the same order in every epoch.
"""

from __future__ import annotations

import itertools
import os
import sys

if "LOCAL_RANK" not in os.environ:  # a process a core, each with one thread
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(len(os.sched_getaffinity(0))), *sys.argv]
    os.environ["OMP_NUM_THREADS"] = "1"
    os.execv(sys.executable, [sys.executable, *command])

import torch
import torch.nn.functional as F
from peer_networks import load, network, parameters_of, resident, warm_up
from peer_work import Clock, called
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel


class Marks(TrainingProcessCallback):
    def __init__(self) -> None:
        self.clock = Clock()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.mark()
        return False, type(aggregate_metrics)()


def main() -> None:
    work, rounds = called()
    case = work.case
    warm_up()
    x, y = resident(work)
    module = network(case)
    load(module, work.start())
    module.loss = lambda a, b: F.cross_entropy(module(a), b)
    module.metrics = lambda a, b: {}
    users = [Dataset((x[work.rows(k)], y[work.rows(k)]), user_id=str(k)) for k in range(case.clients)]
    order = itertools.cycle(range(case.clients))
    dataset = FederatedDataset(users.__getitem__, lambda: next(order))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    marks = Marks()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=case.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(dataset, dataset),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=case.epochs, local_learning_rate=case.lr, local_batch_size=case.batch_size
        ),
        callbacks=[marks],
    )
    if os.environ["LOCAL_RANK"] == "0":
        how = f"simulated backend in {os.environ['WORLD_SIZE']} processes"
        work.answer(marks.clock.seconds, parameters_of(module), how, "pfl", "torch")


if __name__ == "__main__":
    main()
