"""What server and clients draw from: keys that differ by seed, round, purpose, exchange and client."""

from __future__ import annotations

import itertools

from fedloom.algorithms import FedAvg
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
from fedloom.engines.message import Call, Request
from tiny import population


def test_the_server_draws_by_seed_round_and_purpose() -> None:
    keys = [
        AskedCohort(Loop(population(seed=seed), FedAvg()), (0, 1), round).key(purpose)
        for seed, round, purpose in itertools.product((0, 1), (0, 1, 2), ("public", "draws"))
    ]
    assert len(set(keys)) == len(keys) == 12


def test_a_client_draws_by_seed_round_exchange_and_number_for_batches_and_for_all_else() -> None:
    keys = [
        key
        for seed, round, exchange in itertools.product((0, 1), (0, 1), (0, 1, "evaluate"))
        for pair in Request.to(Call("local_update", (), round, exchange, 0.1), (3, 5), seed).keys
        for key in pair
    ]
    assert len(set(keys)) == len(keys) == 48


def test_a_client_keeps_its_numbers_in_other_company() -> None:
    call = Call("local_update", (), 2, 0, 0.1)
    assert Request.to(call, (1, 3, 5), 0).keys[1:] == Request.to(call, (3, 5), 0).keys
