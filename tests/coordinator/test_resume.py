"""Runs survive: killed at any moment, with a full disk, with damaged files; and past rounds can be computed again."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedloom import FedAvg, Federation, FedNTD, LocalOnly, NewClients, PFedSD, RunSettings, Scaffold, run, verify
from fedloom.coordinator import History, Job, run_documents as reading
from fedloom.core import tree
from fedloom.core.client import on_client
from fedloom.core.errors import SettingError, SettingWarning, StorageError, StorageWarning
from fedloom.core.random import normal
from tiny import LOCAL, federation, linear, mlp

SETTINGS = RunSettings(rounds=6, cohort_size=3, engine="loop", threads=1, keep_every=3)
ENGINES = ("loop", "stacked")


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def same_end(a: History, b: History) -> bool:
    states = sorted(a.clients) == sorted(b.clients) and all(same(a.clients[k], b.clients[k]) for k in a.clients)
    return states and same(a.server, b.server) and a.metrics == b.metrics


def stop_at(round: int) -> Any:
    def on_round(history: History) -> None:
        if history.metrics[-1]["round"] == round:
            raise KeyboardInterrupt

    return on_round


def interrupted(job: Job, directory: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        job.run(directory, on_round=stop_at(after))


# ---- going on


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [FedAvg(local=LOCAL), Scaffold(local=LOCAL), PFedSD(local=LOCAL)])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(algorithm: Any, engine: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, engine=engine)
    whole = run(algorithm, federation(), mlp, settings, directory=tmp_path / "whole")
    job = Job(algorithm=algorithm, federation=federation(), model=mlp, settings=settings)
    interrupted(job, tmp_path / "cut", after=4)
    seen = []
    resumed = job.run(tmp_path / "cut", resume=True, on_round=lambda h: seen.append(h.metrics[-1]["round"]))
    assert seen == [5, 6]
    assert same_end(whole, resumed)
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert [t["round"] for t in resumed.timing] == list(range(7))
    again = job.run(tmp_path / "cut", resume=True)  # nothing is left to do
    assert same_end(whole, again)


@pytest.mark.slow
def test_rounds_between_checkpoints_are_computed_again(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, checkpoint_every=4)
    job = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=settings)
    whole = job.run(tmp_path / "whole")
    interrupted(job, tmp_path / "cut", after=3)
    assert len((tmp_path / "cut/metrics.jsonl").read_text().splitlines()) == 4
    seen = []
    assert same_end(whole, job.run(tmp_path / "cut", resume=True, on_round=lambda h: seen.append(len(h.metrics) - 1)))
    assert seen == [1, 2, 3, 4, 5, 6]
    assert Path(tmp_path / "whole/checkpoints/00000004.json").exists()


@pytest.mark.slow
def test_a_finished_run_can_be_given_more_rounds(tmp_path: Path) -> None:
    long = run(Scaffold(local=LOCAL), federation(), linear, SETTINGS)
    short = dataclasses.replace(SETTINGS, rounds=2)
    run(Scaffold(local=LOCAL), federation(), linear, short, directory=tmp_path)
    assert same_end(long, run(Scaffold(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path, resume=True))
    for name in ("settings.json", "manifest.json"):  # the next one who resumes it need not know
        assert json.loads((tmp_path / name).read_text())["run"]["rounds"] == 6


@pytest.mark.slow
def test_rounds_that_are_done_are_not_asked_away(tmp_path: Path) -> None:
    run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    short = dataclasses.replace(SETTINGS, rounds=3)
    with pytest.raises(SettingError, match=r"round 6 of .* is done, so rounds \(--rounds\) must be at least 6, got 3"):
        run(FedAvg(local=LOCAL), federation(), linear, short, directory=tmp_path, resume=True)
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=short)
    with pytest.warns(StorageWarning, match="goes on from round 3"):  # whoever goes back may
        history = job.run(tmp_path, resume=True, at=3)
    assert len(history.metrics) == 4


@pytest.mark.slow
def test_resuming_starts_what_was_never_begun(tmp_path: Path) -> None:
    history = run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path / "new", resume=True)
    assert len(history.metrics) == 7


@pytest.mark.slow
def test_states_on_disk_change_nothing(tmp_path: Path) -> None:
    whole = run(PFedSD(local=LOCAL), federation(), mlp, SETTINGS)
    settings = dataclasses.replace(SETTINGS, state_memory_mib=1)
    job = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=lambda: mlp(40_000), settings=settings)
    spilled = job.run(tmp_path)  # 2.4 MB a state
    assert len(spilled.metrics) == len(whole.metrics)
    assert spilled.clients._bytes <= 1 << 20  # type: ignore[attr-defined]
    free = dataclasses.replace(settings, state_memory_mib=None)
    assert same_end(spilled, run(PFedSD(local=LOCAL), federation(), lambda: mlp(40_000), free))


@pytest.mark.slow
def test_kept_checkpoints_are_the_last_two_and_every_third(tmp_path: Path) -> None:
    run(PFedSD(local=LOCAL), federation(), linear, dataclasses.replace(SETTINGS, rounds=8), directory=tmp_path)
    kept = sorted(int(p.stem) for p in (tmp_path / "checkpoints").glob("*.json"))
    assert kept == [0, 3, 6, 7, 8]
    servers = sorted(int(p.name[:8]) for p in (tmp_path / "checkpoints").glob("*-server.safetensors"))
    assert servers == kept
    manifests = [json.loads((tmp_path / f"checkpoints/{t:08d}.json").read_text()) for t in kept]
    named = {file[0] for m in manifests for file in m["clients"].values()}
    assert {p.name for p in (tmp_path / "checkpoints/clients").iterdir()} == named


@pytest.mark.slow
def test_going_on_from_an_older_checkpoint(tmp_path: Path) -> None:
    job = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
    whole = job.run(tmp_path)
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(StorageError, match="no checkpoint of round 4, only of 0, 3, 5, 6"):
        job.run(tmp_path, resume=True, at=4)
    before = everything(tmp_path)
    with pytest.warns(StorageWarning, match=r"are of no use to a run that goes on from round 3 are now in .*aside/1;"):
        assert same_end(whole, job.run(tmp_path, resume=True, at=3))
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics
    for name, data in before.items():  # what was dropped is aside, and the rest where it was
        assert data in (
            (tmp_path / place / name).read_bytes()
            for place in (".", "set-aside/1")
            if (tmp_path / place / name).exists()
        )
    assert (tmp_path / "set-aside/1/checkpoints/00000006.json").exists()
    with pytest.warns(StorageWarning, match=r"set-aside/2;"):
        job.run(tmp_path, resume=True, at=3)
    assert (tmp_path / "set-aside/2/metrics.jsonl").read_bytes() == metrics


# ---- what cannot go on


@pytest.fixture
def done(tmp_path: Path) -> Path:
    run(PFedSD(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path / "run")
    return tmp_path / "run"


def everything(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


JOB = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": dataclasses.replace(SETTINGS, seed=5)}, "run.seed was 0 and is 5"),
        ({"settings": dataclasses.replace(SETTINGS, dtype="float64")}, 'run.dtype was "float32" and is "float64"'),
        ({"settings": dataclasses.replace(SETTINGS, threads=2)}, "run.threads was 1 and is 2"),
        ({"algorithm": PFedSD(local=LOCAL, lam=0.3)}, "hyper_parameters.lam was 1.0 and is 0.3"),
        ({"algorithm": FedNTD(local=LOCAL)}, 'algorithm was "PFedSD" and is "FedNTD"'),
        ({"federation": federation(seed=3)}, "federation.parts.partition was"),
        ({"federation": federation(8)}, "federation.clients was 6 and is 8"),
        ({"model": mlp}, "models.Linear was 15 and is null"),
    ],
)
def test_another_run_is_refused_and_named(change: dict[str, Any], message: str, done: Path) -> None:
    before = everything(done)
    with pytest.raises(SettingError, match="holds a run with other settings or data") as error:
        dataclasses.replace(JOB, **change).run(done, resume=True)
    assert message in str(error.value)
    assert everything(done) == before


@pytest.mark.slow
def test_networks_in_another_order_are_another_run(tmp_path: Path) -> None:
    """Clients take them in turn, so that each would go on with the network of another."""
    models = {"a": linear, "b": mlp}
    job = dataclasses.replace(JOB, model=models)
    job.run(tmp_path / "run")
    swapped = dataclasses.replace(JOB, model=dict(reversed(models.items())))
    with pytest.raises(SettingError, match=r'models was \["a", "b"\] and is \["b", "a"\]'):
        swapped.run(tmp_path / "run", resume=True)


@pytest.mark.slow
def test_checkpoints_for_good_are_not_deleted_without_a_word(done: Path) -> None:
    longer = dataclasses.replace(SETTINGS, rounds=8, keep_every=5)
    assert [int(p.stem) for p in sorted((done / "checkpoints").glob("*.json"))] == [0, 3, 5, 6]
    with pytest.warns(SettingWarning, match=r"round 3 were .* keep_every = 3, and keep_every = 5 deletes them: resume"):
        dataclasses.replace(JOB, settings=longer).run(done, resume=True)
    assert [int(p.stem) for p in sorted((done / "checkpoints").glob("*.json"))] == [0, 5, 7, 8]


# ---- the weights that a run starts from


def other_linear() -> nn.Module:
    """The same network with other weights, which no name and no shape tells."""
    with torch.random.fork_rng():
        torch.manual_seed(77)
        return linear()


@pytest.mark.slow
def test_other_weights_to_start_from_are_refused_wherever_a_run_is_used(done: Path) -> None:
    """Also where the network is made by code of the run's owner, which has changed."""
    before = everything(done)
    for model in (other_linear(), other_linear):
        other = dataclasses.replace(JOB, model={"Linear": model})
        for use in (
            lambda other=other: other.run(done, resume=True),
            lambda other=other: other.replay(done, 2),
            lambda other=other: other.restore(done),
            lambda other=other: other.branch(done, done.parent / "branch"),
        ):
            with pytest.raises(SettingError, match=r"began with other weights of Linear: their digest was .* and is "):
                use()
    assert everything(done) == before
    same = dataclasses.replace(JOB, model={"Linear": JOB.population.models["Linear"]})
    same.restore(done)


