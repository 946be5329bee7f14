"""The body stays, the head travels alone, and the network learns."""

from __future__ import annotations

import json
from pathlib import Path

import plain
import torch
from safetensors.torch import load_file, save_file


def check() -> None:
    draw = torch.Generator().manual_seed(3)
    body = {"weight": 0.4 * torch.randn(16, 8, generator=draw), "bias": 0.1 * torch.randn(16, generator=draw)}
    save_file(body, "body.safetensors")
    network = plain.imported("adapted", "network")
    torch.manual_seed(0)
    first = network()
    second = network()
    for name in ("weight", "bias"):
        plain.close(getattr(first.body, name), body[name], f"body.{name}")
        plain.need(not getattr(first.body, name).requires_grad, f"body.{name} is not frozen")
    plain.need(not torch.equal(first.head.weight, second.head.weight), "the head does not begin by the seed")
    x = torch.randn(5, 8, generator=draw)
    said = torch.relu(x @ body["weight"].T + body["bias"]) @ first.head.weight.T + first.head.bias
    plain.close(first(x), said, "what the network says", 1e-5)

    plain.fedloom("run", "--settings", "settings.toml", "--out", "runs/adapted")
    run = Path("runs/adapted")
    s = json.loads((run / "settings.json").read_text())
    expected = {"data.source": "clouds:examples", "data.clients": 8, "data.partition": "dirichlet:0.5",
                "local.epochs": 3, "local.batch_size": 10, "local.lr": 0.1, "run.rounds": 6, "run.cohort_size": 4,
                "run.seed": 1, "algorithm": "fedprox", "fedprox.mu": 0.01}  # fmt: skip
    for key, value in expected.items():
        section, _, name = key.rpartition(".")
        got = (s[section] if section else s)[name]
        plain.need(got == value, f"{key} is {got!r}, not {value!r}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for way in ("bytes_down", "bytes_up"):
        got = records[-1][way]
        plain.need(got == 4 * 4 * (3 * 16 + 3), f"{way} is {got}, not that of four heads, {4 * 4 * (3 * 16 + 3)}")
    plain.need(records[-1]["global_accuracy"] > 0.8, f"the accuracy is {records[-1]['global_accuracy']:.2f}")
    plain.fedloom("export", "runs/adapted", "out.safetensors", "--allow-code")
    out = load_file("out.safetensors")
    for name in ("weight", "bias"):
        plain.close(out[f"body.{name}"], body[name], f"body.{name} after training", 0.0)
