"""One-shot, data-free methods: a round of uploads, then epochs in which the server alone teaches a student.

The models of the clients teach. The server has no examples, so it makes some: how it does is the method. Every epoch is
a round that selects no client.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.func import vmap

from fedloom.algorithms.shared.student import like, rate, student_among, student_loss
from fedloom.algorithms.shared.synthetic import as_bytes, as_public
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.choices import Count, Positive
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import RankError, SettingError, SettingWarning, quiet_vmap, warn
from fedloom.core.fold import minimise_from
from fedloom.core.local_training import Distill
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.random import derive
from fedloom.core.requires import Requires
from fedloom.core.types import Weighted, Weights, replace, state, static
from fedloom.data import Federation, Normalise

V = TypeVar("V")


@dataclass(frozen=True)
class DataSummary:
    """Summary of the clients' data, which the server imitates."""

    shape: tuple[int, ...]  # of an example
    num_classes: int
    pixels: Normalise  # from values in [0, 1] to what the networks take
    augment: Callable[[Tensor, Tensor], Tensor] | None  # what the clients' images go through in training
    student: Model


@state
class Teachers:
    """The models of the clients that answered, by architecture."""

    weights: tuple[Weights, ...]  # of each architecture, [k, ...]
    models: tuple[Model, ...] = static()

    @property
    def count(self) -> int:
        """m, how many they are."""
        return sum(len(tree.leaves(w)[0]) for w in self.weights)

    def each(self, fn: Callable[[Model, Weights], V]) -> V:
        """Return `fn(model, weights)` of every teacher, [m, ...]: a stack at a time, or one after another."""
        out: list[V] = []
        for model, weights in zip(self.models, self.weights, strict=True):
            first = tree.leaves(weights)[0]
            if in_one_stack(model, first.device):
                with quiet_vmap():
                    out.append(vmap(lambda w, model=model: fn(model, w))(weights))
            else:
                out.append(tree.stack([fn(model, tree.take(weights, i)) for i in range(len(first))]))
        return tree.cat(out)

    def logits(self, x: Tensor) -> Tensor:
        """D(x) = (1/m) sum_k f_k(x), [B, C]: the mean of the logits of all, in evaluation mode, unweighted."""
        return self.each(lambda model, w: model(w, x)).mean(0)


def in_one_stack(model: Model, device: torch.device) -> bool:
    """Return whether teachers of an architecture are computed in one stack.

    The first line that holds:

    1. recurrent layers, for which `vmap` has no rule: one after another;
    2. a GPU: one stack;
    3. convolutions on a CPU, of which `vmap` makes slower grouped ones: one after another;
    4. else one stack.
    """
    return not model.is_recurrent and (device.type != "cpu" or not model.has_convolutions)


@state
class Server:
    """State of the server of a one-shot method, between its epochs."""

    student: Weights
    moments: tuple[Tensor, ...]  # of the student's optimiser
    answered: Tensor  # [N] bool: whose models teach
    begun: Tensor  # [] int64: how many entries of the pool are of earlier rounds of uploads
    key: Tensor  # [] int64: of the clients' initial weights
    own: Any  # what the method trains beside the student, from one epoch to the next


@state
class Made:
    """Examples that the server made in one epoch."""

    x: Tensor  # [b, ...] uint8
    y: Tensor  # [b] int64: the classes that they were made for
    said: Tensor  # [b] int64: the classes that the ensemble takes them for


