"""Independent arithmetic for the checks of graded tasks: plain PyTorch in float64, and four clients of unequal size.

Every client takes full batches, so that the order of its examples is of no matter.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl

SIZES, LR, EPOCHS = (8, 12, 20, 6), 0.3, 3
Plain = dict[str, Tensor]  # parameters by name

_draw = np.random.default_rng(7)
Y = [_draw.integers(3, size=n) for n in SIZES]
X = [_draw.normal(size=(n, 3)) + 0.8 * np.eye(3)[y] * (1 + k) for k, (n, y) in enumerate(zip(SIZES, Y, strict=True))]
N = len(SIZES)


def need(condition: object, reason: str) -> None:
    """Fail with a reason unless a condition holds."""
    if not condition:
        raise AssertionError(reason)


def close(found: Any, expected: Any, what: str, most: float = 1e-8) -> None:
    """Fail unless numbers, or parameters by name, are those of independent arithmetic."""
    if isinstance(expected, Mapping):
        need(set(found) == set(expected), f"{what} has the tensors {sorted(found)}, not {sorted(expected)}")
        for name in expected:
            close(found[name], expected[name], f"{what}, {name}", most)
        return
    a, b = (np.asarray(v.detach() if isinstance(v, Tensor) else v, np.float64) for v in (found, expected))
    need(a.shape == b.shape, f"{what} has the shape {a.shape}, not {b.shape}")
    gap = float(np.abs(a - b).max(initial=0.0))
    need(gap <= most, f"{what} differs from independent arithmetic by {gap:.3g}: {a.ravel()[:4]}, not {b.ravel()[:4]}")


def network() -> nn.Module:
    """Return softmax regression with known weights."""
    return filled(nn.Linear(3, 3))


def deep() -> nn.Module:
    """Return a network of a body and a head with known weights."""
    return filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))


def filled(made: nn.Module) -> nn.Module:
    """Return a network whose weights are known."""
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(0.2 * torch.sin(1.0 + torch.arange(p.numel()).reshape(p.shape)))
    return made


def start(make: Callable[[], nn.Module] = network) -> Plain:
    """Return the initial weights in float64."""
    return {name: p.detach().double() for name, p in make().named_parameters()}


def logits(w: Plain, x: Any) -> Tensor:
    """Return what the networks above say of inputs."""
    x = torch.as_tensor(x, dtype=torch.float64)
    if "weight" in w:
        return x @ w["weight"].T + w["bias"]
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]


def cross_entropy(w: Plain, k: int) -> Tensor:
    """Return the mean loss of client k."""
    return F.cross_entropy(logits(w, X[k]), torch.from_numpy(Y[k]))


def gradient(loss: Callable[[Plain], Tensor], w: Plain) -> Plain:
    """Return a gradient."""
    at = {name: t.clone().requires_grad_() for name, t in w.items()}
    found = torch.autograd.grad(loss(at), list(at.values()))
    return dict(zip(at, found, strict=True))


def descend(
    w: Plain, loss: Callable[[Plain], Tensor], steps: int = EPOCHS, only: Sequence[str] = (), plus: Plain | None = None
) -> Plain:
    """Return weights after plain steps; `plus` is added to each gradient."""
    for _ in range(steps):
        g = gradient(loss, w)
        moved = {n: t - LR * (g[n] + (0 if plus is None else plus[n])) for n, t in w.items() if not only or n in only}
        w = {**w, **moved}
    return w


def mean(models: Sequence[Plain], weights: Sequence[float]) -> Plain:
    """Return a weighted mean."""
    total = float(sum(weights))
    return {n: sum(a / total * m[n] for a, m in zip(weights, models, strict=True)) for n in models[0]}  # type: ignore[misc]


def federation(**more: Any) -> fl.Federation:
    """Return the clients; nothing is held out unless it is said."""
    train = fl.from_arrays(np.concatenate(X), np.concatenate(Y), num_classes=3)
    ends = np.cumsum((0, *SIZES))
    lists = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return fl.federate(train, fl.data.by_lists(lists), **{"test": train, "test_fraction": 0.0, **more})


LOCAL = fl.Local(epochs=EPOCHS, batch_size=64, optimiser=fl.SGD(lr=LR))


def run(algorithm: fl.Algorithm[Any, Any], make: Any = network, **more: Any) -> fl.History:
    """Run an algorithm on the clients, in float64, three rounds of all of them unless it is said."""
    named = ("federation", "sampler", "parts", "task", "directory", "resume", "attack")
    words = {k: more.pop(k) for k in named if k in more}
    clients = words.pop("federation", None) or federation()
    settings = fl.RunSettings(
        **{"rounds": 3, "cohort_size": N, "seed": 0, "dtype": "float64", "engine": "loop", "threads": 1, **more}
    )
    return fl.run(algorithm, clients, make, settings, progress=False, **words)


def state(history: fl.History) -> Any:
    """Return the server's state of the only architecture."""
    (found,) = history.server.values()
    return found


def global_model(algorithm: fl.Algorithm[Any, Any], history: fl.History) -> Plain:
    """Return the global model that an algorithm has at the end."""
    found = algorithm.global_weights(state(history))
    need(found is not None, f"global_weights of {type(algorithm).__name__} returns no model")
    return dict(found.params)  # type: ignore[union-attr]


def imported(module: str, name: str) -> Any:
    """Return what a solution must define."""
    made = __import__(module)
    need(hasattr(made, name), f"{module}.py defines no {name}")
    return getattr(made, name)


def keeps_promises(algorithm: Any, *, neutral: bool = False) -> None:
    """Fail where `fedloom.testing.check` finds a broken promise."""
    from fedloom.testing import check

    left_out = check(algorithm)
    if neutral:
        need("neutral_is_fedavg" not in left_out, f"{algorithm} declares no neutral settings")


def fedloom(*words: str) -> str:
    """Run a command of fedloom, and return what it prints."""
    command = [sys.executable, "-m", "fedloom", *words]
    found = subprocess.run(command, env=os.environ | {"PYTHONWARNINGS": "ignore"}, capture_output=True, text=True)
    need(not found.returncode, f"fedloom {' '.join(words)} ends with {found.returncode}: {found.stderr[-400:]}")
    return found.stdout


def script(file: str) -> None:
    """Run a script of the solution."""
    found = subprocess.run([sys.executable, file], capture_output=True, text=True)
    need(not found.returncode, f"python {file} ends with {found.returncode}: {found.stderr[-400:]}")
