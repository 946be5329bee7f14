"""Say which settings are the problem that runs work on, and which the method: only runs of one problem are compared."""

from __future__ import annotations

_METHOD = frozenset({"data.augment", "federation.augment"})  # how a network is shown its examples
_DRAWN = frozenset({"seed", "partition_seed"})  # another draw of the same
_COHORT = frozenset({"run.cohort_size", "run.spares", "run.panel"})
_SECTIONS = frozenset({"data", "clients", "task", "federation", "sampler", "faults", "attack", "new"})


def of_problem(name: str) -> bool:
    """Return whether a setting, by its full name, belongs to the problem.

    The problem is the data, who holds them and who is selected, the task, and whose models are evaluated. All else is
    the method: networks, rates, rounds, and the algorithm's own settings.
    """
    if name in _METHOD or name.rpartition(".")[2] in _DRAWN:
        return False
    return name in _COHORT or name.partition(".")[0] in _SECTIONS
