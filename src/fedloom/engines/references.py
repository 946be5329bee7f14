"""Find what clients were sent in the place of what they upload: of models, so that differences have a meaning."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedloom.core import tree
from fedloom.core.types import Params, Tree, Weights
from fedloom.engines.accounting import PayloadSize


def sent_tensors(
    payload: PayloadSize, broadcast: tuple[Any, ...], uploads: Tree, scatter: tuple[Any, ...] = ()
) -> list[Tensor | None]:
    """Return what was sent in the place of each leaf of stacked uploads, without the weights of means.

    It is known of `Weights` that the method sends as a model (by its annotations): it is the model with all of their
    tensors, in the first argument that has such a model: one that was `broadcast`, [...], or `scatter`ed, [n, ...]. Of
    all else it is None: a gradient or a control variate is a difference already. It is None, too, where that argument
    holds several such models, from which each client may have taken another.
    """
    out: list[Tensor | None] = []
    for kind, value in payload.parts_of_uploads(uploads):
        for node in tree.flatten(value, is_leaf=_is_weights)[0]:
            if _is_weights(node):
                sent = _model_for(node, broadcast, scatter) if kind == "model" else None
                for stacked, there in ((node.params, "params"), (node.buffers, "buffers")):
                    given: Params | None = None if sent is None else getattr(sent, there)
                    out += [None if given is None else given[name] for name in stacked]
            else:
                out.append(None)
    return out


def _model_for(stacked: Weights, broadcast: tuple[Any, ...], scatter: tuple[Any, ...]) -> Weights | None:
    """Return the model with all tensors of stacked ones in the first argument that has one; None of several."""
    for lead, arguments in ((1, broadcast), (0, scatter)):
        for argument in arguments:
            nodes = tree.flatten(argument, is_leaf=_is_weights)[0]
            models = [m for m in nodes if _is_weights(m) and _has(m.params, stacked.params, lead)]
            if fitting := [m for m in models if _has(m.buffers, stacked.buffers, lead)]:
                return fitting[0] if len(fitting) == 1 else None
    return None


def _has(model: Params, stacked: Params, lead: int) -> bool:
    return all(name in model and model[name].shape == rows.shape[lead:] for name, rows in stacked.items())


def _is_weights(node: Any) -> bool:
    return isinstance(node, Weights)
