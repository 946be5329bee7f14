"""Ranks that are devices, as processes: `fedloom serve` at one, `fedloom join` at the others."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedloom.cli.main import main
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.data import LabelDrift, Window
from fedloom.deploy import rank_transports
from fedloom.deploy.initial_weights import Start
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.serve import _bounds, _described, settings_of
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.export import export
from fedloom.experiments.settings_file import read_settings

sys.path.insert(0, str(Path(__file__).parents[2]))

import launching
import site_devices
from two_folders import IDS, SETTINGS, arrays, commands, lines, of_loop, unlike_its_log, with_run, written


@pytest.mark.slow
def test_a_federation_of_two_folders_survives_its_server(tmp_path: Path) -> None:
    """The server is killed, both devices end, change places and join again; then the numbers are those of the loop."""
    federation, log = written(tmp_path, rounds=30), tmp_path / "out" / "metrics.jsonl"
    ranks = launching.gloo(commands(tmp_path, [0, 1]))
    until = time.monotonic() + 280
    while lines(log) < 6 and time.monotonic() < until and ranks[0].poll() is None:
        time.sleep(0.01)
    ranks[0].send_signal(signal.SIGKILL)
    found = launching.ended(ranks)
    assert [status for status, _ in found[1:]] == [2, 2], found
    assert all(
        "the server is gone: start it with --resume, and start this device again" in text for _, text in found[1:]
    )
    assert 6 <= lines(log) < 31
    found = launching.ended(launching.gloo(commands(tmp_path, [1, 0], "--resume")))
    assert [status for status, _ in found] == [0, 0, 0], found
    assert all("for trusted networks only" in text for _, text in found)
    assert log.read_bytes() == of_loop(tmp_path, federation)
    # what a user does with a run then
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "model.safetensors")]) == 0
    audit = (tmp_path / "out" / "audit.jsonl").read_text()
    assert audit.count('"joined"') == 4
    kept = list((tmp_path / "state0" / "runs").glob("*/*.safetensors"))
    assert 1 <= len(kept) <= 2
    assert "2 of 2 devices have their models of round 30 in their folders" in found[0][1]
    assert "round 30: train_loss " in found[1][1]
    assert "personal model after round 30: " in found[1][1]


@pytest.mark.slow
def test_examples_of_devices_arrive_and_drift_as_in_the_loop(tmp_path: Path) -> None:
    """By the rules in the server's settings; of which examples a device has, the server knows how many."""
    federation = written(tmp_path, rounds=5)
    told = 'data.arrives = "window:0.4:5"\ndata.drift = "labels:2:0.5"\n' + (tmp_path / "fed.toml").read_text()
    (tmp_path / "fed.toml").write_text(told)
    found = launching.ended(launching.gloo(commands(tmp_path, [0, 1])))
    assert [status for status, _ in found] == [0, 0, 0], found
    changing = dataclasses.replace(federation, arrives=Window(0.4, 5), drift=LabelDrift(2, share=0.5))
    assert len({changing.at(0).train.y.tolist() == changing.at(4).train.y.tolist(), True}) == 2  # a client drifts
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == of_loop(tmp_path, changing)


@pytest.mark.slow
def test_a_device_that_was_killed_comes_back(tmp_path: Path) -> None:
    """It is asked again, at its state, and the numbers are those of the loop that loses it in the meantime."""
    import served

    assert served.returned(tmp_path) == []
    assert (tmp_path / "out" / "audit.jsonl").read_text().count('"joined"') == 3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["kt_pfl", "feddf"])
