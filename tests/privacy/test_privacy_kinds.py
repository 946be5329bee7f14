"""How privacy is written: one grammar, one form of refusals, and nothing is loaded of it unless it is asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import fedloom as fl
from fedloom.coordinator.part import encoders_of
from fedloom.privacy.privacy_kinds import Privacy, said
from tiny import LOCAL, federation, linear


def made(privacy: str, **more: Any) -> fl.Job:
    return fl.Job(
        algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=linear,
        settings=fl.RunSettings(rounds=3, cohort_size=3, privacy=privacy), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("centrl:epsilon=4", "kind of privacy 'centrl:epsilon=4' .did you mean 'central'?.; there are none, central:"),
        ("", "unknown kind of privacy ''"),
        ("central", "of privacy = 'central' one says, each once, some of central:epsilon=4,delta=1e-5,clip=0.5 or c"),
        ("central:epsilon=4,epsilon=5", "one says, each once, some of .*, got 'epsilon=5'"),
        ("central:epsilom=4", "got 'epsilom=4' .did you mean 'epsilon'?"),
        ("central:epsilon=much,delta=1e-5,clip=1", "epsilon of privacy = 'central' is a number, got 'epsilon=much'"),
        ("central:noise=nan,delta=1e-5,clip=1", "noise of privacy = 'central' is a number, got 'noise=nan'"),
        ("central:delta=1e-5,clip=1", "epsilon or noise, and delta and clip, got 'central:delta=1e-5,clip=1': write c"),
        ("central:epsilon=4,noise=1,delta=1e-5,clip=1", "privacy is epsilon or noise, and delta and clip"),
        ("central:epsilon=4,clip=1", "privacy is epsilon or noise, and delta and clip"),
        ("central:epsilon=4,delta=1e-5", "privacy is epsilon or noise, and delta and clip"),
        ("central:epsilon=0,delta=1e-5,clip=1", "epsilon of privacy is above 0, got 0 in"),
        ("central:noise=-1,delta=1e-5,clip=1", "noise of privacy is 0 or more, got -1 in"),
        ("central:noise=1,delta=0,clip=1", "delta of privacy is above 0, got 0 in"),
        ("central:noise=1,delta=0.2,clip=1", "delta is below one over the number of clients, 1 / 6, .* got 0.2: lower"),
        ("central:noise=1,delta=1e-5,clip=0", "clip of privacy is a norm above 0, or adaptive:QUANTILE, got '0' in"),
        ("central:noise=1,delta=1e-5,clip=inf", "clip of privacy is a norm above 0, .*, got 'inf' in"),
        ("central:noise=1,delta=1e-5,clip=much", "clip of privacy is a norm above 0, .*, got 'much'"),
        ("central:noise=1,delta=1e-5,clip=adaptive", "this clip is written adaptive:QUANTILE, got"),
        ("central:noise=1,delta=1e-5,clip=adaptive:1", "a quantile above 0 and below 1, got 1 in .*: write adaptive"),
        ("central:noise=1,delta=1e-5,clip=adaptive:x", "this clip is written adaptive:QUANTILE, .*: QUANTILE is a num"),
    ],
)  # fmt: skip
def test_what_is_written_otherwise_is_refused(written: str, message: str) -> None:
    with pytest.raises(fl.SettingError, match=message.replace("?", r"\?")):
        made(written)


def test_what_is_said() -> None:
    assert said("central:clip=adaptive:0.5,noise=2", {"clip": str, "noise": float}) == {
        "clip": "adaptive:0.5",
        "noise": 2.0,
    }


def test_central_privacy_asks_nothing_of_clients() -> None:
    assert Privacy.encoders(fl.RunSettings(privacy="central:noise=1,delta=1e-5,clip=1")) == ()
    assert (
        encoders_of(fl.RunSettings(privacy="central:noise=1,delta=1e-5,clip=1")) == encoders_of(fl.RunSettings()) == ()
    )


@pytest.mark.slow
def test_a_run_without_privacy_loads_nothing_of_it() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); import fedloom as fl; from tiny import *;"
        "fl.run(fl.FedAvg(local=LOCAL), federation(), linear, fl.RunSettings(rounds=1, cohort_size=2), progress=False);"
        "assert not [m for m in sys.modules if m.startswith(('fedloom.privacy', 'dp_accounting'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
