"""Measures of a round: each number is declared here once, with its unit, its direction and its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """Describe a number of a round's record."""

    name: str
    """Its key in `metrics.jsonl`."""
    title: str
    """Heading."""
    label: str
    """Its name among others of its kind: in legends and columns."""
    meaning: str
    """What it is, over whom. One sentence; a remark may follow."""
    unit: Literal["%", "points", "loss"] = "%"
    """Shares (0..1 in the record) are printed in %, differences of shares in points."""
    better: Literal["high", "low"] = "high"
    tunable: Literal["", "partition", "local_val", "local_test", "test"] = ""
    """The part of a federation with the examples that it is measured on, where a sweep can choose settings by it."""

    @property
    def caption(self) -> str:
        """Meaning of the measure, with its direction where a reader may mistake it."""
        return self.meaning + " Lower is better." * (self.unit == "points" and self.better == "low")

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return {"%": "accuracy (%)", "points": f"{self.title.lower()} (points)", "loss": "loss"}[self.unit]


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "val_accuracy", "Validation accuracy", "validation",
            "Mean over clients of the accuracy of each one's personal model on its validation examples.",
            tunable="local_val",
        ),
        Measure(
            "train_loss", "Training loss", "training",
            "Mean over the clients of a round of the mean loss over the batches of their last local training. Extra "
            "terms of an algorithm count, so it compares rounds rather than methods.",
            unit="loss", better="low", tunable="partition",
        ),
        Measure(
            "global_accuracy", "Global accuracy", "global",
            "Accuracy of the global model on the global test set.",
            tunable="test",
        ),
        Measure(
            "global_loss", "Test loss", "test",
            "Loss of the global model on the global test set. Where it rises while accuracy holds, wrong answers "
            "become surer.",
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
            "personal_accuracy", "Personal accuracy", "personal",
            "Mean over clients of the accuracy of each one's personal model on its own held-out examples.",
            tunable="local_test",
        ),
        Measure(
            "personal_std", "Spread over clients", "spread",
            "Standard deviation of personal accuracy over clients.",
            unit="points", better="low", tunable="local_test",
        ),
        Measure(
            "personal_worst_tenth", "Personal accuracy of the worst decile", "worst decile",
            "Mean personal accuracy of the 10 % of clients with the lowest accuracy.",
            tunable="local_test",
        ),
        Measure(
            "personal_accuracy_by_samples", "Personal accuracy by samples", "personal, by samples",
            "All right answers of personal models over all held-out examples: large clients count for more.",
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
            "Mean over clients of the accuracy of the global model on each one's held-out examples.",
        ),
        Measure(
            "global_on_clients_by_samples", "Global model on clients by samples", "global, by samples",
            "All right answers of the global model over all held-out examples of clients.",
        ),
        Measure(
            "better_than_global", "Clients better off", "than with the global model",
            "Share of clients whose personal model is better than the global one on their held-out examples.",
        ),
        Measure(
            "received_accuracy", "Before local training", "received",
            "Mean over the clients of a round of the accuracy of the model that each received, on its held-out "
            "examples.",
        ),
        Measure(
            "trained_accuracy", "After local training", "trained",
            "Mean over the clients of a round of the accuracy of the model that each trained, on its held-out "
            "examples.",
        ),
        Measure(
            "drop", "Drop", "drop",
            "Mean over the clients of a round of the accuracy after each one's last local training, minus that of "
            "the model that it received now.",
            unit="points", better="low",
        ),
        *(
            Measure(
                f"new_{way}_accuracy{'_by_samples' * weighted}",
                f"New clients, {what}{', by samples' * weighted}",
                f"{label}{', by samples' * weighted}",
                f"{'All right answers over all held-out examples' if weighted else 'Mean accuracy'} of new clients, "
                f"each evaluated by {what}.",
            )
            for way, label, what in (
                ("global", "global model", "the global model"),
                ("fine_tuned", "fine-tuned", "the global model after fine-tuning"),
                ("personalised", "personalised", "its personal model"),
            )
            for weighted in (False, True)
        ),
    )
}  # fmt: skip
"""All numbers of a record that are one a round, by name."""

TUNABLE = [name for name, measure in MEASURES.items() if measure.tunable]
VALIDATION = "val_accuracy"
"""The measure that spares the test examples, by which to choose settings."""


def lower_is_better(name: str) -> bool:
    """Return whether a measure is good when it is low.

    A number that an algorithm notes itself is good when it is low if it is a loss.
    """
    return MEASURES[name].better == "low" if name in MEASURES else name.endswith("loss")
