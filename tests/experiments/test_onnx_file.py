"""ONNX files compute what the network does, for any batch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exported import BUILDERS, SHAPE, inputs, trained
from torch import Tensor, nn

from fedloom import Model
from fedloom.core.errors import SettingError
from fedloom.data import Normalise
from fedloom.experiments.export import export


class Fixed(nn.Linear):
    """Works for a batch of two, as which the network is recorded."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(2, 2))


class Branching(nn.Linear):
    """Chooses by values, which a graph cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BUILDERS][::3])  # whose layers those of the others are
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


@pytest.mark.slow
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


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError):
        importlib.import_module("onnxscript")
    model = Model(BUILDERS["mlp"])
    with pytest.raises(
        SettingError, match=r"needs onnxscript .*pip install '<PATH>\[onnx\]', where <PATH> is fedloom's"
    ):
        export(model, model.init(0), tmp_path / "out.onnx", example=SHAPE)


@pytest.mark.slow
def test_networks_that_are_no_graph(tmp_path: Path) -> None:
    model = Model(lambda: Branching(2, 2))
    with pytest.raises(SettingError, match=r"PyTorch cannot write Branching as ONNX: .*\. Use safetensors"):
        export(model, model.init(0), tmp_path / "out.onnx", example=(2,))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_networks_that_fix_the_batch(tmp_path: Path) -> None:
    model = Model(lambda: Fixed(2, 2))
    with pytest.raises(SettingError, match="Fixed fixes the number of examples, so its ONNX file would take 2"):
        export(model, model.init(0), tmp_path / "out.onnx", example=(2,))
    assert not list(tmp_path.iterdir())
