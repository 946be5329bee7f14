"""Find which tensors of a network stay as they are: parameters that are not trained, and what belongs to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, get_args

import torch
from torch import nn

from fedloom.core import patterns
from fedloom.core.errors import SettingError
from fedloom.core.network_copies import tensors_of

Factors = Literal["second", "both"]
_FIRST = re.compile(r"(^|\.)lora_(embedding_)?A(?=\.|$)")  # a factor A of an adapter


def frozen_tensors(network: nn.Module, pattern: str, called: str, factors: Factors = "second") -> frozenset[str]:
    """Return the names of a network's frozen parameters and buffers.

    Frozen parameters are those with `requires_grad=False`, and those that `pattern` chooses. Frozen buffers are those
    of modules all of whose parameters are frozen, and constants: buffers that are no part of a state_dict
    (`persistent=False`), and tables of whole numbers or truth values, such as position ids and masks. A counter, of one
    whole number, is none.

    Args:
        network: the network.
        pattern: words of `core/patterns.py`; empty: none.
        called: its name in messages.
        factors: of a low-rank adapter B A, whether one factor is trained, that of `fixed_factors` stays, or both are.

    Raises:
        SettingError: a word of the pattern chooses no parameter, or an argument is none of those.
    """
    if not isinstance(pattern, str):
        raise SettingError(f"frozen is words in one text, frozen='body norm', got {pattern!r}: join them with spaces")
    if factors not in get_args(Factors):
        raise SettingError(
            f"factors must be one of {', '.join(get_args(Factors))}, got {factors!r}: train one factor of B A, or both"
        )
    names = [name for name, _ in network.named_parameters()]
    found = {name for name, p in network.named_parameters() if not p.requires_grad}
    found |= patterns.select(pattern, names, names, network, called)
    if factors == "second":
        found |= fixed_factors({name: p for name, p in network.named_parameters() if name not in found})
    for name, part in _with_names(network):
        if _is_whole(part, name, found):
            found |= {f"{name}{own}" for own, _ in part.named_buffers()}
        constants = part._non_persistent_buffers_set
        for own, buffer in part._buffers.items():
            if buffer is not None and (own in constants or _is_table(buffer)):
                found.add(f"{name}{own}")
    return frozenset(found & {name for name, _ in tensors_of(network)})  # a tensor of two names has the first one


def fixed_factors(trained: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names of the factors that stay as they are, one of each low-rank adapter W + s B A (Hu et al., 2022).

    Factors are told by the names that peft gives them: `q.lora_A.default.weight` beside `q.lora_B.default.weight`. Of
    linear layers and convolutions A stays, of an embedding (`lora_embedding_A`) B: the other one begins at zero. Where
    the one that would stay is zero, the other one stays: beside a factor that stays zero nothing is learnt.

    With A the same on all clients, a mean of B is the mean of the products: sum_k p_k B_k A = (sum_k p_k B_k) A; with B
    the same, a mean of A. Of trained pairs, (sum_k p_k B_k) (sum_k p_k A_k) is another matrix (Sun et al., Improving
    LoRA in Privacy-preserving Federated Learning, ICLR 2024).

    Args:
        trained: the parameters that are not frozen otherwise, with the values at which they begin.
    """
    fixed = set()
    for a in trained:
        if (found := _FIRST.search(a)) and (b := _FIRST.sub(r"\1lora_\2B", a)) in trained:
            stays, other = (b, a) if found[2] else (a, b)
            fixed.add(stays if trained[stays].any() or not trained[other].any() else other)
    return fixed


def whole_modules(network: nn.Module, frozen: Collection[str]) -> Iterator[nn.Module]:
    """Yield the modules all of whose parameters are frozen, which stay in evaluation mode."""
    yield from (part for name, part in _with_names(network) if _is_whole(part, name, frozen))


def _with_names(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module with what stands before the names of its tensors."""
    for name, part in network.named_modules():
        yield (f"{name}." if name else ""), part


def _is_whole(part: nn.Module, name: str, frozen: Collection[str]) -> bool:
    own = [f"{name}{one}" for one, _ in part.named_parameters()]
    return bool(own) and all(one in frozen for one in own)


def _is_table(buffer: torch.Tensor) -> bool:
    return buffer.numel() > 1 and not buffer.is_floating_point()
