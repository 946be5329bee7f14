"""`fedloom claims`."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from commands import call, error
from fedloom_papers import STUDIES
from fedloom_papers.commands.show_claims import RECORD, show
from published_runs import cell, made

KEPT = Path(__file__).parents[2] / "docs" / "results"


def printed(width: int, source: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    assert show(argparse.Namespace(source=source, known=[]), console) == 0
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 140])
def test_every_claim_fits_a_terminal(width: int) -> None:
    out = printed(width)
    assert "…" not in out
    assert max(map(len, out.splitlines()[:-1])) <= width
    record = json.loads(RECORD.read_bytes())
    assert list(record["sources"]) == list(STUDIES)
    words = set(out.split())
    for told in record["sources"].values():
        assert told["title"] in " ".join(out.split())
        for row in told["claims"]:
            assert row["claim"].split()[0] in words
    assert "the runs that were kept for this version" in " ".join(out.split())


def test_one_source_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "claims", "ktpfl")
    assert status == 0
    assert "KT-pFL (Zhang et al., NeurIPS 2021)" in out
    assert "FedNTD (Lee" not in out
    with pytest.raises(SystemExit):
        call(capsys, "claims", "ktpf")
    assert "invalid choice: 'ktpf' (did you mean 'ktpfl'?)" in capsys.readouterr().err


def test_runs_of_ones_own_are_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for row, accuracy in (("kt_pfl", 90.0), ("fedmd_kt", 80.0)):
        made(tmp_path, cell("ktpfl-small", "cifar20k-two", row), 0, accuracy, rounds=20)
    status, out, _ = call(capsys, "claims", "ktpfl", "--known", str(tmp_path))
    assert (status, f"Judged by the runs below {tmp_path}." in out.replace("\n", "")) == (0, True)
    assert "80.00" in out
    assert "x 1 seeds" in out
    assert call(capsys, "claims", "ktpfl", "--known", str(tmp_path / "no"))[0] == 2
    assert error(capsys, "claims", "ktpfl", "--known", str(tmp_path / "no")).startswith("--known ")


@pytest.mark.slow
def test_kept_results_of_all_papers_are_found_below_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(RECORD.read_bytes())["sources"]["ktpfl"]["claims"]
    _, kept, _ = call(capsys, "claims", "ktpfl", "--known", str(KEPT))
    _, record, _ = call(capsys, "claims", "ktpfl")
    assert kept.partition("Judged by")[0] == record.partition("Judged by")[0]
    assert any(row["verdict"] == "holds" for row in rows)
