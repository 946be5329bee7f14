"""Call the forward of a network with what examples hold: token ids with their mask, several inputs by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedloom.core.errors import SettingError
from fedloom.data.inputs import Inputs, Tokens

MASK = "attention_mask"  # an argument of a forward, by the name that Hugging Face gave it
MaskForm = Literal["tokens", "pairs", "causal", "added pairs", "added causal"]
READY: tuple[MaskForm, ...] = ("pairs", "causal", "added pairs", "added causal")


def mask_of(real: Tensor, form: MaskForm, dtype: torch.dtype) -> Tensor:
    """Return the mask of sequences whose tokens are `real` [B, T].

    "tokens": 1 for a token, 0 for padding, int64 [B, T]. The others are [B, 1, T, T], for each place and each place
    that it may see: all tokens ("pairs"), or those up to itself ("causal"); True, or 0 to be "added" to scores beside
    the least number of `dtype`.
    """
    if form == "tokens":
        return real.long()
    places = real.shape[-1]
    seen = real[..., None, None, :].expand(*real.shape[:-1], 1, places, places)
    if form.endswith("causal"):
        seen = seen & torch.ones(places, places, dtype=torch.bool, device=real.device).tril()
    if form in ("pairs", "causal"):
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=real.device).masked_fill(~seen, torch.finfo(dtype).min)


@dataclass(frozen=True)
class Arguments:
    """Make the arguments of a forward of the one tensor that examples are stored in; a hook of the network.

    `named`: whether the forward has an argument of each input's name; of token ids, whether it takes their mask.
    `mask`: the form in which it is given that.
    """

    inputs: Tokens | Inputs
    named: bool
    mask: MaskForm = "tokens"

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            return None  # a call of the network's own kind
        inputs = args[:1] if isinstance(self.inputs, Tokens) else tuple(self.inputs.unpack(args[0]).values())
        return self.given(network, inputs)

    def given(self, network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the arguments, by place and by name, of token ids or of the inputs in their order."""
        if isinstance(self.inputs, Tokens):
            return inputs, {MASK: self._masked(network, torch.ne(inputs[0], self.inputs.padding or 0))}
        parts = {part.name: values for part, values in zip(self.inputs.parts, inputs, strict=True)}
        if self.named and self.mask != "tokens":
            parts[MASK] = self._masked(network, parts[MASK] != 0)
        return ((), parts) if self.named else (tuple(parts.values()), {})

    @property
    def has_mask(self) -> bool:
        """True if the forward is given a mask by its name."""
        return isinstance(self.inputs, Tokens) or (self.named and MASK in [part.name for part in self.inputs.sequences])

    def _masked(self, network: nn.Module, real: Tensor) -> Tensor:
        return mask_of(real, self.mask, next(p.dtype for p in network.parameters() if p.is_floating_point()))


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


def set_arguments(network: nn.Module, how: Arguments) -> None:
    """Have a network called by `how`, in the place of another way that it may have."""
    hooks = network._forward_pre_hooks
    for key in [k for k, hook in hooks.items() if isinstance(hook, Arguments)]:
        del hooks[key]
    network.register_forward_pre_hook(how, with_kwargs=True)


def without_hooks(network: nn.Module) -> nn.Module:
    """Take these hooks from a network, so that it is called as its author wrote it; return it."""
    for hooks in (network._forward_pre_hooks, network._forward_hooks):
        for key in [k for k, hook in hooks.items() if isinstance(hook, Arguments) or hook is logits_alone]:
            del hooks[key]
    return network
