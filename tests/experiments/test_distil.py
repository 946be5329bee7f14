"""`fedloom distil`: DENSE of models that plain PyTorch has trained, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from colours import examples
from commands import call, error, interrupted
from fedloom.cli.parser import parser
from fedloom.core.fold.execution import threads
from fedloom.experiments import distil
from fedloom.experiments.distil import asked, normalise_of, own_settings
from fedloom.models import build
from small import DenseTiny

MEAN, STD, TINY = 0.4, 0.25, (1, 2)  # the last: which models are DenseTiny, so that networks are not in turn
QUICK = ["--set", "T_G=2", "--set", "nz=6", "--set", "ngf=4", "--set", "synthesis.batch_size=8"]
QUICK += ["--set", "run.threads=1"]


def inputs(x: Tensor) -> Tensor:
    return (x - MEAN) / STD


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four models that know mostly two of four classes, trained without fedloom; and test examples."""
    folder = tmp_path_factory.mktemp("market")
    train, test = examples(160, 0), examples(80, 1)
    for k in range(4):
        torch.manual_seed(k)
        net: nn.Module = DenseTiny() if k in TINY else build("mlp", (3, 8, 8), 4)
        of = torch.isin(train.y, torch.tensor([k, (k + 1) % 4]))
        x, y = inputs(train.x[of]), train.y[of]
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        with threads(1):  # which wait for each other here
            for _ in range(25):
                optimiser.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimiser.step()
        torch.save(net.state_dict(), folder / f"seller-{k}.pt")
    as_bytes = [(part.x * 255).round().to(torch.uint8).numpy() for part in (train, test)]
    np.savez(folder / "data.npz", x_train=as_bytes[0], y_train=train.y, x_test=as_bytes[1], y_test=test.y)
    return folder


def words(market: Path, out: Path, **changed: str) -> list[str]:
    """The command of four models, with flags changed by name."""
    named = [f"{market}/seller-{k}.pt:{'small:DenseTiny' if k in TINY else 'mlp'}" for k in range(4)]
    flags = {"student": "small:DenseTiny", "shape": "3x8x8", "classes": "4", "normalise": f"{MEAN}/{STD}"}
    flags |= {"test": f"{market}/data.npz", "epochs": "2", "out": str(out)} | changed
    return ["distil", *named, *(w for name, value in flags.items() for w in (f"--{name}", value)), *QUICK]


