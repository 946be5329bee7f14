"""Archives of unfinished runs: they go on elsewhere with the same bits, and those of strangers are distrusted."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.errors import DamageError, SettingWarning, StorageWarning
from fedloom_papers.reproduction import unfinished_runs
from fedloom_papers.reproduction.copies import export
from fedloom_papers.reproduction.results import FAILED
from fedloom_papers.reproduction.running import reproduce
from fedloom_papers.reproduction.unfinished_runs import export_unfinished, import_unfinished, packed, unpacked
from published_runs import cell, made

APFL = cell("apfl-comparison", "vehicle-like", "apfl_ni")
SHORT = {"local.epochs": 1, "local.batch_size": 100, "run.evaluate_training": False, "data.examples": 300}
RECIPE = dataclasses.replace(APFL, experiment=APFL.experiment.with_all(SHORT))
ARCHIVE = Path(RECIPE.place) / "seed-0.tar.gz"
EVERY = {"run.checkpoint_every": "2"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with a run that was killed after it had logged round 3, before the checkpoint of that round."""
    out, save = tmp_path_factory.mktemp("killed"), RunDirectory.save

    def die(self: RunDirectory, round: int, *rest: Any, **named: Any) -> None:
        if round == 3:
            raise KeyboardInterrupt
        save(self, round, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", die)
        with pytest.raises(KeyboardInterrupt):
            reproduce([RECIPE], "/data", out, rounds=3, changes=EVERY)
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [p for p in folder.rglob("*") if p.is_file() and p.name not in ("timing.jsonl", "manifest.json", ".lock")]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths if p.parent.name != "checkpoints"}


@pytest.mark.slow
def test_a_killed_run_ends_elsewhere_with_the_same_bits(killed: Path, tmp_path: Path) -> None:
    to, there, whole = (tmp_path / name for name in ("to", "there", "whole"))
    assert export_unfinished([RECIPE], killed, to, rounds=4) == [to / ARCHIVE]
    assert b"/data" not in gzip.decompress((to / ARCHIVE).read_bytes())
    begun: list[int] = []

    def train(name: str, job: Any, directory: Path) -> None:
        begun.append(max(RunDirectory(directory).checkpoints.rounds()))
        job.run(directory, resume=True)

    (done,) = reproduce([RECIPE], "/elsewhere", there, rounds=4, changes=EVERY, known=[to], train=train)
    reproduce([RECIPE], "/elsewhere", whole, rounds=4, changes=EVERY)
    assert (done.status, begun) == ("done", [2])
    assert files_of(RECIPE.folder(there, 0)) == files_of(RECIPE.folder(whole, 0))
    server = "checkpoints/00000004-server.safetensors"
    assert (RECIPE.folder(there, 0) / server).read_bytes() == (RECIPE.folder(whole, 0) / server).read_bytes()
    assert not list(there.rglob("*.part"))

    export([RECIPE], there, to, rounds=4)  # it is whole, and its archive has no use
    assert export_unfinished([RECIPE], there, to, rounds=4) == []
    assert not (to / ARCHIVE).exists()
    assert export_unfinished([RECIPE], killed, to, rounds=4) == []  # the whole one is there


@pytest.mark.slow
def test_an_archive_goes_on_with_the_settings_and_the_seed_that_are_asked_for(killed: Path, tmp_path: Path) -> None:
    to, out = tmp_path / "to", tmp_path / "out"
    export_unfinished([RECIPE], killed, to)
    (to / ARCHIVE).with_name("seed-1.tar.gz").write_bytes((to / ARCHIVE).read_bytes())
    other = dataclasses.replace(RECIPE, changes={"local.lr": 0.5})
    assert not import_unfinished(other, 0, out, [to])
    assert not import_unfinished(RECIPE, 1, out, [to])
    assert not import_unfinished(RECIPE, 0, out, [tmp_path])
    assert [p for p in out.rglob("*") if p.is_file()] == []
    assert import_unfinished(RECIPE, 0, out, [to])
    assert not import_unfinished(RECIPE, 0, out, [to])  # what is there stays
    (there,) = reproduce([RECIPE], "/data", tmp_path / "short", rounds=1, known=[to])  # fewer than it has
    assert there.status == "there"


