"""What server and clients draw from: keys that differ by seed, round, purpose, exchange and client."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch
from torch import Tensor

import fedloom as fl
from fedloom.algorithms import FedAvg
from fedloom.core.requires import Requires
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
from fedloom.engines.message import Call, Request
from fedloom.testing import Subject
from fedloom.testing.small_networks import MLP
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbered(fl.Algorithm[tuple[()], tuple[()]]):
    """Each client, whatever its architecture, sends its number of examples."""

    requires = Requires(mixed=True)

    def init(self, model: Any, key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> tuple[()]:
        return ()

    @fl.on_client
    def count(self, client: fl.Client[tuple[()]]) -> tuple[tuple[()], Tensor]:
        return (), client.train.num_examples

    def round(self, server: tuple[()], cohort: fl.Cohort) -> tuple[()]:
        replies = cohort.gather(self.count)
        assert replies.ids.tolist() == cohort.ids.tolist()
        assert torch.equal(replies.value, cohort.sizes)
        return server

    def personal(self, client: fl.Client[tuple[()]], sent: Any) -> fl.Weights:
        raise AssertionError("nobody is evaluated")


def test_answers_stand_in_the_order_of_the_cohort() -> None:
    """Two architectures take turns, and one answers after the other."""
    models = {name: fl.Model(MLP, name=name) for name in "ab"}
    people = Subject.of(Numbered()).population(models=models)
    engine = Loop(people, Numbered())
    assert len({int(people.sizes[k]) for k in (0, 1, 2)}) == 3
    engine.round(engine.init(), (0, 1, 2), 0)
