"""Local training takes fedloom's optimisers and numbers, and says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedloom import SGD, Adam, FedProx, KTpFL, Local
from fedloom.core.errors import SettingError

REMEDY = (
    "optimiser must be one of fedloom's, such as SGD(lr=0.01, momentum=0.9) or Adam(lr=0.001), or derived from "
    "fedloom.Optimiser, got "
)


TORCH = "which keeps its state in parameters and so cannot train many clients"


@pytest.mark.parametrize(
    ("optimiser", "said"),
    [
        ("adam", "'adam'"),
        (None, "None"),
        (SGD, "SGD, a class: write SGD(lr=0.01)"),
        (torch.optim.Adam, f"the class torch.optim.Adam, {TORCH}: write fedloom.Adam(lr=...)"),
        (torch.optim.RMSprop, f"the class torch.optim.RMSprop, {TORCH}: write fedloom.RMSprop(lr=...)"),
        (torch.optim.Rprop, f"the class torch.optim.Rprop, {TORCH}: take one of these"),
        (
            torch.optim.SGD.__new__(torch.optim.SGD),  # not made, which imports a compiler for seconds
            f"a torch.optim.SGD, {TORCH}: write fedloom.SGD(lr=...)",
        ),
    ],
)
def test_optimisers_of_others_are_refused(optimiser: Any, said: str) -> None:
    with pytest.raises(SettingError) as error:
        Local(optimiser=optimiser)
    assert str(error.value) == f"{REMEDY}{said} [FL-METHOD-001]"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Local(epochs=True), "epochs must be of type int, got True"),
        (lambda: Local(epochs=1.5), "epochs must be of type int, got 1.5"),
        (lambda: Local(batch_size="20"), "batch_size must be of type int, got '20'"),
        (lambda: Local(decay=float("nan")), "decay must be finite, got nan"),
        (lambda: SGD(lr=float("inf")), "lr must be finite, got inf"),
        (lambda: SGD(lr="0.1"), "lr must be of type float, got '0.1'"),
        (lambda: SGD(weight_decay=float("nan")), "weight_decay must be finite, got nan"),
        (lambda: SGD(nesterov=1, momentum=0.9), "nesterov must be of type bool, got 1"),
        (lambda: Adam(betas=0.9), "betas must be a tuple of 2 values, got 0.9"),
        (lambda: Adam(betas=(0.9,)), "betas must be a tuple of 2 values, got (0.9,)"),
        (lambda: FedProx(mu=float("nan")), "mu must be finite, got nan"),
        (lambda: FedProx(mu="0.1"), "mu must be of type float, got '0.1'"),
        (lambda: FedProx(local={"lr": 0.1}), "local must be of type Local, got {'lr': 0.1}"),
        (lambda: KTpFL(num_public=True), "num_public must be of type int, got True"),
    ],
)
def test_values_of_other_types_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SettingError) as error:
        make()
    assert str(error.value) == f"{message} [FL-RUN-008]"


@pytest.mark.parametrize(
    ("local", "more", "longer"),
    [
        (Local(epochs=2), 3, Local(epochs=5)),
        (Local(epochs=2, steps=5), 1, Local(epochs=3, steps=8)),
        (Local(epochs=2, steps=6), 1, Local(epochs=3, steps=9)),
        (Local(epochs=5, steps=1), 1, Local(epochs=6, steps=2)),
        (Local(epochs=5, steps=1), 0, Local(epochs=5, steps=1)),
    ],
)
def test_a_longer_training_has_the_share_of_steps(local: Local, more: int, longer: Local) -> None:
    assert local.longer(more) == longer
    steps = longer.steps or longer.epochs * 3  # batches that are planned, with 3 to an epoch
    assert steps * local.epochs // longer.epochs == (local.steps or local.epochs * 3)  # those of `local`
