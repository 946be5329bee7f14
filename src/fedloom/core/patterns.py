"""Words that choose tensors of a network: glob patterns, kinds of layers, the last layers; `!` takes back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn

from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.wording import some_of

KINDS: dict[str, re.Pattern[str]] = {
    "norm": re.compile(r"Norm(\d+d)?$"),
    "conv": re.compile(r"Conv(Transpose)?(\d+d)?$"),
    "linear": re.compile(r"Linear$"),
    "embedding": re.compile(r"Embedding(Bag)?$"),
}
"""Words that mean all layers of a kind, and the end of these layers' class names."""


def check(pattern: str) -> None:
    """Raise SettingError where `last:N` is not written with a number."""
    for word in pattern.split():
        layers = word.removeprefix("!")
        if layers.startswith("last:") and not (layers[5:].isdecimal() and int(layers[5:])):
            raise SettingError(f"the last N layers are written last:N with N >= 1, got {word!r}")


def kinds_of(network: nn.Module) -> dict[str, str]:
    """Return the kind of each layer of a network that is of one: {"body.1": "norm"}."""
    called = {name: type(part).__name__ for name, part in network.named_modules()}
    found = {name: [kind for kind, written in KINDS.items() if written.search(own)] for name, own in called.items()}
    return {name: kinds[0] for name, kinds in found.items() if kinds}


def chosen(pattern: str, names: Iterable[str], params: Iterable[str], kinds: Mapping[str, str]) -> set[str]:
    """Return those of the tensors' names that a pattern of words chooses.

    Args:
        pattern: words, each of which adds tensors, or takes them back if it begins with `!`.
        names: of all tensors.
        params: those of parameters, in the order of the network, by which `last:N` counts layers.
        kinds: `kinds_of` the network.
    """
    names, params, found = list(names), list(params), set[str]()
    for word in pattern.split():
        meant = named(word, names, params, kinds)
        found = found - meant if word.startswith("!") else found | meant
    return found


def named(word: str, names: Iterable[str], params: Iterable[str], kinds: Mapping[str, str]) -> set[str]:
    """Return the names of the tensors that one word adds or takes back; see `chosen`."""
    wanted, names = word.removeprefix("!"), list(names)
    if wanted.startswith("last:"):
        last = layers(params)[-int(wanted.removeprefix("last:")) :]
        return {name for name in names if layer(name) in last}
    if wanted in KINDS:
        return {name for name in names if kinds.get(layer(name)) == wanted}
    found = {name for name in names if fnmatchcase(name, wanted)}
    return found or {name for name in names if fnmatchcase(name, f"{wanted}.*")}  # no tensor's name: a layer's


def layers(params: Iterable[str]) -> list[str]:
    """Return the layers that have these parameters, in their order."""
    return list(dict.fromkeys(map(layer, params)))


def layer(name: str) -> str:
    """Return the layer to which a tensor belongs: `conv` for `conv.weight`.

    It is also `conv` where PyTorch's parametrizations make that weight of other tensors, such as
    `conv.parametrizations.weight.original0`.
    """
    head, made, _ = f".{name}".partition(".parametrizations.")
    return head[1:] if made else name.rpartition(".")[0]


def select(pattern: str, names: Iterable[str], params: Iterable[str], network: nn.Module, called: str) -> set[str]:
    """Return those of the names that a pattern chooses.

    Refuse a word that chooses nothing, and warn of one that chooses half of a kind.

    Args:
        pattern: words, as in `chosen`.
        names: of all tensors that may be chosen.
        params: those of parameters.
        network: the network.
        called: its name.

    Raises:
        SettingError: a word chooses no tensor, or counts no layers.
    """
    check(pattern)
    names, params, kinds = list(names), list(params), kinds_of(network)
    for word in pattern.split():
        if not named(word, names, params, kinds):
            frozen = named(word, [name for name, _ in network.named_parameters()], params, kinds)
            what = f"frozen tensors of {called} alone" if frozen else f"no tensor of {called}"
            raise SettingError(
                f"{word.removeprefix('!')!r} matches {what}: write patterns of its layers, "
                f"{', '.join(layers(params))}, a kind of layers ({', '.join(KINDS)}), or last:N"
            )
        if (wanted := word.removeprefix("!")) in KINDS and wanted in (own := set(map(layer, names))):
            of_kind = {name for name in own if kinds.get(name) == wanted}
            if of_kind != {wanted}:
                warn(
                    f"{wanted!r} means all {len(of_kind)} layers of this kind in {called}, "
                    f"which also has a layer of this name: write '{wanted}.*' for that layer alone",
                    SettingWarning,
                )
    _warn_of_halves(pattern, names, params, network, called)
    return chosen(pattern, names, params, kinds)


def _warn_of_halves(pattern: str, names: list[str], params: list[str], network: nn.Module, called: str) -> None:
    """Warn where a glob pattern means the normalisation layers of a network and misses some.

    An example is `*bn*` of a ResNet, which misses the layers that are called `downsample.1`.
    """
    holding, all_kinds = set(map(layer, names)), kinds_of(network)
    taken = set(map(layer, chosen(pattern, names, params, all_kinds)))
    classes: dict[str, list[str]] = {}
    for name, part in network.named_modules():
        if "Norm" in (kind := type(part).__name__) and name in holding:
            classes.setdefault(kind, []).append(name)
    for kind, of_class in classes.items():
        if len(taken.intersection(of_class)) in (0, len(of_class)):
            continue
        for word in pattern.split():
            meant = set(map(layer, named(word, names, params, all_kinds)))
            if set("*?[").intersection(word) and meant < set(of_class):
                missed = [name for name in of_class if name not in meant]
                warn(
                    f"{word.removeprefix('!')!r} matches {len(meant)} of the {len(of_class)} {kind} layers of "
                    f"{called}, without {some_of(missed, 3)}: write 'norm' for all normalisation layers, or name those "
                    "that are meant without a pattern",
                    SettingWarning,
                )
