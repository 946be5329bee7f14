"""The order in which clients visit their examples: another one for every client, round and exchange."""

from __future__ import annotations

import itertools

import torch

from fedloom.algorithms import KTpFL
from fedloom.core import tree
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from small import batches_of
from tiny import examples, federation, linear

LOCAL = Local(epochs=2, batch_size=5)


def orders(seed: int, round: int, exchange: int = 0) -> dict[int, tuple[int, ...]]:
    """The positions that each of six clients of 12 examples visits in two epochs."""
    population = Population(federation(), {"linear": Model(linear)}, seed=seed)
    batches = batches_of(population, range(6), LOCAL, round, exchange)
    assert batches.num_examples.tolist() == [12] * 6
    found = {k: tuple(batches.order[k][batches.mask[k]].tolist()) for k in range(6)}
    assert all(sorted(o[:12]) == sorted(o[12:]) == list(range(12)) for o in found.values())
    return found


def test_orders_differ_by_client_round_exchange_epoch_and_seed() -> None:
    seen = [
        epoch
        for where in itertools.product((0, 1), (0, 1, 2), (0, 1))
        for order in orders(*where).values()
        for epoch in (order[:12], order[12:])
    ]
    assert len(set(seen)) == len(seen) == 2 * 3 * 2 * 6 * 2


def test_an_order_is_a_function_of_these_alone() -> None:
    assert orders(1, 4, 1) == orders(1, 4, 1)
    population = Population(federation(), {"linear": Model(linear)}, seed=1)
    alone = batches_of(population, [3], LOCAL, 4, 1)
    assert tuple(alone.order[0][alone.mask[0]].tolist()) == orders(1, 4, 1)[3]


def test_what_clients_draw_differs_by_client_round_and_exchange() -> None:
    population = Population(federation(), {"linear": Model(linear)})
    keys = [batches_of(population, range(6), LOCAL, t, e).key for t in range(3) for e in range(2)]
    assert len(torch.cat(keys).unique()) == 36


def test_a_part_of_a_population_begins_as_its_clients_do_in_the_whole() -> None:
    """The clients of a device, which count from 0 there: first states are drawn by their numbers in the whole."""
    models = {"net": Model(linear, name="net")}
    whole, part = (
        Loop(Population(federation(public=examples(8)), models, first=first), KTpFL(local=LOCAL)).fresh
        for first in (0, 2)
    )
    for k in (0, 1):
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(part(k)), tree.leaves(whole(k + 2)), strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(tree.leaves(part(k)), tree.leaves(whole(k)), strict=True))
