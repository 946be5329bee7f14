"""Measures of a round: each number is declared here once, with its unit, its direction and its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedloom.core.errors import SettingError
from fedloom.core.task_measures import TaskMeasure, chosen_measures, measures_of
from fedloom.tasks import Binary, Classification, MultiLabel, Regression
from fedloom.wording import did_you_mean


@dataclass(frozen=True)
class Measure:
    """Description of a number of a round's record."""

    name: str
    """Its key in `metrics.jsonl`."""
    title: str
    """Heading."""
    label: str
    """Its name among others of its kind: in legends and columns."""
    meaning: str
    """Its meaning, and over whom. One sentence; a remark may follow."""
    unit: Literal["%", "points", "loss", ""] = "%"
    """Shares (0..1 in the record) are printed in %, differences of shares in points, other numbers as they are."""
    better: Literal["high", "low"] = "high"
    tunable: Literal["", "partition", "local_val", "local_test", "test"] = ""
    """The part of a federation with the examples that it is measured on, where a sweep can choose settings by it."""
    what: str = ""
    """The measure of the task that is taken of each model."""

    @property
    def caption(self) -> str:
        """Meaning of the measure, with its direction where a reader may mistake it."""
        return self.meaning + " Lower is better." * (self.unit == "points" and self.better == "low")

    @property
    def axis(self) -> str:
        """The label of an axis."""
        names = {"%": f"{self.what} (%)", "points": f"{self.title.lower()} (points)", "loss": "loss"}
        return names.get(self.unit, self.title)


def measures_for(headline: TaskMeasure, others: Sequence[TaskMeasure] = ()) -> dict[str, Measure]:
    """Return all numbers of a record that are one a round, by name, for a task with this headline measure.

    `others`: measures of the task that are computed beside it.
    """
    what, unit, better = headline.title, headline.unit, headline.better
    title, worst = what[:1].upper() + what[1:], "lowest" if better == "high" else "highest"
    spread: Literal["points", ""] = "points" if unit == "%" else ""
    measures = (
        Measure(
            f"val_{headline.name}", f"Validation {what}", "validation",
            f"Mean over clients of the {what} of each one's personal model on its validation examples.",
            unit, better, tunable="local_val",
        ),
        Measure(
            "train_loss", "Training loss", "training",
            "Mean over the clients of a round of the mean loss over the batches of their last local training. Extra "
            "terms of an algorithm count, so it compares rounds rather than methods.",
            unit="loss", better="low", tunable="partition",
        ),
        Measure(
            f"global_{headline.name}", f"Global {what}", "global",
            f"{title} of the global model on the global test set.",
            unit, better, tunable="test",
        ),
        Measure(
            "global_loss", "Test loss", "test",
            "Loss of the global model on the global test set."
            + " Where it rises while accuracy holds, wrong answers become surer." * (headline.name == "accuracy"),
            unit="loss", better="low", tunable="test",
        ),
        Measure(
            "forgetting", "Forgetting", "forgetting",
            "Drop of a class from its best earlier round, mean over classes.",
            unit="points", better="low", tunable="test",
        ),
        Measure(
            "in_local_accuracy", "In-local accuracy", "in-local",
            "Accuracy of the global model on the classes that the round's clients hold.",
            tunable="test",
        ),
        Measure(
            "out_local_accuracy", "Out-local accuracy", "out-local",
            "Accuracy of the global model on the classes that the round's clients do not hold: what their training "
            "must not destroy.",
            tunable="test",
        ),
        Measure(
            f"personal_{headline.name}", f"Personal {what}", "personal",
            f"Mean over clients of the {what} of each one's personal model on its own held-out examples.",
            unit, better, tunable="local_test",
        ),
        Measure(
            "personal_std", "Spread over clients", "spread",
            f"Standard deviation of personal {what} over clients.",
            unit=spread, better="low", tunable="local_test",
        ),
        Measure(
            "personal_worst_tenth", f"Personal {what} of the worst decile", "worst decile",
            f"Mean personal {what} of the 10 % of clients with the {worst} {what}.",
            unit, better, tunable="local_test",
        ),
        Measure(
            f"personal_{headline.name}_by_samples", f"Personal {what} by samples", "personal, by samples",
            "All right answers of personal models over all held-out examples: large clients count for more."
            if headline.name == "accuracy"
            else f"{title} of personal models over all held-out examples: large clients count for more.",
            unit, better,
        ),
        Measure(
            "personal_train_loss", "Training loss of all clients", "training, all clients",
            "Mean loss of personal models over all training examples of their clients, without augmentation and "
            "without the extra terms of an algorithm: it compares methods.",
            unit="loss", better="low",
        ),
        Measure(
            "server_loss", "Server loss", "server",
            "Mean loss over the steps of the server's last own training, in rounds with one.",
            unit="loss", better="low",
        ),
        Measure(
            "global_on_clients", "Global model on clients", "global, on clients",
            f"Mean over clients of the {what} of the global model on each one's held-out examples.",
            unit, better,
        ),
        Measure(
            "global_on_clients_by_samples", "Global model on clients by samples", "global, by samples",
            "All right answers of the global model over all held-out examples of clients."
            if headline.name == "accuracy"
            else f"{title} of the global model over all held-out examples of clients.",
            unit, better,
        ),
        Measure(
            "better_than_global", "Clients better off", "than with the global model",
            "Share of clients whose personal model is better than the global one on their held-out examples.",
        ),
        Measure(
            f"received_{headline.name}", "Before local training", "received",
            f"Mean over the clients of a round of the {what} of the model that each received, on its held-out "
            "examples.",
            unit, better,
        ),
        Measure(
            f"trained_{headline.name}", "After local training", "trained",
            f"Mean over the clients of a round of the {what} of the model that each trained, on its held-out "
            "examples.",
            unit, better,
        ),
        Measure(
            "drop", "Drop", "drop",
            f"Mean over the clients of a round of the {what} after each one's last local training, minus that of "
            "the model that it received now."
            if better == "high"
            else f"Mean over the clients of a round of the {what} of the model that each received now, minus that "
            "after its last local training.",
            unit=spread, better="low",
        ),
        *(
            Measure(
                f"new_{way}_{headline.name}{'_by_samples' * weighted}",
                f"New clients, {whose}{', by samples' * weighted}",
                f"{label}{', by samples' * weighted}",
                f"{_pooled(headline) if weighted else f'Mean {what}'} of new clients, each evaluated by {whose}.",
                unit, better,
            )
            for way, label, whose in _NEW
            for weighted in (False, True)
        ),
        *(
            Measure(
                f"{whose}_{other.name}", f"{whose.capitalize()} {other.title}", f"{label}{other.title}",
                f"{meaning} {other.meaning}", other.unit, other.better, tunable=part, what=other.title,
            )
            for other in others
            for whose, label, part, meaning in _WHOSE
        ),
        *(
            Measure(
                f"new_{way}_{other.name}", f"New clients, {whose}: {other.title}", f"{label}, {other.title}",
                f"Mean over new clients, each evaluated by {whose}. {other.meaning}",
                other.unit, other.better, what=other.title,
            )
            for other in others
            for way, label, whose in _NEW
        ),
    )  # fmt: skip
    by_class = any(measure.name == "accuracy" for measure in (headline, *others))
    kept = (m for m in measures if by_class or m.name not in _BY_CLASS)
    return {m.name: m if m.what else replace(m, what=what) for m in kept}


