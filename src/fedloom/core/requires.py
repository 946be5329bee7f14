"""Say what an algorithm needs, and refuse a run that lacks it before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedloom.core.errors import SettingError
from fedloom.core.task import Task, targets_of

if TYPE_CHECKING:
    from fedloom.data import Federation

Target = Literal["classes", "labels", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Requires:
    """Needs of an algorithm: of data, networks and runs; by default nothing.

    A class that adds to what its parents need says `super().requires | Requires(...)` in a property.

    Attributes:
        public: public examples.
        validation: validation examples on clients.
        targets: kinds of targets that it can compare answers to: `classes`, several `labels` of an example, `tokens` of
            a sequence; none: any, since it knows the task's loss alone.
        logits: fewest outputs of a network. With one, a softmax is always 1 and a term that compares softmaxes 0.
        sums: sums of what clients report, which no aggregator but the mean gives.
        everyone: all clients in each round, whatever sampler and cohort size say.
        mixed: all architectures in one round. `init` then gets all models, and `round` the whole cohort.
        one_place: the examples of all clients in one place, as those of one client.
        server_training: time on the server, which trains networks in `round`, maybe longer than all clients do.
        optimisers: how many each client has where it keeps them: one for each of the models that `train` trains.
        front: the frozen front of a network too, since it gives networks inputs of its own or calls their parts; None:
            unknown, of an algorithm from outside fedloom.
    """

    public: bool = False
    validation: bool = False
    targets: tuple[Target, ...] = ()
    logits: int = 1
    sums: bool = False
    everyone: bool = False
    mixed: bool = False
    one_place: bool = False
    server_training: bool = False
    optimisers: int = 1
    front: bool | None = None

    def __or__(self, other: Requires) -> Requires:
        """Return what two classes need together: both, and targets that suit both."""
        both = tuple(kind for kind in self.targets if kind in other.targets)
        return Requires(
            public=self.public or other.public,
            validation=self.validation or other.validation,
            targets=both if self.targets and other.targets else self.targets or other.targets,
            logits=max(self.logits, other.logits),
            sums=self.sums or other.sums,
            everyone=self.everyone or other.everyone,
            mixed=self.mixed or other.mixed,
            one_place=self.one_place or other.one_place,
            server_training=self.server_training or other.server_training,
            optimisers=max(self.optimisers, other.optimisers),
            front=other.front if self.front is None else self.front or bool(other.front),
        )

    def check(self, name: str, federation: Federation, task: Task) -> None:
        """Refuse a run that lacks what is needed.

        Args:
            name: of the algorithm, for messages.
            federation: what the run trains on.
            task: what it trains for.

        Raises:
            SettingError: something is lacking.
        """
        kind = targets_of(task)
        if self.targets and kind not in self.targets:
            raise SettingError(
                f"{name} compares the probabilities of classes, and targets of the task {type(task).__name__} are "
                f"{kind}: take a method that needs only a loss, such as FedAvg, or a task for classes [FL-METHOD-012]"
            )
        self.check_public(name, there=federation.public is not None)
        if self.validation and (federation.local_val is None or not len(federation.local_val.indices)):
            raise SettingError(
                f"{name} needs validation examples on its clients, got none: hold some out with federate(..., "
                "val_fraction=0.2), or data.val_fraction (--val-fraction 0.2) [FL-METHOD-013]"
            )

    def check_public(self, name: str, *, there: bool) -> None:
        """Refuse a run without public examples, where they are needed; `there`: whether it has some."""
        if self.public and not there:
            raise SettingError(
                f"{name} needs public examples, got none: take some out with data.public (--public 500), name other "
                "data with data.public_source, or give federate(..., public=examples) [FL-METHOD-003]"
            )

    def check_logits(self, name: str, model: str, count: int) -> None:
        """Refuse a network with fewer logits than are compared.

        Args:
            name: of the algorithm.
            model: name of the network.
            count: its logits of an example.
        """
        if count < self.logits:
            raise SettingError(
                f"{name} compares what models say of an example in at least {self.logits} logits, and model {model} "
                f"has {count}: with fewer the term is constant and nothing is learnt from it; take a network with a "
                "logit for each of more classes and a task for it, or an algorithm that compares none [FL-METHOD-002]"
            )


class GlobalOnly(dict[str, object]):
    """Settings with which an algorithm's global model is FedAvg's, and the models that evaluate clients are not."""
