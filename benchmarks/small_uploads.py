"""Bytes and accuracy of encoders of uploads, with and without feedback, on the embedded data.

    python benchmarks/small_uploads.py                       # logistic regression; minutes on one quiet core
    python benchmarks/small_uploads.py --model mlp --seeds 0

20 clients of two classes each, 10 of them in a round; 4,000 examples. Prints a table of Markdown: bytes of an upload,
the accuracy of the global model (mean of the last five rounds and of the seeds), and the uploaded bytes until it first
had 95 % of what whole uploads end with. The numbers of docs/compression.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping

import numpy as np

import fedloom as fl

COHORT, LAST, SHARE = 10, 5, 0.95
ENCODERS = (
    "none", "bits:8", "bits:4", "bits:2", "float16", "sign", "topk:0.01", "topk:0.01+bits:4", "randk:0.01", "lowrank:1",
)  # fmt: skip
SETTINGS: Mapping[str, object] = {
    "algorithm": "fedavg",
    "data": {"clients": 20, "examples": 4000, "test_fraction": 0.0, "partition": "shards:2"},
    "local": {"epochs": 1, "batch_size": 20, "lr": 0.1},
    "run": {"cohort_size": COHORT, "eval_every": 1000, "panel": 1, "threads": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--encoders", default=" ".join(ENCODERS))
    given = parser.parse_args()
    seeds, goal = [int(seed) for seed in given.seeds.split(",")], 0.0
    print("| `run.compression` | feedback | bytes of an upload | accuracy | bytes to 95 % |\n|---|---|---|---|---|")
    for encoder in given.encoders.split():
        for feedback in (None,) if encoder == "none" else (False, True):
            said = encoder if feedback is None else f"{encoder}?feedback={str(feedback).lower()}"
            runs = []
            for seed in seeds:
                base = fl.Experiment.of({**SETTINGS, "model": given.model})
                base = base.with_all({"run.seed": seed, "run.rounds": given.rounds, "run.compression": said})
                runs.append(base.job().run())
                print(said, seed, file=sys.stderr, flush=True)
            accuracy = statistics.mean(float(run.last("global_accuracy", LAST)) for run in runs)
            goal = goal or SHARE * accuracy
            sent = [run.series("bytes_up") for run in runs]
            reached = [
                sum(up[: 1 + there[0]]) if len(there := np.flatnonzero(run.series("global_accuracy") >= goal)) else None
                for run, up in zip(runs, sent, strict=True)
            ]
            spent = [n for n in reached if n is not None]
            words = f"{statistics.mean(spent) / 1e3:,.0f} kB" if len(spent) == len(runs) else "not reached"
            size, how = sent[0][1] / COHORT, {None: "", False: "no", True: "yes"}[feedback]
            print(f"| `{encoder}` | {how} | {size:,.0f} | {accuracy:.3f} | {words} |", flush=True)


if __name__ == "__main__":
    main()