@pytest.fixture(scope="module")
def finished(market: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is finished."""
    out = tmp_path_factory.mktemp("distilled") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out.parent)
        assert fl.cli.main.main(words(market, out)) == 0
    return out


def test_each_model_answers_as_it_did_and_all_together_as_their_mean(market: Path, finished: Path) -> None:
    data = np.load(market / "data.npz")
    x, y = inputs(torch.from_numpy(data["x_test"]) / 255), torch.from_numpy(data["y_test"])
    logits = []
    for k in range(4):
        net: nn.Module = DenseTiny() if k in TINY else build("mlp", (3, 8, 8), 4)
        net.load_state_dict(torch.load(market / f"seller-{k}.pt", weights_only=True))
        logits.append(net.eval()(x).detach())
    _, first, *epochs = fl.History.read(finished).metrics
    right = [float((each.argmax(1) == y).double().mean()) for each in logits]
    assert first["upload_accuracy"] == {str(k): pytest.approx(value) for k, value in enumerate(right)}
    assert first["ensemble_accuracy"] == pytest.approx(
        float((torch.stack(logits).mean(0).argmax(1) == y).double().mean())
    )
    assert first["ensemble_accuracy"] > max(right)
    assert first["train_loss"] is None  # nobody trained
    assert first["bytes_down"] == 0
    assert [e["server_teachers"] for e in epochs] == [4, 4]


def test_a_run_of_them_is_whole_and_its_student_is_exported(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, _ = call(capsys, "verify", str(finished))
    assert (status, "checkpoint(s): whole\n" in said) == (0, True)
    file = tmp_path / "student.pt"
    assert error(capsys, "export", str(finished), str(file)).startswith("the settings of the run in")  # names code
    assert call(capsys, "export", str(finished), str(file), "--allow-code")[0] == 0
    DenseTiny().load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.slow
def test_a_run_of_them_is_a_run(
    market: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed to the bits of one that was never ended, and reported; and files are as they were."""
    out, proof = str(tmp_path / "run"), {p.name: p.read_bytes() for p in market.glob("*.pt")}
    status, said, _ = call(capsys, *words(market, Path(out), epochs="1"))
    assert status == 0
    for name in ("seller-0", "seller-3", "all together", "student"):
        assert name in said
    status, said, _ = call(capsys, "resume", out, "--rounds", "3", "--allow-code")
    assert status == 0
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    assert call(capsys, "report", out)[0] == 0
    assert "on models trained elsewhere" in (tmp_path / "run/report/report.html").read_text()
    assert {p.name: p.read_bytes() for p in market.glob("*.pt")} == proof


def test_a_changed_file_is_noticed(
    market: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file, kept = tmp_path / "run", market / "seller-1.pt", tmp_path / "kept.pt"
    shutil.copytree(finished, out)
    shutil.copy(file, kept)
    try:
        shutil.copy(market / "seller-2.pt", file)
        status, said, _ = call(capsys, "verify", str(out))
        assert status == 1
        assert f"{file} is no longer the file that the run uploads, of SHA-256" in said
        assert "root:" not in said
        told = error(capsys, "resume", str(out), "--rounds", "4", "--allow-code")
        assert "is no longer the file that the run uploads" in told
        assert told.endswith(": bring back the file, or begin another run")
        file.unlink()
        status, said, _ = call(capsys, "verify", str(out))
        assert status == 0
        assert f"whole; {file}, a model that it uploads, is not here" in said
        assert call(capsys, "resume", str(out), "--rounds", "4", "--allow-code")[0] == 0  # all is in the checkpoint
    finally:
        shutil.copy(kept, file)


def test_what_the_manifest_says(market: Path, finished: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    (part,) = manifest["parts"]
    assert [model["file"] for model in part["models"]] == [f"{market}/seller-{k}.pt" for k in range(4)]
    assert {len(model["sha256"]) for model in part["models"]} == {64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "3x4x4"}, r"\[200, 192\], the model's has \[200, 48\]; a file has .*: name another of both"),
        ({"shape": "3x0x8"}, "--shape is that of an example, .*, got '3x0x8': write as in 1x28x28"),
        ({"normalise": "mean"}, r"MEANS/STDS by channel or mnist, .*, got 'mean': write as in 0\.1307/0\.3081"),
        ({"normalise": "0.5,0.5/1,1"}, "needs 1 mean or 3, as many as no examples has channels"),
        ({"method": "feddf"}, "got --method feddf with --public None: name feddf and a source, or neither"),
        ({"public": "mnist:x"}, "got --method dense with --public mnist:x: name feddf and a source, or neither"),
        ({"student": "lenat"}, "unknown model 'lenat'"),
        ({"set": "T"}, r"--set takes NAME=VALUE, got 'T': write as in --set T=4"),
        ({"set": "run.seed=3"}, "--set is for settings of dense and of the run that this command does not make itself"),
        ({"set": "data.clients=3"}, "--set is for settings of dense"),
        ({"set": "student=mlp"}, "--set is for settings of dense"),
        ({"set": "dense.X=1"}, "X"),
        ({"test": "fashion_mnist_small"}, "test examples are those of the models"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_written(
    change: dict[str, str], message: str, market: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = error(capsys, *words(market, tmp_path / "run", **change))
    assert re.search(message, told), told
    assert not (tmp_path / "run").exists()


def test_the_same_bytes_are_refused_and_one_model_is_warned_of(
    market: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = words(market, tmp_path / "run", epochs="1")[5:]
    copy = shutil.copy(market / "seller-0.pt", tmp_path / "copy.pt")
    told = error(capsys, "distil", f"{market}/seller-0.pt:mlp", f"{copy}:mlp", *flags)
    assert told == f"each model counts once, got the same bytes in {market}/seller-0.pt, {copy}: name one of them"
    status, _, err = call(capsys, "distil", f"{copy}:mlp", *flags)
    assert status == 0
    assert f"an ensemble has several models, got {copy}:mlp alone: the student imitates it" in err


def test_a_source_says_how_inputs_were_made() -> None:
    assert normalise_of("mnist") == "0.1307/0.3081"
    assert normalise_of("cifar100") == "0.5071,0.4865,0.4409/0.2673,0.2564,0.2762"
    assert normalise_of("0/1") == "0/1"


def test_settings_of_the_method_need_no_prefix() -> None:
    given = ["T=4", "synthesis.batch_size=8", "dense.nz=3", "run.threads=1", "data.public=9"]
    assert own_settings(given, "dense") == {
        "dense.T": "4",
        "dense.synthesis.batch_size": "8",
        "dense.nz": "3",
        "run.threads": "1",
        "data.public": "9",
    }


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fed_dafl", ["--set", "steps=2", "--set", "nz=6", "--set", "ngf=4"]),
        ("fed_adi", ["--set", "steps=2"]),
        ("feddf", ["--set", "steps=2"]),
    ],
)
def test_other_methods_have_the_same_ensemble(
    method: str, more: list[str], market: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = {"public": f"{market}/data.npz"} if method == "feddf" else {}
    student = {} if method != "fed_dafl" else {"student": "mlp"}  # which names its features
    flags = words(market, tmp_path / "run", method=method, epochs="1", **public, **student)[: -len(QUICK)]
    if method == "fed_dafl":
        flags[2:4] = []
    batch = ["--set", "run.threads=1"] + (["--set", "synthesis.batch_size=8"] if method != "feddf" else [])
    status, said, err = call(capsys, *flags, *more, *batch)
    assert status == 0, err
    first = fl.History.read(tmp_path / "run").metrics[1]
    expected = fl.History.read(finished).metrics[1]
    for k, seller in enumerate([0, 3] if method == "fed_dafl" else range(4)):
        assert first["upload_accuracy"][str(k)] == expected["upload_accuracy"][str(seller)]
    if method != "fed_dafl":
        assert first["ensemble_accuracy"] == expected["ensemble_accuracy"]
    assert first["train_loss"] is None
    if method == "feddf":  # whose server learns at once
        assert first["server_loss"] > 0
    assert "student" in said


def test_clients_have_the_networks_of_their_files(market: Path, tmp_path: Path) -> None:
    flags = words(market, tmp_path / "run")
    experiment, models = asked(parser(flags).parse_args(flags))
    assert experiment.job().population.assignment == ("mlp", "DenseTiny", "DenseTiny", "mlp") == models.assignment


def test_what_was_written_goes_on(
    market: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distil, "train", interrupted)
    status, said, _ = call(capsys, *words(market, tmp_path / "run"))
    assert status == 130
    assert said.endswith(f"what was written is kept in {tmp_path}/run: fedloom resume {tmp_path}/run continues\n")


def test_a_hostile_file_is_refused_before_anything_is_written(
    market: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tmp_path / "stranger.pt"
    stranger.symlink_to(market / "seller-0.pt")
    flags = words(market, tmp_path / "run")
    told = error(capsys, *flags[:4], f"{stranger}:mlp", *flags[4:])
    assert told.endswith(f"got the link {stranger}: name the file to which it points")
    assert not (tmp_path / "run").exists()
