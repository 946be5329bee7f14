"""Coefficients, architectures and bytes of a small run, and of numbers made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysed import analyse, written
from fedloom.analyses import AnalysedRun
from fedloom.coordinator import History
from fedloom.core.errors import SettingError
from fedloom_papers.ktpfl import coefficients, distillation
from fedloom_papers.ktpfl.architectures import by_architecture
from fedloom_papers.reproduction.evidence import place
from fedloom_papers.reproduction.results import Run
from published_runs import cell, made

KT = ("kt_pfl", "--model", "lenet,mlp", "--public", "20", "--set", "num_public=10", "--set", "eta3=1.0")


@pytest.fixture
def run(trained: Callable[..., Path]) -> AnalysedRun:
    return AnalysedRun.of(trained(*KT))


@pytest.mark.slow
def test_coefficients_of_a_run(run: AnalysedRun, tmp_path: Path) -> None:
    rows = written(run, "coefficients", tmp_path)
    assert len(rows) == 3 * 36
    last = [row for row in rows if row["round"] == 3]
    logged = run.history.metrics[-1]["server_coefficients"]
    assert [row["weight"] for row in last] == pytest.approx(logged)
    assert [(row["student"], row["teacher"]) for row in last[:7]] == [(0, m) for m in range(6)] + [(1, 0)]
    mass = [row for row in written(run, "coefficients", tmp_path, "group-mass") if row["round"] == 3]
    group = coefficients.groups(run.history)
    c = np.array(logged).reshape(6, 6)
    for k, row in enumerate(mass):
        assert row["inside"] == pytest.approx(c[k, group == group[k]].sum(), rel=1e-5)
        assert row["itself"] == pytest.approx(c[k, k], rel=1e-6)


def history(c: list[np.ndarray], train: list[list[int]]) -> History:
    metrics = [{"round": 0}, *({"round": t, "server_coefficients": m.ravel().tolist()} for t, m in enumerate(c, 1))]
    return History("KTpFL", metrics=metrics, federation={"train": train})


def test_mass_inside_groups_of_clients_with_the_same_classes() -> None:
    c = np.array([[0.5, 0.1, 0.3, 0.1], [0.0, 0.9, 0.0, 0.1], [0.2, 0.2, 0.3, 0.3], [0.1, 0.4, 0.1, 0.4]])
    made = history([np.full((4, 4), 0.25), c], [[5, 0], [0, 3], [1, 0], [0, 9]])
    assert coefficients.groups(made).tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(coefficients.inside(c[None], np.array([0, 1, 0, 1])), [[0.8, 1.0, 0.5, 0.8]])
    assert coefficients.sentence(made) == (
        "coefficients after round 2: 0.525 on the client itself (uniform 0.250), 0.775 inside its group, one of 2 "
        "(uniform 0.500), in 3 of 4 rows at least 0.8."
    )
    alike = history([c], [[5, 1]] * 4)
    assert coefficients.sentence(alike).endswith("; all clients have the same classes.")


def coefficients_logged(folder: Path, row: str, seed: int, by_round: dict[int, list[float]]) -> None:
    """A run of two clients with unlike classes and a third like the first."""
    place = made(folder, cell("ktpfl-small", "fmnist20k-two", row), seed, 50.0, rounds=2)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for t, c in by_round.items():
        lines[t]["server_coefficients"] = c
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    held = {"clients": 3, "classes": 2, "shown": [0, 1, 2], "train": [[3, 0], [0, 3], [4, 0]], "test": None}
    (place / "federation.json").write_text(json.dumps(held))


UNIFORM = [1 / 3] * 9
LEARNT = [0.6, 0.1, 0.3, 0.2, 0.7, 0.1, 0.1, 0.4, 0.5]


def test_masses_over_rounds_of_many_runs(tmp_path: Path) -> None:
    coefficients_logged(tmp_path, "kt_pfl", 0, {1: UNIFORM, 2: LEARNT})
    coefficients_logged(tmp_path, "kt_pfl", 1, {1: UNIFORM, 2: UNIFORM})
    coefficients_logged(tmp_path, "sim_pfl", 0, {2: LEARNT})  # as older copies are
    found = coefficients.figure([tmp_path])
    own, group = (0.6 + 0.7 + 0.5) / 3, (0.9 + 0.7 + 0.6) / 3
    (row,) = found.summary.rows
    assert row[:3] == ["fmnist20k-two", "kt_pfl", 2]
    assert row[3:] == pytest.approx([(own + 1 / 3) / 2, (group + 5 / 9) / 2, 5 / 9])
    (axes,) = found.figure.axes
    assert list(axes.lines[0].get_ydata()) == pytest.approx([5 / 9, (group + 5 / 9) / 2])
    assert list(axes.lines[1].get_ydata()) == pytest.approx([1 / 3, (own + 1 / 3) / 2])
    (remark,) = found.remarks
    assert remark.startswith("Left out, kept by an older version with the coefficients of the last round alone: fmnist")


def test_runs_without_coefficients_by_round_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs with coefficients by round: run them again and export them"):
        coefficients.figure([tmp_path])
    coefficients_logged(tmp_path, "kt_pfl", 0, {2: LEARNT})
    with pytest.raises(SettingError, match=r"of their last round alone \(fmnist20k-two kt_pfl\): run them again"):
        coefficients.figure([tmp_path])


@pytest.mark.slow
def test_accuracy_by_architecture(run: AnalysedRun, tmp_path: Path) -> None:
    rows = written(run, "architectures", tmp_path)
    assert [(row["round"], row["model"]) for row in rows] == [(t, m) for t in (1, 2, 3) for m in ("lenet", "mlp")]
    by_client = {int(k): a for k, a in run.history.metrics[-1]["personal_by_client"].items()}
    assert rows[-1]["mean"] == pytest.approx(np.mean([by_client[k] for k in (1, 3, 5)]))
    assert rows[-1]["least"] == pytest.approx(min(by_client[k] for k in (1, 3, 5)))
    assert rows[-2]["clients"] == 3
    assignment = run.job.population.assignment
    assert all(assignment[k] == ("lenet", "mlp")[k % 2] for k in by_client)
    assert by_architecture(History("X", metrics=[{"round": 0}])) == ([], {})


def test_clients_have_the_models_in_turn_and_one_without_a_client_is_left_out() -> None:
    metrics = [
        {"round": 0, "personal_by_client": {"0": 0.9}},
        {"round": 2, "personal_by_client": {"0": 0.1, "1": 0.2, "2": None, "3": 0.3, "4": 0.6}},
        {"round": 4, "personal_by_client": {"0": 0.3, "1": 0.2, "3": 0.5, "4": 0.4}},
    ]
    found = by_architecture(History("X", metrics=metrics, manifest={"models": ["a", "b", "c"]}))
    assert found[0] == [2, 4]
    assert found[1] == {"a": [(2, 0.2, 0.1), (2, 0.4, 0.3)], "b": [(2, 0.4, 0.2), (2, pytest.approx(0.3), 0.2)]}


@pytest.mark.slow
def test_accuracy_before_and_after_distillation(trained: Callable[..., Path], tmp_path: Path) -> None:
    run = AnalysedRun.of(trained(*KT, "--per-client", "--set", "distill.optimiser.lr=3.0"))
    rows, last = written(run, "distillation", tmp_path), run.history.metrics[-1]
    assert [row["client"] for row in rows] == sorted(last["clients"])
    assert [row["model"] for row in rows] == [("lenet", "mlp")[k % 2] for k in sorted(last["clients"])]
    assert np.mean([row["trained"] for row in rows]) == pytest.approx(last["trained_accuracy"])
    assert [row["distilled"] for row in rows] == [last["personal_by_client"][str(int(row["client"]))] for row in rows]
    assert [row["trained"] for row in rows] != [row["distilled"] for row in rows]


def test_what_distillation_did_is_told_of_runs_that_were_analysed(tmp_path: Path) -> None:
    run, path = Run(3, tmp_path, History("KTpFL"), None), tmp_path / place(distillation.TABLE)
    assert distillation.told(run) is None
    path.parent.mkdir()
    path.write_text("round,client,model,trained,distilled\n9,0,a,0.9,0.5\n9,1,b,0.6,0.6\n9,4,a,0.3,0.7\n")
    assert distillation.told(run) == (
        "in round 9 clients have 60.00 % after local training and 60.00 % after distillation, which 1 of 3 gain by and "
        "1 lose by."
    )
    for wrong in ("", "round,client\n1,2\n", "round,trained,distilled\n1,x,0.1\n"):
        path.write_text(wrong)
        with pytest.raises(SettingError, match=r"distillation\.csv is not what distillation wrote"):
            distillation.told(run)


def test_a_run_that_distils_nothing_on_clients_is_refused(lenet_run: AnalysedRun) -> None:
    with pytest.raises(SettingError, match="FedNTD distils nothing on clients after they have trained: analyse a run"):
        distillation.measure(lenet_run)


@pytest.mark.slow
def test_bytes_beside_those_of_models(run: AnalysedRun, tmp_path: Path) -> None:
    found, _ = analyse(run, "traffic", tmp_path)
    rows = written(run, "traffic", tmp_path)
    sizes = {
        "lenet": 4 * run.job.population.models["lenet"].num_params,
        "mlp": 4 * run.job.population.models["mlp"].num_params,
    }
    for row, record in zip(rows, run.history.metrics[1:], strict=True):
        assert row["up"] == 3 * 10 * 3 * 4  # three clients, P = 10, three classes
        assert row["down"] == 3 * (10 * 3 * 4 + 2 * 10 * 8)
        assert row["models_each_way"] == sum(sizes[("lenet", "mlp")[k % 2]] for k in record["clients"])
    told = dict(found.summary.rows)
    for way in ("down", "up"):
        assert told[f"{way}, this run"] == pytest.approx(sum(row[way] for row in rows) / 2**20)
        assert told[f"{way}, models"] == pytest.approx(sum(row["models_each_way"] for row in rows) / 2**20)
    ratio = 2 * sum(row["models_each_way"] for row in rows) / sum(row["up"] + row["down"] for row in rows)
    assert found.remarks == [f"To send the models both ways takes {ratio:,.1f} times the bytes of this run of KTpFL."]


def test_a_run_without_coefficients_is_refused(lenet_run: AnalysedRun) -> None:
    with pytest.raises(
        SettingError, match="has logged no coefficients: analyse one of kt_pfl with at most 100 clients"
    ):
        coefficients.measure(lenet_run)
