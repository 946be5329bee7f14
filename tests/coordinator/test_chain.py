"""What a resume trusts and may delete: the chain of run, manifest, index, states and logs."""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_resume import everything, interrupted, same_end

from fedloom import FedAvg, PFedSD, RunSettings, run, verify
from fedloom.coordinator import History, Job, check_free, directory as directory_module, run_documents as reading
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.errors import DamageError, FedloomError, SettingError, StorageError, StorageWarning
from fedloom.report import summary, write_report
from fedloom.storage import files
from tiny import LOCAL, federation, linear

SETTINGS = RunSettings(rounds=6, cohort_size=3, engine="loop", threads=1, keep_every=3)
JOB = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
NEWEST, SERVER = "checkpoints/00000006.json", "checkpoints/00000006-server.safetensors"


@functools.cache
def whole(seed: int = 0) -> History:
    return _job(seed).run()


def _job(seed: int = 0, **more: Any) -> Job:
    return dataclasses.replace(JOB, settings=dataclasses.replace(SETTINGS, seed=seed, **more))


@pytest.fixture
def done(tmp_path: Path) -> Path:
    JOB.run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The same with another seed."""
    _job(1).run(tmp_path / "other")
    return tmp_path / "other"


def content(path: Path) -> dict[str, Any]:
    return reading.unsealed(path.read_bytes())


def refused(directory: Path, message: str, *, kind: type[FedloomError] = DamageError, job: Job = JOB) -> None:
    before = everything(directory)
    with pytest.raises(kind, match=message):
        job.run(directory, resume=True)
    assert everything(directory) == before


# ---- checkpoints that cannot be seen (D1)


@pytest.mark.slow
def test_a_run_whose_checkpoints_are_away_is_not_begun_again(done: Path) -> None:
    (done / "checkpoints").rename(done / "away")
    refused(done, r"metrics\.jsonl holds more than round 0, but .*checkpoints holds no checkpoint: bring .* back")
    assert not verify(done).whole
    (done / "away").rename(done / "checkpoints")
    assert same_end(whole(), JOB.run(done, resume=True))


@pytest.mark.slow
def test_checkpoints_that_cannot_be_listed_are_an_error(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def denied(path: Any) -> Any:
        if str(path).endswith("checkpoints"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    refused(done, "cannot read .*checkpoints: Permission denied; make it readable", kind=StorageError)
    assert "cannot read" in verify(done).problems[0]
    (done / "metrics.jsonl").unlink()
    (done / "manifest.json").unlink()
    with pytest.raises(StorageError, match="cannot read"):
        check_free(done)


@pytest.mark.slow
def test_states_without_their_indexes_are_not_overwritten(done: Path) -> None:
    for path in (done / "checkpoints").glob("*.json"):
        path.unlink()
    for name in ("metrics.jsonl", "timing.jsonl"):
        (done / name).write_bytes((done / name).read_bytes().split(b"\n")[0] + b"\n")
    refused(done, r"is of a later round, but .* holds no checkpoint: bring its \.json files back")


@pytest.mark.slow
@pytest.mark.parametrize("left", [None, 0, 5, 30, "line"])
def test_what_was_killed_before_its_first_checkpoint_is_begun_again(left: Any, done: Path) -> None:
    shutil.rmtree(done / "checkpoints")
    for name in ("metrics.jsonl", "timing.jsonl"):
        data = (done / name).read_bytes()
        (done / name).unlink()
        if left is not None:
            (done / name).write_bytes(data[: data.index(b"\n") + 1 if left == "line" else left])
    assert verify(done).whole
    assert same_end(whole(), JOB.run(done, resume=True))
    assert verify(done).round == 6


# ---- the index belongs to its run, its states and its logs (D2, D3)


def edited(change: Callable[[dict[str, Any]], None], *, seal: bool) -> Callable[[Path, Path], None]:
    """A change of the newest index. `seal`: with a digest that fits, as from a program that knows the format."""

    def do(directory: Path, _: Path) -> None:
        index = content(directory / NEWEST)
        old = reading.sealed(index)
        change(index)
        data = reading.sealed(index)
        (directory / NEWEST).write_bytes(data if seal else data[:-36] + old[-36:])

    return do


def swap_clients(index: dict[str, Any]) -> None:
    a, b = list(index["clients"])[:2]
    index["clients"][a], index["clients"][b] = index["clients"][b], index["clients"][a]


def drop_client(index: dict[str, Any]) -> None:
    del index["clients"][next(iter(index["clients"]))]


def rename_client(to: str) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        index["clients"] = {to if i == 0 else k: f for i, (k, f) in enumerate(index["clients"].items())}

    return change


def setting(*place: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        for name in place[:-1]:
            index = index[name]
        index[place[-1]] = to

    return change


def state_of(round: int) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        client, (name, digest) = next(iter(index["clients"].items()))
        index["clients"][client] = [name[:9] + f"{round:08}.safetensors", digest]

    return change


def nul(index: dict[str, Any]) -> None:
    index["clients"][next(iter(index["clients"]))][0] += "\0"


def copied(source: str, target: str) -> Callable[[Path, Path], None]:
    """`source`: from run/ or other/."""
    return lambda directory, _: shutil.copy(directory.parent / source, directory / target) and None


def client_file_of_another(directory: Path, _: Path) -> None:
    a, b = (directory / "checkpoints/clients" / f[0] for f in list(content(directory / NEWEST)["clients"].values())[:2])
    shutil.copy(a, b)


def replace_text(name: str, old: bytes, new: bytes) -> Callable[[Path, Path], None]:
    def do(directory: Path, _: Path) -> None:
        data = (directory / name).read_bytes()
        assert old in data
        (directory / name).write_bytes(data.replace(old, new, 1))

    return do


def digit(name: str, line: int = 2) -> Callable[[Path, Path], None]:
    """Another digit at the end of a number of a log."""

    def do(directory: Path, _: Path) -> None:
        lines = (directory / name).read_bytes().split(b"\n")
        at = lines[line].index(b"0.") + 6
        lines[line] = lines[line][:at] + bytes([(lines[line][at] - 47) % 10 + 48]) + lines[line][at + 1 :]
        (directory / name).write_bytes(b"\n".join(lines))

    return do


def all_checkpoints(directory: Path, other: Path) -> None:
    shutil.rmtree(directory / "checkpoints")
    shutil.copytree(other / "checkpoints", directory / "checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(swap_clients, seal=False), r"00000006\.json is not a checkpoint of this run.* its digest"),
        (edited(swap_clients, seal=True), "is no state of client"),
        (edited(drop_client, seal=False), "its digest is that of other content"),
        (edited(rename_client("5"), seal=False), "its digest is that of other content|is no state of client 5"),
        (edited(rename_client("6"), seal=True), r"client must be in 0\.\.5, got '6'"),
        (edited(rename_client("-1"), seal=True), r"client must be in 0\.\.5, got '-1'"),
        (edited(rename_client("00"), seal=True), r"client must be in 0\.\.5, got '00'"),
        (edited(state_of(1), seal=False), "its digest is that of other content"),
        (edited(state_of(1), seal=True), r"00000001\.safetensors"),
        (edited(state_of(7), seal=True), r"is no state of client \d up to round 6"),
        (edited(nul, seal=True), "is no state of client"),
        (edited(setting("server", to=["00000005-server.safetensors", "0" * 32]), seal=True), "stands where '00000006-"),
        (edited(setting("server", to=None), seal=True), "None is no file of a checkpoint"),
        (edited(setting("clients", to=[]), seal=True), "clients and logs must be mappings"),
        (edited(setting("logs", "metrics.jsonl", to=[-1, "0" * 32]), seal=True), "is no length and digest of a log"),
        (edited(setting("logs", "metrics.jsonl", to=7), seal=True), "7 is no length and digest of a log"),
        (edited(setting("logs", "metrics.jsonl", to=[7, None]), seal=True), "is no length and digest of a log"),
        (edited(setting("round", to=5), seal=True), "it is of round 5"),
        (edited(lambda index: index.pop("before"), seal=True), "before must be a list of indexes, got None"),
        (edited(setting("before", to=[["00000006.json", "0" * 32]]), seal=True), "is no index of a round before 6"),
        (edited(setting("before", to=[["../x.json", "0" * 32]]), seal=True), "is no index of a round before 6"),
        (edited(setting("format", to=1), seal=True), "format must be 2, got 1"),
        (edited(setting("run", to="0" * 32), seal=True), "it belongs to another run"),
        (copied("run/checkpoints/00000005.json", NEWEST), "it is of round 5"),
        (copied("run/checkpoints/00000005-server.safetensors", SERVER), "is not what was written"),
        (copied(f"other/{SERVER}", SERVER), "is not what was written"),
        (copied(f"other/{NEWEST}", NEWEST), "it belongs to another run"),
        (client_file_of_another, "is not what was written there"),
        (all_checkpoints, "it belongs to another run"),
        (digit("metrics.jsonl"), r"metrics\.jsonl was changed: its first .* bytes are not those"),
        (digit("timing.jsonl"), r"timing\.jsonl was changed: its first .* bytes are not those"),
        (copied("other/metrics.jsonl", "metrics.jsonl"), r"metrics\.jsonl"),
        (replace_text("metrics.jsonl", b'{"round": 1,', b'["round", 1,'), r"metrics\.jsonl, line 2: "),
        (replace_text("metrics.jsonl", b'{"round": 1,', b'{"round": 1, "round": 1,'), "names must be unique"),
        (replace_text("metrics.jsonl", b'"bytes_up": ', b'"bytes_up": -'), "bytes_up must be an integer >= 0"),
        (replace_text("timing.jsonl", b'"train": ', b'"train": NaN, "x": '), "numbers must be finite"),
        (replace_text("manifest.json", b'"lam": 1.0', b'"lam": 1.5'), r"manifest\.json is damaged: its digest"),
        (replace_text("manifest.json", b'"threads": 1', b'"threads": 2'), r"manifest\.json is damaged"),
        (copied("other/manifest.json", "manifest.json"), r"settings\.json is not what manifest\.json has the digest"),
        (replace_text("settings.json", b'"rounds": 6', b'"rounds": 7'), r"settings\.json is not what manifest\.json"),
        (replace_text("federation.json", b'"clients": 6', b'"clients": 7'), r"federation\.json is not what"),
    ],
)  # fmt: skip
def test_what_is_not_of_this_run_is_refused_by_name(
    change: Callable[[Path, Path], None], message: str, done: Path, other: Path
) -> None:
    change(done, other)
    refused(done, message)
    found = verify(done)
    assert not found.whole
    assert any(reading.re.search(message, problem) for problem in found.problems), found.problems


@pytest.mark.slow
def test_a_state_is_named_by_the_round_that_made_it(done: Path) -> None:
    """So that a state of an older checkpoint is never written over."""
    asked = [record.get("clients", []) for record in History.read(done).metrics]
    for client, (name, _) in content(done / NEWEST)["clients"].items():
        last = max(t for t, clients in enumerate(asked) if int(client) in clients)
        assert name.endswith(f"-{last:08}.safetensors")


@pytest.mark.slow
def test_a_record_that_is_no_object_is_refused(done: Path) -> None:
    lines = (done / "metrics.jsonl").read_bytes().split(b"\n")
    lines[1] = b"[1]" + b" " * (len(lines[1]) - 3)
    (done / "metrics.jsonl").write_bytes(b"\n".join(lines))
    refused(done, r"metrics\.jsonl, line 2: a JSON object is needed, got \[1\]; the checkpoints are untouched")


@pytest.mark.slow
def test_digests_of_the_logs_go_on_where_a_run_goes_on(tmp_path: Path) -> None:
    interrupted(JOB, tmp_path, after=3)
    JOB.run(tmp_path, resume=True)
    size, digest = content(tmp_path / NEWEST)["logs"]["metrics.jsonl"]
    assert (size, digest) == (len(data := (tmp_path / "metrics.jsonl").read_bytes()), files.digest(data))
    assert verify(tmp_path).whole


@pytest.mark.slow
def test_settings_that_were_lost_are_written_again(done: Path) -> None:
    before = everything(done)
    (done / "settings.json").unlink()
    assert not verify(done).whole
    JOB.run(done, resume=True)
    assert everything(done) == before


# ---- each index names those before it


def seal_anew(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = content(path)
    change(index)
    path.write_bytes(reading.sealed(index))


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3, 4, 100])
def test_each_checkpoint_that_stands_is_named_by_the_next(every: int, tmp_path: Path) -> None:
    """Whatever was deleted between them, and also where the run was stopped and goes on."""
    job = _job(keep_every=every, rounds=9)
    interrupted(job, tmp_path, after=5)
    job.run(tmp_path, resume=True)
    paths = sorted((tmp_path / "checkpoints").glob("*.json"))
    assert [int(p.stem) for p in paths] == sorted({0, 8, 9, *range(0, 10, every)})
    for one, after in itertools.pairwise(paths):
        assert [one.name, files.digest(one.read_bytes())] in content(after)["before"]
    assert (verify(tmp_path).whole, verify(tmp_path).notes) == (True, [])


@pytest.mark.slow
def test_an_older_index_that_was_sealed_anew_is_found_by_the_next(done: Path) -> None:
    old = done / "checkpoints/00000003.json"
    seal_anew(old, drop_client)
    (problem, *_) = verify(done).problems
    assert problem == f"{old} is not the index after which 00000006.json was written: it was changed since"
    before = everything(done)
    for use in (lambda: JOB.run(done, resume=True, at=3), lambda: JOB.replay(done, 4), lambda: JOB.restore(done, 3)):
        with pytest.raises(
            DamageError, match=r"00000003\.json is not the index after which 0000000[56]\.json was written"
        ):
            use()
    assert everything(done) == before
    with pytest.warns(StorageWarning, match="set-aside/1"):
        assert same_end(whole(), JOB.run(done, resume=True))
    assert (done / "set-aside/1/checkpoints/00000003.json").exists()
    assert verify(done).whole


@pytest.mark.slow
def test_a_newest_index_that_was_sealed_anew_and_names_an_older_state_is_refused(done: Path) -> None:
    seal_anew(done / NEWEST, drop_client)
    message = r"clients/0.*\.safetensors is a later state of client \d than its index names: that was changed"
    assert [re.search(message, problem) is not None for problem in verify(done).problems] == [True]
    refused(done, f"the checkpoint of round 6 is damaged: .*{message}; the one before")


@pytest.mark.slow
def test_a_newest_index_that_names_an_older_state_is_refused(done: Path) -> None:
    """Of a client that took part in the round before the newest and in the newest."""

    def older(index: dict[str, Any]) -> None:
        for client, (name, _) in index["clients"].items():
            states = sorted((done / "checkpoints/clients").glob(f"{int(client):08d}-*"))
            if states[0].name < name:
                index["clients"][client] = [states[0].name, files.digest(states[0].read_bytes())]
                return
        raise AssertionError("no client has an older state")

    seal_anew(done / NEWEST, older)
    refused(done, r"is a later state of client \d than its index names")
    assert not verify(done).whole


@pytest.mark.slow
def test_what_was_changed_everywhere_and_sealed_anew_has_another_root(done: Path) -> None:
    """Nothing in the directory tells; whoever has written the root down knows."""
    root = verify(done).root
    seal_anew(done / NEWEST, drop_client)
    for index in sorted((done / "checkpoints").glob("*.json"))[:-1]:
        index.unlink()
    index = content(done / NEWEST)
    for path in (done / "checkpoints").rglob("*.safetensors"):
        if path.name not in {name for name, _ in (index["server"], *index["clients"].values())}:
            path.unlink()
    assert verify(done).whole
    assert verify(done).root != root


# ---- documents of strange shape (D8)


def bent(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        manifest = content(directory / "manifest.json")
        change(manifest)
        (directory / "manifest.json").write_bytes(reading.sealed(manifest, indent=2))

    return do


def nested(directory: Path) -> None:
    (directory / "manifest.json").write_text('{"format": 2, "fixed": ' + "[" * 900 + "]" * 900 + "}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bent(setting("fixed", to=None)), "fixed must be a mapping, got None"),
        (bent(setting("fixed", "threads", to=-1)), r"fixed\.threads must be an integer in 1\.\.4096, got -1"),
        (bent(setting("fixed", "threads", to="1")), r"fixed\.threads must be .* got '1'"),
        (bent(setting("fixed", "threads", to=10**12)), r"fixed\.threads must be .* got 1000000000000"),
        (bent(setting("fixed", "threads", to=2)), r"fixed\.threads must be 1, as run\.threads, got 2"),
        (bent(setting("fixed", "chunks", to=[3])), r"fixed\.chunks must be a mapping of architectures"),
        (bent(setting("fixed", "compilation", to=None)), r"fixed\.compilation must be a text"),
        (
            bent(setting("engine", to="quick")),
            "engine must be one of loop, stacked, workers, stacks, gloo, mpi, devices, got 'quick'",
        ),
        (bent(setting("engine_reason", to=7)), "engine_reason must be a text, got 7"),
        (bent(setting("run", to="x")), "run must be a mapping, got 'x'"),
        (bent(setting("run", "checkpoint_every", to=0)), r"run\.checkpoint_every must be an integer >= 1, got 0"),
        (bent(setting("federation", "clients", to="6")), r"federation\.clients must be an integer >= 1"),
        (bent(setting("documents", to={"../x": []})), "documents must be names and digests"),
        (bent(lambda manifest: manifest.pop("documents")), "documents must be names and digests, got None"),
        (bent(setting("initial", to={"Linear": 3})), "initial must be a mapping to texts"),
        (bent(setting("start", to={"file": "x"})), "start must be a file and its digest"),
        (bent(setting("format", to="2")), "format must be an integer, got '2'"),
        (bent(lambda manifest: manifest.pop("format")), "format must be an integer, got None"),
        (nested, "JSON is nested too deeply"),
    ],
)
def test_a_manifest_is_checked_before_it_is_used(change: Callable[[Path], None], message: str, done: Path) -> None:
    change(done)
    for use in (lambda: JOB.run(done, resume=True), lambda: JOB.replay(done, 2), lambda: JOB.restore(done)):
        with pytest.raises(DamageError, match=rf"manifest\.json is damaged: {message}"):
            use()
    assert any("manifest.json is damaged" in problem for problem in verify(done).problems)


# ---- new runs and old files (D4, D12, U1)


@pytest.mark.slow
def test_a_new_run_does_not_mix_with_old_checkpoints(done: Path) -> None:
    for path in done.iterdir():
        if path.name != "checkpoints":
            path.unlink()
    for resume in (False, True):
        with pytest.raises(SettingError, match="checkpoints holds files of another run"):
            JOB.run(done, resume=resume)


@pytest.mark.slow
def test_a_run_that_came_in_between_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Job.check

    def slow(job: Job) -> None:
        monkeypatch.setattr(Job, "check", check)
        JOB.run(tmp_path)
        check(job)

    monkeypatch.setattr(Job, "check", slow)
    with pytest.raises(SettingError, match="already holds a run"):
        _job(1).run(tmp_path)
    assert same_end(whole(), JOB.run(tmp_path, resume=True))


@pytest.mark.slow
def test_somebodys_settings_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("mine")
    with pytest.warns(StorageWarning, match="have names that a run needs are now in .*set-aside/1"):
        JOB.run(tmp_path)
    assert (tmp_path / "set-aside/1/settings.json").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["two/fedavg/seed-0", "two/fedavg", "two/a/b/c"])
def test_a_run_stands_neither_above_nor_below_others(place: str, tmp_path: Path) -> None:
    JOB.run(tmp_path / place)
    with pytest.raises(SettingError, match=r"holds several runs \(.*go on with one of them"):
        JOB.run(tmp_path / "two")
    for below in ("x", "x/y/z"):
        with pytest.raises(SettingError, match=r"is inside of a run, .* choose another directory"):
            JOB.run(tmp_path / place / below)


# ---- nothing is lost (D9)


@pytest.mark.slow
def test_an_older_index_that_is_damaged_goes_aside_with_its_files(done: Path) -> None:
    index = content(done / "checkpoints/00000003.json")
    data = (done / "checkpoints/00000003.json").read_bytes()
    (done / "checkpoints/00000003.json").write_bytes(data[:-9])
    before = everything(done)
    own = {name for name, _ in index["clients"].values()}
    for t in (0, 5, 6):
        own -= {name for name, _ in content(done / f"checkpoints/{t:08d}.json")["clients"].values()}
    with pytest.warns(StorageWarning, match=r"file\(s\) that are of no use .*/set-aside/1; delete"):
        assert same_end(whole(), JOB.run(done, resume=True))
    assert own
    after = everything(done)
    for name, data in before.items():
        aside = "checkpoints/00000003" in name or Path(name).name in own
        assert after[f"set-aside/1/{name}" if aside else name] == data
    notes = ["1 older checkpoint(s) that none after them names: the root says nothing of them"]  # that of round 0
    assert (verify(done).whole, verify(done).notes) == (True, notes)


@pytest.mark.slow
def test_what_cannot_be_read_is_not_called_damaged(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Path.read_bytes
    for name in (NEWEST, "checkpoints/00000003.json", "checkpoints/00000006-server.safetensors", "metrics.jsonl"):

        def read_bytes(path: Path, name: str = name) -> bytes:
            if str(path).endswith(name):
                raise OSError(errno.EIO, "Input/output error")
            return load(path)

        before = everything(done)
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        with pytest.raises(StorageError, match=r"cannot read .*: Input/output error; make it readable") as error:
            JOB.run(done, resume=True)
        assert not isinstance(error.value, DamageError)
        assert "--at" not in str(error.value)
        assert not verify(done).whole
        monkeypatch.undo()
        assert everything(done) == before


@pytest.mark.slow
def test_files_of_others_stay_where_they_are(done: Path) -> None:
    for name in ("notes.txt", "clients/notes.txt", "clients/00000001.safetensors.bak", "x.part", "6.json"):
        (done / "checkpoints" / name).write_text("mine")
    JOB.run(done, resume=True)
    for name in ("notes.txt", "clients/notes.txt", "clients/00000001.safetensors.bak", "x.part", "6.json"):
        assert (done / "checkpoints" / name).read_text() == "mine"


@pytest.mark.slow
def test_states_whose_index_is_lost_go_aside(done: Path) -> None:
    before = everything(done)
    (done / "checkpoints/00000003.json").unlink()
    assert "an index is missing" in verify(done).problems[0]
    with pytest.warns(StorageWarning, match="set-aside/1"):
        JOB.run(done, resume=True)
    aside = {str(p.relative_to(done / "set-aside/1")) for p in (done / "set-aside/1").rglob("*") if p.is_file()}
    assert "checkpoints/00000003-server.safetensors" in aside
    after = everything(done)
    assert all(
        data in (after.get(n), after.get(f"set-aside/1/{n}")) for n, data in before.items() if "03.json" not in n
    )


@pytest.mark.slow
def test_rounds_beyond_those_of_a_kill_are_set_aside(done: Path) -> None:
    before = everything(done)
    for t in (5, 6):
        (done / f"checkpoints/{t:08d}.json").unlink()
    assert "checkpoints are missing" in verify(done).problems[0]
    with pytest.warns(StorageWarning, match="set-aside/1"):
        assert same_end(whole(), JOB.run(done, resume=True))
    assert (done / "set-aside/1/metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    assert (done / "set-aside/1/checkpoints/00000006-server.safetensors").exists()


@pytest.mark.slow
def test_the_rounds_of_a_kill_are_cut(tmp_path: Path) -> None:
    job = _job(checkpoint_every=4)
    interrupted(job, tmp_path, after=3)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "gl')
    found = verify(tmp_path)
    assert (found.whole, found.notes) == (True, ["what the logs hold after round 0 will be computed again"])
    assert same_end(whole(), job.run(tmp_path, resume=True))
    assert not (tmp_path / "set-aside").exists()


@pytest.mark.slow
def test_a_tail_that_no_run_wrote_is_set_aside(done: Path) -> None:
    with (done / "metrics.jsonl").open("ab") as file:
        file.write(b"notes\n")
    assert "does not end as a run does" in verify(done).problems[0]
    with pytest.warns(StorageWarning, match="set-aside/1"):
        JOB.run(done, resume=True)
    assert (done / "set-aside/1/metrics.jsonl").read_bytes().endswith(b"notes\n")
    assert verify(done).whole


@pytest.mark.slow
def test_deleting_a_checkpoint_can_be_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left over is known to be so: nothing goes aside, and verify says that all is well."""
    job = _job(keep_every=100)
    rename, remove, steps = files.rename, files.remove, 0

    def counted(do: Callable[..., None], stop: int) -> Callable[..., None]:
        def step(*args: Any) -> None:
            nonlocal steps
            steps += 1
            if steps > stop:
                raise KeyboardInterrupt
            do(*args)

        return step

    for stop in range(0, 40, 3):
        steps, folder = 0, tmp_path / str(stop)
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", counted(rename, stop))
            patch.setattr(files, "remove", counted(remove, stop))
            with pytest.raises(KeyboardInterrupt) if stop < 15 else _whatever():
                job.run(folder)
        assert verify(folder).whole, verify(folder).problems
        job.run(folder, resume=True)
        assert not (folder / "set-aside").exists()
        assert verify(folder).notes == []
        assert (folder / "metrics.jsonl").read_bytes().count(b"\n") == 7


