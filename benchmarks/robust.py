"""Means that survive liars: the accuracy of each aggregator under each attack, on the embedded data.

    python benchmarks/robust.py                          # logistic regression; twelve minutes on one quiet core
    python benchmarks/robust.py --model lenet --only iid --seeds 0
    python benchmarks/robust.py --backdoor

20 clients, all of them in every round, of whom 0, 2 or 5 lie; 4,000 examples. Prints a table of Markdown for each
partition: the accuracy of the global model, mean of the last five rounds and of the seeds. With `--backdoor` 1 client
lies, boosted four times, or 3 plainly: the share of patched test images that the last global model takes for the
wanted class. The numbers of docs/robust.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping

import fedloom as fl

CLIENTS, LAST = 20, 5
PARTITIONS = {"iid": "IID", "dirichlet:0.5": "Dirichlet 0.5", "shards:2": "two classes a client"}
RULES = ("mean", "clip", "trimmed:0.25", "median", "geometric_median", "krum:5", "multi_krum:5:10", "multi_krum")
ATTACKS = (
    "sign_flip", "scale:-10", "noise:1", "labels", "alie", "stand_still", "constant:0.05", "inner_product:2",
)  # fmt: skip
BACKDOORS = (("backdoor:0:4", 1), ("backdoor:0", 3))
SETTINGS: Mapping[str, object] = {
    "algorithm": "fedavg",
    "data": {"clients": CLIENTS, "examples": 4000, "test_fraction": 0.0},
    "local": {"epochs": 1, "batch_size": 20, "lr": 0.1},
    "run": {"cohort_size": CLIENTS, "eval_every": 1000, "panel": 1, "threads": 1},
}


def accuracy(base: fl.Experiment, parts: fl.Federation, rule: str, attack: str, liars: int) -> float:
    """Return the accuracy of the global model, mean of the last rounds, or how well a backdoor works."""
    given: dict[str, object] = {"run.bound": "clip:median:1"} if rule == "clip" else {"run.aggregator": rule}
    if liars:
        given |= {"clients.attack": attack, "clients.attackers": str(liars / CLIENTS)}
    job = base.with_all(given).job(parts)
    history = job.run()
    if isinstance(job.attack, fl.Backdoor) and parts.test is not None:
        ((name, model),) = job.population.models.items()
        return job.attack.success(lambda x: model(history.server[name], x), parts.test)
    return float(history.last("global_accuracy", LAST))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("logistic", "lenet"), default="logistic")
    parser.add_argument("--only", choices=PARTITIONS, help="one partition")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--liars", default="2,5", help="of the 20 clients")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rules", default=" ".join(RULES))
    parser.add_argument("--attacks", default=" ".join(ATTACKS))
    parser.add_argument("--backdoor", action="store_true", help="how well backdoors work, in the place of the attacks")
    given = parser.parse_args()
    seeds, rules = [int(seed) for seed in given.seeds.split(",")], given.rules.split()
    cases = [("", 0), *((attack, int(liars)) for attack in given.attacks.split() for liars in given.liars.split(","))]
    cases = [*BACKDOORS] if given.backdoor else cases
    for partition in [given.only] if given.only else PARTITIONS:
        found: dict[tuple[str, str, int], list[float]] = {}
        for seed in seeds:
            base = fl.Experiment.of({**SETTINGS, "model": given.model})
            base = base.with_all({"data.partition": partition, "run.seed": seed, "run.rounds": given.rounds})
            parts = base.federation()
            for rule in rules:
                for attack, liars in cases:
                    found.setdefault((rule, attack, liars), []).append(accuracy(base, parts, rule, attack, liars))
                print(partition, seed, rule, file=sys.stderr, flush=True)
        print(f"\n{given.model}, {PARTITIONS[partition]}, {given.rounds} rounds, seeds {given.seeds}\n")
        print("| | " + " | ".join(f"`{attack}` {liars}" if liars else "honest" for attack, liars in cases) + " |")
        print("|---" * (len(cases) + 1) + "|")
        for rule in rules:
            row = [f"{statistics.mean(found[rule, attack, liars]):.3f}" for attack, liars in cases]
            print(f"| `{rule}` | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
