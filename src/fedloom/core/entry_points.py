"""Parts that other distributions offer, by the entry points that they declare: commands, analyses.

Its pyproject.toml declares them, `[project.entry-points."fedloom.commands"]`, and nothing here knows the distribution.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError

COMMANDS, ANALYSES = "fedloom.commands", "fedloom.analyses"


@dataclass(frozen=True)
class Offer:
    """An entry point: `name = module:object`, and the distribution that declares it."""

    name: str
    value: str
    package: str

    def load(self) -> Any:
        """Import and return the object.

        Raises:
            SettingError: it cannot be imported.
        """
        module, _, name = self.value.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SettingError(
                f"what a package offers must be importable, and {self.value} of {self.package}, which is its "
                f"{self.name!r}, is not ({error}): install {self.package} anew, or uninstall it"
            ) from error


def offers(group: str, own: Container[str] = ()) -> dict[str, Offer]:
    """Return what installed distributions offer in a group of entry points, by name. Nothing of theirs is imported.

    Args:
        group: `COMMANDS` or `ANALYSES`.
        own: names that fedloom itself has.

    Raises:
        SettingError: two distributions offer one name, or one offers a name of `own`.
    """
    found: dict[str, Offer] = {}
    for offer in _declared(group):
        other = "fedloom" if offer.name in own else found[offer.name].package if offer.name in found else None
        if other is not None:
            raise SettingError(
                f"a name of {group} belongs to one package, and {offer.name!r} is offered by {other} and by "
                f"{offer.package}: uninstall one of them"
            )
        found[offer.name] = offer
    return found


def _declared(group: str) -> Iterator[Offer]:
    """Yield the entry points of a group, of each distribution that Python would import from.

    `importlib.metadata` says the same, and its import alone takes half as long as `fedloom --help`.
    """
    seen = set[str]()
    for folder in sys.path:
        try:
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info")))
        except OSError:  # it does not exist, or is an archive
            continue
        for name in names:
            package = name.rpartition(".")[0].partition("-")[0].replace("_", "-")
            if package not in seen:  # a folder further up hides it
                seen.add(package)
                yield from (Offer(key, value, package) for key, value in _entries(Path(folder, name), group))


def _entries(folder: Path, group: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the entry points that a distribution declares in a group."""
    try:
        lines = (folder / "entry_points.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.partition("[")[0].strip()
