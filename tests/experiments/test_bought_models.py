"""Models that were trained elsewhere: files that are refused, data of their own, and a run that notices changes."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedloom as fl
from fedloom.core.errors import CodecError, FedloomError, SettingError
from fedloom.experiments.bought_models import (
    WORD,
    BoughtModel,
    BoughtModels,
    FilesUploaded,
    digest_of,
    files_changed,
    files_gone,
    models_of,
)
from fedloom.experiments.remote_source import beside, is_remote, remote_source

SHAPE = (1, 4, 4)


def make() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3))


MODEL = fl.Model(make, name="net")
GOOD = make().state_dict()


def bought(path: Path, tensors: Any = GOOD) -> BoughtModel:
    torch.save(tensors, path)
    return BoughtModel.written(f"{path}:net").tried(MODEL, SHAPE, 3)


class Opens:
    """A pickle that runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def code(path: Path) -> None:
    torch.save({**GOOD, "1.bias": Opens(path.with_name("proof"))}, path)


def packed(path: Path) -> None:
    """A zip whose few bytes would become many."""
    torch.save(GOOD, path.with_name("plain.pt"))
    with zipfile.ZipFile(path.with_name("plain.pt")) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry) + bytes(1 << 20))


def vast(path: Path) -> None:
    """A shape of 2**40 numbers over the one that is stored."""
    torch.save({**GOOD, "1.bias": torch.zeros(1).expand(1 << 40)}, path)


def negative(path: Path) -> None:
    torch.save({**GOOD, "2.running_var": torch.full((3,), -1.0)}, path)


def link(path: Path) -> None:
    torch.save(GOOD, path.with_name("true.pt"))
    path.symlink_to("true.pt")


def large(path: Path) -> None:
    torch.save({**GOOD, "more": torch.zeros(1 << 21)}, path)


def cut(path: Path) -> None:
    torch.save(GOOD, path)
    path.write_bytes(path.read_bytes()[:-40])


