"""Loading of untrusted files of weights."""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from fedloom.coordinator.plan import model_of
from fedloom.core import patterns
from fedloom.core.errors import CodecError, SettingError, SettingWarning, warn
from fedloom.core.model import Model
from fedloom.core.network_copies import tensors_of
from fedloom.core.types import Weights
from fedloom.experiments.export import Network, file_format
from fedloom.storage.files import path_of
from fedloom.wording import some_of


def load_weights(path: str | os.PathLike[str], model: Network, *, dtype: torch.dtype = torch.float32) -> Weights:
    """Return the weights in a safetensors or state_dict file (.pt, .pth), for a warm start of `model`.

    Nothing in the file is executed. Names and shapes are compared with the model's before a tensor is copied.
    Parameters must be finite, buffers not NaN. Buffers that a state_dict leaves out (`persistent=False`) are the
    model's initial ones.

    Args:
        path: the file.
        model: whose weights they must be; or a module, or a function that makes one, as `fedloom.run` takes them.
        dtype: of floating-point tensors; others must have the model's type.

    Raises:
        SettingError: there is no such file, or its suffix is not one of these.
        CodecError: the file is damaged, holds something else than tensors, or does not fit the model; says what.
    """
    model = model_of(model)
    tensors = _read(path_of(path), model, dtype)
    for name, own in model.frozen.items():
        if not torch.equal(tensors[name].to(own.dtype), own.cpu()):
            raise CodecError(
                f"{path} has another {name!r} than {model.name}, where it is frozen: take the network with all that is "
                "in the file, fedloom.load_network(path, model)"
            )
    return Weights({n: tensors[n] for n in model.params}, {n: tensors[n] for n in model.buffers})


def load_network(path: str | os.PathLike[str], model: Network, *, only: str = "*", seed: int = 0) -> Model:
    """Return a network that begins with the tensors of a file, its frozen tensors included.

    What may stand in the file, and what is raised: as for `load_weights`.

    Args:
        path: the file.
        model: the architecture; or a module, or a function that makes one, as `fedloom.run` takes them.
        only: words that choose what is taken from the file (`core/patterns.py`): "* !last:1" leaves out a last layer
            for other classes. What else the file has is named in a warning.
        seed: of the values that are not taken, as of `model.init`.
    """
    model = model_of(model)
    network = model.filled(_read(path_of(path), model, torch.float32, only, seed))
    return Model(network, name=model.name, factors="both")  # requires_grad says which of them are trained


def _read(path: Path, model: Model, dtype: torch.dtype, only: str = "*", seed: int = 0) -> dict[str, Tensor]:
    """Return all tensors of a network: those that `only` chooses as a file has them, others as at a seed."""
    format = file_format(path)
    if format == "onnx":
        raise SettingError(f"{path} cannot be read back: ONNX holds a network; give a .safetensors, .pt or .pth file")
    if not path.is_file():
        raise SettingError(f"{path} is no file; give a .safetensors, .pt or .pth file")
    template = model.whole(seed, dtype)
    network = model.skeleton()
    first = {id(tensor): name for name, tensor in tensors_of(network)}
    # Tied tensors have several names; a file may hold any of them.
    aliases: dict[str, list[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor):
            aliases.setdefault(first[id(tensor)], []).append(name)
    parameters = [name for name, _ in network.named_parameters()]
    chosen = set(template) if only == "*" else patterns.select(only, template, parameters, network, model.name)
    wanted = {alias: template[n] for n, names in aliases.items() if n in chosen for alias in names}
    read = _read_safetensors if format == "safetensors" else _read_state_dict
    found = read(path, {n: tuple(t.shape) for n, t in wanted.items()}, only != "*")

    def value(name: str, initial: Tensor, trained: bool) -> Tensor:
        if name not in aliases or name not in chosen:
            return initial
        tensors = [found[alias] for alias in aliases[name] if alias in found]
        if not tensors:
            raise CodecError(f"{path} lacks {name!r} of {model.name}; it has {some_of(sorted(found), 4)}")
        tensor = tensors[0]
        if any(not torch.equal(tensor, other) for other in tensors[1:]):
            raise CodecError(
                f"{path}: {some_of(aliases[name], 4)} are one tensor in {model.name}, but differ in the file"
            )
        if tensor.is_floating_point() != initial.is_floating_point() or (
            not initial.is_floating_point() and tensor.dtype != initial.dtype
        ):
            raise CodecError(f"{path}: {name!r} is {tensor.dtype}, {model.name} has {initial.dtype}")
        tensor = tensor.detach().to(initial.dtype, copy=True).contiguous()
        if bool(tensor.isnan().any()) or (trained and not bool(tensor.isfinite().all())):
            raise CodecError(f"{path}: {name!r} has values that are NaN or infinite in {dtype}")
        return tensor

    return {name: value(name, tensor, name in parameters) for name, tensor in template.items()}


def _check(
    path: Path, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], part: bool
) -> list[str]:
    """Return the names of the tensors to take from a file. `part`: it may have others."""
    if part and (others := [name for name in found if name not in wanted]):
        warn(f"not taken from {path}: {some_of(others, 4)}", SettingWarning)
    for name, shape in found.items():
        if name not in wanted:
            if part:
                continue
            raise CodecError(f"{path} has {name!r}, which the model has not; the model has {some_of(wanted, 4)}")
        if shape != wanted[name]:
            raise CodecError(
                f"{path}: {name!r} has the shape {list(shape)}, the model's has {list(wanted[name])}: take the other "
                "tensors alone (start_only = '* !last:1' leaves out the last layer)"
            )
    return [name for name in found if name in wanted]


def _read_safetensors(path: Path, wanted: Mapping[str, tuple[int, ...]], part: bool) -> dict[str, Tensor]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:  # compares the header with the length of the file
            shapes = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
            return {n: file.get_tensor(n) for n in _check(path, shapes, wanted, part)}
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"{path} is no whole safetensors file: {error}") from error


_TENSORS = re.compile(r"collections OrderedDict|torch(\.\w+)* (?!\w*Tensor$)\w+")
"""Names in the pickle of a state_dict. PyTorch calls more, such as `bytearray`, by which few bytes make many."""


def _globals(pickled: bytes) -> list[str]:
    """Return what a pickle names, each as "module name"; nothing is executed.

    Raises:
        ValueError: it is no pickle, or none of one that stands alone in its file.
    """
    return list(dict.fromkeys(str(arg) for code, arg, _ in pickletools.genops(pickled) if code.name == "GLOBAL"))


def _read_state_dict(path: Path, wanted: Mapping[str, tuple[int, ...]], part: bool) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
            pickles = [entry for entry in entries if entry.filename.rpartition("/")[2] == "data.pkl"]
            pickled = archive.read(pickles[0]) if len(pickles) == 1 and not packed else b""
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise CodecError(f"{path} is no whole file of torch.save since PyTorch 1.6: {error}") from error
    if packed:  # torch.save never compresses, and a small file could fill the memory
        raise CodecError(f"{path} is compressed, which torch.save never does: save it again")
    try:
        if asked := [name for name in _globals(pickled) if not _TENSORS.fullmatch(name)]:
            raise CodecError(
                f"{path} asks for more than tensors ({some_of(asked, 4)}), and nothing else is loaded: save it with "
                "torch.save(module.state_dict(), ...)"
            )
        # Mapped: a tensor cannot reach beyond the file, whatever its size is said to be.
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except CodecError:
        raise
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
    return {n: tensors[n] for n in _check(path, {n: tuple(t.shape) for n, t in tensors.items()}, wanted, part)}
