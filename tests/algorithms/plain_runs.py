"""The personalised methods of golden/common in plain PyTorch: its stored numbers, and those of other values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common_runs import PEOPLE, Golden, flatten, unflatten
from torch import Tensor, nn

OWN = {"fedbn": "bn1.", "fedper": "head.", "fedrep": "head.", "fedbabu": "head.", "ditto": "none"}
PHASES = {
    "fedrep": {"_head": "head.", "_body": "body."},
    "fedbabu": {"": "body."},
}  # what trains which tensors; "": all


def other(method: str, build: Callable[[], nn.Module], **values: Any) -> Golden:
    """A file of the same keys by the rules of the README, with other data, momentum and decay, and these values."""
    rng = np.random.default_rng(7)
    shape = (1, 4, 4) if any(isinstance(m, nn.Conv2d) for m in build().modules()) else (6,)
    torch.manual_seed(3)
    tensors = {n: t for n, t in build().double().state_dict().items() if t.is_floating_point()}
    g: Golden = {
        "sizes": np.array([10, 7, 12, 3]), "batch_size": 4, "n_rounds": 3, "lr": 0.15, "momentum": 0.6,
        "weight_decay": 0.03, "weighting": "samples", "local_epochs": 2, **values,
        "layout_names": [*tensors], "layout_shapes": ["x".join(map(str, t.shape)) for t in tensors.values()],
        "init": flatten(tensors),
    }  # fmt: skip
    for k, n in enumerate(g["sizes"]):
        g[f"data_x{k}"], g[f"data_y{k}"] = rng.normal(size=(n, *shape)), rng.integers(4, size=n)
    lengths = {
        "fedrep": {f"_order_{part}": values.get(f"{part}_epochs") for part in ("head", "body")},
        "ditto": {"_order": g["local_epochs"], "_order_personal": values.get("personal_epochs")},
    }.get(method, {"_order": g["local_epochs"]})
    for r, sampled in enumerate([[1, 3], [0, 2], [2, 1, 0]]):
        g[f"r{r}_sampled"] = np.array(sampled)
        for k in sampled:
            for name, epochs in lengths.items():
                g[f"r{r}_k{k}{name}"] = np.stack([rng.permutation(g["sizes"][k]) for _ in range(epochs)])
    for k in PEOPLE:
        g[f"rF_k{k}_order"] = np.stack(
            [rng.permutation(g["sizes"][k]) for _ in range(values.get("finetune_epochs", 1))]
        )
    return {**g, **replay(method, build, g)}


def replay(method: str, build: Callable[[], nn.Module], g: Golden) -> Golden:
    """What the README's equations make of a file's data, orders and initial model, by its keys."""
    out, own = dict[str, Any](), OWN[method]
    net = build().double()
    net.load_state_dict(unflatten(g, g["init"]), strict=False)
    w = copy.deepcopy(net.state_dict())
    kept = [{n: t.clone() for n, t in w.items() if n.startswith(own) or own == "none"} for _ in PEOPLE]
    for r in range(int(g["n_rounds"])):
        sampled, received = [int(k) for k in g[f"r{r}_sampled"]], copy.deepcopy(w)
        counts = np.array([g["sizes"][k] if g["weighting"] == "samples" else 1 for k in sampled], float)
        sent = []
        for k in sampled:
            start = received if own == "none" else {**received, **kept[k]}
            net.load_state_dict(start)
            for phase, part in PHASES.get(method, {"": ""}).items():
                order = g[f"r{r}_k{k}_order{phase}"]
                out[f"r{r}_k{k}_losses{phase}"], _ = steps(net, g, k, order, part)
            sent.append({n: t.clone() for n, t in net.named_parameters() if not n.startswith(own)})
            out[f"r{r}_k{k}_upload"] = flatten(sent[-1])
            if method == "ditto":
                net.load_state_dict(kept[k])
                found = steps(net, g, k, g[f"r{r}_k{k}_order_personal"], "", received)
                out[f"r{r}_k{k}_losses_personal"], out[f"r{r}_k{k}_prox_terms"] = found
            kept[k] = {n: net.state_dict()[n].clone() for n in kept[k]}
        for n in sent[0]:
            w[n] = sum(c / counts.sum() * one[n].detach() for c, one in zip(counts, sent, strict=True))  # type: ignore[assignment]
        out[f"r{r}_global"] = flatten({n: w[n] for n in sent[0]})
        out[f"r{r}_personal"] = np.stack([flatten(floating(kept[k])) for k in PEOPLE])
        out[f"r{r}_num_batches_tracked"] = np.array([int(kept[k].get("bn1.num_batches_tracked", 0)) for k in PEOPLE])
        evaluated = [evaluate(net, g, k, {**w, **kept[k]}) for k in PEOPLE]
        out[f"r{r}_eval_loss"], out[f"r{r}_eval_acc"] = np.array(evaluated).T
    if method == "fedbabu":
        for part, trained in {"full": "", "head": "head.", "body": "body."}.items():
            ends = []
            for k in PEOPLE:
                net.load_state_dict(w)
                out[f"rF_k{k}_losses_{part}"], _ = steps(net, g, k, g[f"rF_k{k}_order"], trained)
                ends.append(copy.deepcopy(net.state_dict()))
            out[f"finetuned_{part}"] = np.stack([flatten(end) for end in ends])
            out[f"finetuned_{part}_loss"] = np.array([evaluate(net, g, k, ends[k])[0] for k in PEOPLE])
    return out


def steps(
    net: nn.Module, g: Golden, k: int, order: Any, part: str, anchor: dict[str, Tensor] | None = None
) -> tuple[Any, Any]:
    """Train the tensors of a part on a client's batches; losses and proximal terms before each step."""
    net.train()
    trained = [p for n, p in net.named_parameters() if n.startswith(part)]
    how = {name: float(g[name]) for name in ("lr", "momentum", "weight_decay")}
    sgd, losses, terms = torch.optim.SGD(trained, **how), [], []
    x, y = torch.from_numpy(g[f"data_x{k}"]), torch.from_numpy(g[f"data_y{k}"])
    for rows in [rows for epoch in order for rows in torch.from_numpy(epoch).split(int(g["batch_size"]))]:
        loss, term = F.cross_entropy(net(x[rows]), y[rows]), torch.zeros(())
        if anchor is not None:
            term = g["lam"] / 2 * sum((p - anchor[n]).square().sum() for n, p in net.named_parameters())
        sgd.zero_grad()
        (loss + term).backward()
        sgd.step()
        losses.append(loss.item())
        terms.append(term.item())
    return np.array(losses), np.array(terms)


def evaluate(net: nn.Module, g: Golden, k: int, weights: dict[str, Tensor]) -> tuple[float, float]:
    """Loss and accuracy on a client's examples."""
    net.load_state_dict(weights)
    x, y = torch.from_numpy(g[f"data_x{k}"]), torch.from_numpy(g[f"data_y{k}"])
    logits = net.eval()(x).detach()
    return float(F.cross_entropy(logits, y)), float((logits.argmax(1) == y).double().mean())


def floating(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in tensors.items() if t.is_floating_point()}