class _whatever:  # noqa: N801
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> bool:
        return True


# ---- what is in the way


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "checkpoints", "checkpoints/clients", "set-aside"])
def test_a_link_is_not_written_through(name: str, done: Path, tmp_path: Path) -> None:
    (done / "set-aside").mkdir()
    (done / name).rename(tmp_path / "elsewhere")
    (done / name).symlink_to(tmp_path / "elsewhere")
    before = everything(tmp_path)
    for job in (JOB, _job(rounds=8)):
        with pytest.raises(SettingError, match=rf"{name} is a link, and would be written through: remove it, or name"):
            job.run(done, resume=True)
    assert everything(tmp_path) == before


@pytest.mark.slow
def test_a_new_run_writes_through_no_link_either(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    for name in (".lock", "timing.jsonl"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
        with pytest.raises(SettingError, match=rf"{name} is a link, and would be written through"):
            JOB.run(tmp_path / "run")
        (tmp_path / "run" / name).unlink()
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "place").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "place")  # the directory itself may be one
    JOB.run(tmp_path / "latest")


@pytest.mark.slow
def test_a_folder_in_the_place_of_an_old_state_stops_no_run(tmp_path: Path) -> None:
    job = _job(keep_every=100)
    interrupted(job, tmp_path, after=4)
    state = tmp_path / "checkpoints/00000003-server.safetensors"  # to be deleted after the next round
    state.unlink()
    state.mkdir()
    (state / "mine").write_text("mine")
    with pytest.warns(StorageWarning) as warned:
        assert same_end(whole(), job.run(tmp_path, resume=True))
    damaged, moved = (str(one.message) for one in warned)
    assert f"is damaged: {state} is missing: Is a directory; fedloom verify lists all" in damaged
    assert re.search(r"1 file\(s\) that are folders in the place of old states .*set-aside/1", moved)
    assert (tmp_path / "set-aside/1/checkpoints" / state.name / "mine").read_text() == "mine"
    assert verify(tmp_path).whole


