"""Rehearsal of a method on a client without examples, which gives the structure of its answers in advance."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.errors import CodecError
from fedloom.core.local_training import Local
from fedloom.core.types import replace
from fedloom.data import by_lists
from fedloom.engines.links import Encoder
from fedloom.engines.message import EVALUATING, NOTES, Request, Rows
from fedloom.engines.message_bytes import same_shapes, shapes_of, short
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime

HEADS = 8 << 20  # bytes of an answer beside its tensors: heads, structures and headers of four parts, 1 MiB each


class _Blank(Population):
    """One client with blank examples, whose training batches have no steps."""

    def train_batches(self, request: Request, local: Local) -> Batches:
        batches = super().train_batches(request, local)
        return replace(batches, mask=torch.zeros_like(batches.mask), num_steps=torch.zeros_like(batches.num_steps))

    def held_out_batches(self, clients: Sequence[int], kind: Rows, round: int) -> Batches:
        batches = super().held_out_batches(clients, kind, round)  # one is enough: what is found of them has one shape
        order, mask, steps = batches.order[:, :1], batches.mask[:, :1], batches.num_steps.clamp(max=1)
        return replace(batches, order=order, mask=mask, num_steps=steps)


class AnswerShapes:
    """Check of answers by the server.

    A method is rehearsed once for each architecture, registered number of examples and shapes of its arguments, because
    an upload may depend on each of them.
    """

    def __init__(
        self, population: Population, algorithm: Algorithm[Any, Any], encoders: Sequence[Encoder] = ()
    ) -> None:
        self.population, self.algorithm, self.encoders = population, algorithm, encoders
        self._expectations: dict[Any, tuple[dict[str, Any], int]] = {}

    def check(self, request: Request, name: str, like: Any) -> None:
        """Raise CodecError unless a part of one client's answer, without storage, fits the request."""
        expected, planned = self._expected(request)
        if name not in expected:
            raise CodecError(f"an answer to {request.call.method} has no part {name[:80]!r}, only {sorted(expected)}")
        if name == "losses":  # [1, S] of each minimise; the number of steps is the client's
            for entry in like if isinstance(like, list) else [None]:
                if (
                    not isinstance(entry, torch.Tensor)
                    or entry.ndim != 2
                    or len(entry) != 1
                    or not entry.is_floating_point()
                ):
                    raise CodecError(f"losses must be a list of floats [1, steps], got {short(like)}")
            if (count := sum(max(1, entry.shape[1]) for entry in like)) > planned:
                raise CodecError(f"losses are of at most the {planned} steps that were asked for, got {count}")
            return
        if name == "after" and isinstance(like, dict) and isinstance(noted := like.get(NOTES, {}), dict):
            known = expected[name].get(NOTES)  # a branch may leave some out, and none may come that nobody knows
            like = like if known is None else {**like, NOTES: {**known, **noted}}
        same_shapes(expected[name], name, like)

    def upload(self, request: Request) -> Any:
        """Return the upload of an answer, without storage."""
        return self._expected(request)[0]["upload"]

    def size(self, request: Request) -> int:
        """Return the bytes that the answer to a request may have."""
        expected, planned = self._expected(request)
        return HEADS + 8 * planned + sum(int(t.numel() * t.itemsize) for t in tree.leaves(expected))

    def _expected(self, request: Request) -> tuple[dict[str, Any], int]:
        """Return the parts of an answer, without storage, and the most steps of its losses."""
        p, client = self.population, request.clients[0]
        architecture, call = p.assignment[client], request.call
        sent = call.broadcast, request.scatter
        shapes = tuple((str(t.dtype), tuple(t.shape)) for t in tree.leaves(sent))
        size = int(p.at(call.round).partition.sizes[client])
        key = call.method, call.split, call.works, call.exchange == EVALUATING, architecture, size, shapes
        if key not in self._expectations:
            blank = self._blank(architecture, size)
            runtime = Runtime(blank, self.algorithm, encoders=self.encoders)
            alone = dataclasses.replace(request, clients=(0,))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of blank examples
                first, model = tree.stack([runtime.fresh(0)]), tree.stack([runtime.initial(architecture)])
                states, answer = runtime.answer(alone, first)
                after = {work: runtime.look(work, alone, first, model) for work in call.works}
                after |= {NOTES: answer.after[NOTES]} if NOTES in answer.after else {}
            parts = {"upload": answer.upload, "losses": list(answer.losses), "state": states}
            parts |= {"after": after} if after else {}
            self._expectations[key] = {name: shapes_of(value) for name, value in parts.items()}, answer.planned
        return self._expectations[key]

    def _blank(self, architecture: str, examples: int) -> Population:
        """Return a blank client with this architecture and registered number of examples."""
        p, train = self.population, self.population.federation.train
        rows = examples + 2  # for training, then one for testing and one for validation
        x = torch.zeros((), dtype=train.x.dtype).expand(rows, *train.shape)
        examples_ = dataclasses.replace(train, x=x, y=torch.zeros((rows, *train.y.shape[1:]), dtype=train.y.dtype))
        parts: dict[str, Any] = {"local_test": [[examples]], "local_val": [[examples + 1]]}
        held_out: dict[str, Any] = {
            role: by_lists(lists) for role, lists in parts.items() if getattr(p.federation, role) is not None
        }
        federation = dataclasses.replace(
            p.federation,
            train=examples_,
            partition=by_lists([np.arange(examples)]),
            test=None,
            arrives=None,
            drift=None,
            **held_out,
        )
        return _Blank(
            federation,
            {architecture: p.models[architecture]},
            (),
            p.task,
            p.seed,
            p.device,
            p.dtype,
            measures=p.measures,
        )
