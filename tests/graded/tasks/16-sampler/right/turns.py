from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Turns:
    seed: int = 0

    def __call__(self, round, sizes, cohort_size):
        there = np.flatnonzero(sizes)
        rounds = -(-len(there) // cohort_size)
        turn, place = divmod(round, rounds)
        order = np.random.default_rng([self.seed, turn]).permutation(len(there))
        return [int(k) for k in there[order[place * cohort_size : (place + 1) * cohort_size]]]