def test_checkpoints_that_cannot_be_made_are_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def refuse(path: Path, *args: Any, **how: Any) -> None:
        if path.name == "checkpoints":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        make(path, *args, **how)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match=r"cannot write in .*checkpoints: Permission denied; name"):
        JOB.run(tmp_path)


@pytest.mark.slow
def test_a_run_stays_in_its_directory_wherever_its_owner_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    JOB.run("run", on_round=lambda _: os.chdir(tmp_path / "there"))
    assert not list((tmp_path / "there").iterdir())
    assert verify(tmp_path / "here/run").whole


# ---- locks (D11)


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said(code: int, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(StorageWarning, match="has no locks .* nothing guards the run against a second process") as said:
        assert same_end(whole(), JOB.run(done, resume=True))
    assert len(said) == 1


@pytest.mark.slow
def test_another_failure_of_a_lock_is_an_error(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    refused(done, "cannot lock .*: Input/output error", kind=StorageError)


# ---- more rounds, killed at any moment


@pytest.mark.slow
def test_giving_a_run_more_rounds_can_be_killed_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.write
    for stop in range(4):
        folder, count = tmp_path / str(stop), 0
        JOB.run(folder)

        def limited(place: Path, name: str, data: bytes, *, sync: bool = True, stop: int = stop) -> Any:
            nonlocal count
            if name.endswith(".json") and place.name != "checkpoints":
                count += 1
                if count > stop:
                    raise KeyboardInterrupt
            return write(place, name, data, sync=sync)

        monkeypatch.setattr(files, "write", limited)
        if stop < 3:  # the manifest with both digests, the settings, the manifest
            with pytest.raises(KeyboardInterrupt):
                _job(rounds=8).run(folder, resume=True)
        monkeypatch.undo()
        assert verify(folder).whole, verify(folder).problems
        history = _job(rounds=8).run(folder, resume=True)
        assert len(history.metrics) == 9
        assert verify(folder).whole
        named = content(folder / "manifest.json")["documents"]
        assert all(len(digests) == 1 for digests in named.values())


# ---- runs of other formats


def with_facts(directory: Path, **changes: Any) -> None:
    """Rewrite the manifest of a run with other facts; None leaves one out. Format 1 had no digest of the manifest."""
    facts = content(directory / "manifest.json") | changes
    facts = {name: value for name, value in facts.items() if value is not None or name not in changes}
    sealed = reading.sealed(facts, indent=2) if facts["format"] != 1 else json.dumps(facts).encode()
    (directory / "manifest.json").write_bytes(sealed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"format": 1, "documents": None, "initial": None}, "1"),
        ({"format": 3}, "3"),
        ({"initial": None}, "2 in an early form"),
        ({"later": ["initial"]}, "2 in an early form"),
        ({"unproved": 3}, "2 in an early form"),
    ],
)
def test_a_run_of_another_format_is_refused_alike_wherever_it_is_used(
    changes: dict[str, Any], kind: str, done: Path, tmp_path: Path
) -> None:
    with_facts(done, **changes)
    before = everything(done)
    message = (
        f"{done} holds a run of format {kind}, and format 2 is read: run it again; its metrics.jsonl is plain text"
    )
    for use in (
        lambda: JOB.run(done, resume=True),
        lambda: JOB.replay(done, 2),
        lambda: JOB.restore(done),
        lambda: JOB.branch(done, tmp_path / "branch"),
        lambda: History.read(done),
        lambda: summary(done),
        lambda: write_report(done, tmp_path / "page"),
    ):
        with pytest.raises(StorageError) as error:
            use()
        assert str(error.value) == message
    assert verify(done).problems == [message]
    assert everything(done) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.slow