@pytest.mark.slow
def test_weights_of_another_seed_are_no_reason_of_their_own(done: Path) -> None:
    with pytest.raises(SettingError, match=r"run\.seed was 0 and is 5") as error:
        dataclasses.replace(JOB, settings=dataclasses.replace(SETTINGS, seed=5)).run(done, resume=True)
    assert "initial" not in str(error.value)


@pytest.mark.slow
def test_changed_data_are_named(done: Path) -> None:
    changed = federation()
    x = changed.train.x.clone()
    x[7, 2] += 1
    other = dataclasses.replace(changed, train=dataclasses.replace(changed.train, x=x))
    with pytest.raises(SettingError, match=r"federation\.parts\.train was"):
        dataclasses.replace(JOB, federation=other).run(done, resume=True)


@pytest.mark.slow
def test_other_augmentation_is_refused(done: Path) -> None:
    """No fingerprint has it: it is no part of the examples, but of what networks train on."""
    with pytest.raises(SettingError, match=r'federation\.augment was null and is "<function _noisy>"'):
        NOISY.run(done, resume=True)


def _noisy(x: Tensor, key: Tensor) -> Tensor:
    return x + 0.01 * normal(key, 7, x.shape)


_TRAIN = dataclasses.replace(federation().train, augment=_noisy)
NOISY = dataclasses.replace(JOB, federation=dataclasses.replace(federation(), train=_TRAIN))


