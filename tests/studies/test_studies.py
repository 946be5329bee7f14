"""What the rooms of papers offer, and that they are found."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.core.errors import SettingError
from fedloom.studies import find


def test_find_takes_names_and_how_they_begin() -> None:
    assert len(find("fedntd-table1", ["cifar10"])) == 8 * 7
    assert [r.row for r in find("fedntd-table1", ["cifar10-s2"], ["fedntd", "fedprox-config"])] == [
        "fedprox-config", "fedntd",
    ]  # fmt: skip
    assert {r.row for r in find("fedntd-table14", (), ["fedntd"])} == {"fedntd"}
    assert len(find("fedntd-table12", ["cifar10-s2"], ["kd_ntd"])) == 7
    assert len(find("fedntd-table8", ["cifar10-s2"], ["fedavg"])) == 5


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("fedntd-table2",), "unknown table 'fedntd-table2' .* there are fedntd-table1, "),
        (("fedntd-table8", ["cifar10-s2-e4"]), "fedntd-table8 has no column 'cifar10-s2-e4' .* it has cifar10-s2-e1, "),
        (("fedntd-table8", [], ["fedntdd"]), r"no method 'fedntdd' \(did you mean 'fedntd'\?\); it has fedavg, "),
    ],
)
def test_unknown_names_are_refused(asked: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        find(*asked)
