"""One room for each paper: its protocol, its recipes with the published numbers, its own analyses and figures.

A new paper adds a folder here and a line to `STUDIES`. Its folder defines `STUDY`, which says what the room offers;
analyses of its own are entry points in pyproject.toml.
Nothing below imports a study, and this module imports one only when it is asked for something.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from fedloom.core.errors import SettingError
from fedloom.wording import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from fedloom.analyses.analysis_result import AnalysisResult
    from fedloom_papers.reproduction.claims import Claim
    from fedloom_papers.reproduction.recipe import Recipe
    from fedloom_papers.reproduction.results import Result

__all__ = [
    "STUDIES",
    "Study",
    "claims",
    "figures",
    "find",
    "note",
    "recipes",
    "reduced",
    "study",
    "tables",
    "title",
]

__version__ = "0.3.0"
STUDIES = (  # the name of each paper's folder
    "fedntd",  # Lee et al., NeurIPS 2022
    "pfedsd",  # Jin et al., IEEE TPDS 2023
    "dense",  # Zhang et al., NeurIPS 2022
    "apfl",  # Ni et al., Sci Sin Inform 2022
    "ktpfl",  # Zhang et al., NeurIPS 2021
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """Tables, recipes, claims and figures that one paper offers to the commands.

    Names of tables and figures are the user's words for them, so no two studies share one.

    Attributes:
        title: the paper, as people name it.
        tables: what each published table is about, by its name.
        recipes: makes the recipes of each table: one for each cell and each other reading of its settings.
        remarks: what results of one column say of claims that are no order of methods, in sentences.
        evidence: files of a run, beside its logs, that remarks are made of.
        claims: makes what the paper claims, in the order in which it is told.
        figures: those that are drawn of many runs, by name; each gets folders of results.
        note: what the settings of its runs are where the paper's can be read in several ways, a sentence.
        reduced: in what the runs of a table are less than the paper's at their full length, by its name.
    """

    title: str = ""
    tables: Mapping[str, str]
    recipes: Callable[[], Mapping[str, Sequence[Recipe]]]
    remarks: Callable[[Sequence[Result]], list[str]] = field(default=lambda results: [])
    evidence: tuple[str, ...] = ()
    claims: Callable[[], Sequence[Claim]] = tuple
    figures: Mapping[str, Callable[[Sequence[Path]], AnalysisResult]] = field(default_factory=dict)
    note: str = ""
    reduced: Mapping[str, str] = field(default_factory=dict)


def tables() -> dict[str, str]:
    """Return what each published table is about, by its name, study after study."""
    return {name: about for study in _studies() for name, about in study.tables.items()}


def study(table: str) -> Study:
    """Return the study to which a table belongs.

    Raises:
        SettingError: there is no such table.
    """
    found = next((study for study in _studies() if table in study.tables), None)
    if found is None:
        known = tables()
        raise SettingError(
            f"unknown table {table!r}{did_you_mean(table, known)}; there are {', '.join(known)} [FL-RUN-015]"
        )
    return found


def recipes(table: str) -> list[Recipe]:
    """Return a recipe for each cell of a published table.

    Recipes that read the settings in another way are marked as variants.

    Raises:
        SettingError: there is no such table.
    """
    return list(_recipes(study(table))[table])


def find(table: str, only: Sequence[str] = (), methods: Sequence[str] = ()) -> list[Recipe]:
    """Return the recipes of a table in some columns and rows; nothing named is everything but the variants.

    Args:
        table: its name.
        only: columns (`cifar10-s2`), or how their names begin (`cifar10`).
        methods: rows (`fedntd`, `kd_ntd-0.3`, `fedprox-config`), or how those of a method begin (`kd_ntd`).

    Raises:
        SettingError: there is no such table, column or row.
    """
    from fedloom_papers.reproduction.recipe import select

    return select(recipes(table), only, methods)


def claims(source: str) -> list[Claim]:
    """Return what a paper claims.

    Args:
        source: its study, as `STUDIES` names it.

    Raises:
        SettingError: there is no such source.
    """
    return list(_source(source).claims())


def title(source: str) -> str:
    """Return the title of a study.

    Raises:
        SettingError: there is no such source.
    """
    return _source(source).title


def note(source: str) -> str:
    """Return what is to be known of the settings of a study's runs.

    Raises:
        SettingError: there is no such source.
    """
    return _source(source).note


def reduced(source: str) -> Mapping[str, str]:
    """Return in what tables of a study are less than the paper's, by their names.

    Raises:
        SettingError: there is no such source.
    """
    return _source(source).reduced


def figures(source: str) -> Mapping[str, Callable[[Sequence[Path]], AnalysisResult]]:
    """Return the figures of a study that are drawn of many runs, by their names.

    Raises:
        SettingError: there is no such source.
    """
    return _source(source).figures


def _source(name: str) -> Study:
    if name not in STUDIES:
        raise SettingError(f"unknown source {name!r}{did_you_mean(name, STUDIES)}; there are {', '.join(STUDIES)}")
    return _studies()[STUDIES.index(name)]


@functools.cache
def _studies() -> tuple[Study, ...]:
    return tuple(import_module(f"{__name__}.{name}").STUDY for name in STUDIES)


@functools.cache
def _recipes(study: Study) -> Mapping[str, Sequence[Recipe]]:
    """Return the recipes of one study alone: all studies have thousands, and each recipe checks its settings."""
    return study.recipes()
