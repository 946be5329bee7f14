"""The global networks of a run as plain modules, after whichever round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError
from fedloom.core.model import Model


@dataclass(frozen=True)
class TrainedNetworks:
    """Maker of networks from server states: the algorithm, and the architectures with their frozen tensors."""

    algorithm: Algorithm[Any, Any]
    models: Mapping[str, Model]

    def module(self, server: dict[str, Any] | None, name: str | None = None) -> nn.Module:
        """Return the global network of an architecture; None: of the only one.

        Raises:
            SettingError: there is no such model, or there are several and none is named; nothing is trained yet.
        """
        if server is None:
            raise SettingError("history.module() is a trained network, and no round is done yet: ask after the first")
        found = self.algorithm.global_models(server, self.models)
        if not found:
            raise SettingError(
                f"{type(self.algorithm).__name__} has no global model, and history.module() is one: take a client's "
                "own, fedloom.module(model, job.restore(directory).personal_weights(client))"
            )
        if name is None and len(found) > 1:
            raise SettingError(
                f"history.module(name) is one network, and the run has the global models {', '.join(found)}: name one"
            )
        name = next(iter(found)) if name is None else name
        if name not in found:
            raise SettingError(f"the run has no global model {name!r}; it has {', '.join(found)}: name one of these")
        weights = found[name]
        return self.models[name].filled({**weights.params, **weights.buffers, **self.models[name].frozen})
