"""Turns by loops, called in any order, and in a run that is resumed."""

from __future__ import annotations

import numpy as np
import plain

import fedloom as fl


def expected(seed: int, t: int, sizes: list[int], cohort: int) -> list[int]:
    there = [k for k, size in enumerate(sizes) if size > 0]
    rounds = -(-len(there) // cohort)
    order = np.random.default_rng([seed, t // rounds]).permutation(len(there))
    first = t % rounds * cohort
    return [there[i] for i in order[first : first + cohort]]


def check() -> None:
    kind = plain.imported("turns", "Turns")
    plain.need(kind() == kind(seed=0) and kind(1) != kind(2), "samplers are not compared by their seeds")
    for sizes, cohort in (([5] * 7, 3), ([4, 0, 2, 9, 0, 1, 3, 3], 2), ([1, 1, 1], 5), ([2, 2, 2, 2], 2)):
        sampler = kind(seed=4)
        given = np.array(sizes)
        given.flags.writeable = False
        for t in (9, 0, 3, 1, 2, 5, 4, 8, 7, 6):
            found = [int(k) for k in sampler(t, given, cohort)]
            right = expected(4, t, sizes, cohort)
            plain.need(found == right, f"round {t} of sizes {sizes} and cohorts of {cohort} asks {found}, not {right}")
    method = fl.FedAvg(local=plain.LOCAL)
    plain.run(method, sampler=kind(seed=2), cohort_size=3, rounds=2, directory="run")
    history = plain.run(method, sampler=kind(seed=2), cohort_size=3, rounds=5, directory="run", resume=True)
    for t, record in enumerate(history.metrics[1:]):
        right = sorted(expected(2, t, [1] * plain.N, 3))
        plain.need(sorted(record["clients"]) == right, f"round {t + 1} of a run asks {record['clients']}, not {right}")
