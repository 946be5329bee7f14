"""Exported files hold what was trained, in every format; files from outside are believed nothing."""

from __future__ import annotations

import importlib
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedloom import FedAvg, Model, RunSettings, Weights, run
from fedloom.core import tree
from fedloom.core.errors import CodecError, SettingError
from fedloom.data import Normalise
from fedloom.experiments.export import export, module
from fedloom.experiments.weights_file import load_weights
from fedloom.models import MODELS, build
from tiny import LOCAL, federation, mlp

SHAPE = (3, 16, 16)


class Users(nn.Module):
    """What users write: parameters in lists, constants as buffers, one of them not kept in a state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(768)), nn.Parameter(torch.rand(()))])
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("order", torch.arange(768).flip(0), persistent=False)
        self.register_buffer("ceiling", torch.full((7,), float("inf")))
        self.last = nn.Linear(768, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, self.order] * self.scales[0] + self.scales[1]
        return torch.minimum(self.last(x), self.ceiling) * self.steps


class Tied(nn.Module):
    """An autoencoder's two halves share their matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.same, self.last = nn.Linear(768, 768), nn.Linear(768, 768), nn.Linear(768, 7)
        self.same.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.same(torch.tanh(self.down(x.flatten(1)))))


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: build(name, SHAPE, 7) for name in MODELS},
    "users": Users,
    "tied": Tied,
}


def trained(model: Model, seed: int = 5) -> Weights:
    """Weights of which no tensor is as it was initialised, but for constants."""
    g = torch.Generator().manual_seed(seed)
    weights = model.init(seed)
    moved = {
        n: b + 2
        if n.endswith("num_batches_tracked")
        else b + torch.rand(b.shape, generator=g)
        if b.is_floating_point()
        else b
        for n, b in weights.buffers.items()
    }
    return Weights(params={n: p + 0.01 for n, p in weights.params.items()}, buffers=moved)


def inputs(n: int = 5) -> Tensor:
    return torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(1))


def assert_same(a: Weights, b: Weights) -> None:
    assert list(a.params) == list(b.params)
    assert list(a.buffers) == list(b.buffers)
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


# ---- out and back


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("name", BUILDERS)
def test_files_of_tensors_come_back_and_load_strictly(name: str, suffix: str, tmp_path: Path) -> None:
    model = Model(BUILDERS[name], name=name)
    weights = trained(model)
    path = export(model, weights, tmp_path / "new" / f"out{suffix}")
    assert_same(load_weights(path, model), weights)
    tensors = load_file(path) if suffix == ".safetensors" else torch.load(path, weights_only=True)
    plain = BUILDERS[name]()
    assert set(tensors) == set(plain.state_dict())
    plain.load_state_dict(tensors, strict=True)
    x = inputs()
    # without running statistics, BatchNorm takes those of the real rows, and fedloom sums these itself
    rounding = 1e-4 if name == "resnet10" else 0.0
    torch.testing.assert_close(plain.eval()(x), model(weights, x), rtol=0, atol=rounding)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing unfinished is left


