"""Call the forward of a network with what examples hold: token ids with their mask, several inputs by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.errors import SettingError
from fedloom.data.inputs import Inputs, Tokens

MASK = "attention_mask"  # an argument of a forward, by the name that Hugging Face gave it


@dataclass(frozen=True)
class Arguments:
    """Make the arguments of a forward of the one tensor that examples are stored in; a hook of the network.

    `named`: whether the forward has an argument of each input's name; of token ids, whether it takes their mask.
    """

    inputs: Tokens | Inputs
    named: bool

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            return None  # a call of the network's own kind
        if isinstance(self.inputs, Tokens):
            return args, {MASK: torch.ne(args[0], self.inputs.padding or 0).long()}
        parts = self.inputs.unpack(args[0])
        return ((), parts) if self.named else (tuple(parts.values()), {})


def arguments_of(network: nn.Module, inputs: object, name: str) -> Arguments | None:
    """Return how a network is called with these inputs; None where it is given them as one tensor.

    Raises:
        SettingError: there are several inputs, and its forward takes fewer.
    """
    taken = inspect.signature(network.forward).parameters
    if isinstance(inputs, Tokens):
        return Arguments(inputs, True) if inputs.padding is not None and MASK in taken else None
    if not isinstance(inputs, Inputs):
        return None
    names = [part.name for part in inputs.parts]
    if all(n in taken and taken[n].kind is not inspect.Parameter.POSITIONAL_ONLY for n in names):
        return Arguments(inputs, True)
    places = [p for p in taken.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is inspect.Parameter.empty]
    free = any(p.kind is p.VAR_POSITIONAL for p in taken.values())
    if (len(places) < len(names) and not free) or len(needed) > len(names):
        raise SettingError(
            f"a forward takes the inputs that examples have, {', '.join(names)}, by their names or in this order, got "
            f"{name} with ({', '.join(taken)}): name them as the arguments of forward"
        )
    return Arguments(inputs, False)


def logits_alone(network: nn.Module, args: Any, out: Any) -> Any:
    """Return the logits of what a network returns, where that is an object or a mapping that has them; a hook."""
    if isinstance(out, Tensor):
        return None
    found = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    return found if isinstance(found, Tensor) else None


def without_hooks(network: nn.Module) -> nn.Module:
    """Take these hooks from a network, so that it is called as its author wrote it; return it."""
    for hooks in (network._forward_pre_hooks, network._forward_hooks):
        for key in [k for k, hook in hooks.items() if isinstance(hook, Arguments) or hook is logits_alone]:
            del hooks[key]
    return network
