"""The plain runs by which algorithms are held to values that no file has give the numbers of the files there are."""

from __future__ import annotations

import re
from typing import Any

import pytest
from common_runs import FedBNNet, Net, close
from conftest import golden
from plain_runs import replay


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("common/fedbn_a", FedBNNet),
        ("common/fedper_a", Net),
        ("common/fedrep_a", Net),
        ("common/fedbabu_a", Net),
        ("common/ditto_a", Net),
    ],
)
def test_plain_pytorch_gives_the_stored_numbers(name: str, build: Any) -> None:
    g = golden(name)
    made = replay(str(g["method"]), build, g)
    results = [n for n in g if re.match(r"r\d|rF|finetuned", n) and not re.search("_order|_sampled|_weights", n)]
    assert len(results) > 30
    for name in results:
        close(made[name], g[name])