def tensors(**changed: Any) -> Callable[[Path], None]:
    named = {name.replace("_", ".", 1): value for name, value in changed.items()}
    return lambda path: torch.save({n: t for n, t in {**GOOD, **named}.items() if t is not None}, path)


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        (code, r"asks for more than tensors .*: save it with torch\.save\(module\.state_dict"),
        (packed, "is compressed, which torch.save never does: save it again"),
        (vast, r"'1\.bias' has the shape \[1099511627776\], the model's has \[3\]; a file has"),
        (negative, "answers with finite numbers, got NaN or infinity on noise from net .*: leave it out"),
        (link, "a symbolic link may point elsewhere tomorrow, got the link .*: name the file to which it points"),
        (Path.mkdir, r"a model is a regular file, got the directory .*: name a \.pt, \.pth or \.safetensors file"),
        (lambda path: os.mkfifo(path), "a model is a regular file, got the device or pipe"),
        (lambda path: None, r"a model is a file that can be read, got .* \(No such file or directory\): name another"),
        (large, "a file with the tensors of net has at most .* bytes, got .*: save these alone"),
        (cut, r"is no whole file of torch\.save"),
        (tensors(**{"1_bias": torch.zeros(4)}), r"'1\.bias' has the shape \[4\], the model's has \[3\]"),
        (tensors(**{"1_bias": None}), r"lacks '1\.bias' of net; it has"),
        (
            tensors(**{"9_bias": torch.zeros(3)}),
            r"has '9\.bias', which the model has not; .*; a file has the tensors of the network behind it, here net: "
            "name another of both",
        ),
        (tensors(**{"1_bias": torch.full((3,), torch.nan)}), r"'1\.bias' has values that are NaN or infinite"),
    ],
    ids=[
        *("code", "zip-bomb", "vast", "negative-variance", "link", "directory", "pipe", "absent", "large", "cut"),
        *("shape", "lacks", "name", "nan"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused(hostile: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    hostile(path)
    with pytest.raises(FedloomError, match=message):
        BoughtModel.written(f"{path}:net").tried(MODEL, SHAPE, 3)
    assert not (tmp_path / "proof").exists()


def test_a_safetensors_file_is_read_and_not_written_on(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(GOOD, path)
    path.chmod(0o444)
    before = path.read_bytes(), path.stat().st_mtime_ns
    model = BoughtModel.written(f"{path}:net").tried(MODEL, SHAPE, 3)
    weights = model.read(MODEL)
    assert all(torch.equal(value, GOOD[name]) for name, value in {**weights.params, **weights.buffers}.items())
    weights.params["1.weight"].zero_()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert model.sha256 == digest_of(path)
    assert len(model.sha256) == 64


def test_a_network_answers_for_each_class(tmp_path: Path) -> None:
    torch.save(GOOD, tmp_path / "model.pt")
    with pytest.raises(SettingError, match=r"a number for each of 4 classes, got \[3\] from net .*other --classes"):
        BoughtModel.written(f"{tmp_path}/model.pt:net").tried(MODEL, SHAPE, 4)


def test_how_a_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert BoughtModel.written("a.pt:own:Net") == BoughtModel(f"{tmp_path}/a.pt", "own:Net")
    assert BoughtModel.written("/x/a.b.safetensors:lenet") == BoughtModel("/x/a.b.safetensors", "lenet")
    assert BoughtModel.written("/x/a.pth:b.pt:net") == BoughtModel("/x/a.pth", "b.pt:net")
    for wrong in ("a.pt", "a.bin:lenet", ".pt:lenet", "a.pt:"):
        with pytest.raises(SettingError, match=r"a model is written FILE:NETWORK, .*: write as in shop\.pt:lenet"):
            BoughtModel.written(wrong)


def test_a_file_that_has_changed_is_not_read(tmp_path: Path) -> None:
    model = bought(tmp_path / "a.pt")
    assert files_changed([model]) == files_gone([model]) == []
    other = {**GOOD, "1.bias": torch.ones(3)}
    torch.save(other, tmp_path / "a.pt")
    with pytest.raises(SettingError, match=r"the file with which the run began, of SHA-256 .*: bring that back"):
        model.read(MODEL)
    (told,) = files_changed([model])
    assert told.startswith(f"{tmp_path}/a.pt is no longer the file that the run uploads, of SHA-256 {model.sha256}")
    Path(model.file).unlink()
    assert files_gone([model]) == [f"{tmp_path}/a.pt, a model that it uploads, is not here"]
    assert files_changed([model]) == []


# --- the data


def models(*files: BoughtModel, **more: Any) -> BoughtModels:
    said: dict[str, Any] = {"shape": SHAPE, "num_classes": 3, "normalise": "0.5/0.25", "test": ""}
    return BoughtModels(files, **said | more)


FAKE = "0" * 64


def test_a_source_says_all_and_is_no_other() -> None:
    two = models(BoughtModel("/a/x.pt", "net", FAKE), BoughtModel("/b/y.pt", "other", FAKE), test="t.csv?client=site")
    assert is_remote(two.source)
    assert "?" not in two.source  # behind which a table names its clients
    assert remote_source(two.source) == two
    assert beside(two.source) == {"assignment": ("net", "other"), "parts": (FilesUploaded(two.models),)}
    assert beside("mnist:data") == {"assignment": (), "parts": ()}
    assert two.names == ("x", "y")
    same = models(BoughtModel("/a/x.pt", "net", FAKE), BoughtModel("/b/x.pt", "net", FAKE))
    assert same.names == ("/a/x.pt", "/b/x.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": []}, "shape is 1 to 3 whole numbers, got"),
        ({"shape": [0]}, "shape is 1 to 3 whole numbers, got"),
        ({"classes": 1}, "classes is a whole number from 2 to"),
        ({"models": []}, "models is a list of 1 to 10,000 models, got"),
        ({"models": [{"file": "a.pt", "network": "net", "sha256": "1"}]}, "sha256 is 64 hexadecimal digits, got '1'"),
        ({"models": [{"file": "a.pt"}]}, "network"),
        ({"models": [{"file": "a.pt", "network": "n", "sha256": FAKE, "x": "y"}]}, "x"),
        ({"test": 3}, "test is a text, got 3"),
    ],
)
def test_a_source_that_was_not_written_by_the_command(change: dict[str, Any], message: str) -> None:
    one = models(BoughtModel("/a/x.pt", "net", FAKE))
    said = {**json.loads(one.source.removeprefix(f"{WORD}:")), **change}
    with pytest.raises(SettingError, match=f"are named by fedloom distil, got .*{message}"):
        BoughtModels.of(json.dumps(said))


def test_each_client_has_a_blank_example_of_each_class_in_any_type() -> None:
    two = models(BoughtModel("/a/x.pt", "net", FAKE), BoughtModel("/b/y.pt", "net", FAKE))
    federation = two.federation()
    assert federation.counts().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert federation.partition.clients == ("x", "y")
    assert federation.train.shape == SHAPE
    assert federation.train.normalise == fl.data.Normalise((0.5,), (0.25,), 1 / 255)
    test = fl.from_arrays(torch.zeros(5, *SHAPE).numpy(), torch.tensor([0, 1, 2, 0, 1]).numpy(), num_classes=3)
    federation = two.federation(test)
    assert federation.train.x.dtype == torch.float32
    assert federation.train.normalise == fl.data.Normalise((0.5,), (0.25,), 1.0)


@pytest.mark.parametrize("change", [{"shape": (1, 8, 8)}, {"num_classes": 4}])
def test_test_examples_are_those_of_the_models(change: dict[str, Any]) -> None:
    test = fl.from_arrays(torch.zeros(5, *SHAPE).numpy(), torch.tensor([0, 1, 2, 0, 1]).numpy(), num_classes=3)
    with pytest.raises(SettingError, match=r"test examples are those of the models, .* got 1 x 4 x 4 of 3 from"):
        models(BoughtModel("/a/x.pt", "net", FAKE), **change).federation(test)


# --- the part


def test_only_distillation_takes_them() -> None:
    two = models(BoughtModel("/a/x.pt", "net", FAKE), BoughtModel("/b/y.pt", "net", FAKE))
    settings = fl.RunSettings(rounds=1, cohort_size=2)
    with pytest.raises(SettingError, match=r"distilled by dense, fed_dafl, fed_adi or feddf, got FedAvg: name one"):
        fl.Job(
            algorithm=fl.FedAvg(), federation=two.federation(), model=MODEL, settings=settings, parts=list(two.parts)
        )


def test_a_manifest_names_them() -> None:
    model = BoughtModel("/a/x.pt", "net", FAKE)
    part = {"kind": "FilesUploaded", "models": [{"kind": "BoughtModel", **vars(model)}]}
    assert models_of({"parts": ["own.Part()", {"kind": "Own"}, part]}) == (model,)
    assert models_of({}) == ()


def test_damaged_files_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"{}")
    with pytest.raises(CodecError, match="no whole safetensors file"):
        BoughtModel.written(f"{tmp_path}/a.safetensors:net").read(MODEL)
