"""Files from outside are believed nothing."""

from __future__ import annotations

import functools
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import BUILDERS, Tied, assert_same, trained
from safetensors.torch import save_file
from torch import nn

from fedloom import Model, Weights
from fedloom.coordinator.round_record import peak_rss_mib
from fedloom.core.errors import CodecError, SettingError, SettingWarning
from fedloom.experiments.export import export, module
from fedloom.experiments.weights_file import load_network, load_weights


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


def test_few_bytes_do_not_become_many(tmp_path: Path) -> None:
    """What PyTorch lets a pickle call is not called: memory is not taken."""
    many = b"cbuiltins\nbytearray\nJ\x00\x00\x00\x04\x85R"  # of 64 MiB
    path = rewritten(save(tmp_path / "bad.pt", GOOD), lambda _: b"\x80\x02](" + 50 * many + b"e.")
    before = peak_rss_mib()
    with pytest.raises(CodecError, match=r"asks for more than tensors \(builtins bytearray\), and nothing else"):
        load_weights(path, LINEAR)
    assert peak_rss_mib() - before < 1000
    made = b"\x80\x02ctorch\nFloatTensor\nJ\x00\x00\x00\x04\x85R."
    with pytest.raises(CodecError, match=r"more than tensors \(torch FloatTensor\)"):
        load_weights(rewritten(path, lambda _: made), LINEAR)


def test_a_file_has_one_pickle(tmp_path: Path) -> None:
    path = save(tmp_path / "bad.pt", GOOD)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("bad/more/data.pkl", b"cbuiltins\nbytearray\n.")
    with pytest.raises(CodecError, match=r"damaged or asks for more than tensors \(ValueError\)"):
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


def frozen_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_a_network_from_a_file_has_its_frozen_tensors_too(tmp_path: Path) -> None:
    path, whole = tmp_path / "net.safetensors", frozen_net()
    whole[1].running_mean.fill_(7)
    save_file(whole.state_dict(), path)
    for model in (Model(frozen_net, name="net", frozen="* !last:1"), Model(frozen_net(), name="net", frozen="0 1")):
        found = load_network(path, model)
        assert found.params == model.params == ("2.weight", "2.bias")
        assert not found.seeded
        for name, tensor in whole.state_dict().items():
            own = {**found.frozen, **found.init(5).params}[name]
            assert torch.equal(own, tensor)


def test_a_network_may_be_given_as_run_takes_it(tmp_path: Path) -> None:
    made, path = nn.Linear(3, 2), tmp_path / "w.safetensors"
    save_file(made.state_dict(), path)
    own = Model(lambda: nn.Linear(3, 2))
    for given in (lambda: nn.Linear(3, 2), nn.Linear(3, 2), own, functools.partial(nn.Linear, 3, 2)):
        loaded = load_network(path, given)
        torch.testing.assert_close(loaded.init(0).params["weight"], made.weight.detach())
        weights = load_weights(path, given)
        torch.testing.assert_close(weights.params["bias"], made.bias.detach())
        torch.testing.assert_close(module(given, weights).state_dict(), made.state_dict())
        export(given, weights, tmp_path / "again.safetensors", overwrite=True)
    for wrong in ("mlp", None, {"a": own}):
        for use in (load_network, load_weights):
            with pytest.raises(SettingError, match="model must be a module or a function that makes one, got "):
                use(path, wrong)  # type: ignore[operator]


def test_weights_beside_other_frozen_tensors_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "net.safetensors", Model(frozen_net(), name="net", frozen="0 1")
    other = {**module(model, model.init(0)).state_dict()}
    save_file(other, path)
    assert torch.equal(load_weights(path, model).params["2.bias"], other["2.bias"])
    save_file({**other, "1.running_var": torch.full((3,), 2.0)}, path)
    with pytest.raises(CodecError, match=r"another '1.running_var' than net, where it is frozen: .*load_network"):
        load_weights(path, model)


def classifier(classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, classes))


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_last_layer_for_other_classes_is_left_out(suffix: str, tmp_path: Path) -> None:
    path, pretrained = tmp_path / f"net.{suffix}", classifier(7)
    state = {**pretrained.state_dict(), "extra": torch.zeros(2)}
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    model = Model(lambda: classifier(4), name="net", frozen="0")
    with pytest.warns(SettingWarning, match=r"not taken from .*: (?=.*2\.weight)(?=.*2\.bias)(?=.*extra)"):
        found = load_network(path, model, only="* !last:1", seed=3)
    assert torch.equal(found.frozen["0.weight"], pretrained[0].weight)
    assert torch.equal(found.init(0).params["2.weight"], model.init(3).params["2.weight"])


def test_another_shape_names_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_file(classifier(7).state_dict(), path)
    with pytest.raises(CodecError, match=r"'2\.\w+' has the shape \[7.*\[4.*start_only = '\* !last:1'"):
        load_network(path, Model(lambda: classifier(4), name="net"))
    with pytest.raises(SettingError, match="'3' matches no tensor of net"):
        load_network(path, Model(lambda: classifier(4), name="net"), only="3")


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Linear(2, 1), nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora_B(self.lora_A(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("factors", ["second", "both"])
def test_the_factors_that_are_trained_stay_those_that_were_asked_for(factors: Any, tmp_path: Path) -> None:
    path, model = tmp_path / "net.safetensors", Model(Adapted, name="net", factors=factors)
    save_file(Adapted().state_dict(), path)
    assert load_network(path, model).params == model.params