@pytest.mark.parametrize("name", BUILDERS)
def test_onnx_computes_the_same_for_any_batch(name: str, tmp_path: Path) -> None:
    model = Model(BUILDERS[name], name=name)
    weights = trained(model)
    path = export(model, weights, tmp_path / "out.onnx", example=SHAPE, metadata={"rounds": "30"})
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path)
    assert [(i.name, i.shape[1:]) for i in session.get_inputs()] == [("x", list(SHAPE))]
    assert session.get_modelmeta().custom_metadata_map["rounds"] == "30"
    for n in (1, 5):
        (logits,) = session.run(["logits"], {"x": inputs(n).numpy()})
        np.testing.assert_allclose(logits, model(weights, inputs(n)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "normalise", [Normalise((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), 1 / 255), Normalise((0.5,), (0.3,), 1 / 255)]
)
def test_onnx_can_take_stored_values(normalise: Normalise, tmp_path: Path) -> None:
    model = Model(BUILDERS["small_bn"])
    weights = trained(model)
    images = torch.randint(256, (4, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    path = export(model, weights, tmp_path / "out.onnx", example=SHAPE, normalise=normalise, input_dtype=torch.uint8)
    (logits,) = onnxruntime.InferenceSession(path).run(None, {"x": images.numpy()})
    wanted = model(weights, normalise(images, torch.float32))
    np.testing.assert_allclose(logits, wanted.numpy(), rtol=1e-5, atol=1e-5)
    assert not np.allclose(logits, model(weights, images.float()).numpy(), atol=1e-2)


def test_metadata_stand_in_the_header(tmp_path: Path) -> None:
    model = Model(BUILDERS["mlp"])
    path = export(model, model.init(0), tmp_path / "out.safetensors", metadata={"algorithm": "FedAvg"})
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"algorithm": "FedAvg"}


def test_the_format_can_be_named(tmp_path: Path) -> None:
    model = Model(BUILDERS["mlp"])
    path = export(model, model.init(0), str(tmp_path / "weights.bin"), format="safetensors")
    assert set(load_file(path)) == set(model.init(0).params)


def test_a_file_holds_no_other_clients_weights(tmp_path: Path) -> None:
    """Weights of a stack are views of one large tensor, which torch.save would write whole."""
    model = Model(BUILDERS["mlp"])
    one = model.init(0)
    stacked = Weights(params={n: torch.stack([p] * 50)[7] for n, p in one.params.items()})
    size = sum(p.nbytes for p in one.params.values())
    for suffix in (".pt", ".safetensors"):
        assert export(model, stacked, tmp_path / f"out{suffix}").stat().st_size < 1.1 * size + 5000


def test_double_precision_is_kept_until_it_is_loaded(tmp_path: Path) -> None:
    model = Model(BUILDERS["small_bn"])
    weights = model.init(3, torch.float64)
    path = export(model, weights, tmp_path / "out.safetensors")
    assert_same(load_weights(path, model, dtype=torch.float64), weights)
    assert_same(load_weights(path, model), model.init(3))


def test_a_run_starts_where_another_ended(tmp_path: Path) -> None:
    settings = RunSettings(rounds=2, cohort_size=3)
    first = run(FedAvg(local=LOCAL), federation(), mlp, settings)
    (weights,) = first.server.values()
    path = export(Model(mlp), weights, tmp_path / "first.safetensors")
    start = module(Model(mlp), load_weights(path, Model(mlp)))
    second = run(FedAvg(local=LOCAL), federation(), start, settings)
    assert second.metrics[0]["global_loss"] == first.metrics[-1]["global_loss"]


def test_the_module_is_a_copy_in_evaluation_mode_with_its_ties() -> None:
    model = Model(Tied)
    weights = trained(model)
    network = module(model, weights)
    assert isinstance(network, Tied)
    assert network.same.weight is network.down.weight
    assert all(p.requires_grad for p in network.parameters())
    assert not network.training
    with torch.no_grad():
        network.down.weight.zero_()
    assert weights.params["down.weight"].any()


# ---- what export refuses


def doubled(weights: Weights) -> Weights:
    """Of two stacked clients."""
    return tree.stack([weights, weights])


def test_files_are_replaced_on_request_only(tmp_path: Path) -> None:
    model, path = Model(BUILDERS["mlp"]), tmp_path / "out.safetensors"
    export(model, model.init(0), path)
    with pytest.raises(SettingError, match=r"out.safetensors exists; choose another name, or .* overwrite=True"):
        export(model, model.init(1), path)
    assert_same(load_weights(path, model), model.init(0))
    export(model, model.init(1), path, overwrite=True)
    assert_same(load_weights(path, model), model.init(1))
    with pytest.raises(SettingError, match="exists"):
        export(model, model.init(0), tmp_path, format="onnx", overwrite=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.select(lambda n: not n.startswith("classifier")), "classifier.weight is missing, classifier.bias"),
        (lambda w: Weights(params=w.params), r"running_mean is missing, .* and 2 more"),
        (lambda w: w.merge(Weights({"extra": torch.ones(1)})), "extra is not in the network"),
        (lambda w: doubled(w), r"float32 \[2, .*\], the network's float32 \["),
        (
            lambda w: Weights(w.params, {n: b.float() for n, b in w.buffers.items()}),
            r"num_batches_tracked is float32 \[\], the network's int64 \[\]",
        ),
    ],
)
def test_weights_that_do_not_fit(change: Callable[[Weights], Weights], message: str, tmp_path: Path) -> None:
    model = Model(BUILDERS["small_bn"], name="bn")
    with pytest.raises(SettingError, match=f"do not fit bn: .*{message}"):
        export(model, change(model.init(0)), tmp_path / "out.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("out", {}, r"must be one of .safetensors, .pt, .pth, .onnx, got 'out'"),
        ("out.pt", {"format": "pickle"}, "got 'pickle'"),
        ("out.pt", {"metadata": {"a": "b"}}, "no place for metadata"),
        ("out.onnx", {"metadata": {"rounds": 30}}, "got 'rounds': 30; write 'rounds': '30'"),
        ("out.safetensors", {"normalise": Normalise()}, "written to ONNX only, not to a safetensors file"),
        ("out.onnx", {}, "give example"),
        ("out.onnx", {"example": SHAPE, "input_dtype": torch.uint8}, "need normalise"),
        ("out.onnx", {"example": (5,)}, r"does not take inputs \[B, 5\] of torch.float32: .*shapes"),
    ],
)
def test_settings_that_contradict(name: str, settings: Any, message: str, tmp_path: Path) -> None:
    model = Model(BUILDERS["mlp"])
    with pytest.raises(SettingError, match=message):
        export(model, model.init(0), tmp_path / name, **settings)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError):
        importlib.import_module("onnxscript")
    model = Model(BUILDERS["mlp"])
    with pytest.raises(SettingError, match=r"needs onnxscript .*pip install 'fedloom\[onnx\]'"):
        export(model, model.init(0), tmp_path / "out.onnx", example=SHAPE)