def test_public_examples_are_the_servers(algorithm: str, tmp_path: Path) -> None:
    """Devices get them when they join; the numbers are those of the loop."""
    federation = written(tmp_path, rounds=3)
    x, y = arrays(5, [0, 1, 2], 40)
    np.savez(tmp_path / "public.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    more = f'data.public_source = "{tmp_path / "public.npz"}"\ndata.public = 30\ndata.public_labels = true\n'
    told = (tmp_path / "fed.toml").read_text().replace('"pfedsd"', f'"{algorithm}"')
    (tmp_path / "fed.toml").write_text(more + told)
    found = launching.ended(launching.gloo(commands(tmp_path, [0, 1])))
    assert [status for status, _ in found] == [0, 0, 0], found
    public = catalogue.public(str(tmp_path / "public.npz"), federation.train, 30, 0)
    whole = dataclasses.replace(federation, public=public, public_labels=True)
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == of_loop(tmp_path, whole)
    if algorithm == "feddf":
        assert main(["export", str(tmp_path / "out"), str(tmp_path / "model.safetensors")]) == 0


@pytest.mark.slow
def test_a_student_that_one_device_lacks_is_taught_by_both(tmp_path: Path) -> None:
    """Two networks over Gloo; then one of both declines the upload, which is of both or of none."""
    rng, y = np.random.default_rng(0), np.arange(24) % 3
    for k in range(2):
        x = rng.normal(size=(24, 1, 8, 8)).astype(np.float32)
        (tmp_path / f"data{k}").mkdir()
        np.savez(tmp_path / f"data{k}" / "mine.npz", x_train=x[:18], y_train=y[:18], x_test=x[18:], y_test=y[18:])
        (tmp_path / f"state{k}").mkdir()
        (tmp_path / f"state{k}" / "id").write_text(IDS[k])
        np.savez(tmp_path / "test.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (tmp_path / "fed.toml").write_text(
        SETTINGS.replace('"pfedsd"', '"dense"').replace('"logistic"', '"mlp,logistic"') % 2
        + 'dense = {student = "logistic", T_G = 2, ngf = 4, nz = 4, synthesis.batch_size = 8}\n'
    )
    found = launching.ended(launching.gloo(commands(tmp_path, [0, 1])))
    assert [status for status, _ in found] == [0, 0, 0], found
    assert not any("lambda1 = 1" in text for _, text in found[1:])
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [record.get("failed", {}) for record in records] == [{}, {}, {}]
    assert records[-1]["server_teachers"] == 2
    shutil.rmtree(tmp_path / "out")
    server, one, other = commands(tmp_path, [0, 1])
    found = launching.ended(launching.gloo([server, one, [*other, "--memory", "1e9"]]))
    assert found[0][0] != 0
    assert "DENSE is taught by the models of at least 2 devices (--least), got 1 in round 1" in found[0][1]
    server, one, other = commands(tmp_path, [0, 1], "--resume", "--least", "1")
    found = launching.ended(launching.gloo([server, one, [*other, "--memory", "1e9"]]))
    assert found[0][0] == 0, found
    assert json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])["server_teachers"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedper"])
def test_five_tables_are_prepared_by_the_statistics_of_all(algorithm: str, tmp_path: Path) -> None:
    """Over Gloo, with a numeric target, categories, gaps and columns in five orders: the bits of the simulation."""
    site_devices.write_sites(tmp_path)
    words = site_devices.settings(algorithm)
    site_devices.write_settings(tmp_path, words)
    found = launching.ended(launching.gloo(site_devices.commands(tmp_path)))
    assert [status for status, _ in found] == [0] * 6, found
    assert "tables are prepared by the statistics of 5 devices, " in found[0][1]
    assert f"client 2 is device {2:032x} (Kiel)" in found[0][1]  # as its file
    site_devices.simulated(tmp_path, words)
    site_devices.check_same_run(tmp_path / "out", tmp_path / "simulated", exactly=algorithm == "fedper")
    if algorithm == "fedper":  # which has no global model
        return
    models = [tmp_path / f"{run}.safetensors" for run in ("out", "simulated")]
    for model in models:
        assert main(["export", str(tmp_path / model.stem), str(model)]) == 0
    ours, theirs = map(load_file, models)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not taken from")
def test_a_start_goes_to_devices_once_and_the_numbers_are_those_of_the_loop(tmp_path: Path) -> None:
    """Two runs of a network of which a part is frozen, and which takes that part from the server's file. It comes with
    the first run, to a device where an earlier transfer broke off the rest of it; in the second it is there.
    """
    federation, start = written(tmp_path, rounds=3), tmp_path / "start.safetensors"
    (network,) = catalogue.models("mlp", federation.train).values()
    model = Model(network, name="mlp")
    export(model, model.init(7), start)
    told = (tmp_path / "fed.toml").read_text().replace('"logistic"', '"mlp"')
    (tmp_path / "fed.toml").write_text(f'start = "{start}"\nstart_only = "* !last:1"\nfrozen = "* !last:1"\n{told}')
    (model,) = Experiment.of(read_settings(tmp_path / "fed.toml")).models(federation.train).values()
    begun, cut = Start.of(model), 1000
    (tmp_path / "state1" / "starts").mkdir()
    (tmp_path / "state1" / "starts" / f"{begun.digest}.part.safetensors").write_bytes(begun.data[:cut])
    want, sent, size = of_loop(tmp_path, federation), [], len(begun.data)
    for run in (1, 2):
        found = launching.ended(launching.gloo(commands(tmp_path, [0, 1])))
        assert [status for status, _ in found] == [0, 0, 0], found
        assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == want
        lines = [json.loads(line) for line in (tmp_path / "out" / "audit.jsonl").read_text().splitlines()]
        sent.append([line["bytes"] for line in lines if line["event"] == "started"])
        if run == 1:
            (tmp_path / "out").rename(tmp_path / "out1")
    assert [sorted(each) for each in sent] == [[size - cut, size], [0, 0]]
    for k in (0, 1):
        (kept,) = (tmp_path / f"state{k}" / "starts").iterdir()
        assert (kept.stem, kept.stat().st_size) == (begun.digest, size)
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "model.safetensors")]) == 0
    trained, began = (load_file(tmp_path / name) for name in ("model.safetensors", "start.safetensors"))
    moved = [name for name in began if not torch.equal(began[name], trained[name])]
    assert sorted(moved) == ["classifier.bias", "classifier.weight"]
    results = [*(tmp_path / "state0" / "results").iterdir()]
    assert len(results) == 2  # of the two runs; a device predicts by the frozen part that the server's file had
    for k, run in enumerate((*results, tmp_path / "out")):
        client = ["--client", "global"] * (run in results)
        out = ["--out", str(tmp_path / f"{k}.csv")]
        assert main(["predict", str(run), "--data", str(tmp_path / "test.npz"), *client, *out]) == 0
    assert len({(tmp_path / f"{k}.csv").read_text() for k in range(3)}) == 1


