"""Analyses that any run can be put to, by name, each with its numbers and its figure in a module of that name.

`analyse` and `write_analysis` make their files. What only one paper needs is offered by `fedloom_papers`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from fedloom.analyses import (
    alignment,
    audit,
    class_accuracy,
    class_preference,
    confusion,
    consistency,
    forgetting,
    gradient_diversity,
    gradient_inversion,
    label_distributions,
    landscape_hessian,
    landscape_noise,
    local_accuracy,
    local_epochs,
    membership_inference,
    personalised,
    tsne,
    weight_divergence,
)
from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.tsne import joint_tsne
from fedloom.core.entry_points import ANALYSES as OFFERED, offers
from fedloom.core.errors import SettingError
from fedloom.experiments.trained_model import client_number
from fedloom.report.style import FIGURES, drawing, rendered
from fedloom.storage.files import path_of
from fedloom.storage.output import publish

__all__ = [
    "ANALYSES",
    "AnalysedRun",
    "Analysis",
    "AnalysisResult",
    "analyse",
    "by_name",
    "csv_table",
    "every",
    "joint_tsne",
    "summary_table",
    "write_analysis",
]

Analysis = Callable[[AnalysedRun], AnalysisResult]


def by_name(*modules: ModuleType) -> dict[str, Analysis]:
    """Return the analysis of each module, `measure`, under the module's name: `local_accuracy` is `local-accuracy`."""
    return {module.__name__.rpartition(".")[2].replace("_", "-"): module.measure for module in modules}


ANALYSES = by_name(
    label_distributions,
    class_accuracy,
    confusion,
    membership_inference,
    gradient_inversion,
    audit,
    consistency,
    forgetting,
    local_accuracy,
    local_epochs,
    weight_divergence,
    personalised,
    gradient_diversity,
    alignment,
    class_preference,
    tsne,
    landscape_noise,
    landscape_hessian,
)
"""Analyses of any run, in the order of lists of them. What each measures is the first line of its docstring."""
OF_ANY_TASK = frozenset({"audit", "gradient-diversity", "gradient-inversion"})
"""Analyses that ask nothing of a run's targets; all others look at classes."""
OF_A_CLIENT = frozenset({"confusion", "gradient-inversion", "membership-inference"})
"""Analyses that look at one client's model where one is named; all others are of the whole run."""
WITH_STEPS = frozenset({"gradient-inversion"})
"""Analyses that fit something, in a number of steps."""


def every() -> dict[str, Analysis]:
    """Return every analysis by its name: those here, then those that other packages offer by entry points.

    Raises:
        SettingError: two packages offer one name, or what one offers cannot be imported.
    """
    return ANALYSES | {name: offer.load() for name, offer in offers(OFFERED, ANALYSES).items()}


def analyse(
    run: AnalysedRun, name: str, out: str | os.PathLike[str], analyses: Mapping[str, Analysis] = ANALYSES
) -> tuple[AnalysisResult, list[Path]]:
    """Analyse a run; past rounds are computed again from its checkpoints.

    Args:
        run: `AnalysedRun.of(directory)`, with the rounds to look at; several analyses of the same object share rounds.
        name: a key of `analyses`.
        out: folder in which NAME.png, NAME.svg, NAME.pdf and NAME*.csv are written.
        analyses: by name; with those of other packages, `every()`.

    Returns:
        What was found, and the files.

    Raises:
        SettingError: the name is unknown, the run lacks what the analysis needs, or a package is missing.
    """
    if name not in analyses:
        raise SettingError(f"analyses are {', '.join(analyses)}; got {name!r}")
    if name not in OF_ANY_TASK and "targets" in run.history.federation:
        raise SettingError(
            f"{name} looks at classes, and targets of this run are numbers, several labels or tokens: its measures are "
            f"{', '.join(m.title for m in run.history.task_measures)}, and analyses of any task "
            f"{', '.join(sorted(OF_ANY_TASK))} [FL-TASK-009]"
        )
    if run.client is not None and name not in OF_A_CLIENT:
        raise SettingError(
            f"{name} is of the whole run, got client {run.client!r}: leave --client out; analyses of one client are "
            f"{', '.join(sorted(OF_A_CLIENT))}"
        )
    if run.shadows is not None and name != "membership-inference":
        raise SettingError(f"shadows are of membership-inference, got {run.shadows} of {name}: leave --shadows out")
    if run.steps is not None and (name not in WITH_STEPS or run.steps < 1):
        raise SettingError(
            f"steps are 1 or more, of {', '.join(sorted(WITH_STEPS))}, got {run.steps} of {name}: leave --steps out"
        )
    result = analyses[name](run)
    one = "" if run.client is None else f"-client-{client_number(run.job.federation, run.client)}"
    return result, write_analysis(result, name, out, one)


def write_analysis(result: AnalysisResult, name: str, out: str | os.PathLike[str], suffix: str = "") -> list[Path]:
    """Write NAME.png, NAME.svg, NAME.pdf and the tables as CSV into the folder `out`, and return the files.

    `suffix`: of their names.
    """
    with drawing():
        files = {f"{name}{suffix}.{kind}": rendered(result.figure, kind) for kind in FIGURES}
    files |= {f"{table.name}{suffix}.csv": table.csv().encode("utf-8") for table in result.tables}
    return [publish(path_of(out), file, data) for file, data in files.items()]
