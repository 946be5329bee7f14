"""The order in which a comparison named its methods, wherever its runs are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import made_run, methods

from fedloom import summary
from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import SettingError
from fedloom.report.order import ordered_runs, write_order


def compared(folder: Path, *names: str) -> Path:
    for name in names:
        for seed in (0, 1):
            made_run(folder / name / f"seed-{seed}", name, seed)
    return folder


def places(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in ordered_runs(folder)]


def test_methods_stand_as_the_comparison_named_them(tmp_path: Path) -> None:
    compared(tmp_path, "fedavg", "fedprox")
    assert [m.label for m in methods(tmp_path)] == ["fedavg", "fedprox"]  # a folder of an older version: by name
    write_order(tmp_path, ["fedprox", "fedavg"])
    assert places(tmp_path) == ["fedprox/seed-0", "fedprox/seed-1", "fedavg/seed-0", "fedavg/seed-1"]
    found = summary(tmp_path)
    assert ([m.label for m in found.methods], found.against) == (["fedprox", "fedavg"], "fedprox")


def test_what_came_later_stands_behind_in_folders_below_too(tmp_path: Path) -> None:
    two = compared(tmp_path / "b", "fedavg", "fedprox", "scaffold")
    made_run(tmp_path / "a/seed-10")
    made_run(tmp_path / "a/seed-2", seed=2)
    write_order(two, ["scaffold", "gone"])
    write_order(two, ["fedprox"])
    assert reading.proved(two / "comparison.json") == {"methods": ["fedprox", "scaffold", "gone"]}
    seeds = [f"b/{name}/seed-{seed}" for name in ("fedprox", "scaffold", "fedavg") for seed in (0, 1)]
    assert places(tmp_path) == ["a/seed-2", "a/seed-10", *seeds]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (reading.sealed({"methods": "fedavg"}), "methods must be a list of names, got 'fedavg'; remove the file"),
        (reading.sealed({"methods": [1]}), r"methods must be a list of names, got \[1\]; remove the file"),
        (b"[]", "a JSON object is needed"),
        (reading.sealed({"methods": ["fedavg", "fedprox"]}).replace(b"prox", b"xprox"), "its digest is that of other"),
        (b'{"methods": ["fedavg"]}', "its digest is that of other content: it was changed; restore the file or remove"),
    ],
)
def test_a_damaged_order_is_refused(text: bytes, message: str, tmp_path: Path) -> None:
    compared(tmp_path, "fedavg")
    (tmp_path / "comparison.json").write_bytes(text)
    with pytest.raises(SettingError, match=rf"comparison\.json: {message}"):
        ordered_runs(tmp_path)


def test_an_algorithm_of_ones_own_is_called_by_its_class(tmp_path: Path) -> None:
    made_run(tmp_path / "Mine/seed-0", "mine:Mine")
    made_run(tmp_path / "fedavg/seed-0", "fedavg")
    assert [m.label for m in methods(tmp_path)] == ["Mine", "fedavg"]
    made_run(tmp_path / "Other", "other:Mine")
    assert [m.label for m in methods(tmp_path)] == ["Mine algorithm=mine:Mine", "Mine algorithm=other:Mine", "fedavg"]
