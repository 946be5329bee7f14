"""Where the seconds go before a small run is under way: what `import fedloom` imports, and the first rounds.

    python benchmarks/start.py

Each number is the median of five fresh processes. What a package imports first counts to it alone: NumPy is PyTorch's.
"""

from __future__ import annotations

import collections
import json
import statistics
import subprocess
import sys

TIMES = 5
PACKAGES = ("torch", "numpy", "fedloom", "pandas", "scipy", "rich")
IMPORT = (
    "import fedloom as fl; fl.run, fl.federate, fl.fashion_mnist_small, fl.models.build"  # each when it is asked for
)
RUN = (
    IMPORT
    + """
import json, time

marks = [("", time.perf_counter())]
train, test = fl.fashion_mnist_small()
marks.append(("read the data", time.perf_counter()))
clients = fl.federate(train, fl.shards(train.y, 20, 2, seed=0), test=test, seed=0)
marks.append(("hold out", time.perf_counter()))
settings = fl.RunSettings(rounds=3, cohort_size=4)
make = lambda: fl.models.build("{model}", train.shape, train.num_classes)
history = fl.run(fl.FedAvg(), clients, make, settings)
end = time.perf_counter()
found = {{name: at - before for (_, before), (name, at) in zip(marks, marks[1:])}}
rounds = [sum(record["seconds"].values()) for record in history.timing]
found["choose an engine, trace, start processes"] = end - marks[-1][1] - sum(rounds)
found |= {{"evaluate before training": rounds[0], "first round": rounds[1], "third round": rounds[3]}}
print(json.dumps(found))
"""
)


def imports() -> dict[str, float]:
    """Seconds of `import fedloom` by the package that a module belongs to, its own statements alone."""
    command = [sys.executable, "-X", "importtime", "-c", IMPORT]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found: dict[str, float] = collections.Counter()
    for line in said.splitlines()[1:]:
        own, _, name = line.removeprefix("import time:").split("|")
        package = name.strip().split(".")[0]
        found[package if package in PACKAGES else "others"] += int(own) / 1e6
    return found


def run(model: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-c", RUN.format(model=model)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> None:
    for title, kind in (
        ("import fedloom", imports),
        ("logistic", lambda: run("logistic")),
        ("lenet", lambda: run("lenet")),
    ):
        seen = [kind() for _ in range(TIMES)]
        print(f"{title}:")
        for name in seen[0]:
            print(f"  {name:62s} {statistics.median(each.get(name, 0.0) for each in seen):6.2f} s")


if __name__ == "__main__":
    main()
