"""What analyses write, against the functions that measure it: columns are what they are called."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysed import analyse, close, images, rows, written
from fedloom.analyses import landscape_hessian, write_analysis
from fedloom.analyses.analysed_run import AnalysedRun, ReplayedRound
from fedloom.analyses.analysis_result import by_class
from fedloom.analyses.class_preference import kept_share, preferences_of
from fedloom.analyses.measures import (
    alignment,
    balanced,
    balanced_rows,
    class_activations,
    consistency,
    cosines,
    distribution_distance,
    features,
    gradient,
    gradient_diversity,
    gram,
    hessian_eigen,
    local_accuracy,
    perturbed,
    plane,
    shares,
    tsne,
    weight_divergence,
)
from fedloom.analyses.tsne import joint_tsne
from fedloom.core.errors import SettingError
from fedloom.data import from_arrays
from fedloom.evaluate import classify


def test_how_many_examples_of_each_class_is_counted() -> None:
    """An analysis takes so many of each class where there are as many."""
    data = from_arrays(np.zeros((32, 2), np.float32), np.repeat([0, 1], [14, 18]))
    assert by_class(data, "test") == "32 test examples, 14 to 18 of each class"
    assert by_class(balanced(data, 7), "training") == "14 training examples, 7 of each class"


@pytest.mark.slow
def test_consistency(lenet_run: AnalysedRun, tmp_path: Path) -> None:
    found = written(lenet_run, "consistency", tmp_path)
    expected = consistency(lenet_run.history.per_class)
    assert [r["round"] for r in found] == [2, 3]
    assert [r["cosine"] for r in found] == pytest.approx(expected.tolist(), nan_ok=True)


@pytest.mark.slow
def test_local_accuracy_by_round(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    row = written(lenet_run, "local-accuracy", tmp_path, "local-accuracy-rounds")[-1]
    assert row["round"] == lenet_round.number
    for when, accuracy in (("before", lenet_round.start_accuracy), ("after", lenet_round.trained_accuracy)):
        found = local_accuracy(lenet_round.counts, accuracy)
        for i, where in enumerate(("in", "out")):
            for kind, pair in (("mean", found.mean()), ("std", found.std()), ("weighted", found.weighted())):
                assert row[f"{where}_{when}_{kind}"] == pytest.approx(pair[i]), (where, when, kind)
    together = lenet_round.counts.sum(0) / lenet_round.counts.sum()
    close(
        row,
        in_aggregated=together @ lenet_round.after_accuracy,
        out_aggregated=(1 - together) / 2 @ lenet_round.after_accuracy,
    )


@pytest.mark.slow
def test_weight_divergence(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    summary = analyse(lenet_run, "weight-divergence", tmp_path)[0].summary.rows
    found = rows(tmp_path / "weight-divergence.csv")
    for name, pearson, *_ in summary:
        distances, weights = ([r[f"{what}_{name.lower()}"] for r in found] for what in ("distribution", "weights"))
        assert pearson == pytest.approx(np.corrcoef(distances, weights)[0, 1])
    row = found[-1]
    p = distribution_distance(lenet_round.start_accuracy, shares(lenet_round.counts[-1]))
    w = weight_divergence(lenet_round.start, lenet_round.trained[-1])
    close(row, round=3, client=lenet_round.clients[-1], distribution_l1=p.l1, distribution_l2=p.l2)
    close(row, weights_l1=w.l1, weights_l2=w.l2)


@pytest.mark.slow
def test_gradient_diversity(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    row = written(lenet_run, "gradient-diversity", tmp_path)[-1]
    table = torch.stack(
        [gradient(lenet_run.network, lenet_round.start, lenet_run.task, lenet_round.own(i)) for i in range(3)]
    ).double()
    close(row, round=3, clients=3, diversity=gradient_diversity(table), norm_of_mean=float(table.mean(0).norm()))
    close(row, mean_norm=float(table.norm(dim=1).mean()))
    between = rows(tmp_path / "gradient-diversity-cosines.csv")[0]
    expected = cosines(gram(table))[0]
    close(
        between,
        client=lenet_round.clients[0],
        **{str(k): c for k, c in zip(lenet_round.clients, expected, strict=True)},
    )


@pytest.mark.slow
def test_alignment(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    summary = analyse(lenet_run, "alignment", tmp_path)[0].summary.rows
    found = rows(tmp_path / "alignment.csv")
    for layer, neurons, share, *_ in summary:  # of clients alone
        local = [r for r in found if r["layer"] == layer and r["model"] != "aggregated"]
        assert (neurons, share) == (local[0]["neurons"], pytest.approx(np.mean([r["share"] for r in local])))
    assert {r["round"] for r in found} == {lenet_round.number}
    means = [
        class_activations(lenet_run.network, w, lenet_run.test)
        for w in (lenet_round.start, lenet_round.trained[0], lenet_round.after)
    ]
    for name, other in ((str(lenet_round.clients[0]), means[1]), ("aggregated", means[2])):
        for layer in means[0]:
            (row,) = (r for r in found if r["layer"] == layer and str(r["model"]).removesuffix(".0") == name)
            a = alignment(means[0][layer], other[layer])
            close(row, neurons=a.neurons, share=a.share, dead_in_received=a.dead[0], dead_in_model=a.dead[1])
            assert row["share_alive"] == pytest.approx(a.alive, nan_ok=True)


@pytest.mark.slow
def test_class_preference(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    found = written(lenet_run, "class-preference", tmp_path)
    clients = [f"client {k}" for k in lenet_round.clients]
    assert list(found[0]) == ["round", "neuron", "received", *clients, "aggregated"]
    assert [r["neuron"] for r in found] == list(range(len(found)))
    assert {r["round"] for r in found} == {lenet_round.number}
    models = [lenet_round.start, *lenet_round.trained, lenet_round.after]
    for name, weights in zip(("received", *clients, "aggregated"), models, strict=True):
        means = list(class_activations(lenet_run.network, weights, lenet_run.test).values())[-1]  # of the last layer
        assert [r[name] for r in found] == [-1 if (h == 0).all() else h.argmax() for h in means]
    with (tmp_path / "class-preference.csv").open(newline="", encoding="utf-8") as file:
        again = preferences_of(list(csv.DictReader(file)))
    kept = alignment(
        *(list(class_activations(lenet_run.network, w, lenet_run.test).values())[-1] for w in (models[0], models[-1]))
    )
    assert kept_share(again["received"], again["aggregated"]) == pytest.approx(kept.alive, nan_ok=True)


@pytest.mark.slow
def test_label_distributions(lenet_run: AnalysedRun, tmp_path: Path) -> None:
    found = written(lenet_run, "label-distributions", tmp_path)
    federation = lenet_run.job.federation
    counts = federation.counts()
    assert [(r["client"], r["class"]) for r in found] == [(k, c) for k in range(6) for c in range(3)]
    for k, mine in enumerate(counts):
        here = [r for r in found if r["client"] == k]
        p = mine / mine.sum()
        assert [r["examples"] for r in here] == mine.tolist()
        assert [r["in_local"] for r in here] == pytest.approx(p.tolist())
        assert [r["out_local"] for r in here] == pytest.approx(((1 - p) / 2).tolist())


@pytest.mark.slow
def test_tsne(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    found = written(lenet_run, "tsne", tmp_path)
    models = [lenet_round.start, *lenet_round.trained]
    at = tsne(np.concatenate([features(lenet_run.network, w, lenet_run.test) for w in models]))
    names = ["global", *(f"client {k}" for k in lenet_round.clients)]
    assert [r["model"] for r in found] == np.repeat(names, 60).tolist()
    assert [r["class"] for r in found] == lenet_run.test.y.tolist() * 4
    np.testing.assert_allclose([[r["x"], r["y"]] for r in found], at, rtol=1e-6)


@pytest.mark.slow
def test_personalised(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    found = written(lenet_run, "personalised", tmp_path)
    assert [r["client"] for r in found] == lenet_round.clients
    for i, row in enumerate(found):
        own = lenet_round.own(i)
        for when, w in (("before", lenet_round.start), ("after", lenet_round.trained[i])):
            p = shares(lenet_round.counts[i])
            expected = classify(lenet_run.network, w, lenet_run.task, own).accuracy
            close(row, **{f"own_{when}": expected, f"test_{when}": p @ lenet_run.per_class(w)})
        assert row["examples"] == len(own)


@pytest.mark.slow
def test_landscape_noise(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    summary = analyse(lenet_run, "landscape-noise", tmp_path)[0].summary.rows
    found = rows(tmp_path / "landscape-noise.csv")
    for i, (kind, _, *means) in enumerate(summary):
        draws = found[5 * i : 5 * i + 5]
        assert {r["noise"] for r in draws} == {kind}
        assert means == pytest.approx([np.mean([r[what] for r in draws]) for what in ("loss", "accuracy")])
    assert {r["round"] for r in found} == {lenet_round.number}
    for kind, strength in (("relative", 0.5), ("absolute", 0.05)):
        row = [r for r in found if r["noise"] == kind and r["strength"] == strength][2]
        e = perturbed(
            lenet_run.network,
            lenet_round.after,
            lenet_run.task,
            lenet_run.test,
            strength,
            relative=kind == "relative",
            draws=3,
        )
        close(row, draw=2, loss=e.loss[0, 2], accuracy=e.accuracy[0, 2])


@pytest.mark.slow
def test_landscape_hessian(
    lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert landscape_hessian._SIDE == 41
    monkeypatch.setattr(landscape_hessian, "_SIDE", 5)
    finding, _ = analyse(lenet_run, "landscape-hessian", tmp_path)
    train = lenet_run.job.federation.train
    some = train.select(balanced_rows(train.y, 166))
    eigen = hessian_eigen(lenet_run.network, lenet_round.after, lenet_run.task, some)
    slopes = eigen.vectors @ gradient(lenet_run.network, lenet_round.after, lenet_run.task, some)
    surface = plane(lenet_run.network, lenet_round.after, lenet_run.task, some, eigen.vectors, [0.5, -1.0])
    (row,) = (r for r in rows(tmp_path / "landscape-hessian.csv") if (r["along_first"], r["along_second"]) == (0.5, -1))
    assert row["loss"] == pytest.approx(surface[0, 1], rel=1e-4)
    for i, row in enumerate(rows(tmp_path / "landscape-hessian-eigenvalues.csv")):
        assert row["value"] == pytest.approx(eigen.values[i], rel=1e-4)
        assert row["slope"] == pytest.approx(float(slopes[i]), rel=1e-3)
        # the dashed line begins with the exact slope, however wide the steps of the grid are
        line = finding.figure.axes[1].get_lines()[2 * i + 1]
        x, y = line.get_xdata(), line.get_ydata()
        assert (y[-1] - y[0]) / (x[-1] - x[0]) == pytest.approx(float(slopes[i]), rel=1e-3)


@pytest.mark.slow
def test_clients_whose_classes_have_no_test_example(
    trained: Any,
    tmp_path: Path,
) -> None:
    (x, y), (x_test, y_test) = images(60), images(60)
    known = y_test != 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x_test[known], y_test=y_test[known])
    data = ["--data", str(tmp_path / "own.npz"), "--partition", "shards:1", "--rounds", "1"]
    run = AnalysedRun.of(trained("fedavg", "--model", "mlp", "--cohort", "6", *data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("personalised", "local-epochs", "weight-divergence", "local-accuracy"):
            analyse(run, name, tmp_path)
    table = np.array([[r["test_before"], r["test_after"]] for r in rows(tmp_path / "personalised.csv")])
    there = np.isfinite(table).all(1)
    assert 1 < there.sum() < len(there)
    shown = analyse(run, "personalised", tmp_path)[0].summary.rows
    np.testing.assert_allclose(np.array([shown[0][3:], shown[1][3:]], float),
                               [table[there].mean(0), table[there].std(0, ddof=1)])  # fmt: skip
    apart = rows(tmp_path / "weight-divergence.csv")
    assert [np.isnan(r["distribution_l2"]) for r in apart] == (~there).tolist()
    assert analyse(run, "weight-divergence", tmp_path)[0].summary.rows[0][3] == there.sum()


@pytest.mark.slow
def test_a_round_of_one_client_that_cannot_be_judged(trained: Any, tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = images(60), images(60)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x_test[y_test == 0], y_test=y_test[y_test == 0])
    data = ["--data", str(tmp_path / "own.npz"), "--partition", "shards:1", "--cohort", "1", "--rounds", "1"]
    run = AnalysedRun.of(trained("fedavg", "--model", "mlp", *data))
    assert run.replayed().counts[0, 0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("personalised", "local-epochs", "local-accuracy"):
            analyse(run, name, tmp_path)
        with pytest.raises(SettingError, match="no client has training examples of a class that is in the test set"):
            analyse(run, "weight-divergence", tmp_path)


@pytest.mark.slow
def test_one_tsne_of_several_runs(trained: Any, tmp_path: Path) -> None:
    """All begin with the weights of seed 0, and so send the same model in round 1."""
    some, others = (AnalysedRun.of(trained(name, "--model", "lenet"), [1]) for name in ("fedavg", "fedntd"))
    write_analysis(joint_tsne({"FedAvg": some, "FedNTD": others}), "tsne", tmp_path)
    found = rows(tmp_path / "tsne.csv")
    expected = [
        "global",
        *(f"{n} {k}" for n, r in (("FedAvg", some), ("FedNTD", others)) for k in r.replayed().clients),
    ]
    assert list(dict.fromkeys(str(r["model"]) for r in found)) == expected
    assert (tmp_path / "tsne.png").exists()
    with pytest.raises(SettingError, match="runs a, b needs clients that received the same model: begin all of them"):
        joint_tsne({"a": some, "b": AnalysedRun.of(others.directory, [2])})
