"""The frozen front of a network: frozen layers that its input passes first, and that alone see it.

What they return of an example is the same in every round, so it can be computed once (`coordinator/cached_fronts.py`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# what asks of a tensor nothing but its form
_OF_FORM = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda")),
    *(Tensor.size, Tensor.dim, Tensor.__len__, Tensor.is_floating_point, Tensor.numel),
}
_DROPOUT = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.AlphaDropout | nn.FeatureAlphaDropout


@dataclass(frozen=True)
class Front:
    """Layers by name, in the order of a pass: the first is given the network's input, each other what came before."""

    layers: tuple[str, ...]

    def __str__(self) -> str:
        return self.layers[0] if len(self.layers) == 1 else f"{self.layers[0]} to {self.layers[-1]}"


class Watch(TorchFunctionMode):
    """A mode that notes which layers of a network a pass calls, and who is given the network's own input."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.calls: Counter[str] = Counter()
        self.first: set[str] = set()  # layers whose one argument is the input
        self.returned: dict[str, Any] = {}
        self.users: list[tuple[str, ...]] = []  # for each function that is given the input: the layers in whose call
        self._input: Any = None
        self._within: list[str] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for name, layer in self.network.named_modules():
            self._hooks.append(layer.register_forward_pre_hook(self._before(name), with_kwargs=True))
            self._hooks.append(layer.register_forward_hook(self._after(name)))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _before(self, name: str) -> Callable[..., None]:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._within:
                self._input = args[0]
            self.calls[name] += 1
            if len(args) == 1 and args[0] is self._input and not kwargs:
                self.first.add(name)
            self._within.append(name)

        return note

    def _after(self, name: str) -> Callable[..., None]:
        def note(_: nn.Module, args: Any, out: Any) -> None:
            self._within.pop()
            self.returned[name] = out

        return note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = itertools.chain(args, kwargs.values())
        if self._within and func not in _OF_FORM and any(map(self._is_input, given)):
            self.users.append(tuple(self._within))
        return func(*args, **kwargs)

    def _is_input(self, value: Any) -> bool:
        return value is self._input or (isinstance(value, list | tuple) and any(map(self._is_input, value)))

    def allows(self, front: Front) -> bool:
        """Return whether a pass could begin behind this front: it is called once, and nothing else sees the input."""
        out = self.returned.get(front.layers[-1])
        return (
            front.layers[0] in self.first
            and all(self.calls[name] == 1 for name in front.layers)
            and all(any(name in front.layers for name in within) for within in self.users)
            and isinstance(out, Tensor)
            and out.ndim >= 2
            and out.is_floating_point()
            and len(out) == len(self._input)
        )


def found(network: nn.Module, stays: Collection[str], passes: Sequence[Watch]) -> list[Front]:
    """Return the fronts of a network, the largest first: of those with the same parameters the one with most layers.

    `network`: in training mode. `stays`: its frozen tensors. `passes`: what was seen in evaluation and in training.
    """
    sizes: dict[Front, tuple[int, int]] = {}
    for name, layer in network.named_modules():
        chain = list(_chain(name, layer))
        settled = list(itertools.takewhile(lambda part: _is_settled(*part, stays), chain))
        whole = [((name, layer),)] if name and _is_settled(name, layer, stays) else []
        for parts in (*whole, *(tuple(settled[:n]) for n in range(1, len(settled) + 1))):
            front = Front(tuple(n for n, _ in parts))
            params = sum(p.numel() for _, part in parts for p in part.parameters())
            if params and all(seen.allows(front) for seen in passes):
                sizes[front] = params, sum(not [*m.children()] for _, part in parts for m in part.modules())
    largest: dict[int, Front] = {}
    for front in sorted(sizes, key=lambda front: (*(-n for n in sizes[front]), len(front.layers))):
        largest.setdefault(sizes[front][0], front)
    return [*largest.values()]


def chain_of(network: nn.Module, front: Front) -> nn.Module:
    """Return the layers of a front as a network of their own."""
    return nn.Sequential(*map(network.get_submodule, front.layers))


def skip(network: nn.Module, front: Front) -> nn.Module:
    """Let the layers of a front return what they are given."""
    for name in front.layers:
        network.get_submodule(name).forward = _returned if name == front.layers[-1] else _passed_on
    return network


def passed_on(layer: nn.Module) -> bool:
    """Return whether a layer is left out, and returns something else than it would."""
    return layer.forward is _passed_on


def _passed_on(x: Tensor) -> Tensor:
    return x


def _returned(x: Tensor) -> Tensor:
    return x


def _chain(name: str, layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that a layer calls one after the other: those of nested `nn.Sequential`, or itself."""
    if type(layer).forward is not nn.Sequential.forward:
        yield name, layer
        return
    for own, part in layer.named_children():
        yield from _chain(f"{name}.{own}".removeprefix("."), part)


def _is_settled(name: str, layer: nn.Module, stays: Collection[str]) -> bool:
    """Return whether a layer computes the same in every round, in training as in evaluation."""
    tensors = [n for n, _ in (*layer.named_parameters(), *layer.named_buffers())]
    parts = [*layer.modules()]
    return (
        all(f"{name}.{n}" in stays for n in tensors)
        and not any(isinstance(m, _DROPOUT) and m.training for m in parts)
        and not any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None for m in parts)
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same, bit for bit."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
