"""FedBABU: whole runs under the initial head, and fine-tuning of each part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from common_runs import PEOPLE, Followed, Net, close, flatten, local, of_head
from conftest import golden
from plain_runs import other

from fedloom.algorithms import FedBABU
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
CASES = {
    "stored": lambda: golden("common/fedbabu_a"),
    "other": lambda: other("fedbabu", Net, finetune_epochs=3, weighting="uniform"),
}


@pytest.mark.some(4)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("finetune", ["full", "head", "body"])
@pytest.mark.parametrize("case", CASES)
def test_rounds_and_fine_tuning(case: str, finetune: Any, engine: Any) -> None:
    g = CASES[case]()
    settings = {"aggregation": str(g["weighting"]), "finetune_epochs": int(g["finetune_epochs"])}
    algorithm = FedBABU(personal_layers="head.*", finetune=finetune, local=local(g), **settings)
    there = Followed.of(g, engine, algorithm, Net)
    begun, rounds = there.server["net"], int(g["n_rounds"])
    for r in range(rounds):
        there.round(r)
        w = there.run.algorithm.global_weights(there.server["net"])
        there.evaluated(r, dict.fromkeys(PEOPLE, w))  # before fine-tuning
        for one in (w, *there.run.states.values()):
            assert all(torch.equal(t, begun.params[n]) for n, t in of_head(one).items())
    tuned, losses = there.fine_tuned(rounds - 1)
    for k in PEOPLE:
        close(losses[k], g[f"rF_k{k}_losses_{finetune}"])
        close(flatten(tuned[k].params), g[f"finetuned_{finetune}"][k])
        logits = there.model(tuned[k], torch.from_numpy(g[f"data_x{k}"]))
        close(F.cross_entropy(logits, torch.from_numpy(g[f"data_y{k}"])), g[f"finetuned_{finetune}_loss"][k])
    there.run.close()


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_fine_tuning_has_epochs_of_its_own_where_rounds_have_steps(engine: Any) -> None:
    """Clients are evaluated alike, whatever number of steps a round has."""
    people = clients_of(random_data((5,)))
    ends = []
    for steps, epochs in ((1, 3), (6, 2)):
        sgd = SGD(lr=0.2)
        algorithm = FedBABU(finetune_epochs=3, local=Local(epochs=epochs, steps=steps, batch_size=4, optimiser=sgd))
        run = engine(people, algorithm)
        ends.append(run.personal(run.init(), (0,), 0)[0])
    assert_params(*ends)
    assert FedBABU(local=Local(steps=7)).evaluation_training == Local(epochs=5)


def test_no_head_is_not_fine_tuned() -> None:
    with pytest.raises(SettingError, match=r"got finetune = 'head' and personal_layers = '', which names none: name"):
        FedBABU(finetune="head", personal_layers="")
    with pytest.warns(UserWarning, match="FedBABU with personal_layers = , finetune = full is FedAvg"):
        FedBABU(personal_layers="")
