"""Flower's simulation: an actor a core, local training as by hand, each actor's data resident."""

from __future__ import annotations

import os
import sys
import tempfile

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_HOME": tempfile.mkdtemp(prefix="flwr"),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}

import peer_networks
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_work import Clock, Work, called

work, rounds = called()
client, server = ClientApp(), ServerApp()
seconds: list[float] = []
trained: list = []


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    work, module, x, y = peer_networks.held(str(message.content["config"]["folder"]))
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = work.rows(int(context.node_config["partition-id"]))
    peer_networks.train(module, x[rows], y[rows], work.case)
    metrics = MetricRecord({"num-examples": work.case.size})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    module = peer_networks.network(work.case)
    peer_networks.load(module, work.start())
    clock = Clock()

    def mark(turn: int, arrays: ArrayRecord) -> MetricRecord:
        if turn:
            clock.mark()
        return MetricRecord({"round": turn})

    strategy = FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0, min_train_nodes=work.case.clients,
                      min_available_nodes=work.case.clients)  # fmt: skip
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(module.state_dict()),
        train_config=ConfigRecord({"folder": str(work.folder.resolve())}),
        num_rounds=rounds,
        evaluate_fn=mark,
    )
    seconds.extend(clock.seconds)
    module.load_state_dict(result.arrays.to_torch_state_dict())
    trained.extend(peer_networks.parameters_of(module))


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server, client, num_supernodes=work.case.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}},
    )  # fmt: skip
    Work(sys.argv[1]).answer(seconds, trained, f"{cores} actors of Ray", "flwr", "ray", "torch")


if __name__ == "__main__":
    main()
