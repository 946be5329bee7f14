"""Networks as ONNX files."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.batch import Prepare
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.network_inputs import Arguments, logits_alone
from fedloom.core.task import Task, targets_of
from fedloom.data.inputs import Inputs, Tokens
from fedloom.tables.statistics import CommonPreparation
from fedloom.tasks import Binary
from fedloom.wording import install

_LIMIT = 2**31  # of a protocol buffer, in bytes


class _Stored(nn.Module):
    """Network that takes values as they are stored."""

    def __init__(self, network: nn.Module, normalise: Prepare, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.normalise, self.dtype = network, normalise, dtype

    def forward(self, x: Tensor) -> Any:
        return self.network(self.normalise(x, self.dtype))


class _Named(nn.Module):
    """Network that takes the inputs of a forward, each by itself."""

    def __init__(self, network: nn.Module, how: Arguments) -> None:
        super().__init__()
        self.network, self.how = network, how

    def forward(self, *inputs: Tensor) -> Any:
        args, named = self.how.given(self.network, inputs)
        return self.network(*args, **named)


class _Columns(nn.Module):
    """Network of a table's columns: numbers [B, N], NaN for a gap, and the places of words in lists, [B, W]."""

    def __init__(self, network: nn.Module, columns: CommonPreparation) -> None:
        super().__init__()
        self.network, self.widths = network, [len(words) for words in columns.words.values()]
        self.has_numbers = bool(columns.numbers)
        self.masked = [name in columns.masks for name in columns.numbers]  # which a column of 0 and 1 follows
        for name in ("fill", "mean", "deviation"):
            values = [getattr(scale, name) for scale in columns.numbers.values()]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, *inputs: Tensor) -> Any:
        parts: list[Tensor] = []
        if self.has_numbers:
            filled = torch.where(torch.isnan(inputs[0]), self.get_buffer("fill"), inputs[0])
            parts.append(((filled - self.get_buffer("mean")) / self.get_buffer("deviation")).float())
        if any(self.masked):
            parts.append(torch.isnan(inputs[0])[:, self.masked].float())
        for i, width in enumerate(self.widths):
            parts.append((inputs[-1][:, i : i + 1] == torch.arange(width)).float())
        return self.network(torch.cat(parts, 1))


class _InUnit(nn.Module):
    """Network that gives numbers in the unit of the targets."""

    def __init__(self, network: nn.Module, task: Any) -> None:
        super().__init__()
        self.network, self.task = network, task

    def forward(self, *inputs: Tensor) -> Any:
        return self.task.predicted(self.network(*inputs))


class _OneLogit(nn.Module):
    """Network of the one logit that the task learns, [B, 1]; one for two classes has another, without a meaning."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Any:
        return self.network(*inputs)[:, :1]


def as_onnx(
    model: Model,
    network: nn.Module,
    example: tuple[int, ...] | None,
    input_dtype: torch.dtype | None,
    normalise: Prepare | None,
    metadata: Mapping[str, str],
    columns: CommonPreparation | None = None,
    task: Task | None = None,
) -> bytes:
    """Return a network as an ONNX file: from an input `x` [B, *example] to `logits` [B, C], for any B.

    With `columns`, inputs are those of a table instead: its numbers as `x` [B, N] float64, and where it has words, the
    place of each in its list as `words` [B, W] int64. With a `task` of numbers, the output is `prediction`, in their
    unit; with the task `Binary` the output is `logits` [B, 1], the log-odds of class 1. A model that `reads` several
    inputs takes these by their names, [B, ...] each: integers as int64, truth values as bool. Token ids are int64 `x`
    [B, T]; their mask is computed inside.

    Raises:
        SettingError: a package is missing, a setting contradicts the weights, or PyTorch cannot write the network.
    """
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise SettingError(f"writing ONNX needs {package} ({error}): {install('onnx')}") from error
    if example is None and columns is None:
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
    how = model.arguments
    network.register_forward_hook(logits_alone)
    taken = torch.int64 if isinstance(normalise, Tokens) else taken
    wrapped = network if normalise is None or how is not None else _Stored(network, normalise, dtype).eval()
    given = {} if columns is not None else {"x": torch.zeros((2, *(example or ())), dtype=taken)}  # one would fix B
    if how is not None:
        wrapped = _Named(network, how).eval()
    if how is not None and isinstance(how.inputs, Inputs):
        kinds = {"integers": torch.int64, "truths": torch.bool, "numbers": dtype}
        given = {part.name: torch.zeros((2, *part.shape), dtype=kinds[part.kind]) for part in how.inputs.parts}
    if columns is not None:
        wrapped = _Columns(wrapped, columns).eval()
        given |= {"x": torch.zeros((2, len(columns.numbers)), dtype=torch.float64)} if columns.numbers else {}
        given |= {"words": torch.zeros((2, len(columns.words)), dtype=torch.int64)} if columns.words else {}
        listed = {"columns": list(columns.numbers), "words": {name: list(of) for name, of in columns.words.items()}}
        metadata = {**metadata, **{name: json.dumps(of) for name, of in listed.items() if of}}
    output = "logits"
    if task is not None and targets_of(task) == "numbers" and hasattr(task, "predicted"):
        wrapped, output = _InUnit(wrapped, task).eval(), "prediction"
    if isinstance(task, Binary):
        wrapped = _OneLogit(wrapped).eval()
    try:
        with torch.no_grad():
            wrapped(*given.values())
    except Exception as error:
        shape = ", ".join(map(str, example or ("columns",)))
        raise SettingError(
            f"{model.name} does not take inputs [B, {shape}] of {taken}: {_line(error)}. "
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
                tuple(given.values()),
                dynamo=True,
                dynamic_shapes=_any_batch(len(given), isinstance(wrapped, _Named | _Columns | _InUnit | _OneLogit)),
                input_names=list(given),
                output_names=[output],
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
    for value in (*proto.graph.input, proto.graph.output[0]):
        if not value.type.tensor_type.shape.dim[0].dim_param:  # the exporter fixes it without a word
            raise SettingError(
                f"{model.name} fixes the number of examples, so its ONNX file would take 2 and no other: "
                "let forward take any batch, for example by x.flatten(1)"
            )
    for key, text in metadata.items():
        proto.metadata_props.add(key=key, value=text)
    return bytes(proto.SerializeToString())


def _any_batch(inputs: int, several: bool) -> Any:
    """Return which axes are of any length. `several`: the module takes any number of inputs, as `*inputs`."""
    axes = ({0: torch.export.Dim("batch")},) * inputs
    return (axes,) if several else axes


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
