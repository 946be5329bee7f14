"""FedProx with stragglers: how many there are, what they do, who keeps what they send."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedloom.algorithms import FedProx
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
SIZES = (5, 11, 8, 4, 9)
LOCAL = Local(epochs=4, batch_size=4, optimiser=SGD(lr=0.1, momentum=0.9))
SLOW = FedProx(mu=0.3, drop_percent=0.6, local=LOCAL)


def uploads(engine: Any, algorithm: Any, round: int = 0, seed: int = 0) -> tuple[dict[int, Any], Any, Any]:
    run = engine(clients_of(random_data(SIZES), seed=seed), algorithm)
    sent: dict[int, Any] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    server = run.round(run.init(), range(5), round)
    run.close()
    return sent, server, run


def epochs_of(algorithm: Any, round: int = 0, clients: int = 5, seed: int = 0) -> list[int]:
    run = Loop(clients_of(random_data([4] * clients), seed=seed), algorithm)
    return [int(e) for e in algorithm.epochs(AskedCohort(run, tuple(range(clients)), round))]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_partial_work_of_stragglers_is_kept(engine: Any) -> None:
    sent, server, run = uploads(engine, SLOW)
    epochs = epochs_of(SLOW)
    assert sorted(e == 4 for e in epochs) == [False, False, False, True, True]
    for k, e in enumerate(epochs):  # as if the client had been asked for that many epochs
        fewer = dataclasses.replace(SLOW, drop_percent=0.0, local=dataclasses.replace(LOCAL, epochs=e))
        alone, _, _ = uploads(engine, fewer)
        assert_params(sent[k], alone[k], rtol=1e-10)
    for name, value in server["tiny"].params.items():
        mean = np.average([sent[k].params[name] for k in range(5)], axis=0, weights=SIZES)
        np.testing.assert_allclose(value, mean, rtol=1e-12)
    assert run.traffic.down[0] == tree.nbytes(server) + 8  # its number of epochs


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_dropped_stragglers_are_not_asked(engine: Any) -> None:
    sent, server, run = uploads(engine, dataclasses.replace(SLOW, stragglers="dropped"))
    in_time = [k for k, e in enumerate(epochs_of(SLOW)) if e == 4]
    assert sorted(sent) == sorted(run.traffic.asked) == in_time
    whole, _, _ = uploads(engine, dataclasses.replace(SLOW, drop_percent=0.0))
    for k in in_time:
        assert_params(sent[k], whole[k], rtol=1e-10)
    for name, value in server["tiny"].params.items():
        mean = np.average([sent[k].params[name] for k in in_time], axis=0, weights=[SIZES[k] for k in in_time])
        np.testing.assert_allclose(value, mean, rtol=1e-12)


def test_stragglers_are_drawn_by_seed_and_round() -> None:
    draws = [epochs_of(SLOW, t, 40, seed) for t, seed in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]
    assert {e for draw in draws for e in draw if e < 4} == {1, 2, 3}
    assert all(sum(e < 4 for e in draw) == 24 for draw in draws)
    assert epochs_of(dataclasses.replace(SLOW, drop_percent=0.99), 0, 3).count(4) == 1


def test_stragglers_need_epochs_to_leave_out() -> None:
    local = Local(epochs=1)
    with pytest.raises(SettingError, match=r"got local\.epochs = 1: set local\.epochs to 2 or more, or drop_percent=0"):
        FedProx(drop_percent=0.5, local=local)
    FedProx(local=local)


def test_stragglers_take_a_share_of_a_number_of_steps() -> None:
    local = dataclasses.replace(LOCAL, steps=6)
    run = Loop(clients_of(random_data(SIZES)), dataclasses.replace(SLOW, local=local))
    taken: list[int] = []
    run.watch = lambda exchange: taken.append(len(exchange.losses[0]))
    run.round(run.init(), range(5), 0)
    assert taken == [max(1, 6 * e // 4) for e in epochs_of(SLOW)]
