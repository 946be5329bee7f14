"""Names that a person gives to methods."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.report import printed_results


def test_a_new_name_stands_behind_the_last_sign() -> None:
    assert printed_results._names(["fedntd beta=2=FedNTD", "fedavg=A"]) == {"fedntd beta=2": "FedNTD", "fedavg": "A"}
    for wrong in ("fedavg", "fedavg=", "=A"):
        with pytest.raises(SettingError, match=r"--name takes OLD=NEW, as in fedavg=FedAvg, got"):
            printed_results._names([wrong])
    with pytest.raises(SettingError, match="--name takes each OLD once, got a=b a=c: drop the repeats"):
        printed_results._names(["a=b", "a=c"])


def test_columns_are_parted_by_commas(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    monkeypatch.setattr(printed_results, "summary", lambda *folders, **more: seen.append((folders, more)) or "said")
    args = argparse.Namespace(
        directories=["a"], against=None, reading="last", name=[], columns="x,y", to="0.8", out=None
    )
    assert printed_results.summarise(args, Terminal()) == 0
    wanted = {"against": None, "reading": "last", "names": {}, "columns": ["x", "y"], "to": "0.8"}
    assert seen == [((Path("a"),), wanted)]
    assert capsys.readouterr().out == "said\n"
