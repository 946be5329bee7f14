"""ONNX files of networks of token ids and of several inputs: taken by their names, with the answers of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from commands import call
from fedloom.core.masking import masking
from fedloom.core.model import Model
from fedloom.data.inputs import pack
from fedloom.experiments.export import export
from tokens_made import VOCABULARY, Attending, sequences

IDS = sequences(12).int()
GIVEN = {
    "tokens": IDS, "mask": IDS != 0, "prices": torch.linspace(-1, 1, 480).reshape(160, 3), "lengths": (IDS != 0).sum(1),
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Several(Attending):
    """All inputs by name: logits in a mapping."""

    def __init__(self) -> None:
        super().__init__(3)
        self.dense = nn.Linear(3, 8)

    def forward(self, prices: Tensor, tokens: Tensor, mask: Tensor, lengths: Tensor) -> Any:
        assert mask.dtype == torch.bool
        assert lengths.dtype == torch.int64
        h = torch.where(mask.unsqueeze(2), self.embedding(tokens), 0.0).sum(1) / lengths.unsqueeze(1).clamp(min=1)
        return {"logits": self.head(self.norm(h + self.dense(prices)))}


def run(path: Path, given: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(path)
    assert {i.name for i in session.get_inputs()} == set(given)
    for some in (slice(0, 1), slice(0, 160)):
        logits = session.run(["logits"], {name: np.asarray(values)[some] for name, values in given.items()})[0]
    return session, logits


def test_several_inputs_have_their_names(tmp_path: Path) -> None:
    x, how = pack(GIVEN)
    model = Model(Several).reading(how)
    weights = model.init(3)
    path = export(model, weights, tmp_path / "out.onnx", example=tuple(x.shape[1:]), normalise=how)
    session, logits = run(path, {n: v.long() if n in ("tokens", "lengths") else v for n, v in GIVEN.items()})
    kinds = {i.name: (i.type, i.shape[1:]) for i in session.get_inputs()}
    assert kinds == {
        "tokens": ("tensor(int64)", [12]), "mask": ("tensor(bool)", [12]), "prices": ("tensor(float)", [3]),
        "lengths": ("tensor(int64)", []),
    }  # fmt: skip
    np.testing.assert_allclose(logits, model(weights, how(x, torch.float32)).numpy(), rtol=1e-5, atol=1e-5)


def test_the_mask_of_a_model_of_hugging_face_is_computed_inside(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    def bert() -> Any:
        config = transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32, num_labels=3, initializer_range=0.5,
        )  # fmt: skip
        return transformers.BertForSequenceClassification(config)

    examples = fl.from_arrays(IDS, IDS[:, 0] // 4, num_classes=3)
    before = Model(bert).reading(examples.normalise)
    model = masking(before, 0, torch.float32, torch.device("cpu"), examples)
    weights = model.init(3)
    path = export(model, weights, tmp_path / "out.onnx", example=(12,), normalise=examples.normalise)
    session, logits = run(path, {"x": IDS.long()})
    assert session.get_inputs()[0].type == "tensor(int64)"
    np.testing.assert_allclose(logits, before(weights, IDS.long()).numpy(), rtol=1e-5, atol=1e-5)


def test_a_run_of_numbers_and_categories_is_exported_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, fedloom as fl\n"
        "def data():\n"
        "    rng = np.random.default_rng(0)\n"
        "    x = {'numbers': rng.normal(size=(80, 2)).astype(np.float32), 'categories': rng.integers(0, 5, (80, 3))}\n"
        "    made = fl.from_arrays(x, rng.integers(0, 2, 80))\n"
        "    return fl.Dataset(made, made)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--data", "mine:data", "--model", "category_mlp", "--rounds", "1", "--clients", "4", "--cohort", "2"]
    assert call(capsys, "run", "fedavg", *words, "--out", "run")[0] == 0
    status, out, _ = call(capsys, "export", "run", "model.onnx", "--allow-code")
    assert status == 0
    assert "the file takes the inputs by their names: numbers [B, 2], categories [B, 3]" in " ".join(out.split())
    job = fl.Experiment.from_directory("run", allow_code=True).job()
    how, x = job.federation.train.normalise, job.federation.train.x
    parts = how.unpack(how(x, torch.float32))  # type: ignore[union-attr]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(["logits"], {name: values.numpy() for name, values in parts.items()})
    (model,) = job.population.models.values()
    (weights,) = job.restore("run").global_weights().values()
    expected = model(weights, how(x, torch.float32)).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