@pytest.mark.slow
def test_a_run_that_cannot_begin_is_no_server_that_is_gone(tmp_path: Path) -> None:
    """Its settings want more devices than there are: all hear it, and the next try is not in the way of this one."""
    written(tmp_path, rounds=3)
    told = (tmp_path / "fed.toml").read_text()
    (tmp_path / "fed.toml").write_text(told.replace("cohort_size = 2", "cohort_size = 3"))
    found = launching.ended(launching.gloo(commands(tmp_path, [0, 1])))
    assert [status for status, _ in found] == [2, 2, 2], found
    assert all("cohort_size = 3 is larger" in text and "server is gone" not in text for _, text in found), found
    assert not (tmp_path / "out" / "devices.json").exists()


def over_mpi(folder: Path, devices: int = 2) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    programs = [[*program, "--transport", "mpi"] for program in commands(folder, [*range(devices)])]
    context: list[str] = []
    for program in programs[1:]:
        context += [":", "-np", "1", sys.executable, *program]
    found = launching.ended(launching.mpi([*programs[0], *context], size=1))
    assert [status for status, _ in found] == [0], found


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "topk:0.3+bits:4"])
def test_over_mpi(compression: str, tmp_path: Path) -> None:
    federation = written(tmp_path, rounds=3)
    with_run(tmp_path, compression=compression)
    over_mpi(tmp_path)
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == of_loop(tmp_path, federation)


@pytest.mark.slow
def test_over_mpi_nobody_is_waited_for(tmp_path: Path) -> None:
    """Uploads by an encoder, too."""
    federation = written(tmp_path, rounds=12, devices=3)
    with_run(tmp_path, cohort_size=3, asynchrony="fedbuff:size=2", compression="bits:4", eval_every=12)
    over_mpi(tmp_path, 3)
    assert unlike_its_log(tmp_path, federation, 12) == []