def test_failed_runs_have_no_archive(killed: Path, tmp_path: Path) -> None:
    place = made(tmp_path / "out", RECIPE, 0, 40.0, rounds=3)
    (place / FAILED).write_bytes(reading.sealed({"why": "the loss is NaN"}))
    export_unfinished([RECIPE], killed, tmp_path / "to")
    assert export_unfinished([RECIPE], tmp_path / "out", tmp_path / "to") == []
    assert not (tmp_path / "to" / ARCHIVE).exists()


def test_archives_have_a_bounded_size_together(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed(RECIPE.folder(killed, 0))
    assert data is not None
    for limit in ("MOST", "_UNPACKED"):
        monkeypatch.setattr(unfinished_runs, limit, len(data))
        other = tmp_path / limit / "a" / "seed-7.tar.gz"
        other.parent.mkdir(parents=True)
        other.write_bytes(b"1")
        with pytest.warns(SettingWarning, match=r"seed-0 is not exported .*: copy the directory itself$"):
            assert export_unfinished([RECIPE], killed, tmp_path / limit) == []
        monkeypatch.undo()


def test_a_damaged_run_is_named_and_stops_no_other(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "out")
    (RECIPE.folder(tmp_path / "out", 0) / "checkpoints" / "00000002-server.safetensors").write_bytes(b"x")
    with pytest.warns(StorageWarning, match=r"seed-0 is not exported to go on elsewhere: .*-server.safetensors is not"):
        assert export_unfinished([RECIPE], tmp_path / "out", tmp_path / "to") == []


def tar(*members: tuple[str, bytes, bytes], pad: int = 0) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, data in members:
            about = tarfile.TarInfo(name)
            about.type, about.size, about.linkname = kind, len(data), "/etc/passwd" if kind != b"0" else ""
            archive.addfile(about, io.BytesIO(data))
    return gzip.compress(out.getvalue() + bytes(pad))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (tar(("../manifest.json", b"0", b"{}")), r"'\.\./manifest\.json' is no file that a run writes"),
        (tar(("/manifest.json", b"0", b"{}")), "'/manifest.json' is no file that a run writes"),
        (tar(("checkpoints/../00000001.json", b"0", b"{}")), "is no file that a run writes"),
        (tar(("analysis/x.csv", b"0", b"")), "'analysis/x.csv' is no file that a run writes"),
        (tar(("manifest.json", tarfile.SYMTYPE, b"")), "'manifest.json' is no file that a run writes"),
        (tar(("manifest.json", tarfile.LNKTYPE, b"")), "'manifest.json' is no file that a run writes"),
        (tar(("manifest.json", tarfile.FIFOTYPE, b"")), "'manifest.json' is no file that a run writes"),
        (tar(("checkpoints", tarfile.DIRTYPE, b"")), "'checkpoints' is no file that a run writes"),
        (tar(*[("manifest.json", b"0", b"{}")] * 2), "or there twice"),
        (tar(pad=unfinished_runs._UNPACKED), "it unpacks to more than 80,000,000 bytes"),
        (bytes(unfinished_runs.MOST + 1), "it has more than 20,000,000 bytes"),
        (b"PK\x03\x04", "Not a gzipped file"),
        (tar(("manifest.json", b"0", b"{}"))[:-20], "end-of-stream marker"),
        (gzip.compress(b"x" * 1024), "bad checksum|truncated header|invalid header"),
        (tar(("metrics.jsonl", b"0", b"{}")), "manifest.json is missing"),
    ],
    ids=range(15),
)
def test_archives_of_strangers_are_refused_and_leave_nothing(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "to" / ARCHIVE
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(DamageError, match=f"{why}.*"):
        import_unfinished(RECIPE, 0, tmp_path / "out", [tmp_path / "to"])
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.slow
def test_what_verification_finds_is_refused(killed: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    (path,) = export_unfinished([RECIPE], killed, to)
    contents = unpacked(path)
    lines = [json.loads(line) for line in contents["metrics.jsonl"].splitlines()]
    lines[1]["train_loss"] = 0.0
    contents["metrics.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(tar(*[(name, b"0", data) for name, data in contents.items()]))
    with pytest.raises(DamageError, match=r"seed-0.tar.gz is no run that can go on: .*metrics.jsonl.*; delete it to b"):
        import_unfinished(RECIPE, 0, tmp_path / "out", [to])
    assert not list((tmp_path / "out").rglob("seed-*"))