def task_measures_for(task: object, names: Sequence[str], main: str = "") -> dict[str, Measure]:
    """Return all numbers of a record that are one a round, by name. `names`, `main`: as of `chosen_measures`.

    Raises:
        SettingError: the task has no measure of such a name.
    """
    known = measures_of(task)
    first, *others = (known[name] for name in chosen_measures(task, names, main))
    return measures_for(first, others)


_BY_CLASS = ("forgetting", "in_local_accuracy", "out_local_accuracy")


_NEW = (
    ("global", "global model", "the global model"),
    ("fine_tuned", "fine-tuned", "the global model after fine-tuning"),
    ("personalised", "personalised", "its personal model"),
)
_WHOSE: tuple[tuple[str, str, Literal["local_val", "test", "local_test"], str], ...] = (
    ("val", "validation ", "local_val", "Mean over clients, personal models on validation examples."),
    ("global", "global ", "test", "The global model on the global test set."),
    ("personal", "personal ", "local_test", "Mean over clients, personal models on held-out examples."),
)


def _pooled(headline: TaskMeasure) -> str:
    title = headline.title[:1].upper() + headline.title[1:]
    return (
        "All right answers over all held-out examples" if headline.name == "accuracy" else f"{title} over all examples"
    )


def _all_known() -> dict[str, Measure]:
    """Return the numbers of the records of all built-in tasks."""
    out: dict[str, Measure] = {}
    for task in (Binary(), MultiLabel(), Regression(), Classification()):  # what they share is as classification has it
        first, *others = task.measures
        out |= measures_for(first, others)
    return out


MEASURES = measures_for(Classification().measures[0])
"""All numbers of a record that are one a round, by name, of a task whose headline is accuracy."""
KNOWN = {**_all_known(), **MEASURES}
"""The same, and the numbers of all other measures of the built-in tasks."""

HEADLINE = "global_accuracy"
"""The measure that is watched where nothing is said; where the headline is another one it stands for that."""


def monitored(name: str, measures: Mapping[str, Measure]) -> Measure:
    """Return the measure that a run watches under a name, of those of its task (`measures_for`).

    Raises:
        SettingError: it has none of this name, or one that cannot be watched.
    """
    if name == HEADLINE:
        name = next(n for n in measures if n.startswith("global_"))
    known = [n for n, measure in measures.items() if measure.tunable]
    if name not in known:
        raise SettingError(
            f"monitor must be one of the measures of this task, {', '.join(known)}, got {name!r}"
            f"{did_you_mean(name, known)}: choose one of them, or compute it too (--measures)"
        )
    return measures[name]


TUNABLE = [name for name, measure in MEASURES.items() if measure.tunable]
VALIDATION = "val_accuracy"
"""The measure that spares the test examples, by which to choose settings."""


def lower_is_better(name: str) -> bool:
    """Return whether a measure is good when it is low.

    A number that an algorithm notes itself is good when it is low if it is a loss.
    """
    return KNOWN[name].better == "low" if name in KNOWN else name.endswith("loss")
