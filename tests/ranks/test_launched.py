"""Ranks that torchrun has launched: the rendezvous by which they find each other."""

from __future__ import annotations

import warnings

import pytest

from fedloom.core.errors import EngineWarning
from fedloom.ranks import launched

PROGRAM = "-m fedloom run fedavg --engine gloo"


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ("--nproc-per-node=3", True),  # on one host, and no port: c10d at some port
        ("--nnodes 1:1 --nproc_per_node=3", True),
        ("--master-port=29500 --nproc-per-node=3", False),
        ("--master_port 29500 --nproc-per-node=3", False),
        ("--nnodes=2 --node-rank=0 --master-addr=10.0.0.1", False),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:29400", True),
        ("--nnodes=2 --rdzv_backend c10d --rdzv_endpoint 10.0.0.1", True),
        ("--standalone --nproc-per-node=3", True),
        ("--nnodes=2 --rdzv-backend=static --rdzv-endpoint=10.0.0.1", False),
    ],
)
def test_ranks_that_torchrun_keeps_together_by_a_pickle_are_warned_of(
    options: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"python torchrun {options} {PROGRAM}".split()
    monkeypatch.setattr(launched, "_launched_by", lambda: words)
    monkeypatch.setattr(launched, "over_gloo", lambda: "connected")
    for elastic in (False, True):
        monkeypatch.setattr(launched, "_managers", {})
        if elastic:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert launched.communication("gloo") == "connected"  # type: ignore[comparison-overlap]
        assert len(found) == (taken and elastic)
    for warning in found:
        assert warning.category is EngineWarning
        assert "got c10d: anyone who can reach its port can run code here; give --master-port" in str(warning.message)


def test_torchrun_is_asked_by_its_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["torchrun", "--nnodes=2"]
    assert not launched.takes_c10d(words)
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    assert launched.takes_c10d(words)


def test_a_command_line_that_the_system_does_not_tell_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(launched._launched_by())
    monkeypatch.setattr("os.getppid", lambda: -1)
    assert not launched.takes_c10d(launched._launched_by())
