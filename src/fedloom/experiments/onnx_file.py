"""Networks as ONNX files."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.data import Normalise

_LIMIT = 2**31  # of a protocol buffer, in bytes


class _Stored(nn.Module):
    """Takes values as they are stored."""

    def __init__(self, network: nn.Module, normalise: Normalise, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.normalise, self.dtype = network, normalise, dtype

    def forward(self, x: Tensor) -> Any:
        return self.network(self.normalise(x, self.dtype))


def as_onnx(
    model: Model,
    network: nn.Module,
    example: tuple[int, ...] | None,
    input_dtype: torch.dtype | None,
    normalise: Normalise | None,
    metadata: Mapping[str, str],
) -> bytes:
    """Return a network as an ONNX file: from an input `x` [B, *example] to `logits` [B, C], for any B.

    Raises:
        SettingError: a package is missing, a setting contradicts the weights, or PyTorch cannot write the network.
    """
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise SettingError(f"writing ONNX needs {package} ({error}): pip install 'fedloom[onnx]'") from error
    if example is None:
        raise SettingError("ONNX needs the shape of one input: give example, such as (1, 28, 28), without a batch axis")
    dtype = next(p.dtype for p in network.parameters() if p.is_floating_point())
    taken = input_dtype or dtype
    if normalise is None and taken != dtype:
        raise SettingError(
            f"inputs of {taken} need normalise, which makes them {dtype}: give it, or leave input_dtype out"
        )
    size = sum(t.nbytes for t in network.state_dict().values() if isinstance(t, Tensor))
    if size >= _LIMIT:
        raise SettingError(f"one ONNX file holds less than 2 GiB, {model.name} has {size:,} bytes: use safetensors")
    x = torch.zeros((2, *example), dtype=taken)  # a batch of one would fix the axis
    wrapped = network if normalise is None else _Stored(network, normalise, dtype).eval()
    try:
        with torch.no_grad():
            wrapped(x)
    except Exception as error:
        raise SettingError(
            f"{model.name} does not take inputs [B, {', '.join(map(str, example))}] of {taken}: {_line(error)}. "
            "Give example as the shape of one input, without the batch axis"
        ) from error
    chatter = logging.getLogger("torch.onnx._internal.exporter._registration")  # about packages that nobody asked for
    level = chatter.level
    try:
        chatter.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own, about PyTorch's inner parts
            program = torch.onnx.export(
                wrapped,
                (x,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["x"],
                output_names=["logits"],
                verbose=False,
            )
    except Exception as error:
        raise SettingError(
            f"PyTorch cannot write {model.name} as ONNX: {_line(error.__cause__ or error)}. Use safetensors"
        ) from error
    finally:
        chatter.setLevel(level)
    assert program is not None  # it is None where PyTorch writes the file itself
    proto = program.model_proto
    for value in (proto.graph.input[0], proto.graph.output[0]):
        if not value.type.tensor_type.shape.dim[0].dim_param:  # the exporter fixes it without a word
            raise SettingError(
                f"{model.name} fixes the number of examples, so its ONNX file would take {len(x)} and no other: "
                "let forward take any batch, for example by x.flatten(1)"
            )
    for key, text in metadata.items():
        proto.metadata_props.add(key=key, value=text)
    return bytes(proto.SerializeToString())


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
