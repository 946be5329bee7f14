"""Words that choose tensors: names, layers, kinds of layers, the last layers."""

from __future__ import annotations

import pytest
from torch import nn

from fedloom.core import patterns
from fedloom.core.errors import SettingError, SettingWarning


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.down = nn.Sequential(nn.ConvTranspose2d(3, 4, 1), nn.BatchNorm2d(4))
        self.words, self.scale = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


NETWORK = Block()
PARAMS = [name for name, _ in NETWORK.named_parameters()]
NAMES = [*PARAMS, *(name for name, _ in NETWORK.named_buffers())]
KINDS = patterns.kinds_of(NETWORK)


def layers(pattern: str) -> set[str]:
    return set(map(patterns.layer, patterns.chosen(pattern, NAMES, PARAMS, KINDS)))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("norm", {"bn1", "down.1", "scale"}),
        ("conv", {"conv1", "down.0"}),
        ("linear embedding", {"head", "words"}),
        ("* !norm", {"conv1", "down.0", "words", "head"}),
        ("last:2", {"scale", "head"}),
        ("down", {"down.0", "down.1"}),
        ("down.*", {"down.0", "down.1"}),
        ("*1 !conv1", {"bn1", "down.1"}),
        ("!head head", {"head"}),
        ("head !head", set()),
    ],
)
def test_what_words_choose(pattern: str, expected: set[str]) -> None:
    assert layers(pattern) == expected


def test_a_word_for_a_kind_chooses_buffers_too() -> None:
    found = patterns.chosen("norm", NAMES, PARAMS, KINDS)
    assert {"bn1.running_mean", "bn1.num_batches_tracked", "bn1.weight"} <= found


def test_a_layer_that_has_the_name_of_a_kind_is_told_apart() -> None:
    network = nn.ModuleDict({"norm": nn.LayerNorm(3), "other": nn.LayerNorm(3)})
    names = [name for name, _ in network.named_parameters()]
    with pytest.warns(SettingWarning, match=r"'norm' means all 2 layers .* write 'norm\.\*' for that layer alone"):
        patterns.select("norm", names, names, network, "net")
    assert patterns.chosen("norm.*", names, names, patterns.kinds_of(network)) == {"norm.weight", "norm.bias"}


@pytest.mark.parametrize("word", ["hed", "!hed", "embeding"])
def test_a_word_that_chooses_nothing_is_refused(word: str) -> None:
    with pytest.raises(SettingError, match=rf"'{word.removeprefix('!')}' matches no tensor of net: .*conv1, .*norm"):
        patterns.select(f"* {word}", NAMES, PARAMS, NETWORK, "net")
