"""Which runs are made, and which are there already."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import SettingError, SettingWarning
from fedloom_papers import find
from fedloom_papers.reproduction.results import FAILED
from fedloom_papers.reproduction.running import check_known, check_rounds, reproduce, standing
from published_runs import cell, made


@pytest.mark.parametrize(
    ("table", "rounds", "remedy"),
    [
        ("fedntd-table1", 201, "ask for no more"),
        ("fedntd-table13", 26, "ask for no more"),
        ("fedntd-table1", 0, "ask for at least one"),
        ("fedntd-table1", -5, "ask for at least one"),
    ],
)
def test_no_more_rounds_than_published(table: str, rounds: int, remedy: str, tmp_path: Path) -> None:
    published = find(table)[0].rounds
    for refuse in (check_rounds, lambda n, found: reproduce(found, "data", tmp_path / "out", rounds=n)):
        with pytest.raises(
            SettingError, match=rf"rounds must be in 1\.\.{published}, the published number, got {rounds}: {remedy}$"
        ):
            refuse(rounds, find(table))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [-3, 2**32])
def test_seeds_that_no_folder_could_be_counted_by_are_refused(seed: int, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=rf"seed must be in 0\.\.4294967295, got {seed}"):
        reproduce(find("fedntd-table1", ["mnist-s2"]), "data", tmp_path / "out", seeds=(0, seed))
    assert not (tmp_path / "out").exists()


def test_known_folders_hold_the_folders_of_the_table(tmp_path: Path) -> None:
    made(tmp_path / "kept", cell("fedntd-table1", "cifar10-s2", "fedavg"), 0, 40.0)
    found = find("fedntd-table1", ["mnist-s2"])
    for known in (tmp_path, tmp_path / "kept" / "fedntd-table1", tmp_path / "nowhere"):
        with pytest.raises(
            SettingError, match=f"{known} holds no results of fedntd-table1; name the folder that holds fedntd-table1/$"
        ):
            reproduce(found, "data", tmp_path / "out", known=[tmp_path / "kept", known])
    assert not (tmp_path / "out").exists()
    check_known([tmp_path / "kept"], found)  # though it has none of these cells
    check_known([tmp_path / "kept"], find("fedntd-table7"))  # whose runs stand there
    check_known([tmp_path / "kept"], find("fedntd-table8"))
    with pytest.raises(SettingError, match="of fedntd-table8; name the folder that holds fedntd-table8/ or fedntd-tab"):
        check_known([tmp_path], find("fedntd-table8"))


def test_known_results_of_other_tables_are_warned_of(tmp_path: Path) -> None:
    made(tmp_path, cell("fedntd-table1", "cifar10-s2", "fedavg"), 0, 40.0)
    with pytest.warns(SettingWarning, match=f"{tmp_path} holds results, but none of apfl-rate: no run there counts"):
        standing(find("apfl-rate", ["letters"]), tmp_path, seeds=(0,), known=[tmp_path])


def test_runs_that_are_there_need_no_data(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path / "kept", recipe, 0, 40.0)
    place = made(tmp_path / "kept", recipe, 1, 40.0, rounds=3)
    (place / FAILED).write_bytes(reading.sealed({"why": "the loss is NaN"}))
    (there, failed) = reproduce([recipe], None, tmp_path / "out", seeds=(0, 1), known=[tmp_path / "kept"])
    assert (there.status, there.good) == ("there", True)
    assert (failed.status, failed.good) == (f"failed: the loss is NaN (before, in {place})", False)
    trained: list[str] = []
    with pytest.raises(SettingError, match=r"cifar10-s2/fedprox/seed-0 must be run, and the data are needed; name the"):
        reproduce(
            [recipe, cell("fedntd-table1", "cifar10-s2", "fedprox")],
            None,
            tmp_path / "out",
            known=[tmp_path / "kept"],
            train=lambda name, job, directory: trained.append(name),
        )
    assert not trained
    assert not (tmp_path / "out").exists()


def test_runs_that_are_there_count_also_where_the_data_are_not(tmp_path: Path) -> None:
    recipe, other = (cell("fedntd-table1", "cifar10-s2", row) for row in ("fedntd", "fedavg"))
    made(tmp_path, recipe, 0, 40.0)
    outcomes = reproduce([other, recipe], str(tmp_path / "nowhere"), tmp_path)
    assert [o.status.partition(": ")[0] for o in outcomes] == ["skipped", "there"]


@pytest.mark.slow
def test_what_stands_without_running(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    failing = dataclasses.replace(cell("fedntd-table1", "cifar10-s2", "fedprox"), failed=True)
    made(tmp_path / "out", recipe, 0, 40.0)
    made(tmp_path / "out", recipe, 1, 40.0, rounds=199)
    made(tmp_path / "known", recipe, 2, 40.0)
    made(tmp_path / "out", recipe, 3, 40.0, local__lr=0.5)
    for seed in range(4):
        place = made(tmp_path / "known", failing, seed, 40.0, rounds=2)
        (place / FAILED).write_bytes(reading.sealed({"why": "the loss is NaN"}))

    def good(rounds: int | None = None) -> list[bool]:
        found = standing([recipe, failing], tmp_path / "out", seeds=range(4), rounds=rounds, known=[tmp_path / "known"])
        assert [o.seed for o in found] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert all(o.good for o in found[1::2])  # as published
        return [o.good for o in found[::2]]

    assert good() == [True, False, True, False]
    assert good(199) == [True, True, True, False]


@pytest.mark.slow
def test_a_cell_goes_on_in_a_copy_of_its_directory_with_its_data_elsewhere(tmp_path: Path) -> None:
    """So a cell that stops on one machine is finished on another."""
    recipe = cell("apfl-comparison", "vehicle-like", "apfl_ni")
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    reproduce([recipe], f"{tmp_path}/here", tmp_path / "one", rounds=3)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (done,) = reproduce([recipe], f"{tmp_path}/there", tmp_path / "two", rounds=4)
    reproduce([recipe], f"{tmp_path}/here", tmp_path / "whole", rounds=4)
    two, whole = (recipe.folder(tmp_path / name, 0) / "metrics.jsonl" for name in ("two", "whole"))
    assert done.status == "done"
    assert two.read_bytes() == whole.read_bytes()


def test_recipes_with_fewer_rounds_than_asked_for_are_run_whole(tmp_path: Path) -> None:
    """One-shot FedAvg has one round, DENSE 201."""
    chosen = find("dense-table1", ["fmnist-a0.1-m5-cnn"], ["fedavg", "dense"])
    for r, rounds in zip(chosen, (1, 41), strict=True):
        made(tmp_path, r, 0, 50.0, rounds=rounds)
    assert [o.status for o in reproduce(chosen, None, tmp_path, rounds=41)] == ["there", "there"]
    with pytest.raises(SettingError, match=r"rounds must be in 1\.\.201, the published number, got 202"):
        reproduce(chosen, None, tmp_path, rounds=202)
