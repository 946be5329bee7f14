"""Trained weights as files that other programs read, and such files as weights again."""

from __future__ import annotations

import importlib
import io
import logging
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedloom.core.errors import CodecError, SettingError
from fedloom.core.model import Model
from fedloom.core.output import publish
from fedloom.core.types import Params, Weights
from fedloom.data import Normalise

Format = Literal["safetensors", "state_dict", "onnx"]
_FORMATS: dict[str, Format] = {
    ".safetensors": "safetensors", ".pt": "state_dict", ".pth": "state_dict", ".onnx": "onnx",
}  # fmt: skip
_ONNX_LIMIT = 2**31  # of a protocol buffer, in bytes


def export(
    model: Model,
    weights: Weights,
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    example: tuple[int, ...] | None = None,
    input_dtype: torch.dtype | None = None,
    normalise: Normalise | None = None,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a network with these weights to `path`, whole or not at all, and return the path.

    `safetensors` and `state_dict` hold every tensor under the name that the module's own `state_dict` gives it; tied
    tensors stand under each of their names. `onnx` holds the network itself in evaluation mode: from an input `x`
    [B, *example] to an output `logits` [B, C], for any B.

    Args:
        format: without it, by suffix: .safetensors, .pt or .pth (state_dict), .onnx.
        example: shape of one input, without the batch axis; ONNX needs it.
        input_dtype: of the ONNX input; without it, that of the weights. uint8 needs `normalise`.
        normalise: becomes the first operation of the ONNX file, which then takes values as `Examples` store them.
        metadata: text that goes into the header; a state_dict has no place for it.
        overwrite: replace a file that is there.

    Raises:
        SettingError: the weights do not fit the model, the file exists, a setting contradicts the format, a package is
            missing, or the network cannot be written as ONNX.
        StorageError: the disk does not take the file.
    """
    path = Path(path)
    format = _format(path, format)
    if path.exists() and not (overwrite and path.is_file()):
        raise SettingError(f"{path} exists; choose another name, or replace a file with overwrite=True (--overwrite)")
    if format != "onnx" and (normalise is not None or input_dtype is not None):
        raise SettingError(
            f"normalise and input_dtype are written to ONNX only, not to a {format} file: leave them out"
        )
    if format == "state_dict" and metadata:
        raise SettingError("a state_dict has no place for metadata; use safetensors or onnx, or leave it out")
    for key, text in (metadata or {}).items():
        if not isinstance(text, str):
            raise SettingError(f"metadata map names to text, got {key!r}: {text!r}; write {key!r}: '{text}'")
    network = module(model, weights)
    if format == "onnx":
        data = _onnx(model, network, example, input_dtype, normalise, metadata or {})
    else:
        tensors = network.state_dict()
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise SettingError(f"{model.name} keeps {name!r}, which is no tensor; only tensors can be exported")
        if format == "safetensors":  # which refuses tensors that share memory
            data = safetensors.torch.save({n: t.clone() for n, t in tensors.items()}, dict(metadata or {}))
        else:
            buffer = io.BytesIO()
            torch.save(tensors, buffer)
            data = buffer.getvalue()
    return publish(path.parent, path.name, data)


def module(model: Model, weights: Weights) -> nn.Module:
    """The network as a plain `nn.Module` in evaluation mode on the CPU, with a copy of these weights.

    For PyTorch code outside fedloom, and to start another run: a module that is passed to `run` keeps its weights.

    Raises:
        SettingError: the weights are not those of this model; names the tensors.
    """
    network = model.skeleton()
    places = dict(_places(network))
    given = {**weights.params, **weights.buffers}
    kinds = {name: isinstance(tensor, nn.Parameter) for name, tensor in places.items()}
    wrong = [
        *(f"{n} is missing" for n in places if n not in (weights.params if kinds[n] else weights.buffers)),
        *(f"{n} is not in the network" for n in given if n not in places),
        *(
            f"{n} is {_said(given[n])}, the network's {_said(places[n])}"
            for n in given
            if n in places and not _alike(given[n], places[n])
        ),
    ]
    if wrong:
        raise SettingError(
            f"the weights do not fit {model.name}: {_some(wrong)}. Give the architecture they were trained with; "
            "merge the shared part of a model with a client's own: shared.merge(own)"
        )
    copies = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in given.items()}
    names = {id(tensor): name for name, tensor in places.items()}
    made = {n: nn.Parameter(t, requires_grad=t.is_floating_point()) if kinds[n] else t for n, t in copies.items()}
    for listed in (network.named_parameters, network.named_buffers):
        for name, tensor in list(listed(remove_duplicate=False)):
            owner, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(owner), leaf, made[names[id(tensor)]])
    return network


def load_weights(path: str | os.PathLike[str], model: Model, *, dtype: torch.dtype = torch.float32) -> Weights:
    """The weights in a safetensors or state_dict file (.pt, .pth), for a warm start of `model`.

    Nothing in the file is executed. Names and shapes are compared with the model's before a tensor is copied. Floating
    point tensors become `dtype`; others must have the model's type. Parameters must be finite, buffers not NaN.
    Buffers that a state_dict leaves out (`persistent=False`) are the model's initial ones.

    Raises:
        SettingError: there is no such file, or its suffix is not one of these.
        CodecError: the file is damaged, holds something else than tensors, or does not fit the model; says what.
    """
    path = Path(path)
    format = _format(path, None)
    if format == "onnx":
        raise SettingError(f"{path} cannot be read back: ONNX holds a network; give a .safetensors, .pt or .pth file")
    if not path.is_file():
        raise SettingError(f"{path} is no file; give a .safetensors, .pt or .pth file")
    template = model.init(0, dtype)
    network = model.skeleton()
    first = {id(tensor): name for name, tensor in _places(network)}
    # Tied tensors have several names; a file may hold any of them.
    aliases: dict[str, list[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor):
            aliases.setdefault(first[id(tensor)], []).append(name)
    wanted = {alias: template.params.get(n, template.buffers.get(n)) for n, names in aliases.items() for alias in names}
    read = _read_safetensors if format == "safetensors" else _read_state_dict
    found = read(path, {n: tuple(t.shape) for n, t in wanted.items() if t is not None})

    def value(name: str, initial: Tensor, trained: bool) -> Tensor:
        if name not in aliases:
            return initial
        tensors = [found[alias] for alias in aliases[name] if alias in found]
        if not tensors:
            raise CodecError(f"{path} lacks {name!r} of {model.name}; it has {_some(sorted(found))}")
        tensor = tensors[0]
        if any(not torch.equal(tensor, other) for other in tensors[1:]):
            raise CodecError(f"{path}: {_some(aliases[name])} are one tensor in {model.name}, but differ in the file")
        if tensor.is_floating_point() != initial.is_floating_point() or (
            not initial.is_floating_point() and tensor.dtype != initial.dtype
        ):
            raise CodecError(f"{path}: {name!r} is {tensor.dtype}, {model.name} has {initial.dtype}")
        tensor = tensor.detach().to(initial.dtype, copy=True).contiguous()
        if bool(tensor.isnan().any()) or (trained and not bool(tensor.isfinite().all())):
            raise CodecError(f"{path}: {name!r} has values that are NaN or infinite in {dtype}")
        return tensor

    return Weights(
        params={n: value(n, t, True) for n, t in template.params.items()},
        buffers={n: value(n, t, False) for n, t in template.buffers.items()},
    )


def _format(path: Path, format: Format | None) -> Format:
    if format is None:
        if path.suffix not in _FORMATS:
            raise SettingError(
                f"the suffix tells the format and must be one of {', '.join(_FORMATS)}, got {path.name!r}"
            )
        return _FORMATS[path.suffix]
    if format not in _FORMATS.values():
        raise SettingError(f"format must be 'safetensors', 'state_dict' or 'onnx', got {format!r}")
    return format


def _places(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a network under the name that `Weights` has it by: the first of its names."""
    yield from network.named_parameters()
    yield from network.named_buffers()


def _alike(a: Tensor, b: Tensor) -> bool:
    floats = a.is_floating_point() and b.is_floating_point()
    return a.shape == b.shape and (floats or a.dtype == b.dtype)


def _said(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"


def _some(items: list[str]) -> str:
    return ", ".join(items[:4]) + (f" and {len(items) - 4} more" if len(items) > 4 else "")


# ---- ONNX


class _Stored(nn.Module):
    """Takes values as they are stored."""

    def __init__(self, network: nn.Module, normalise: Normalise, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.normalise, self.dtype = network, normalise, dtype

    def forward(self, x: Tensor) -> Any:
        return self.network(self.normalise(x, self.dtype))


def _onnx(
    model: Model,
    network: nn.Module,
    example: tuple[int, ...] | None,
    input_dtype: torch.dtype | None,
    normalise: Normalise | None,
    metadata: Mapping[str, str],
) -> bytes:
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
    if size >= _ONNX_LIMIT:
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


# ---- files from outside


def _check(path: Path, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in found.items():
        if name not in wanted:
            raise CodecError(f"{path} has {name!r}, which the model has not; the model has {_some(list(wanted))}")
        if shape != wanted[name]:
            raise CodecError(f"{path}: {name!r} has the shape {list(shape)}, the model's has {list(wanted[name])}")


def _read_safetensors(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> Params:
    try:
        with safetensors.safe_open(path, framework="pt") as file:  # compares the header with the length of the file
            _check(path, {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}, wanted)  # noqa: SIM118
            return {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"{path} is no whole safetensors file: {error}") from error


def _read_state_dict(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> Params:
    try:
        with zipfile.ZipFile(path) as archive:
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise CodecError(f"{path} is no whole file of torch.save since PyTorch 1.6: {error}") from error
    if packed:  # torch.save never compresses, and a small file could fill the memory
        raise CodecError(f"{path} is compressed, which torch.save never does: save it again")
    try:
        # Mapped: a tensor cannot reach beyond the file, whatever its size is said to be.
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CodecError(
            f"{path} is damaged or asks for more than tensors ({type(error).__name__}), and nothing else is loaded: "
            "save it with torch.save(module.state_dict(), ...)"
        ) from error
    if not isinstance(tensors, dict):
        raise CodecError(f"{path} holds a {type(tensors).__name__}; save it with torch.save(module.state_dict(), ...)")
    for name, value in tensors.items():
        plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and value.device.type == "cpu"
        if not isinstance(name, str) or not plain:
            raise CodecError(
                f"{path}: {name!r} is a {type(value).__name__}; a state_dict maps names to dense tensors: "
                "save it with torch.save(module.state_dict(), ...)"
            )
    _check(path, {n: tuple(t.shape) for n, t in tensors.items()}, wanted)
    return tensors