@dataclass(frozen=True, kw_only=True)
class OneShot(Algorithm[Server, tuple[()]]):
    """Teach a student on the server, an epoch in each round, after one round of uploads (abstract)."""

    synthesis: Distill
    """Batch size and optimiser of the examples that are made."""
    distill: Distill = field(default_factory=lambda: Distill(batch_size=256, optimiser=SGD(lr=0.01, momentum=0.9)))
    """Batch size and optimiser of the student; its momentum lasts from epoch to epoch."""
    T: Positive = 20.0
    """Temperature of the distillation; 20 is in the README of DENSE's authors, the paper names none."""
    student: str | None = None
    """Architecture of the student, one of the run's by name; none: that of the first client. A network that no client
    has may stand behind theirs."""
    epochs: Count | None = None
    """Epochs of the server after each round of uploads, where there are several (a run of 3 (1 + epochs) rounds has
    three). All clients are then selected again, and those of the student's architecture start from the student; pool,
    generator and momentum begin anew. None: one round of uploads, the first (or the next, where no client answers)."""

    requires = Requires(mixed=True, everyone=True, targets=("classes",), logits=2, front=True, server_training=True)
    about: ClassVar[DataSummary]  # of an instance that is `bind`

    def bind(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        train, student = federation.train, student_among(models, self.student or next(iter(models)))
        if not isinstance(train.normalise, Normalise):
            raise SettingError(
                f"{type(self).__name__} makes examples by a generator, whose outputs are numbers, and inputs are "
                f"{type(train.normalise).__name__}: take an algorithm that makes none, such as FedAvg"
            )
        absent = np.flatnonzero(federation.counts().sum(0) == 0).tolist()
        if absent:
            warn(
                f"examples are made of every class, and no client has one of the classes {_list(absent)}, so that no "
                "model knows what they look like: partition the data otherwise, or number the classes without these",
                SettingWarning,
            )
        pixels = dataclasses.replace(train.normalise, scale=1.0)
        about = DataSummary(train.shape, train.num_classes, pixels, train.augment, student)
        return super().bind(federation, models).with_context(about=about)

    def init(self, model: Mapping[str, Model], key: int, *, num_clients: int) -> Server:
        student = self.about.student.init(derive(key, "student"))
        return Server(
            student=student,
            moments=self._at_rest(student),
            answered=torch.zeros(num_clients, dtype=torch.bool),
            begun=torch.zeros((), dtype=torch.int64),
            key=torch.tensor(key),
            own=self.begin(derive(key, "own")),
        )

    def begin(self, key: int) -> Any:
        """Return what the method trains beside the student, as it is after a round of uploads."""
        return ()

    def init_rows(self, initial: Weights, model: Model, *, num_clients: int) -> Mapping[str, Any]:
        return {"model": initial}

    def init_pools(self, server: Server) -> Mapping[str, Any]:
        return {"images": self.entry(self.synthesis.batch_size)}

    def entry(self, count: int) -> Made:
        """Return what the pool gets in an epoch."""
        none = torch.zeros(count, dtype=torch.int64)
        return Made(x=torch.zeros((count, *self.about.shape), dtype=torch.uint8), y=none, said=none)

    @on_client
    def local_update(self, client: Client[tuple[()]], start: Weights) -> tuple[tuple[()], Weights]:
        return (), self.train(client, start, loss=client.loss)

    def collects(self, round: int) -> bool:
        """Return whether clients upload in this round, from 0; in the others the server learns by itself.

        With `epochs` = 2 they upload in rounds 0, 3, 6, ..., and the server has epochs in 1, 2, 4, 5, ...; with None
        they upload in round 0 alone, and all others are epochs of the server.
        """
        return round == 0 if self.epochs is None else round % (1 + self.epochs) == 0

    def round(self, server: Server, cohort: Cohort) -> Server:
        if self.collects(cohort.round) or not bool(server.answered.any()):  # or so far nobody has answered
            return self._collect(server, cohort)
        groups = cohort.everyone.only(server.answered.nonzero().flatten()).groups
        teachers = Teachers(weights=tuple(g.rows("model") for g in groups), models=tuple(g.model for g in groups))
        cohort.note(teachers=teachers.count)
        return self.epoch(server, teachers, cohort)

    @abstractmethod
    def epoch(self, server: Server, teachers: Teachers, cohort: Cohort) -> Server:
        """Run an epoch of the server: what the method makes, and what the student learns from it."""

    def global_models(self, server: Mapping[str, Server], models: Mapping[str, Model]) -> dict[str, Weights]:
        return {name: server[""].student for name, model in models.items() if model.fits(server[""].student)}

    def _collect(self, server: Server, cohort: Cohort) -> Server:
        """Run the round of uploads."""
        answered, found, single = torch.zeros_like(server.answered), [], dict[int, Any]()
        for group in cohort.groups:
            model, again = group.model, bool(server.answered.any()) and group.model is self.about.student
            start = server.student if again else like(server.student, model.init(int(server.key)))
            replies = group.gather(self.local_update, start, at_least=0)
            if replies.values:
                replies.cohort.keep("model", replies.value)
                answered[replies.ids] = True
                found.append((model, replies.value))
                single |= {k: _alone(model, w) for k, w in zip(replies.ids.tolist(), replies.values, strict=True)}
        if (count := int(answered.sum())) < cohort.least:
            raise RankError(
                f"{type(self).__name__} is taught by the models of at least {cohort.least} devices (--least), got "
                f"{count} in round {cohort.round + 1}: continue with --resume --least {cohort.least}, which waits for "
                f"the others, or without them with --resume --least {max(1, count)}"
            )
        if not found:
            return server  # nobody answered
        if len(found) == 1:  # one architecture: what one-shot FedAvg's uniform mean would be
            ((model, uploads),) = found
            cohort.evaluate("mean", _alone(model, _mean(uploads)))
        cohort.evaluate("upload", single)
        ensemble = Teachers(weights=tuple(w for _, w in found), models=tuple(m for m, _ in found))
        cohort.evaluate("ensemble", ensemble.logits)
        return replace(
            server,
            moments=like(server.student, self._at_rest(server.student)),
            answered=answered,
            begun=torch.zeros_like(server.begun) + len(cohort.pool("images")),
            own=like(server.student, self.begin(cohort.key("own"))),
        )

    def _at_rest(self, student: Weights) -> tuple[Tensor, ...]:
        return tuple(self.distill.optimiser.init(tree.leaves(student.params)))

    # ---- for an epoch

    def drawn(self, cohort: Cohort, server: Server) -> tuple[Tensor, torch.Generator]:
        """Classes for a batch of examples, uniform and sorted, [b]; and from where else is drawn in this epoch."""
        rng = torch.Generator().manual_seed(cohort.key("drawn"))
        labels = torch.randint(self.about.num_classes, (self.synthesis.batch_size,), generator=rng)
        return labels.sort().values.to(server.key.device), rng

    def keep(self, x: Tensor, y: Tensor, teachers: Teachers, cohort: Cohort) -> None:
        """Add examples x [b, ...], values in [0, 1] made for the classes y [b], to the pool.

        The round's record gets `server_agree`, the share of them that the ensemble takes for their class.
        """
        x = as_bytes(x)
        weight = tree.leaves(teachers.weights)[0]
        said = teachers.logits(self.inputs(x, weight.dtype)).argmax(-1)
        cohort.append("images", Made(x=x, y=y, said=said))
        cohort.note(agree=(said == y).double().mean())

    def since(self, server: Server, cohort: Cohort) -> list[Tensor]:
        """Return the examples of each epoch since the last round of uploads, before this one."""
        return [made.x for made in cohort.pool("images")[int(server.begun) :]]

    def inputs(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the inputs of the networks for examples x [n, ...], bytes or values in [0, 1]."""
        return self._prepared(x)(x, dtype)

    def _prepared(self, x: Tensor) -> Normalise:
        return dataclasses.replace(self.about.pixels, scale=1 / 255 if x.dtype == torch.uint8 else 1.0)

    def distilled(self, server: Server, teachers: Teachers, x: Tensor, key: int, augmented: bool = True) -> Server:
        """Pass the student once over examples x [n, ...], bytes or values in [0, 1], shuffled.

        It minimises T^2 KL(softmax(D(x) / T) || softmax(f_S(x) / T)), mean over the batch.
        """
        weight = tree.leaves(server.student.params)[0]
        steps = -(-len(x) // self.distill.batch_size)
        batches = as_public(x, self._prepared(x), weight.dtype).shuffled(self.distill.batch_size, steps, key)
        batches = replace(batches, augment=self.about.augment if augmented else None)
        student, moments = minimise_from(
            student_loss(self.about.student, self.T),
            server.student,
            server.moments,
            batches.annotate("teacher", Teachers.logits, teachers),
            self.distill.optimiser,
            lr=rate(self.distill, weight),
        )
        return replace(server, student=student, moments=moments)


@dataclass(frozen=True, kw_only=True)
class Generates(OneShot):
    """Make examples by a generator (abstract)."""

    generator: str = "fedloom.models:DenseGenerator"
    """Maker of the generator's network, as module:name; it takes `nz`, `ngf`, and the `channels` and `size` of the
    images, and makes values in [0, 1] of the shape of the data."""
    nz: Annotated[int, Ge(1), Le(4096)] = 256  # at most, or a device might run out of memory by a server's settings
    """Values of a noise vector."""
    ngf: Annotated[int, Ge(1), Le(1024)] = 64
    """Width of the generator."""

    def bind(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        made = super().bind(federation, models)
        shape, network = made.about.shape, made.network
        z = torch.zeros(2, self.nz)
        images = network(network.init(0), z)
        if images.shape != (2, *shape):
            raise SettingError(
                f"the generator must make examples like the data's, {_by(shape)}, got {_by(images.shape[1:])} from "
                f"{self.generator}: name another one, or crop or pad the images"
            )
        return made

    def begin(self, key: int) -> Any:
        """Return the generator and the state of its optimiser."""
        g = self.network.init(key)
        return g, tuple(self.synthesis.optimiser.init(tree.leaves(g.params)))

    @property
    def network(self) -> Model:
        """The generator's."""
        shape = self.about.shape
        return Model.by_name(self.generator, nz=self.nz, ngf=self.ngf, channels=shape[0], size=shape[-1])

    def images(self, g: Weights, z: Tensor) -> Tensor:
        """G(z), [B, ...], of noise [B, nz], normalised by this batch."""
        real = torch.ones(len(z), dtype=torch.bool, device=z.device)
        return self.network.train(g, Batch(x=z, y=real.long(), mask=real, key=real.long().sum(), full=True))[0]


def _mean(stacked: Weights) -> Weights:
    """Return the uniform mean of models [k, ...], as `Cohort.reduce` makes it of uploads that all weigh 1."""
    total = tree.WeightedMean()
    total.add(Weighted(value=stacked, weight=torch.ones(len(tree.leaves(stacked)[0]))))
    mean: Weights = total.result()
    return mean


def _alone(model: Model, weights: Weights) -> Callable[[Tensor], Tensor]:
    return lambda x: model(weights, x)


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