@pytest.mark.slow
def test_other_versions_are_warned_of(done: Path) -> None:
    path = done / "manifest.json"
    manifest = reading.manifest(done)
    path.write_bytes(reading.sealed({**manifest, "versions": {**manifest["versions"], "torch": "2.7.0"}}, indent=2))
    with pytest.warns(SettingWarning, match=r"started with torch 2\.7\.0"):
        JOB.run(done, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("checkpoints/00000006-server.safetensors", "cut"),
        ("checkpoints/00000006-server.safetensors", "changed"),
        ("checkpoints/00000006-server.safetensors", "missing"),
        ("checkpoints/00000006.json", "cut"),
        ("checkpoints/clients/*-00000006.safetensors", "cut"),
        ("checkpoints/clients/*-00000006.safetensors", "missing"),
        ("metrics.jsonl", "cut"),
        ("metrics.jsonl", "missing"),
        ("timing.jsonl", "changed"),
        ("manifest.json", "cut"),
    ],
)
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
def test_damage_is_named_and_nothing_is_lost(name: str, damage: str, done: Path) -> None:
    path = next(done.glob(name))
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:20] + b"\x07\x07" + data[22:])
    before = everything(done)
    with pytest.raises(StorageError, match=path.name):
        JOB.run(done, resume=True)
    assert everything(done) == before
    if name.startswith("checkpoints"):  # the one before is whole, and the message says so
        with pytest.raises(StorageError, match="resume from it with --at 5"):
            JOB.run(done, resume=True)
        with pytest.warns(StorageWarning, match="set-aside/1"):
            assert len(JOB.run(done, resume=True, at=5).metrics) == 7


