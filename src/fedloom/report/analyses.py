"""The analyses of a run by name, and their files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.core.output import publish
from fedloom.report import analyses_accuracy as accuracy
from fedloom.report import analyses_models as models
from fedloom.report import analyses_space as space
from fedloom.report.finding import Finding
from fedloom.report.studied import Studied
from fedloom.report.style import drawing, rendered

ANALYSES: dict[str, Callable[[Studied], Finding]] = {
    "class-accuracy": accuracy.class_accuracy,
    "consistency": accuracy.steadiness,
    "forgetting": accuracy.forgotten,
    "local-accuracy": accuracy.local,
    "local-epochs": accuracy.by_epoch,
    "weight-divergence": accuracy.divergence,
    "personalised": accuracy.personal,
    "gradient-diversity": models.diversity,
    "proposition-1": models.proposition_1,
    "proposition-2": models.proposition_2,
    "proposition-3": models.proposition_3,
    "alignment": models.neurons,
    "hypersphere": space.hypersphere,
    "tsne": space.embedding,
    "landscape-noise": space.noise,
    "landscape-hessian": space.curvature,
}
"""What each does is the first line of its docstring."""


def analyse(run: Studied, name: str, out: str | os.PathLike[str]) -> tuple[Finding, list[Path]]:
    """Analyse a run; past rounds are computed again from its checkpoints.

    Args:
        run: `Studied.of(directory)`, with the rounds to look at; several analyses of the same object share rounds.
        name: a key of `ANALYSES`.
        out: folder in which NAME.png, NAME.svg and NAME*.csv are written.

    Returns:
        What was found, and the files.

    Raises:
        SettingError: the name is unknown, the run lacks what the analysis needs, or a package is missing.
    """
    if name not in ANALYSES:
        raise SettingError(f"analyses are {', '.join(ANALYSES)}; got {name!r}")
    finding = ANALYSES[name](run)
    return finding, write(finding, name, out)


def write(finding: Finding, name: str, out: str | os.PathLike[str]) -> list[Path]:
    """Write NAME.png, NAME.svg and the tables as CSV into the folder `out`, and return the files."""
    with drawing():
        files = {f"{name}.{kind}": rendered(finding.figure, kind) for kind in ("png", "svg")}
    files |= {f"{table.name}.csv": table.csv().encode("utf-8") for table in finding.tables}
    return [publish(Path(out), file, data) for file, data in files.items()]
