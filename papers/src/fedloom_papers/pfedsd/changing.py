"""Recipes for data that change: the past model beside its stored predictions, and beside a norm between weights.

Sections 3.2 and 3.3.2 of the paper give reasons and no numbers: stored predictions do not exist for examples that came
after them, and there are other ways to transfer. Clients, rules and rounds are ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedloom_papers.pfedsd.scenarios import DATA, protocol
from fedloom_papers.reproduction.recipe import Method, Recipe

TABLE = "pfedsd-changing"
ABOUT = {
    TABLE: "past model, stored predictions and weights where examples arrive, 20 clients, 20% of them a round; ours"
}
COLUMNS = {"fmnist14k-dir0.1-growing": "growing:0.1:40", "fmnist14k-dir0.1-window": "window:0.1:40"}
"""Growing: a tenth of each client's examples becomes all; window: a tenth that moves over all of them."""
_UNIFORM = {"aggregation": "uniform"}
METHODS = {
    "fedavg_stored": Method(
        "fedavg_stored", _UNIFORM, caveat="no teacher: evaluated by the model that it trained last"
    ),
    "pfedsd": Method("pfedsd", {**_UNIFORM, "lam": 1.0, "T": 1.0}),
    "pfedsd_predictions": Method(
        "pfedsd",
        {**_UNIFORM, "lam": 1.0, "T": 1.0, "teacher_store": "soft_predictions"},
        caveat="the term is the mean over those examples of a batch that have a stored prediction",
    ),
    "pfedsd_weights": Method(
        "pfedsd", {**_UNIFORM, "lam": 0.1, "transfer": "weights"}, caveat="lam is ours, and no other was tried"
    ),
}


def recipes() -> Iterator[Recipe]:
    """Yield the recipes of both rules."""
    for column, arrives in COLUMNS.items():
        experiment = protocol(DATA["fmnist14k"]._replace(model="lenet"), "balanced_dirichlet:0.1", 20, 0.2, 40)
        experiment = experiment.changed("data.arrives", arrives)
        for row, method in METHODS.items():
            yield Recipe(
                table=TABLE,
                row=row,
                column=column,
                place=f"{TABLE}/{column}/{row}",
                experiment=method.of(experiment),
                accuracy=None,
                caveat=method.caveat,
                target=False,
                measure="personal_accuracy",
                above=("pfedsd_predictions",) if row == "pfedsd" else (),
            )
