"""Gradients by example against those of Opacus 1.6.0: the same network, examples and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.batches import Batches
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.losses import task_loss
from fedloom.core.types import Weights
from fedloom.privacy import by_example
from fedloom.privacy.by_example import ExampleGradients
from fedloom.tasks import Classification


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.conv(x))).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("micro", [None, 4])
@pytest.mark.parametrize("kind", ["clipped", "noisy"])
def test_gradients_are_those_of_opacus(kind: str, micro: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {name: torch.from_numpy(np.asarray(value)) for name, value in golden("privacy/opacus").items()}
    assert (theirs["norms"] > theirs["clip"]).any()
    assert (theirs["norms"] < theirs["clip"]).any()

    class Given:
        uniform = staticmethod(lambda count: np.zeros(count))

        def __init__(self, *_: Any) -> None:
            self.left = iter([t for name, t in theirs.items() if name.startswith("standard_normal.")])

        def normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
            return next(self.left).clone().numpy().reshape(shape)

    monkeypatch.setattr(by_example, "source", Given)
    noise = float(theirs["noise"]) if kind == "noisy" else 0.0
    rule = ExampleGradients(clip=float(theirs["clip"]), noise=noise, batch_size=int(theirs["expected"]))
    n = len(theirs["y"])
    batches = Batches(
        x=theirs["x"], y=theirs["y"], examples=torch.arange(n), order=torch.zeros(1, n, dtype=torch.int64),
        mask=torch.ones(1, n, dtype=torch.bool), num_steps=torch.tensor(1), num_examples=torch.tensor(n),
        key=torch.tensor(0), dtype=torch.float64, private=True,
    )  # fmt: skip
    model = fl.Model(Net).bind(0, torch.float64)
    params = fl.Params({name: theirs[f"params.{name}"] for name in model.params})
    with executing(Execution(gradients=rule)):
        after = fl.minimise(
            task_loss(model, Classification()), Weights(params), batches, fl.SGD(lr=1.0, micro_batch=micro),
            lr=torch.tensor(1.0, dtype=torch.float64),
        )  # fmt: skip
    for name, p in params.items():
        torch.testing.assert_close(p - after.params[name], theirs[f"{kind}.{name}"], rtol=1e-6, atol=1e-8)
