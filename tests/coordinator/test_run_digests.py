"""What is read of a run was proved: its logs and documents are those of the newest checkpoint and of the manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_chain import JOB, NEWEST, _job, everything
from test_resume import interrupted

from fedloom import History, verify
from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.coordinator.checkpoint import Checkpoints
from fedloom.core.errors import DamageError
from fedloom.report import summary, write_report


@pytest.fixture
def done(tmp_path: Path) -> Path:
    JOB.run(tmp_path / "runs/one")
    return tmp_path / "runs/one"


def replace(path: Path, old: bytes, new: bytes) -> None:
    """Change where it stands last."""
    start, there, end = path.read_bytes().rpartition(old)
    assert there
    path.write_bytes(start + new + end)


def last_accuracy(directory: Path) -> bytes:
    return b'"global_accuracy": ' + str(History.read(directory).last("global_accuracy")).encode()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "settings.json", "federation.json", "manifest.json"])
def test_what_was_changed_is_read_by_nothing_that_prints(name: str, done: Path) -> None:
    """A number that says what it should not must stand in no table, on no page and in no file."""
    changes = {
        "metrics.jsonl": (last_accuracy(done), b'"global_accuracy": 0.999'),
        "timing.jsonl": (b'"train": ', b'"train": 1'),
        "settings.json": (b'"seed": 0', b'"seed": 1'),
        "federation.json": (b'"classes": 3', b'"classes": 4'),
        "manifest.json": (b'"engine": "loop"', b'"engine": "stacked"'),
    }
    before = everything(done)
    assert History.read(done).unproved == ""
    replace(done / name, *changes[name])
    for use in (History.read, summary, lambda path: write_report(path, done.parent.parent / "page")):
        with pytest.raises((DamageError, ValueError), match=name.replace(".", r"\.")):
            use(done)
    assert not (done.parent.parent / "page").exists()
    assert {n for n, data in everything(done).items() if before[n] != data} == {name}
    assert not verify(done).whole


@pytest.mark.slow
def test_logs_of_another_run_are_not_taken_with_their_checkpoints(done: Path, tmp_path: Path) -> None:
    """They fit each other, and not the manifest, by which the run would be named."""
    _job(1).run(tmp_path / "other")
    for name in ("metrics.jsonl", "timing.jsonl"):
        shutil.copy(tmp_path / "other" / name, done / name)
    shutil.rmtree(done / "checkpoints")
    shutil.copytree(tmp_path / "other/checkpoints", done / "checkpoints")
    with pytest.raises(DamageError, match=r"00000000\.json is not a checkpoint of this run.*it belongs to another run"):
        History.read(done)


@pytest.mark.slow
def test_rounds_that_no_checkpoint_proves_are_marked_wherever_they_are_printed(tmp_path: Path) -> None:
    """As where somebody removes the newest checkpoint and changes the end of the log, which looks like a kill."""
    _job(checkpoint_every=4).run(tmp_path / "runs/one")
    assert History.read(tmp_path / "runs/one").unproved == ""
    for path in (tmp_path / "runs/one/checkpoints").glob("00000006*"):
        path.unlink()
    replace(tmp_path / "runs/one/metrics.jsonl", last_accuracy(tmp_path / "runs/one"), b'"global_accuracy": 0.999')
    assert History.read(tmp_path / "runs/one").unproved == "no checkpoint proves its rounds after 4 yet"
    found = summary(tmp_path / "runs")
    assert [m.label for m in found.methods] == ["PFedSD (unproved)"]
    assert "PFedSD (unproved)" in found.latex()
    assert found.remarks[0].startswith("one: no checkpoint proves its rounds after 4 yet; its numbers are marked")
    page = write_report(tmp_path / "runs").read_text()
    assert "PFedSD (unproved)" in page
    assert "no checkpoint proves its rounds after 4 yet" in page


@pytest.mark.slow
def test_a_run_without_its_checkpoints_is_marked(done: Path) -> None:
    shutil.rmtree(done / "checkpoints")
    assert History.read(done).unproved == "no checkpoint proves its logs"
    assert AnalysedRun.of(done).logged_accuracy().remarks == ["Unproved: no checkpoint proves its logs."]


@pytest.mark.slow
def test_a_run_that_was_killed_early_is_read(tmp_path: Path) -> None:
    interrupted(JOB, tmp_path / "early", after=1)
    shutil.rmtree(tmp_path / "early/checkpoints")
    for name in ("metrics.jsonl", "timing.jsonl"):
        first = (tmp_path / "early" / name).read_bytes().splitlines(keepends=True)[0]
        (tmp_path / "early" / name).write_bytes(first)
    assert History.read(tmp_path / "early").unproved == ""


@pytest.mark.slow
def test_a_run_that_goes_on_while_it_is_read_is_read(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest index may be deleted between the moments in which it is listed and read."""
    rounds, listed = Checkpoints.rounds, [[0, 3, 5], [0, 3, 5, 6]]
    (done / "checkpoints/00000005.json").rename(done / "checkpoints/00000005.json.part")
    monkeypatch.setattr(Checkpoints, "rounds", lambda self: listed.pop(0) if listed else rounds(self))
    assert History.read(done).unproved == ""
    assert listed == []
    (done / NEWEST).write_text("{}")
    with pytest.raises(DamageError, match=r"00000006\.json is not a checkpoint of this run"):
        History.read(done)