def test_a_run_whose_manifest_says_from_where_it_is_chained_goes_on(tmp_path: Path) -> None:
    """It is written no longer, and is no part of what a run is known by."""
    interrupted(JOB, tmp_path, after=4)
    with_facts(tmp_path, chained=0)
    assert same_end(whole(), JOB.run(tmp_path, resume=True))
    assert (verify(tmp_path).whole, verify(tmp_path).notes) == (True, [])
    assert content(tmp_path / "manifest.json")["chained"] == 0


def test_a_fingerprint_leaves_out_what_may_differ() -> None:
    facts: Mapping[str, Any] = {
        "format": 2,
        "run": {"rounds": 3, "seed": 0},
        "federation": {"clients": 4},
        "versions": {},
    }
    same = {**facts, "run": {"rounds": 9, "seed": 0}, "versions": {"torch": "3"}, "engine_reason": "x", "chained": 0}
    assert directory_module.identity(facts).fingerprint == directory_module.identity(same).fingerprint
    other = {**facts, "run": {"rounds": 3, "seed": 1}}
    assert directory_module.identity(facts).fingerprint != directory_module.identity(other).fingerprint


def test_a_run_directory_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(DamageError, match="holds no run that can be read"):
        RunDirectory(tmp_path).manifest()
    assert verify(tmp_path).problems


