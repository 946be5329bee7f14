"""Sums under masks: processor seconds and bytes by message, with clients that are lost at each of the four messages.

    python benchmarks/masked_sums.py                        # 10, 100 and 500 clients; an hour on one quiet core
    python benchmarks/masked_sums.py --clients 10,100 --words 50890
    python benchmarks/masked_sums.py --nats                 # 10 devices over nats-server with TLS and keys; minutes

All clients and the server are one process, without a network. Prints a table of Markdown: seconds of one client and of
the server in the whole protocol, and bytes of one client by message, up and down. The numbers of docs/privacy.md.

With --nats messages of devices, each with its own connection, go over nats-server on loopback. A device that is lost
ends its connection instead of an answer. Seconds are those that the server waits for a message of all devices, one of
which computes at a time; bytes are those of whole messages, up and down, of one device.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import NobodyAnswered
from fedloom.deploy.certificates import make_authority, make_server, server_files
from fedloom.deploy.device_names import SERVER
from fedloom.deploy.nats.door import Door
from fedloom.deploy.nats.nats_server import NatsServer, make_key
from fedloom.deploy.nats.over_nats import NatsManager
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message_bytes import head_of
from fedloom.engines.population import Population
from fedloom.privacy.masked_in_process import masked_sum
from fedloom.privacy.masked_terms import neighbours_for
from fedloom.privacy.secure_sums import InFixedPoint, SecureAggregation
from fedloom.testing.in_process import DevicesInProcess, token_of

STAGES = ("advertise", "share", "mask", "unmask")
PORT = 14_443


def measure(
    clients: int, words: int, stage: str, share: float, seed: int = 0
) -> tuple[str, float, float, dict[str, float]]:
    """Return (what came of it, seconds of a client, seconds of the server, bytes of a client by message)."""
    rng = np.random.default_rng(seed)
    numbers = {k: rng.integers(0, 2**32, words, dtype=np.uint32) for k in range(clients)}
    lost = set(rng.choice(clients, round(share * clients), replace=False).tolist())
    sizes, theirs, began = defaultdict[str, list[int]](list), 0.0, 0.0

    def watch(message: str, client: int, content: bytes) -> bytes | None:
        nonlocal theirs, began
        now = time.process_time()
        sizes[message].append(len(content))
        if message.startswith("down"):
            began = now
        else:
            theirs += now - began
        gone = client in lost and STAGES.index(message.split()[1]) >= STAGES.index(stage)
        return None if gone and message != f"down {stage}" else content

    start = time.process_time()
    try:
        total = masked_sum(numbers, watch=watch)
        there = [k for k in numbers if k not in lost or stage == "unmask"]
        right = np.array_equal(total, sum((numbers[k] for k in there), np.zeros(words, np.uint32)))
        came = "right" if right else "WRONG"
    except NobodyAnswered:
        came = "none"
    spent = time.process_time() - start
    return came, theirs / clients, spent - theirs, {name: statistics.mean(each) for name, each in sizes.items()}


# ---- over NATS


def stage_of(message: bytes) -> str:
    """Which message of the protocol a request brings; that of the training comes with one."""
    said = head_of(message[16:]).get("masked")
    return "mask" if said is None else str(said.get("stage", "mask"))


class Measured(NatsManager):
    """Connections of the server, which note the bytes of messages, and when the first request of each kind went."""

    def __init__(self, door: Door) -> None:
        self.began, self.sizes = dict[str, float](), defaultdict[str, list[int]](list)
        super().__init__(door)

    def post(self, rank: int, message: bytes) -> None:
        self.stage = stage_of(message)
        self.began.setdefault(self.stage, time.perf_counter())
        self.sizes[f"down {self.stage}"].append(len(message))
        super().post(rank, message)

    def take(self, rank: int) -> memoryview:
        answer = super().take(rank)
        self.sizes[f"up {self.stage}"].append(len(answer))
        return answer


class Over:
    """Devices of this process over nats-server; those in `lost` end their connections at a message."""

    def __init__(self, engine: DevicesInProcess, folder: Path, stack: ExitStack) -> None:
        names = [f"d{k}" for k in range(engine.population.num_clients)]
        keys = {name: make_key(folder / f"{name}.nk") for name in names}
        authority = make_authority(folder, 9)
        make_server(folder, ["127.0.0.1"], 2)
        (_, *own), _ = server_files(folder)
        server = NatsServer(folder, "127.0.0.1", PORT, lambda: keys, (own[0], own[1]))
        stack.callback(server.close)
        door = lambda name, key: Door(f"tls://127.0.0.1:{PORT}", name, key, authority)  # noqa: E731
        self.engine, self.lost, self.stage = engine, set[int](), ""
        self.one, self.manager = threading.Lock(), Measured(door(SERVER, server.key))
        stack.callback(self.manager.end)
        for k, name in enumerate(names):
            end = NatsManager(door(name, folder / f"{name}.nk"))
            stack.callback(end.end)
            threading.Thread(target=self.serve, args=(k, end), daemon=True).start()
        fleet = RankFleet(self.manager, Audit())
        while len(self.manager.arrivals()) < len(names):
            time.sleep(0.01)
        fleet.names, fleet.tokens = tuple(names), {name: token_of(name) for name in names}
        fleet.ranks = {str(self.manager.name_of(rank)): rank for rank in self.manager.arrivals()}
        engine.fleet = fleet

    def serve(self, client: int, end: NatsManager) -> None:
        answer = self.engine._device(client)
        try:
            while message := bytes(end.receive()):
                if client in self.lost and stage_of(message) == self.stage:
                    end.end()
                    return
                with self.one:  # devices of one process share their networks
                    made = answer(message)
                end.answer(made)
        except EOFError:
            return


def over_nats(clients: int, stage: str, lost: Collection[int]) -> tuple[str, dict[str, float], dict[str, float]]:
    """Return (what came of it, seconds by message, bytes of a device by message) of a second round."""
    x = np.random.default_rng(0).random((20 * clients, 784), dtype=np.float32)
    train = fl.from_arrays(x, np.arange(20 * clients) % 10, num_classes=10)
    data = fl.federate(train, fl.iid(train.y, clients, seed=0), test=None)
    network = fl.Model(lambda: nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)))
    made = fl.FedAvg(local=fl.Local(epochs=1, batch_size=10))
    links = (InFixedPoint(SecureAggregation(8.0)),)
    population = Population(data, {"net": network})
    fault = lambda t, e, k: "lost" if t and k in lost and stage != "unmask" else None  # noqa: E731
    loop = Loop(population, made, Options(links=links, faults=fault))
    want = loop.round(loop.round(loop.init(), range(clients), 0), range(clients), 1)
    engine = DevicesInProcess(population, made, Options(links=links, deadline=60.0))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        over = Over(engine, Path(name), stack)
        server = engine.round(engine.init(), range(clients), 0)
        over.lost, over.stage = {*lost}, stage
        over.manager.began.clear()
        over.manager.sizes.clear()
        after = engine.round(server, range(clients), 1)
        ends = [*over.manager.began.values(), time.perf_counter()]
    right = all(torch.equal(a, b) for a, b in zip(tree.leaves(after), tree.leaves(want), strict=True))
    came = "none" if engine.traffic.unanswered else "right" if right else "WRONG"
    seconds = {name: end - start for name, start, end in zip(over.manager.began, ends, ends[1:], strict=False)}
    return came, seconds, {name: statistics.mean(each) for name, each in over.manager.sizes.items()}


def table_of_nats(clients: int, shares: Sequence[float], repeat: int = 3) -> None:
    print(f"| lost of {clients} | sum | keys | shares | masked | unmask | all |")
    print("|---" * 7 + "|")
    for share in shares:
        for stage in STAGES if share else STAGES[:1]:
            lost = np.random.default_rng(0).choice(clients, round(share * clients), replace=False).tolist()
            found: list[Any] = [over_nats(clients, stage, lost) for _ in range(repeat)]
            cells = [
                f"{statistics.median(seconds[s] for _, seconds, _ in found):.2f} s, "
                f"{found[0][2].get(f'up {s}', 0):,.0f} / {found[0][2].get(f'down {s}', 0):,.0f}"
                for s in STAGES
            ]
            all_ = statistics.median(sum(seconds.values()) for _, seconds, _ in found)
            who = f"{share:.0%} at {stage}" if share else "none"
            print(
                "| " + " | ".join([who, "/".join({came for came, _, _ in found}), *cells, f"{all_:.2f} s"]) + " |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="10,100,500")
    parser.add_argument("--words", type=int, default=50_890, help="weights of a model, in 32 bits")
    parser.add_argument("--lost", default="0,0.1,0.3")
    parser.add_argument("--nats", action="store_true", help="devices over nats-server, of the first of --clients")
    given = parser.parse_args()
    if given.nats:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        table_of_nats(int(given.clients.split(",")[0]), [*map(float, given.lost.split(","))])
        return
    print("| clients | neighbours | lost | at | sum | client, s | server, s | keys | shares | masked | unmask |")
    print("|---" * 11 + "|")
    for clients in map(int, given.clients.split(",")):
        for share in map(float, given.lost.split(",")):
            for stage in STAGES if share else STAGES[:1]:
                came, client, server, sizes = measure(clients, given.words, stage, share)
                sent = [f"{sizes.get(f'up {s}', 0):,.0f} / {sizes.get(f'down {s}', 0):,.0f}" for s in STAGES]
                at = stage if share else ""
                row = (
                    clients,
                    neighbours_for(clients),
                    f"{share:.0%}",
                    at,
                    came,
                    f"{client:.3f}",
                    f"{server:.2f}",
                    *sent,
                )
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
