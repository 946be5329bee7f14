"""Exported files hold what was trained, and come back as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from exported import BUILDERS, SHAPE, Tied, assert_same, inputs, trained
from safetensors.torch import load_file
from torch import nn

from fedloom import FedAvg, Model, RunSettings, Weights, run
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.data import Normalise
from fedloom.experiments.export import export, module
from fedloom.experiments.weights_file import load_weights
from tiny import LOCAL, federation, mlp


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, suffix) for name in BUILDERS for suffix in (".safetensors", ".pt")), ("mlp", ".pth")]
)
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


def test_metadata_stand_in_the_header(tmp_path: Path) -> None:
    model = Model(BUILDERS["mlp"])
    path = export(model, model.init(0), tmp_path / "out.safetensors", metadata={"algorithm": "FedAvg"})
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"algorithm": "FedAvg"}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", pytest.param(".onnx", marks=pytest.mark.slow, id="onnx")])
def test_equal_models_are_equal_files(suffix: str, tmp_path: Path) -> None:
    """Whatever the order of the metadata, so that a published file can be compared with one's own export."""
    model, facts = Model(BUILDERS["mlp"]), {name: f"{name} é" for name in ("round", "algorithm", "model", "é", "whose")}
    orders = [facts, dict(reversed(facts.items())), *[facts] * 3]
    written = [
        export(
            model,
            model.init(0),
            tmp_path / f"{i}{suffix}",
            metadata=None if suffix == ".pt" else order,
            example=SHAPE if suffix == ".onnx" else None,
        )
        for i, order in enumerate(orders)
    ]
    assert len({path.read_bytes() for path in written}) == 1
    if suffix == ".safetensors":
        with safetensors.safe_open(written[0], framework="pt") as file:
            assert file.metadata() == facts
        assert int.from_bytes(written[0].read_bytes()[:8], "little") % 8 == 0  # tensors begin at a multiple of 8


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
    with pytest.raises(SettingError, match="is a folder, and a file is written"):
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


def test_the_state_of_a_server_is_not_taken_for_weights(tmp_path: Path) -> None:
    model = Model(BUILDERS["small_bn"], name="bn")
    with pytest.raises(SettingError, match=r"must be Weights, got dict: .* \(weights,\) = history\.server\.values\(\)"):
        export(model, {"bn": model.init(0)}, tmp_path / "out.pt")  # type: ignore[arg-type]


@pytest.mark.some(1)
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


class Noted(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"note": "text"}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_state_that_is_no_tensor(tmp_path: Path) -> None:
    model = Model(lambda: Noted(2, 2))
    with pytest.raises(SettingError, match="'_extra_state', which is no tensor"):
        export(model, model.init(0), tmp_path / "out.pt")


def test_weights_with_tensors_that_are_frozen_are_refused() -> None:
    """Another body would stand beside the trained head."""
    whole, model = Model(BUILDERS["mlp"]), Model(BUILDERS["mlp"], name="net", frozen="* !last:1").bind(0)
    frozen = next(iter(model.frozen))
    with pytest.raises(SettingError, match=rf"the weights do not fit net: {frozen} is frozen there"):
        module(model, whole.init(1))


def test_an_export_holds_frozen_tensors_once_and_keeps_them_frozen(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model = Model(net, name="net", frozen="0 1")
    weights = model.init(0)
    made = module(model, weights)
    assert [n for n, p in made.named_parameters() if p.requires_grad] == ["2.weight", "2.bias"]
    x = torch.randn(4, 2)
    assert torch.equal(made(x), model(weights, x))
    assert torch.equal(made(x), net.eval()(x))
    path = export(model, weights, tmp_path / "net.safetensors")
    assert set(load_file(path)) == set(net.state_dict())


def test_a_network_bound_to_no_seed_is_not_exported(tmp_path: Path) -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), name="net", frozen="0")
    with pytest.raises(SettingError, match=r"were drawn by a run"):
        export(model, model.init(0), tmp_path / "net.pt")
    export(model.bind(0), model.init(0), tmp_path / "net.pt")
