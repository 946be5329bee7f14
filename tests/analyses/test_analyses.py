"""Analyses of small real runs: their files, and numbers that follow from elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from analysed import COMMON, analyse, images, rows
from fedloom import FedAvg, History, Local, Model, RunSettings, analyses, from_arrays, iid, run
from fedloom.analyses import ANALYSES, OF_ANY_TASK, AnalysedRun
from fedloom.analyses.measures import logits
from fedloom.cli.main import main
from fedloom.core.errors import SettingError
from fedloom.core.types import Weights
from fedloom.data import federate
from fedloom.evaluate import forgetting
from fedloom.experiments.experiment import Experiment
from fedloom.models import MLP

# Those that ask something of the algorithm or of its networks have tests of their own.
INSIDE = (  # look into networks, or train clients again
    "alignment", "class-preference", "gradient-diversity", "landscape-noise", "local-accuracy", "tsne",
    "weight-divergence",
)  # fmt: skip
PARTICULAR = {"audit", "coefficients", "distillation", "hypersphere", "recovery", "synthetic-images"}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", sorted(set(analyses.every()) - PARTICULAR))
def test_every_analysis_writes_a_figure_and_its_numbers(name: str, trained: Any, tmp_path: Path) -> None:
    analysed = AnalysedRun.of(trained("fedntd", "--model", "lenet"))
    finding, files = analyse(analysed, name, tmp_path)
    assert [path.name for path in files[:4]] == [*(f"{name}.{kind}" for kind in ("png", "svg", "pdf", "csv"))]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    for table in finding.tables:
        found = rows(tmp_path / f"{table.name}.csv")
        assert len(found) == len(table.rows) > 0
        numbers = [v for row in found for v in row.values() if isinstance(v, float)]
        assert np.isfinite(numbers).mean() > 0.8  # few are unknown
    assert finding.summary.rows


@pytest.mark.some(1)
@pytest.mark.parametrize("name", INSIDE)
def test_every_analysis_of_a_run_with_frozen_parts(name: str, trained: Any, tmp_path: Path) -> None:
    """Whose front is computed once: analyses look at the whole network, and say of the same examples the same."""
    folder = trained("fedntd", "--model", "lenet", "--frozen", "* !last:2")
    history = History.read(folder)
    assert history.manifest["frozen"]["lenet"] > 0
    finding, files = analyse(AnalysedRun.of(folder), name, tmp_path)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    for table in finding.tables:
        numbers = [v for row in rows(tmp_path / f"{table.name}.csv") for v in row.values() if isinstance(v, float)]
        assert np.isfinite(numbers).mean() > 0.8


def test_every_module_that_measures_is_an_analysis() -> None:
    folder = Path(analyses.__file__).parent
    assert sorted(ANALYSES) == sorted(
        p.stem.replace("_", "-") for p in folder.glob("[!_]*.py") if "def measure(" in p.read_text("utf-8")
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alignment", "local-accuracy", "tsne"])
def test_the_same_run_gives_the_same_bytes(name: str, trained: Any, tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        _, files = analyse(AnalysedRun.of(trained("fedntd", "--model", "lenet"), rounds=[3]), name, folder)
        found.append({path.name: path.read_bytes() for path in files})
    assert found[0] == found[1]


@pytest.mark.slow
def test_numbers_are_those_that_the_run_has_logged(trained: Any, tmp_path: Path) -> None:
    folder = trained("fedntd", "--model", "lenet")
    history, analysed = History.read(folder), AnalysedRun.of(folder)
    for name in ("forgetting", "local-accuracy", "class-accuracy"):
        analyse(analysed, name, tmp_path)
    logged = {m["round"]: m for m in history.metrics}
    for row in rows(tmp_path / "forgetting.csv"):
        expected = logged[row["round"]]["forgetting"]
        assert row["forgetting_earlier"] == pytest.approx(np.nan if expected is None else expected, nan_ok=True)
    assert [r["forgetting_earlier"] for r in rows(tmp_path / "forgetting-by-class.csv")] == pytest.approx(
        forgetting(history.per_class).tolist()
    )
    found = rows(tmp_path / "local-accuracy-rounds.csv")
    assert [r["round"] for r in found] == [1, 2, 3]
    for row in found:  # the test set is balanced: class means are the accuracy
        assert row["accuracy_aggregated"] == pytest.approx(logged[row["round"]]["global_accuracy"])
    for row in rows(tmp_path / "local-accuracy.csv"):
        assert row["client"] in logged[row["round"]]["clients"]
        share = np.array(history.federation["train"][int(row["client"])])
        share = share / share.sum()
        before = np.array(logged[row["round"] - 1]["class_accuracy"])  # the round starts where the last one ended
        assert row["in_before"] == pytest.approx(share @ before)
        assert row["out_before"] == pytest.approx((1 - share) / 2 @ before)


@pytest.mark.slow
def test_local_epochs_end_where_local_accuracy_does(trained: Any, tmp_path: Path) -> None:
    analysed = AnalysedRun.of(trained("fedntd", "--model", "lenet"), rounds=[2])
    analyse(analysed, "local-epochs", tmp_path)
    analyse(analysed, "local-accuracy", tmp_path)
    by_epoch = {(r["epoch"], r["client"]): r for r in rows(tmp_path / "local-epochs.csv")}
    for row in rows(tmp_path / "local-accuracy.csv"):
        for epoch, when in ((0, "before"), (2, "after")):
            assert by_epoch[epoch, row["client"]]["in_local"] == row[f"in_{when}"]
            assert by_epoch[epoch, row["client"]]["out_local"] == row[f"out_{when}"]


@pytest.mark.slow
def test_which_rounds(trained: Any) -> None:
    folder = trained("fedntd", "--model", "lenet")
    assert (AnalysedRun.of(folder).single_round, AnalysedRun.of(folder).curve_rounds) == (3, [1, 2, 3])
    assert (AnalysedRun.of(folder, [2]).single_round, AnalysedRun.of(folder, [3, 1]).curve_rounds) == (2, [1, 3])
    assert AnalysedRun.of(folder, [3, 1]).single_round == 3
    assert AnalysedRun.of(folder, []).curve_rounds == [1, 2, 3]
    with pytest.raises(SettingError, match="has the rounds 1 to 3, got 0, 4"):
        AnalysedRun.of(folder, [0, 2, 4])


@pytest.mark.parametrize(
    ("asked", "count", "first"), [(None, 10, 1), ([], 21, 1), ([7, 3, 7], 2, 3)], ids=["none", "all", "some"]
)
def test_a_curve_has_ten_rounds_unless_others_are_asked_for(asked: Any, count: int, first: int) -> None:
    checkpoints = SimpleNamespace(rounds=lambda: [0, 5, 10])
    past = SimpleNamespace(files=SimpleNamespace(checkpoints=checkpoints))
    rounds = AnalysedRun.curve_rounds.fget(SimpleNamespace(rounds=asked, last_round=21, past=past))  # type: ignore[attr-defined]
    assert (len(rounds), rounds[0], rounds) == (count, first, sorted(set(rounds)))


@pytest.mark.slow
def test_clients_have_the_examples_of_the_round(trained: Any) -> None:
    run = AnalysedRun.of(trained("fedavg", "--model", "mlp", "--arrives", "growing:0.5:3"))
    for t, share in ((1, 0.5), (2, 0.75), (3, 1.0)):
        found = run.replayed(t)
        whole = [len(run.job.federation.partition.rows(k)) for k in found.clients]
        assert found.counts.sum(1) == pytest.approx(share * np.array(whole), abs=1)


@pytest.mark.slow
def test_rounds_are_computed_once(trained: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    analysed = AnalysedRun.of(trained("fedntd", "--model", "lenet"))
    asked: list[int] = []
    whole = type(analysed.past).replay
    monkeypatch.setattr(type(analysed.past), "replay", lambda self, t: (asked.append(t), whole(self, t))[1])
    for name in ("local-accuracy", "weight-divergence", "alignment"):
        analyse(analysed, name, tmp_path)
    assert asked == [1, 2, 3]


@pytest.mark.slow
def test_several_architectures(trained: Any, tmp_path: Path) -> None:
    folder = trained("fedavg", "--model", "mlp,logistic", "--cohort", "6")
    with pytest.raises(SettingError, match="has the models mlp, logistic; choose one with --model"):
        analyse(AnalysedRun.of(folder), "personalised", tmp_path)
    with pytest.raises(SettingError, match="no model 'lenet'"):
        analyse(AnalysedRun.of(folder, model="lenet"), "personalised", tmp_path)
    analyse(AnalysedRun.of(folder, model="mlp"), "personalised", tmp_path)
    assert [r["client"] for r in rows(tmp_path / "personalised.csv")] == [0, 2, 4]
    with pytest.raises(ValueError, match="logistic has no non-linearity"):
        analyse(AnalysedRun.of(folder, model="logistic"), "alignment", tmp_path)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["proposition-1", "proposition-2", "proposition-3", "landscape-hessian"])
def test_some_analyses_need_two_classes(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "one-class"
    if not folder.exists():
        (x, _), y = images(60), np.zeros(60, np.int64)
        folder.mkdir()
        np.savez(folder / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        argv = ["run", "fedavg", "--model", "mlp", "--data", str(folder / "own.npz"), "--partition", "iid"]
        assert main([*argv, *COMMON, "--out", str(folder / "run")]) == 0
    with pytest.raises(ValueError, match="needs at least two classes, got 1"):
        analyse(AnalysedRun.of(folder / "run"), name, folder / "out")


def test_logits_go_in_the_batches_that_the_network_is_evaluated_in() -> None:
    (x, y), seen = images(120), list[int]()

    class ByBatch(Model):
        def __call__(self, weights: Weights, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().__call__(weights, x)

    normed: Callable[[], nn.Module] = lambda: nn.Sequential(  # noqa: E731
        nn.Flatten(), nn.Linear(256, 3), nn.BatchNorm1d(3, track_running_stats=False)
    )
    network = ByBatch(normed)
    found = logits(network, network.init(0), from_arrays(x, y))
    assert (seen, len(found)) == ([50, 50, 20], 120)


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", ["local_only", "centralised"])
def test_without_a_global_model_that_clients_train_from(algorithm: str, trained: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has no global model that clients train from"):
        analyse(AnalysedRun.of(trained(algorithm, "--model", "mlp")), "alignment", tmp_path)


@pytest.mark.slow
def test_logs_are_enough_for_some(tmp_path: Path) -> None:
    """A run from Python, whose objects have no names, and one without a test set."""
    (x, y), local = images(60), Local(epochs=1, batch_size=10)
    train = from_arrays(x, y)
    settings = RunSettings(rounds=2, cohort_size=2)
    for name, test in (("with", train), ("without", None)):
        clients = federate(train, iid(y, 4, seed=0), test=test)
        run(FedAvg(local=local), clients, lambda: MLP(256, 3), settings, directory=tmp_path / name)
    for name in ("class-accuracy", "consistency", "forgetting", "label-distributions"):
        analyse(AnalysedRun.of(tmp_path / "with"), name, tmp_path / "out")
    (tmp_path / "with" / "federation.json").unlink()
    with pytest.raises(SettingError, match=r"has no federation\.json, which says how many examples"):
        analyse(AnalysedRun.of(tmp_path / "with"), "label-distributions", tmp_path / "out")
    with pytest.raises(SettingError, match="was started from Python"):
        analyse(AnalysedRun.of(tmp_path / "with"), "alignment", tmp_path / "out")
    with pytest.raises(SettingError, match="has logged no accuracy by class"):
        analyse(AnalysedRun.of(tmp_path / "without"), "forgetting", tmp_path / "out")


def test_what_cannot_be_analysed_is_refused(trained: Any, tmp_path: Path) -> None:
    folder = trained("fedntd", "--model", "lenet")
    with pytest.raises(SettingError, match=r"analyses are label-distributions, .*; got 'loss'"):
        analyse(AnalysedRun.of(folder), "loss", tmp_path)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "metrics.jsonl").write_text(json.dumps({"round": 0}) + "\n", encoding="utf-8")
    with pytest.raises(SettingError, match="has finished no round yet"):
        AnalysedRun.of(begun)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "package"), [("tsne", "sklearn.manifold"), ("landscape-hessian", "scipy.sparse.linalg")]
)
def test_a_missing_package_is_named(
    name: str, package: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingError, match=r"pip install '<PATH>\[analysis\]', where <PATH> is fedloom's"):
        analyse(AnalysedRun.of(trained("fedntd", "--model", "lenet")), name, tmp_path)


@pytest.mark.slow
def test_analyses_of_classes_refuse_other_targets(tmp_path: Path) -> None:
    """Those that ask nothing of targets measure a regression as they do all else."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{a:.4f},{b:.4f},{3 * a - b:.4f}" for a, b in x]
    (tmp_path / "stays.csv").write_text("\n".join(["a,b,days", *lines]))
    data = {"source": f"{tmp_path / 'stays.csv'}?target=days", "partition": "iid", "clients": 3, "test_fraction": 0.2}
    described = {"algorithm": "fedavg", "model": "logistic", "task": "regression", "data": data}
    Experiment.of({**described, "run": {"rounds": 2, "cohort_size": 3}}).job().run(tmp_path / "run")
    run_ = AnalysedRun.of(tmp_path / "run")
    for name in ANALYSES.keys() - OF_ANY_TASK:
        with pytest.raises(
            SettingError, match=f"{name} looks at classes, .* its measures are RMSE, and analyses of any"
        ):
            analyses.analyse(run_, name, tmp_path / "out")
    for name in OF_ANY_TASK - {"audit"}:  # which is of private runs
        few = 2 if name == "gradient-inversion" else None
        result, files = analyses.analyse(AnalysedRun.of(tmp_path / "run", steps=few), name, tmp_path / "out")
        assert len(result.tables) == 2
        assert all(path.exists() for path in files)