class Branching(nn.Linear):
    """Chooses by values, which a graph cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


def test_networks_that_are_no_graph(tmp_path: Path) -> None:
    model = Model(lambda: Branching(2, 2))
    with pytest.raises(SettingError, match=r"PyTorch cannot write Branching as ONNX: .*\. Use safetensors"):
        export(model, model.init(0), tmp_path / "out.onnx", example=(2,))
    assert not list(tmp_path.iterdir())


class Fixed(nn.Linear):
    """Works for a batch of two, as which the network is recorded."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(2, 2))


def test_networks_that_fix_the_batch(tmp_path: Path) -> None:
    model = Model(lambda: Fixed(2, 2))
    with pytest.raises(SettingError, match="Fixed fixes the number of examples, so its ONNX file would take 2"):
        export(model, model.init(0), tmp_path / "out.onnx", example=(2,))
    assert not list(tmp_path.iterdir())


class Noted(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"note": "text"}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_state_that_is_no_tensor(tmp_path: Path) -> None:
    model = Model(lambda: Noted(2, 2))
    with pytest.raises(SettingError, match="'_extra_state', which is no tensor"):
        export(model, model.init(0), tmp_path / "out.pt")


# ---- what load_weights refuses


class Opens:
    """A pickle that runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


LINEAR = Model(lambda: nn.Linear(2, 3), name="linear")
GOOD = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}


@pytest.mark.parametrize("as_zip", [True, False])
def test_code_in_a_file_does_not_run(as_zip: bool, tmp_path: Path) -> None:
    path, proof = tmp_path / "bad.pt", tmp_path / "proof"
    if as_zip:
        torch.save({**GOOD, "bias": Opens(proof)}, path)
    else:
        path.write_bytes(pickle.dumps(Opens(proof)))
    with pytest.raises(CodecError, match=r"more than tensors|no whole file of torch\.save"):
        load_weights(path, LINEAR)
    assert not proof.exists()


def save(path: Path, tensors: Any) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": torch.ones(3, 2)}, "has 'weights', which the model has not; the model has weight, bias"),
        ({"bias": None}, "lacks 'bias' of linear; it has weight"),
        ({"bias": torch.zeros(4)}, r"'bias' has the shape \[4\], the model's has \[3\]"),
        ({"bias": torch.zeros(3, dtype=torch.int64)}, "'bias' is torch.int64, linear has torch.float32"),
        ({"bias": torch.tensor([0.0, float("nan"), 0])}, "'bias' has values that are NaN or infinite"),
        ({"bias": torch.full((3,), 1e300, dtype=torch.float64)}, "NaN or infinite in torch.float32"),
    ],
)
def test_tensors_that_are_not_the_models(change: dict[str, Any], message: str, suffix: str, tmp_path: Path) -> None:
    tensors = {n: t for n, t in {**GOOD, **change}.items() if t is not None}
    with pytest.raises(CodecError, match=message):
        load_weights(save(tmp_path / f"bad{suffix}", tensors), LINEAR)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_buffers_are_checked_too(suffix: str, tmp_path: Path) -> None:
    model = Model(BUILDERS["small_bn"])
    tensors = module(model, model.init(0)).state_dict()
    counter = next(n for n in tensors if n.endswith("num_batches_tracked"))
    mean = next(n for n in tensors if n.endswith("running_mean"))
    with pytest.raises(CodecError, match=r"num_batches_tracked' is torch.float32, .* has torch.int64"):
        load_weights(save(tmp_path / f"a{suffix}", {**tensors, counter: torch.tensor(1.5)}), model)
    with pytest.raises(CodecError, match="running_mean' has values that are NaN"):
        load_weights(save(tmp_path / f"b{suffix}", {**tensors, mean: tensors[mean] * float("nan")}), model)


def test_other_precisions_become_the_models(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        path = save(tmp_path / f"{dtype}.safetensors", {n: t.to(dtype) for n, t in GOOD.items()})
        assert_same(load_weights(path, LINEAR), Weights(params=GOOD))


def test_tied_tensors_may_stand_under_any_of_their_names_but_must_agree(tmp_path: Path) -> None:
    model = Model(Tied)
    weights = trained(model)
    tensors = {n: t.clone() for n, t in module(model, weights).state_dict().items()}
    one = {n: t for n, t in tensors.items() if n != "down.weight"}
    assert_same(load_weights(save(tmp_path / "one.safetensors", one), model), weights)
    two = {**tensors, "same.weight": tensors["same.weight"] + 1}
    with pytest.raises(CodecError, match=r"down.weight, same.weight are one tensor in Tied, but differ"):
        load_weights(save(tmp_path / "two.safetensors", two), model)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_cut_files(suffix: str, tmp_path: Path) -> None:
    whole = save(tmp_path / f"whole{suffix}", GOOD).read_bytes()
    for size in (0, 4, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"cut{size}{suffix}"
        path.write_bytes(whole[:size])
        with pytest.raises(CodecError, match=r"is no whole (safetensors file|file of torch\.save)"):
            load_weights(path, LINEAR)


def test_a_header_that_promises_too_much(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 1 << 40]}
    header = json.dumps({"weight": entry}).encode()
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    with pytest.raises(CodecError, match="no whole safetensors file"):
        load_weights(path, LINEAR)


def rewritten(path: Path, change: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """A copy of a state_dict file with another pickle in it."""
    out = path.with_name(f"changed-{path.name}")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", compression) as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry.filename, change(data) if entry.filename.endswith("data.pkl") else data)
    return out


def test_a_tensor_cannot_reach_beyond_its_file(tmp_path: Path) -> None:
    """The pickle says how long a storage is and where in it a tensor lies; both are changed."""
    path = save(tmp_path / "bad.pt", {"weight": torch.ones(3, 2), "bias": torch.zeros(3)})
    number, far = b"K\x03tq", b"J\x40\x42\x0f\x00tq"  # 3 and 1,000,000 elements in a storage
    offset, away = b"QK\x00K\x03\x85", b"QJ\x00\x42\x0f\x00K\x03\x85"  # at 0, and at 999,936
    path = rewritten(path, lambda pickled: pickled.replace(number, far).replace(offset, away))
    with zipfile.ZipFile(path) as archive:
        assert far in archive.read("bad/data.pkl")
        assert away in archive.read("bad/data.pkl")
    with pytest.raises(CodecError, match="damaged"):
        load_weights(path, LINEAR)


def test_compressed_files_are_not_unpacked(tmp_path: Path) -> None:
    path = rewritten(save(tmp_path / "bad.pt", GOOD), bytes, zipfile.ZIP_DEFLATED)
    with pytest.raises(CodecError, match="is compressed"):
        load_weights(path, LINEAR)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list"),
        ({"state_dict": GOOD}, "'state_dict' is a dict; a state_dict maps names to dense tensors"),
        ({**GOOD, "bias": torch.zeros(3).to_sparse()}, "'bias' is a Tensor"),
        ({**GOOD, 3: torch.zeros(3)}, "3 is a Tensor"),
    ],
)
def test_files_that_hold_something_else(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CodecError, match=message):
        load_weights(save(tmp_path / "bad.pt", content), LINEAR)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none.pt is no file"):
        load_weights(tmp_path / "none.pt", LINEAR)
    with pytest.raises(SettingError, match=r"cannot be read back: ONNX holds a network"):
        load_weights(tmp_path / "none.onnx", LINEAR)
