"""Sums under masks: processor seconds and bytes by message, with clients that are lost at each of the four messages.

    python benchmarks/masked_sums.py                        # 10, 100 and 500 clients; an hour on one quiet core
    python benchmarks/masked_sums.py --clients 10,100 --words 50890

All clients and the server are one process, without a network. Prints a table of Markdown: seconds of one client and of
the server in the whole protocol, and bytes of one client by message, up and down. The numbers of docs/privacy.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict

import numpy as np

from fedloom.core.errors import NobodyAnswered
from fedloom.privacy.masked_in_process import masked_sum
from fedloom.privacy.masked_terms import neighbours_for

STAGES = ("advertise", "share", "mask", "unmask")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="10,100,500")
    parser.add_argument("--words", type=int, default=50_890, help="weights of a model, in 32 bits")
    parser.add_argument("--lost", default="0,0.1,0.3")
    given = parser.parse_args()
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