def test_fedavg_without_clients_states_is_whole(tmp_path: Path) -> None:
    run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path)
    assert verify(tmp_path).whole
    assert verify(tmp_path).checkpoints == 4


# ---- runs of versions that knew fewer settings


def forgets(directory: Path, *places: tuple[str, ...]) -> None:
    """Rewrite a run as a version wrote it that did not know the settings at these places of the manifest."""
    manifest = reading.manifest(directory)
    for *above, name in places:
        del functools.reduce(lambda part, key: part[key], above, manifest)[name]
    (directory / "manifest.json").write_bytes(reading.sealed(manifest, indent=2))
    digests = dict[str, str]()
    for path in sorted((directory / "checkpoints").glob("*.json")):
        index = content(path) | {"run": directory_module.identity(manifest).fingerprint}
        index["before"] = [[name, digests.get(name, digest)] for name, digest in index["before"]]
        path.write_bytes(reading.sealed(index))
        digests[path.name] = files.digest(path.read_bytes())


LATER = [
    ("hyper_parameters", "teacher_max_age"),
    ("hyper_parameters", "kd_warmup_rounds"),
    ("hyper_parameters", "local", "steps"),
    ("run", "per_client"),
    ("run", "stateless"),
]


@pytest.mark.slow
def test_a_run_that_knew_fewer_settings_goes_on_with_their_defaults(tmp_path: Path) -> None:
    interrupted(JOB, tmp_path, after=4)
    forgets(tmp_path, *LATER)
    assert verify(tmp_path).whole
    assert same_end(whole(), JOB.run(tmp_path, resume=True))
    found = verify(tmp_path)
    assert (found.whole, found.round) == (True, 6)
    JOB.restore(tmp_path, 3)  # by what it was known before, and
    JOB.restore(tmp_path, 6)  # since


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher_max_age": 2}, "hyper_parameters.teacher_max_age was null and is 2"),
        ({"local": dataclasses.replace(LOCAL, steps=3)}, "hyper_parameters.local.steps was null and is 3"),
    ],
)
def test_a_setting_that_came_later_is_no_less_compared(change: dict[str, Any], message: str, done: Path) -> None:
    forgets(done, *LATER)
    refused(
        done, message, kind=SettingError, job=dataclasses.replace(JOB, algorithm=PFedSD(**{"local": LOCAL, **change}))
    )
