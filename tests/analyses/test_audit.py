"""What canaries show of a private run, in words, numbers and a figure; and runs that made no promise."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dp_accounting")

from analysed import rows
from commands import call, error
from fedloom.analyses import AnalysedRun, audit
from fedloom.core.errors import SettingError
from fedloom.privacy import accountant, canaries
from runs_of_tables import LABEL, TARGET, tables, trained


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["central", "examples"])
def test_what_is_measured_stands_beside_what_was_promised(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "WANTED", 600)
    made = trained(
        tmp_path, f"{tables(tmp_path)[0]}?{LABEL}", run={"rounds": 3, "privacy": f"{kind}:noise=1,delta=1e-2,clip=0.5"}
    )
    status, out, _ = call(capsys, "analyse", str(made), "audit", "--out", str(tmp_path))
    assert status == 0
    said = " ".join(out.split())
    assert "Nothing that was measured is beyond the promise." in said
    found = {row["which"]: row["epsilon"] for row in rows(tmp_path / "audit-epsilon.csv")}
    promised = AnalysedRun.of(made).history.metrics[-1]["epsilon"]
    assert found["promised"] == pytest.approx(promised)
    assert 0 < found["at least, of this kind"] <= promised
    assert found["at least, of any kind"] <= promised
    curve = rows(tmp_path / "audit.csv")
    assert all(row["found"] <= row["most_found_by_promise"] + 0.1 for row in curve)
    assert (tmp_path / "audit.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_noise_of_a_run_is_that_of_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget gives noise for the rounds that a run began with; of numbers, since any task is audited."""
    monkeypatch.setattr(canaries, "WANTED", 40)
    words = {"rounds": 2, "privacy": "central:epsilon=4,delta=1e-2,clip=adaptive:0.5"}
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{TARGET}", task="regression", run=words)
    _, promise, whose = audit._put_in(AnalysedRun.of(made))
    assert whose == "clients"
    assert 3.9 < promise.epsilon <= 4
    assert promise.noise == accountant.noise_for(4.0, 2, promise.rate, 1e-2)


@pytest.mark.slow
def test_runs_that_promised_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}")
    assert error(capsys, "analyse", str(made), "audit").startswith(
        "an audit is of what central or examples promise, and this run has made none, with privacy = 'none': run"
    )


@pytest.mark.slow
def test_what_uploads_nothing_is_refused(tmp_path: Path) -> None:
    words = {"privacy": "central:noise=1,delta=1e-2,clip=0.5"}
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}", algorithm="local_only", run=words)
    with pytest.raises(SettingError, match="LocalOnly uploads nothing that could leak: audit another method"):
        audit.measure(AnalysedRun.of(made))
