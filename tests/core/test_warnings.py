"""Warnings name the line that somebody has written, not one between it and what it led to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import fedloom as fl
from fedloom.core import errors
from tiny import LOCAL, examples, linear


@dataclass(frozen=True, kw_only=True)
class Mine(fl.FedProx):  # type: ignore[misc]  # final for users
    """With a setting of its own, so that `dataclass` writes its `__init__`."""

    more: float = 1.0


def of_one_class() -> fl.Federation:
    """Of which a run warns."""
    data = examples(12)
    return fl.federate(replace(data, y=data.y * 0), fl.iid(data.y, 2, seed=0), test_fraction=0)


@pytest.mark.parametrize(
    "led_to",
    [
        lambda: fl.FedProx(mu=0.0),
        lambda: Mine(mu=0.0, more=2.0),
        lambda: fl.run(fl.FedAvg(local=LOCAL), of_one_class(), linear, fl.RunSettings(rounds=1, cohort_size=2)),
        lambda: fl.Job(
            algorithm=fl.FedAvg(local=LOCAL),
            federation=of_one_class(),
            model=linear,
            settings=fl.RunSettings(rounds=1, cohort_size=2),
        ).run(),
    ],
    ids=["a class", "a class of one's own", "fl.run", "Job.run"],
)
def test_warnings_name_the_line_that_led_to_them(led_to: Callable[[], object]) -> None:
    lines, first = inspect.getsourcelines(led_to)
    with pytest.warns(errors.SettingWarning) as found:
        led_to()
    for warning in found:
        assert warning.filename == __file__
        assert first <= warning.lineno < first + len(lines)


OF_DATA = {
    "data": ("drawing", "partition"),
    "sources": ("adapters", "folders"),
    "tables": ("columns", "dictionary", "file_checks", "gaps", "sites", "targets"),
}


def test_nothing_else_warns() -> None:
    """What calls `warnings.warn` itself has to know how many calls it stands below a person's line, as the rooms of
    data and of its readers do, which nothing of the core may help.
    """
    package = Path(fl.__file__).parent
    calling = [p for p in package.rglob("*.py") if re.search(r"\bwarnings\.warn\(", p.read_text(encoding="utf-8"))]
    assert set(calling) == {
        Path(errors.__file__),
        *(package / room / f"{name}.py" for room, names in OF_DATA.items() for name in names),
    }
