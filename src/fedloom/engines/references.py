"""Find what clients were sent in the place of what they upload: of models, so that differences have a meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedloom.core import tree
from fedloom.core.types import Params, Tree, Weights
from fedloom.engines.accounting import PayloadSize


def sent_tensors(payload: PayloadSize, broadcast: tuple[Any, ...], uploads: Tree) -> list[Tensor | None]:
    """Return what was `broadcast` in the place of each leaf of stacked uploads, without the weights of means.

    It is known of `Weights` that the method sends as a model (by its annotations) where a broadcast model has all of
    their tensors, the first such one. Of all else it is None: a gradient or a control variate is a difference already.
    """
    models = [node for node in tree.flatten(broadcast, is_leaf=_is_weights)[0] if _is_weights(node)]
    out: list[Tensor | None] = []
    for kind, value in payload.parts_of_uploads(uploads):
        for node in tree.flatten(value, is_leaf=_is_weights)[0]:
            if _is_weights(node):
                sent = _first_with(models, node) if kind == "model" else None
                for stacked, there in ((node.params, "params"), (node.buffers, "buffers")):
                    given: Params | None = None if sent is None else getattr(sent, there)
                    out += [None if given is None else given[name] for name in stacked]
            else:
                out.append(None)
    return out


def _first_with(models: Sequence[Weights], stacked: Weights) -> Weights | None:
    """Return the first model that has all tensors of stacked ones."""
    return next((m for m in models if _has(m.params, stacked.params) and _has(m.buffers, stacked.buffers)), None)


def _has(model: Params, stacked: Params) -> bool:
    return all(name in model and model[name].shape == rows.shape[1:] for name, rows in stacked.items())


def _is_weights(node: Any) -> bool:
    return isinstance(node, Weights)
