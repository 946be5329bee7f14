"""The list of networks."""

from __future__ import annotations

import argparse
import io

import pytest
from rich.console import Console

from fedloom.cli.list_models import show
from fedloom.core.errors import SettingError
from fedloom.models import MODELS


def printed(*names: str, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    assert show(argparse.Namespace(names=names), console) == 0
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [80, 120])
def test_every_network_is_listed_with_its_size(width: int) -> None:
    out = printed(width=width)
    assert "…" not in out
    assert {*MODELS, *(f"{one.parameters:,}" for one in MODELS.values())} <= {*out.split()}
    assert "torchvision:NAME" in out


def test_one_network_has_its_inputs_and_settings() -> None:
    out = " ".join(printed("lstm", width=250).split())
    assert "80 of 90 token ids, the next one" in out
    assert "width=8&hidden=256&layers=2&dropout=0.0" in out
    assert "transformer" not in out


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(SettingError, match=r"unknown model 'lsmt' .did you mean 'lstm'.*torchvision:NAME"):
        printed("lsmt")
