"""The adapter alone: plain peft reads it and answers as the run's network; what is no adapter is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from commands import call, error
from fedloom.experiments.export import export
from tiny import mlp

OWN = """\
import numpy as np
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import fedloom as fl


def base():
    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def adapted():
    return get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"]))


def texts():
    x = 1 + (np.arange(40)[:, None] + np.arange(10)) % 19
    found = fl.from_arrays(x.astype(np.int64), fl.data.next_tokens(x), num_classes=20, name="texts")
    return found, found
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_plain_peft_reads_the_adapter_and_answers_as_the_trained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peft = pytest.importorskip("peft")
    (tmp_path / "own_gpt.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = "--model own_gpt:adapted --task next_token --clients 4 --cohort 2 --rounds 2 --epochs 1 --lr 0.5"
    run = ["run", "fedavg", "--data", "own_gpt:texts", *words.split(), "--threads", "1", "--out", "runs/gpt"]
    status, _, said = call(capsys, *run, "--partition", "iid")
    assert status == 0, said
    status, out, said = call(capsys, "export", "runs/gpt", "adapter", "--peft", "--allow-code")
    assert status == 0, said
    assert " ".join(out.split()).endswith("global model (adapted) after round 2: adapter")
    assert {p.name for p in (tmp_path / "adapter").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    status, _, said = call(capsys, "export", "runs/gpt", "whole.pt", "--allow-code")
    assert status == 0, said
    whole = sys.modules["own_gpt"].adapted()
    whole.load_state_dict(torch.load("whole.pt", weights_only=True))
    base = sys.modules["own_gpt"].base()
    own = {n.removeprefix("base_model.model."): t for n, t in whole.state_dict().items() if "lora" not in n}
    base.load_state_dict({n.replace(".base_layer", ""): t.clone() for n, t in own.items()})
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        before = base.eval()(ids).logits
        plain = peft.PeftModel.from_pretrained(base, "adapter").eval()
        assert torch.equal(plain(ids).logits, whole.eval()(ids).logits)
        assert not torch.equal(plain(ids).logits, before)
    assert plain.generate(input_ids=ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (1, 6)
    said = error(capsys, "export", "runs/gpt", "adapter", "--peft", "--allow-code")
    assert said.startswith("adapter/adapter_config.json exists; choose another name")


class Adapted(nn.Module):
    """Looks to fedloom like a network of peft."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.lora_B = nn.Linear(12, 3).requires_grad_(False), nn.Linear(12, 3, bias=False)
        self.peft_config: dict[str, Any] = {"default": None}

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(x)  # type: ignore[no-any-return]

    def save_pretrained(self, folder: str, save_embedding_layers: bool) -> None:
        Path(folder, "adapter_config.json").write_text("{}")
        Path(folder, "adapter_model.safetensors").write_bytes(self.lora_B.weight.detach().numpy().tobytes())


class WithHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Adapted(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Two(Adapted):
    def __init__(self) -> None:
        super().__init__()
        self.peft_config["other"] = None


@pytest.fixture
def _peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in the place of peft, which takes seconds to load."""
    made = ModuleType("peft")
    vars(made).update(
        PeftModel=Adapted,
        get_peft_model_state_dict=lambda network, **_: {n: t for n, t in network.state_dict().items() if "lora" in n},
    )
    monkeypatch.setitem(sys.modules, "peft", made)


@pytest.mark.usefixtures("_peft")
def test_a_folder_holds_what_was_trained_and_is_not_replaced_unasked(tmp_path: Path) -> None:
    model = fl.Model(Adapted)
    for seed, overwrite in ((1, False), (2, True)):
        weights = model.init(seed)
        path = export(model.bind(seed), weights, tmp_path / "adapter", format="peft", overwrite=overwrite)
        assert path == tmp_path / "adapter"
        (values,) = weights.params.values()
        assert (path / "adapter_model.safetensors").read_bytes() == values.numpy().tobytes()
        assert (path / "adapter_config.json").read_text() == "{}"
    with pytest.raises(fl.SettingError, match=r"adapter_config.json exists; choose another name, or replace a file"):
        export(model.bind(1), model.init(1), path, format="peft")


@pytest.mark.usefixtures("_peft")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(12, 3), r"and Linear has 0: leave it out and name a file, which gets the whole network"),
        (lambda: nn.Sequential(Adapted(), nn.Identity(), nn.Linear(3, 12), Adapted()), "and Sequential has 2: leave"),
        (Two, "and Two has the adapters default, other: leave it out"),
        (WithHead, r"of WithHead head.weight, head.bias was: name such layers in LoraConfig\(modules_to_save="),
    ],
)
def test_what_is_no_adapter_is_refused_by_name(make: Any, message: str, tmp_path: Path) -> None:
    model = fl.Model(make)
    with pytest.raises(fl.SettingError, match=message):
        export(model.bind(0), model.init(0), tmp_path / "adapter", format="peft")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("_peft")
def test_the_command_refuses_a_network_without_an_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--model logistic --set data.examples=100 --clients 5 --cohort 2 --rounds 1 --epochs 1 --threads 1"
    status, _, said = call(capsys, "run", "fedavg", *small.split(), "--out", str(tmp_path / "run"))
    assert status == 0, said
    said = error(capsys, "export", str(tmp_path / "run"), str(tmp_path / "adapter"), "--peft")
    assert "the one PeftModel that a network is or has in it, and logistic has 0: leave it out" in said


def test_places_and_metadata_that_an_adapter_cannot_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    weights = fl.Model(mlp).init(0)
    with pytest.raises(fl.SettingError, match=r"an adapter alone \(--peft\) is written by peft: pip install"):
        export(mlp, weights, tmp_path / "adapter", format="peft")
    with pytest.raises(fl.SettingError, match="a peft has no place for metadata; use safetensors"):
        export(mlp, weights, tmp_path / "adapter", format="peft", metadata={"a": "b"})
    (tmp_path / "file").write_text("")
    with pytest.raises(fl.SettingError, match="file is a file, and an adapter is written to a folder: name another"):
        export(mlp, weights, tmp_path / "file", format="peft")