@pytest.mark.slow
def test_a_manifest_of_strange_shape_is_refused(done: Path) -> None:
    for content in ("[]", '{"format": 2}', '{"format": 2, "round": 6, "server": ["../../x", "y"], "clients": {}}'):
        (done / "checkpoints/00000006.json").write_text(content)
        with pytest.raises(StorageError, match=r"00000006\.json is not a checkpoint"):
            JOB.run(done, resume=True)


def _limited(directory: str, width: int, limit: int, queue: Any) -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        _job(width).run(directory)
        queue.put("done")
    except StorageError as error:
        queue.put(f"StorageError: {error}")


def _job(width: int) -> Job:
    settings = dataclasses.replace(SETTINGS, rounds=20)
    return Job(
        algorithm=PFedSD(local=LOCAL), federation=federation(), model=functools.partial(mlp, width), settings=settings
    )


@pytest.mark.slow
@pytest.mark.parametrize(("width", "limit", "name"), [(5, 4500, "metrics.jsonl"), (300, 6000, "server.safetensors")])
def test_a_full_disk_is_an_error_and_nothing_is_lost(width: int, limit: int, name: str, tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for the disk: writing beyond it fails as on a full one."""
    whole, cut = _job(width).run(tmp_path / "whole"), tmp_path / "cut"
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    process = context.Process(target=_limited, args=(str(cut), width, limit, queue))
    process.start()
    said = queue.get(timeout=60)
    process.join()
    assert said.startswith("StorageError: cannot write"), said
    assert name in said
    assert "make room" in said
    assert not list(cut.rglob("*.part"))
    rounds = (cut / "metrics.jsonl").read_bytes().count(b"\n")
    assert rounds > 5 if name == "metrics.jsonl" else rounds == 1
    assert same_end(whole, _job(width).run(cut, resume=True))
    assert (cut / "metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_two_processes_do_not_write_in_one_directory(done: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (done / ".lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SettingError, match="being written by another process"):
            JOB.run(done, resume=True)


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingError, match="is a file"):
        JOB.run(tmp_path / "file")
    with pytest.raises(SettingError, match="give directory"):
        JOB.run(resume=True)


def test_metrics_without_a_manifest_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(SettingError, match="already holds a run"):
        JOB.run(tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == "mine"


# ---- past rounds


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_past_round_is_computed_again(engine: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, engine=engine)
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=mlp, settings=settings)
    servers: list[Any] = []
    job.run(tmp_path, on_round=lambda h: servers.append(h.server))
    before = everything(tmp_path)
    for round in (1, 2, 5, 6):
        replay = job.replay(tmp_path, round)
        assert same(replay.after, servers[round - 1])
        assert round == 1 or same(replay.before, servers[round - 2])
        trained = replay.trained()
        assert (
            sorted(trained)
            == sorted(replay.clients)
            == sorted(json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[round])["clients"])
        )
        sizes = federation().partition.sizes
        for name, t in replay.after[next(iter(replay.after))].params.items():
            parts = [float(sizes[k]) * trained[k].params[name].double() for k in sorted(trained)]
            mean = sum(parts) / float(sum(sizes[k] for k in trained))  # type: ignore[arg-type]
            torch.testing.assert_close(mean.float(), t)
    assert everything(tmp_path) == before
    for wrong in (0, 7):
        with pytest.raises(SettingError, match=f"has the rounds 1 to 6 to replay, got {wrong}"):
            job.replay(tmp_path, wrong)


@pytest.mark.slow
def test_a_replay_writes_nothing_even_where_states_are_on_disk(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, state_memory_mib=1)
    model = functools.partial(mlp, 40_000)
    job = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=model, settings=settings)
    whole = job.run(tmp_path)
    before = everything(tmp_path)
    job.replay(tmp_path, 5)
    assert everything(tmp_path) == before
    assert same_end(whole, job.run(tmp_path, resume=True))


@pytest.mark.slow
def test_a_replay_notices_that_the_code_has_changed(tmp_path: Path) -> None:
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=mlp, settings=SETTINGS)
    job.run(tmp_path)

    class Changed(FedAvg):
        def round(self, server: Any, cohort: Any) -> Any:
            return 1.001 * super().round(server, cohort)

    Changed.__name__ = "FedAvg"
    changed = dataclasses.replace(job, algorithm=Changed(local=LOCAL))
    with pytest.raises(SettingError, match="round 5 came out otherwise than in the run: the code"):
        changed.replay(tmp_path, 5)
    (tmp_path / "checkpoints/00000005.json").unlink()
    with (
        pytest.raises(SettingError, match=r"round 5 came out otherwise than in the run \(train_loss\)"),
        pytest.warns(StorageWarning, match="an index is missing"),
    ):
        changed.replay(tmp_path, 5)


@pytest.mark.slow
def test_a_replay_is_compared_with_the_states_of_clients_too(tmp_path: Path) -> None:
    """The server of local-only training has no state, and its losses are of the round, not of what is kept."""

    class Kept(LocalOnly):
        by: ClassVar[float] = 1.0

        @on_client
        def local_update(self, client: Any) -> Any:
            state, upload = super().local_update(client)
            return self.by * state, upload

    job = Job(algorithm=Kept(local=LOCAL), federation=federation(), model=mlp, settings=SETTINGS)
    job.run(tmp_path)
    job.replay(tmp_path, 6)
    Kept.by = 1.001
    with pytest.raises(SettingError, match="round 6 came out otherwise than in the run: the code"):
        job.replay(tmp_path, 6)


@pytest.mark.slow
def test_a_checkpoint_gives_global_and_personal_models(tmp_path: Path) -> None:
    job = Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
    history = job.run(tmp_path)
    restored = job.restore(tmp_path)
    assert restored.round == 6
    assert same(restored.global_weights()["Linear"], history.server["Linear"])
    client = next(iter(history.clients))
    assert same(restored.personal_weights(client), history.clients[client].v.value)
    assert job.restore(tmp_path, 3).round == 3
    with pytest.raises(StorageError, match="no checkpoint of round 2"):
        job.restore(tmp_path, 2)
    with pytest.raises(SettingError, match=r"client must be in 0\.\.5, got 6"):
        restored.personal_weights(6)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(StorageError, match="has no checkpoint"):
        job.restore(tmp_path)


# ---- stopping early


@pytest.mark.slow
def test_a_target_ends_the_run(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, rounds=50, target=0.6, eval_every=20)
    history = run(FedAvg(local=LOCAL), federation(), mlp, settings, directory=tmp_path)
    values = history.series("global_accuracy")
    assert values[-1] >= 0.6 > max(values[1:-1])
    assert history.stopped is not None
    assert "global accuracy reached" in history.stopped
    assert "personal_accuracy" in history.metrics[-1]  # the last round is evaluated, whatever eval_every says
    again = run(FedAvg(local=LOCAL), federation(), mlp, settings, directory=tmp_path, resume=True)
    assert again.stopped == history.stopped
    assert len(again.metrics) == len(history.metrics)


@pytest.mark.slow
def test_a_target_that_the_last_round_reaches_has_stopped_nothing(tmp_path: Path) -> None:
    first = run(FedAvg(local=LOCAL), federation(), mlp, SETTINGS, directory=tmp_path)
    settings = dataclasses.replace(SETTINGS, target=first.last("global_accuracy"))
    again = run(FedAvg(local=LOCAL), federation(), mlp, settings, directory=tmp_path, resume=True)
    assert again.metrics == first.metrics
    assert again.stopped is None
    more = dataclasses.replace(settings, rounds=SETTINGS.rounds + 1)
    stopped = run(FedAvg(local=LOCAL), federation(), mlp, more, directory=tmp_path, resume=True)
    assert stopped.metrics == first.metrics
    assert "global accuracy reached" in str(stopped.stopped)


@pytest.mark.slow
def test_patience_ends_the_run() -> None:
    settings = dataclasses.replace(SETTINGS, rounds=80, patience=4, monitor="global_loss")
    history = run(FedAvg(local=LOCAL), federation(), mlp, settings)
    values = history.series("global_loss")[1:]
    assert history.stopped is not None
    assert len(values) - 1 - int(values.argmin()) == 4


def test_what_is_not_measured_cannot_end_a_run() -> None:
    with pytest.raises(SettingError, match="monitor = 'val_accuracy' is measured on local_val"):
        run(FedAvg(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, monitor="val_accuracy", patience=3))
    with pytest.raises(SettingError, match="monitor must be one of"):
        run(FedAvg(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, monitor="luck"))


@pytest.mark.some(2)
@pytest.mark.parametrize("monitor", ["global_accuracy", "global_loss", "forgetting"])
def test_a_rule_that_waits_for_a_global_model_where_there_is_none_is_warned_of(monitor: Any) -> None:
    settings = dataclasses.replace(SETTINGS, rounds=1, monitor=monitor, target=0.5, patience=3)
    with pytest.warns(
        SettingWarning,
        match=rf"target = 0\.5 and patience = 3 can end no run of LocalOnly.* measure {monitor} on: set monitor to",
    ):
        run(LocalOnly(local=LOCAL), federation(), mlp, settings)


@pytest.mark.slow
def test_other_rules_are_not_warned_of() -> None:
    for monitor in ("personal_accuracy", "train_loss"):
        run(LocalOnly(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, monitor=monitor, patience=9))
    run(LocalOnly(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, rounds=1))
    run(FedAvg(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, rounds=1, patience=9))


@pytest.mark.slow
def test_an_extended_run_keeps_what_its_last_round_was_judged_by(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, rounds=3, eval_every=2)
    run(FedAvg(local=LOCAL), federation(), mlp, settings, directory=tmp_path)
    more = dataclasses.replace(settings, rounds=5)
    longer = run(FedAvg(local=LOCAL), federation(), mlp, more, directory=tmp_path, resume=True)
    whole = run(FedAvg(local=LOCAL), federation(), mlp, more)
    assert [m["round"] for m in longer if "personal_accuracy" in m] == [0, 2, 3, 4, 5]
    assert [m["round"] for m in whole if "personal_accuracy" in m] == [0, 2, 4, 5]
    for a, b in zip(longer, whole, strict=True):
        assert {name: a[name] for name in b} == b


def sparse(rounds: int, data: Federation | None = None, **settings: Any) -> Job:
    """A run that evaluates personal models after every fourth round."""
    new = NewClients(1, judged_by=("global",)) if data is None else None
    return Job(
        algorithm=PFedSD(local=LOCAL),
        federation=federation() if data is None else data,
        model=mlp,
        settings=dataclasses.replace(SETTINGS, rounds=rounds, **{"eval_every": 4, **settings}),
        new=new,
    )


ONLY_NOW = r"round {} of the run in .* was not the last when it was done.*: it is computed again, from .* of round {}"


@pytest.mark.some(1)
@pytest.mark.parametrize(("every", "rounds", "before"), [(1, 3, 2), (2, 2, 0)])
def test_a_round_that_is_the_last_one_only_now_is_computed_again(
    every: int, rounds: int, before: int, tmp_path: Path
) -> None:
    whole = sparse(rounds).run(tmp_path / "whole")
    interrupted(sparse(10, checkpoint_every=every), tmp_path / "cut", 3)
    with (
        pytest.warns(SettingWarning, match=ONLY_NOW.format(rounds, before)),
        pytest.warns(StorageWarning, match=f"of no use to a run that goes on from round {before}"),
    ):
        again = sparse(rounds).run(tmp_path / "cut", resume=True)
    assert same_end(whole, again)
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert verify(tmp_path / "cut").whole
    assert sparse(rounds).run(tmp_path / "cut", resume=True).metrics == whole.metrics  # and says nothing


@pytest.mark.slow
def test_going_back_to_a_round_as_the_last_computes_it_again(tmp_path: Path) -> None:
    whole = sparse(3).run(tmp_path / "whole")
    sparse(6).run(tmp_path / "long")
    with (
        pytest.warns(SettingWarning, match=ONLY_NOW.format(3, 0)),
        pytest.warns(StorageWarning, match="set-aside/1"),
    ):
        again = sparse(3).run(tmp_path / "long", resume=True, at=3)
    assert same_end(whole, again)
    assert (tmp_path / "long/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert (tmp_path / "long/set-aside/1/checkpoints/00000003.json").exists()


@pytest.mark.slow
def test_a_last_round_evaluates_new_clients_where_personal_models_were(tmp_path: Path) -> None:
    interrupted(sparse(10, eval_every=1), tmp_path, 2)
    with pytest.warns(SettingWarning, match=ONLY_NOW.format(2, 1)), pytest.warns(StorageWarning):
        again = sparse(2, eval_every=1).run(tmp_path, resume=True)
    assert again.metrics == sparse(2, eval_every=1).run().metrics


@pytest.mark.slow
def test_a_run_that_can_evaluate_nobody_is_not_computed_again(tmp_path: Path) -> None:
    data = federation(test_fraction=0.0)
    interrupted(sparse(10, data), tmp_path, 2)
    assert len(sparse(2, data).run(tmp_path, resume=True).metrics) == 3


@pytest.mark.slow
def test_a_branch_that_ends_where_it_begins_says_what_it_lacks(tmp_path: Path) -> None:
    interrupted(sparse(10), tmp_path / "first", 3)
    sparse(3).branch(tmp_path / "first", tmp_path / "second")
    with pytest.warns(SettingWarning, match="its record goes without, since there is no checkpoint before it"):
        found = sparse(3).run(tmp_path / "second", resume=True)
    assert len(found.metrics) == 4
    assert "new_by_client" not in found.metrics[-1]


def test_a_new_target_that_holds_already_ends_a_run_after_a_round_that_is_evaluated(tmp_path: Path) -> None:
    interrupted(sparse(10), tmp_path, 2)
    found = sparse(10, target=0.0).run(tmp_path, resume=True)
    assert "global accuracy reached" in str(found.stopped)
    assert [m["round"] for m in found] == [0, 1, 2, 3]
    assert {"personal_accuracy", "new_by_client"} <= found.metrics[-1].keys()
    again = sparse(10, target=0.0).run(tmp_path, resume=True)
    assert (again.metrics, again.stopped) == (found.metrics, found.stopped)


@pytest.mark.some(2)
@pytest.mark.parametrize("silent", [True, False, 0])
def test_a_reason_to_fail_is_words_or_none(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=rf"got {silent} for client \d in round 2: return 'switched off' or None"):
        run(
            *(FedAvg(local=LOCAL), federation(), mlp, SETTINGS),
            faults=lambda round, exchange, client: silent if round == 1 else None,
            directory=tmp_path,
        )
    assert History.read(tmp_path).metrics[-1]["round"] == 1
