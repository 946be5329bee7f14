"""Errors that are made of others."""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg, RunSettings, run
from fedloom.core.errors import ClientError, FedloomError, ShortageError, enough_memory
from fedloom.engines.engine import Engine
from tiny import LOCAL, federation, linear


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("Unable to allocate 8 GiB"), "Unable to allocate 8 GiB"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes\nmore"), "8 bytes"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "CUDA out of memory. Tried"),
    ],
)
def test_no_memory_says_what_to_lower(error: Exception, said: str) -> None:
    words = rf"not enough memory \(.*{said}\): lower panel, cohort_size"
    with pytest.raises(ShortageError, match=words) as found, enough_memory():
        raise error
    assert found.value.__cause__ is error
    assert isinstance(found.value, FedloomError)


def test_pytorch_says_it_in_these_words() -> None:
    with pytest.raises(ShortageError, match="not enough memory"), enough_memory():
        torch.empty(1 << 50, dtype=torch.uint8)


@pytest.mark.parametrize("error", [RuntimeError("shapes"), ClientError("out of memory", client=1, round=1)])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as found, enough_memory():
        raise error
    assert found.value is error


def test_a_run_without_memory_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: object, **__: object) -> None:
        torch.empty(1 << 50, dtype=torch.uint8)

    monkeypatch.setattr(Engine, "round", evaluate)
    with pytest.raises(ShortageError, match="lower panel"):
        run(FedAvg(local=LOCAL), federation(), linear, RunSettings(rounds=1, cohort_size=2, engine="loop"))
