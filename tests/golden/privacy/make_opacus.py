"""Private gradients of Opacus 1.6.0 for a small CNN: the sum over examples of clipped gradients, with given noise."""

import sys

import numpy as np
import opacus.optimizers.optimizer as oo
import torch
import torch.nn as nn
import torch.nn.functional as F
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.Linear(4 * 9, 3)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).flatten(1))


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
net = Net()
draw = torch.Generator().manual_seed(1)
n, expected, clip, noise = 10, 10, 4.5, 0.6
x, y = torch.randn(n, 2, 6, 6, generator=draw), torch.randint(0, 3, (n,), generator=draw)
given = {name: torch.randn(p.shape, generator=draw) for name, p in net.named_parameters()}
out = {"x": x, "y": y, "clip": torch.tensor(clip), "noise": torch.tensor(noise), "expected": torch.tensor(expected)}
out |= {f"params.{name}": p.detach().clone() for name, p in net.named_parameters()}
out |= {f"standard_normal.{name}": t for name, t in given.items()}
for kind in ("clipped", "noisy"):
    model = GradSampleModule(net, loss_reduction="sum")
    names = {id(p): name.removeprefix("_module.") for name, p in model.named_parameters()}
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=noise if kind == "noisy" else 0.0,
        max_grad_norm=clip,
        expected_batch_size=expected,
        loss_reduction="mean",
    )
    order = iter(names.values())  # noise is asked for parameter after parameter
    oo._generate_noise = lambda std, *_, order=order, **__: std * given[next(order)]
    optimiser.zero_grad()
    F.cross_entropy(model(x), y, reduction="sum").backward()
    if kind == "clipped":
        out["norms"] = torch.stack(
            [g.flatten(1).norm(dim=1) for g in (p.grad_sample for p in model.parameters())]
        ).norm(dim=0)
    optimiser.pre_step()
    out |= {f"{kind}.{names[id(p)]}": p.grad.detach().clone() for p in model.parameters()}
    model.remove_hooks()
    net = model._module
np.savez_compressed(sys.argv[1], **{k: v.numpy() for k, v in out.items()})