# ---- what is refused before anything begins


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": {"clients": 5}}, r"devices bring their own examples, so data.clients has no meaning here"),
        ({"algorithm": "centralised"}, "centralised pools the examples of all clients: change"),
        ({"algorithm": "kt_pfl"}, "public examples are the server's, which data.public_source names: change"),
        ({"data": {"public": 5}}, "public examples are the server's, which data.public_source names: change"),
        ({"model": "small:Tiny"}, "devices import no code that a server names, such as small:Tiny"),
        ({"clients": {"new": "2"}}, "clients.new needs training"),
        (
            {"clients": {"attack": "labels", "attackers": "0.5"}},
            "clients.attack simulates clients that lie, which devices are not",
        ),
        ({"run": {"partial_sums": 2}}, "run.partial_sums is for ranks, and each device answers for itself"),
        ({"run": {"privacy": "examples:epsilon=3,delta=1e-5,clip=1"}}, "devices know the noise by the settings of th"),
        ({"run": {"evaluate_training": True}}, "run.evaluate_training needs numbers that devices do not send"),
        ({"run": {"per_client": True}}, "run.per_client needs numbers that devices do not send"),
        ({"run": {"engine": "loop"}}, "run.engine = 'loop' simulates clients"),
        ({"run": {"compilation": "trace"}}, "run.compilation = 'trace' is for a simulation"),
    ],
)
def test_settings_that_devices_have_no_use_for(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        settings_of(settings)


def test_a_message_about_settings_names_their_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.toml").write_text("[run]\nroundz = 2\n")
    words = ["--settings", f"{tmp_path}/bad.toml", "--out", f"{tmp_path}/out", "--transport", "nats", "--least", "2"]
    assert main(["serve", *words]) == 2
    assert f"{tmp_path}/bad.toml: run has no setting 'roundz'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_server_bounds_uploads_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    assert settings_of({}).run.bound == "refuse:median:5"
    assert settings_of({"run": {"bound": "clip:3"}}).run.bound == "clip:3"
    for off in ({"run": {"bound": "none"}}, {"run.bound": "none"}):
        assert settings_of(off).run.bound == "none"
    masked = settings_of({"run": {"secure_aggregation": "range=8"}}).run
    assert (masked.bound, masked.on_nonfinite) == ("none", "stop")  # it refuses others
    settings, registry = settings_of({}).run, Registry("a" * 32, (), "", 90)
    assert _bounds(settings, registry) == (
        "at most 90 examples of a device count (--most-examples); uploads whose difference to what was sent has a norm "
        "above 5 times the median of their kind are refused (--bound)"
    )

    def said(**more: Any) -> str:
        return _bounds(dataclasses.replace(settings, **more), registry).partition("; uploads ")[2]

    assert "refused, once 3 were accepted (" in said(cohort_size=2)
    assert said(bound="clip:2", cohort_size=2).endswith("has a norm above 2 are clipped (--bound)")
    assert said(bound="refuse:sent:10").endswith("above 10 times the norm of what was sent are refused (--bound)")
    assert said(bound="none") == "have no bound (--bound)"


def test_a_server_may_name_rules_by_which_devices_change_their_data() -> None:
    rules = {"arrives": "window:0.4:5", "drift": "labels:2:0.5"}
    data = settings_of({"data": {**rules, "classes": 3}}).data
    assert (data.arrives, data.drift) == (rules["arrives"], rules["drift"])


@pytest.mark.parametrize(("more", "name"), [((), "mine"), (("--name", "Kiel"), "Kiel"), (("--name", ""), "")])
def test_a_device_joins_by_the_name_of_the_flag_or_of_its_file(
    more: tuple[str, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(tmp_path, rounds=1)
    _, joins, _ = ([*program[2:]] for program in commands(tmp_path, [0, 1]))
    members = []
    for what, returned in (("rank_here", 1), ("meeting_point", "here"), ("communication", None)):
        monkeypatch.setattr(rank_transports, what, lambda *_, returned=returned, **__: returned)
    monkeypatch.setattr(rank_transports, "take_part", lambda _, member: members.append(member))
    assert main([*joins, *more]) == 0
    assert [member.name for member in members] == [name]
    assert f"device {name + ', ' * bool(name)}{IDS[0]}, examples of" in capsys.readouterr().out


def test_the_server_says_which_client_is_which_device() -> None:
    made = Registration("0" * 32, (3, 2), (1, 0), (0, 0), (4,), "float32")
    devices = tuple(dataclasses.replace(made, id=f"{k:032x}", name=f"site {k}") for k in range(22))
    lines = _described(Registry("f" * 32, devices), Path("devices.json"))
    assert lines[1] == f"client 1 is device {1:032x} (site 1)"
    assert lines[19:] == [f"client 19 is device {19:032x} (site 19)", "and 2 more: devices.json"]
    assert _described(Registry("f" * 32, (made, made)), Path("devices.json")) == []


def test_who_serves_and_who_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, rounds=1)
    serve, join, _ = ([*program[2:]] for program in commands(tmp_path, [0, 1]))
    for command in (serve, join):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "error: --transport gloo needs at least 2 ranks" in said
        assert "launch them by fedloom serve with RANK=0 and fedloom join with 1, 2, ..." in said
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("RANK", "1")
    assert main(serve) == 2
    assert "fedloom serve runs at rank 0, got another rank" in capsys.readouterr().err.replace("\n", " ")
    monkeypatch.setenv("RANK", "0")
    assert main(join) == 2
    assert "fedloom join runs at ranks 1, 2, ..., got rank 0" in capsys.readouterr().err.replace("\n", " ")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "devices.json").write_text("{}")
    assert main([*serve, "--metrics"]) == 2
    assert "--metrics needs the port of --page, got none: give --page 8080" in capsys.readouterr().err.replace(
        "\n", " "
    )
    assert main([*serve, "--least", "0"]) == 2
    assert "--least at least 1 device" in capsys.readouterr().err.replace("\n", " ")
    assert main(serve) == 2
    assert "names the devices of another run: continue that run (--resume)" in capsys.readouterr().err.replace(
        "\n", " "
    )
