"""Trained weights as files that other programs read, and as plain PyTorch modules."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch
from torch import Tensor, nn

from fedloom.coordinator.plan import model_of
from fedloom.core.batch import Prepare
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.network_copies import tensors_of
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.experiments.onnx_file import as_onnx
from fedloom.experiments.peft_folder import CONFIG, adapter_files
from fedloom.storage.files import path_of
from fedloom.storage.output import check_new, publish
from fedloom.tables.preparation import Preparation
from fedloom.wording import some_of

Network = Model | nn.Module | Callable[[], nn.Module]
Format = Literal["safetensors", "state_dict", "onnx", "peft"]
_FORMATS: dict[str, Format] = {
    ".safetensors": "safetensors", ".pt": "state_dict", ".pth": "state_dict", ".onnx": "onnx",
}  # fmt: skip


def export(
    model: Network,
    weights: Weights,
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    example: tuple[int, ...] | None = None,
    input_dtype: torch.dtype | None = None,
    normalise: Prepare | None = None,
    preparation: Preparation | None = None,
    task: Task | None = None,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a network with these weights to `path`, whole or not at all, and return the path.

    `safetensors` and `state_dict` hold every tensor under the name that the module's own `state_dict` gives it; tied
    tensors stand under each of their names. `onnx` holds the network itself in evaluation mode: from an input `x`
    [B, *example] to an output `logits` [B, C], for any B. `peft` is a folder with the adapter of a PeftModel alone,
    which `PeftModel.from_pretrained(base, path)` puts on the network that was adapted.

    Args:
        model: the architecture of the network.
        weights: its weights, which must fit `model`.
        path: the file to write; of an adapter, the folder.
        format: "peft", or without it by suffix: .safetensors, .pt or .pth (state_dict), .onnx.
        example: shape of one input, without the batch axis; ONNX needs it.
        input_dtype: of the ONNX input; without it, that of the weights. uint8 needs `normalise`.
        normalise: becomes the first operation of the ONNX file, which then takes values as `Examples` store them.
        preparation: of a table's columns, fitted: becomes a part of the ONNX file, which then takes the columns as they
            are: numbers as `x` [B, N] float64 with NaN for gaps, and for each word its place in the list of its column
            as `words` [B, W] int64 (any other number for an unknown word). `columns` and `words` of the metadata have
            the order and the lists.
        task: of the network: where it learns numbers, the ONNX output is `prediction`, in the unit of the targets;
            with `Binary`, `logits` [B, 1] are the log-odds of class 1.
        metadata: text that goes into the header, in the order of its names; a state_dict has no place for it.
        overwrite: replace a file that is there.

    Raises:
        SettingError: the weights do not fit the model, the file exists, a setting contradicts the format, a package is
            missing, or the network cannot be written as ONNX.
        StorageError: the disk does not take the file.
    """
    path, model = path_of(path), model_of(model)
    format = file_format(path, format)
    if format == "peft" and path.is_file():
        raise SettingError(f"{path} is a file, and an adapter is written to a folder: name another place")
    check_new(path / CONFIG if format == "peft" else path, overwrite)
    alone = {"normalise": normalise, "input_dtype": input_dtype, "preparation": preparation, "task": task}
    if format != "onnx" and any(value is not None for value in alone.values()):
        raise SettingError(f"{_listed(alone)} are written to ONNX only, not to a {format} file: leave them out")
    columns = None if preparation is None else preparation.constants
    if preparation is not None and columns is None:
        raise SettingError(
            f"ONNX holds the preparation 'standard' or 'federated' of a table, not the transformer "
            f"{type(preparation.transformer).__name__}: leave preparation out, and the file takes what it makes"
        )
    if format in ("state_dict", "peft") and metadata:
        raise SettingError(f"a {format} has no place for metadata; use safetensors or onnx, or leave it out")
    for key, text in (metadata or {}).items():
        if not isinstance(text, str):
            raise SettingError(f"metadata map names to text, got {key!r}: {text!r}; write {key!r}: '{text}'")
    if not isinstance(weights, Weights):
        raise SettingError(
            f"weights must be Weights, got {type(weights).__name__}: history.server has the server's state by "
            "architecture, (weights,) = history.server.values() where there is one and it is a model"
        )
    facts, network = dict(sorted((metadata or {}).items())), module(model, weights)
    if format == "peft":
        for name, held in adapter_files(network, model.name, model.tensors).items():
            publish(path, name, held)
        return path
    if format == "onnx":
        data = as_onnx(model, network, example, input_dtype, normalise, facts, columns, task)
    else:
        tensors = network.state_dict()
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise SettingError(f"{model.name} keeps {name!r}, which is no tensor; only tensors can be exported")
        if format == "safetensors":  # which refuses tensors that share memory
            data = _with_metadata(safetensors.torch.save({n: t.clone() for n, t in tensors.items()}), facts)
        else:
            buffer = io.BytesIO()
            torch.save(tensors, buffer)
            data = buffer.getvalue()
    return publish(path.parent, path.name, data)


def _with_metadata(data: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file with metadata in its header, in their order.

    The library writes them in an order that differs from process to process, and equal models are to be equal files.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    head = {"__metadata__": metadata, **json.loads(data[8:end])}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


def module(model: Network, weights: Weights) -> nn.Module:
    """Return the network as a plain `nn.Module` in evaluation mode on the CPU, with a copy of these weights.

    For PyTorch code outside fedloom, and to start another run: a module that is passed to `run` keeps its weights.

    Args:
        model: of the run; or a module, or a function that makes one, as `fedloom.run` takes them.
        weights: such as `model.init(0)`, or those that `Job.restore` gives.

    Raises:
        SettingError: the weights are not those of this model; names the tensors.
    """
    model = model_of(model)
    places, frozen = dict(tensors_of(model.skeleton())), model.frozen
    given = {**weights.params, **weights.buffers, **frozen}
    kinds = {name: isinstance(tensor, nn.Parameter) for name, tensor in places.items()}
    wrong = [
        *(f"{n} is missing" for n in places if n not in frozen and n not in _part(weights, kinds[n])),
        *(f"{n} is not in the network" for n in given if n not in places),
        *(f"{n} is frozen there" for n in (*weights.params, *weights.buffers) if n in frozen),
        *(
            f"{n} is {_described(given[n])}, the network's {_described(places[n])}"
            for n in given
            if n in places and not _alike(given[n], places[n])
        ),
    ]
    if wrong:
        raise SettingError(
            f"the weights do not fit {model.name}: {some_of(wrong, 4)}. Give the architecture they were trained with; "
            "merge the shared part of a model with a client's own: shared.merge(own)"
        )
    return model.filled(given)


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"


def _part(weights: Weights, parameters: bool) -> Mapping[str, Tensor]:
    return weights.params if parameters else weights.buffers


def file_format(path: Path, format: Format | None = None) -> Format:
    """Return the format that is named, or else that of the file's suffix.

    Raises:
        SettingError: there is no such format.
    """
    if format is None:
        if path.suffix not in _FORMATS:
            raise SettingError(
                f"the suffix tells the format and must be one of {', '.join(_FORMATS)}, got {path.name!r}"
            )
        return _FORMATS[path.suffix]
    if format != "peft" and format not in _FORMATS.values():
        raise SettingError(f"format must be 'safetensors', 'state_dict', 'onnx' or 'peft', got {format!r}")
    return format


def _alike(a: Tensor, b: Tensor) -> bool:
    floats = a.is_floating_point() and b.is_floating_point()
    return a.shape == b.shape and (floats or a.dtype == b.dtype)


def _described(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
