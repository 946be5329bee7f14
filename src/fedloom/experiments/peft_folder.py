"""The adapter of a trained network alone, as the library peft writes and reads it: `PeftModel.from_pretrained`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from fedloom.core.errors import SettingError
from fedloom.core.network_copies import tensors_of
from fedloom.wording import install, some_of

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_files(network: nn.Module, name: str, trained: tuple[str, ...]) -> dict[str, bytes]:
    """Return the files of a network's adapter by name, the one that makes a folder readable last.

    Args:
        network: with its trained weights; a PeftModel, or a module that has one.
        name: of the architecture.
        trained: names of all tensors that were trained.

    Raises:
        SettingError: peft is not installed, the network is no PeftModel, or something outside the adapter was trained.
    """
    try:
        from peft import PeftModel, get_peft_model_state_dict
    except ImportError:
        raise SettingError(f"an adapter alone (--peft) is written by peft: {install('adapters')}") from None
    found: list[Any] = [part for part in network.modules() if isinstance(part, PeftModel)]
    if len(found) != 1 or len(found[0].peft_config) != 1:
        has = f"has {len(found)}" if len(found) != 1 else f"has the adapters {', '.join(found[0].peft_config)}"
        raise SettingError(
            f"--peft (format='peft') writes the one adapter of the one PeftModel that a network is or has in it, and "
            f"{name} {has}: leave it out and name a file, which gets the whole network"
        )
    (adapted,) = found
    (adapter,) = adapted.peft_config
    inside = get_peft_model_state_dict(adapted, adapter_name=adapter, save_embedding_layers=False)
    places = {tensor.data_ptr() for tensor in inside.values()}
    tensors = dict(tensors_of(network))
    if outside := [n for n in trained if tensors[n].data_ptr() not in places]:
        raise SettingError(
            f"an adapter alone is equal to the trained network where nothing else was trained, and of {name} "
            f"{some_of(outside, 3)} was: name such layers in LoraConfig(modules_to_save=[...]), freeze them, or leave "
            "--peft out"
        )
    with tempfile.TemporaryDirectory() as made:
        adapted.save_pretrained(made, save_embedding_layers=False)
        folder = Path(made) if adapter == "default" else Path(made, adapter)
        return {file: (folder / file).read_bytes() for file in (WEIGHTS, CONFIG)}
