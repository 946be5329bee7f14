"""Copies of a network without its tensors, and wrappers by which a pass reaches its methods and layers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.core.fronts import passed_on

INPUT = "input:"  # before a layer's name: what goes into it


class Called(nn.Module):
    """A wrapper that reaches a module's other methods through `functional_call`, which calls `forward` alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, call: Callable[[nn.Module, Tensor], Any]) -> Any:
        return call(self.module, x)


class Tapped(nn.Module):
    """A module whose `forward` also returns what its method or layer `name` has returned on the way.

    `input:` before the name of a layer: what that layer was given.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.layers = dict(module.named_modules())

    def forward(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        with contextlib.ExitStack() as stack:
            if (layer := self.layers.get(name.removeprefix(INPUT))) is not None:
                if passed_on(layer):
                    raise TypeError(f"layer {name!r} is frozen and computed once for each example: set front = 'off'")
                if name.startswith(INPUT):
                    hook = layer.register_forward_pre_hook(lambda layer, args: seen.append(_copy(args[0])))
                else:
                    hook = layer.register_forward_hook(lambda layer, args, out: seen.append(_copy(out)))
                stack.callback(hook.remove)
            else:
                self._tap_method(name, seen)
                stack.callback(delattr, self.module, name)
            logits = self.module(x)
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or seen[0].ndim < 2:
            raise TypeError(
                f"features come from one call of {name!r} in a pass, which returns a tensor [B, ...]; "
                f"{type(self.module).__name__} calls it {len(seen)} times: name another layer or method"
            )
        return logits, seen[0].flatten(1)

    def _tap_method(self, name: str, seen: list[Tensor]) -> None:
        method = getattr(self.module, name, None)
        if not callable(method):
            raise TypeError(
                f"{type(self.module).__name__} has no method {name}(x) and no layer {name!r}: "
                "define it to return the input of the last layer"
            )

        def tapped(*args: Tensor) -> Tensor:
            out: Tensor = method(*args)
            seen.append(_copy(out))
            return out

        setattr(self.module, name, tapped)


def _copy(out: Any) -> Any:
    """Copy what a layer has returned: the next one may write over it, as `nn.ReLU(inplace=True)` does."""
    return out.clone() if isinstance(out, Tensor) else out


def skeleton_of(module: nn.Module) -> nn.Module:
    """Return a copy whose parameters and buffers have shapes but no storage."""
    memo: dict[int, Any] = {}
    for p in module.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
    for b in module.buffers():
        memo[id(b)] = torch.empty_like(b, device="meta")
    return copied(module, memo)


def copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    with _WithoutComputed():
        return copy.deepcopy(module, memo)


@dataclass(frozen=True)
class NotCopied:
    """Placeholder, in a copy of a network, for a tensor computed from parameters, which PyTorch never copies.

    A forward that computes it anew goes on. One that reads it fails, since its values would not follow the weights.
    """

    shape: torch.Size


class _WithoutComputed(TorchFunctionMode):
    """A mode in which a copy of a computed tensor is a `NotCopied`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and _is_computed(args[0]):
            return NotCopied(args[0].shape)
        return func(*args, **(kwargs or {}))


def computed_tensors(module: nn.Module) -> list[str]:
    """Return the names of attributes, of layers too, that hold tensors with a graph."""
    own = {"_parameters", "_buffers", "_modules"}
    return [
        f"{layer}.{name}".removeprefix(".")
        for layer, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own and _is_computed(value)
    ]


def _is_computed(value: Any) -> bool:
    """Return whether a value is a tensor with a graph, or a collection with such a tensor in it."""
    if isinstance(value, Tensor):
        return not nn.parameter.is_lazy(value) and value.grad_fn is not None
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(_is_computed, inside))


def stored_names(network: nn.Module) -> list[str]:
    """Return the names of the tensors of a network that are in its state_dict, by the first of their names."""
    stored = network.state_dict()
    return [name for name, _ in tensors_of(network) if name in stored]


def tensors_of(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a network under the name that it has in `Weights`: the first of its names."""
    yield from network.named_parameters()
    yield from network.named_buffers()
