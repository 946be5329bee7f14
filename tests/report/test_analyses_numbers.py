"""What analyses write, against the functions that measure it: columns are what they are called."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from analysed import images, maker, rows

from fedloom.analysis import (
    alignment,
    balanced_rows,
    class_activations,
    class_gradients,
    closed_form,
    consistency,
    cosines,
    distribution_distance,
    diversity_at,
    expected_distance,
    features,
    gradient,
    gradient_diversity,
    gram,
    hessian_eigen,
    kl_parts,
    local_accuracy,
    perturbed,
    plane,
    relabelled,
    shares,
    tsne,
    weight_divergence,
)
from fedloom.core.errors import SettingError
from fedloom.report import analyses_space
from fedloom.report.analyses import analyse, write
from fedloom.report.analyses_space import joint
from fedloom.report.studied import Moment, Studied


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`trained("fedntd", "--model", "lenet")`: the directory of a run, made once."""
    return maker(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def studied(trained: Any) -> Studied:
    return Studied.of(trained("fedntd", "--model", "lenet"))


@pytest.fixture(scope="module")
def last(studied: Studied) -> Moment:
    return studied.moment()


def close(row: dict[str, Any], **expected: Any) -> None:
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-12)


def written(studied: Studied, name: str, folder: Path, table: str | None = None) -> list[dict[str, Any]]:
    analyse(studied, name, folder)
    return rows(folder / f"{table or name}.csv")


def test_consistency(studied: Studied, tmp_path: Path) -> None:
    found = written(studied, "consistency", tmp_path)
    expected = consistency(studied.history.per_class)
    assert [r["round"] for r in found] == [2, 3]
    assert [r["cosine"] for r in found] == pytest.approx(expected.tolist(), nan_ok=True)


def test_local_accuracy_by_round(studied: Studied, last: Moment, tmp_path: Path) -> None:
    row = written(studied, "local-accuracy", tmp_path, "local-accuracy-rounds")[-1]
    assert row["round"] == last.number
    for when, accuracy in (("before", last.start_accuracy), ("after", last.trained_accuracy)):
        found = local_accuracy(last.counts, accuracy)
        for i, where in enumerate(("in", "out")):
            for kind, pair in (("mean", found.mean()), ("std", found.std()), ("weighted", found.weighted())):
                assert row[f"{where}_{when}_{kind}"] == pytest.approx(pair[i]), (where, when, kind)
    together = last.counts.sum(0) / last.counts.sum()
    close(row, in_aggregated=together @ last.after_accuracy, out_aggregated=(1 - together) / 2 @ last.after_accuracy)


def test_weight_divergence(studied: Studied, last: Moment, tmp_path: Path) -> None:
    row = written(studied, "weight-divergence", tmp_path)[-1]
    p = distribution_distance(last.start_accuracy, shares(last.counts[-1]))
    w = weight_divergence(last.start, last.trained[-1])
    close(row, round=3, client=last.clients[-1], distribution_l1=p.l1, distribution_l2=p.l2)
    close(row, weights_l1=w.l1, weights_l2=w.l2)


def test_gradient_diversity(studied: Studied, last: Moment, tmp_path: Path) -> None:
    row = written(studied, "gradient-diversity", tmp_path)[-1]
    table = torch.stack([gradient(studied.network, last.start, studied.task, last.own(i)) for i in range(3)]).double()
    close(row, round=3, clients=3, diversity=gradient_diversity(table), norm_of_mean=float(table.mean(0).norm()))
    close(row, mean_norm=float(table.norm(dim=1).mean()))
    between = rows(tmp_path / "gradient-diversity-cosines.csv")[0]
    expected = cosines(gram(table))[0]
    close(between, client=last.clients[0], **{str(k): c for k, c in zip(last.clients, expected, strict=True)})


def test_proposition_1(trained: Any, tmp_path: Path) -> None:
    run = Studied.of(trained("fedavg", "--model", "mlp", "--cohort", "2", "--rounds", "1"))
    m, train = run.moment(), run.job.federation.train
    share = shares(m.counts)
    assert not np.allclose(share.mean(0), 1 / 3)  # else the closed form is that of these clients
    row = written(run, "proposition-1", tmp_path)[7]
    chosen = train.select(balanced_rows(train.y, 200))
    G, beta = gram(class_gradients(run.network, m.start, run.task, chosen)[0]), row["beta"]
    assert beta == pytest.approx(0.7)
    close(row, closed_form=float(closed_form(share).at(beta)), orthogonal=diversity_at(share, beta)[0])
    close(row, measured=diversity_at(share, beta, G)[0])
    first = rows(tmp_path / "proposition-1-gram.csv")[1]
    close(first, **{"class": 1, "0": G[1, 0], "1": G[1, 1], "2": G[1, 2]})


def test_proposition_2(studied: Studied, last: Moment, tmp_path: Path) -> None:
    finding, _ = analyse(studied, "proposition-2", tmp_path)
    row, own = rows(tmp_path / "proposition-2.csv")[1], last.own(1)
    logits = [studied.network(w, own.normalise(own.x, torch.float32)) for w in (last.trained[1], last.start)]
    p = kl_parts(*logits, own.y)
    sums = {"true_from_classes": p.true_by_class.sum(), "not_true_from_classes": p.not_true_by_class.sum()}
    for name, value in sums.items():
        assert row[name] == pytest.approx(value, rel=1e-4)
    for name in ("full", "true", "not_true", "binary", "ntd", "weighted_ntd"):
        assert row[name] == pytest.approx(getattr(p, name), rel=1e-4), name
    assert row["client"] == last.clients[1]
    # an error is as large as it is, whatever the divergences are
    told = [float(line.split()[-2]) for line in finding.said]
    found = [r["full"] - r["true"] - r["not_true"] for r in rows(tmp_path / "proposition-2.csv")]
    assert told[0] == pytest.approx(np.abs(found).max(), rel=0.06, abs=1e-15)
    assert all(line.endswith(" nats") for line in finding.said)
    assert max(told) < 1e-6


def test_proposition_3(studied: Studied, last: Moment, tmp_path: Path) -> None:
    row, clients = written(studied, "proposition-3", tmp_path)[10], relabelled(shares(last.counts))
    for name, end in (
        ("a_class", np.eye(3)[0]), ("two_classes", np.array([0.5, 0.5, 0])), ("a_client", shares(last.counts[0])),
    ):  # fmt: skip
        p = 0.75 / 3 + 0.25 * end
        assert row[f"towards_{name}"] == pytest.approx(expected_distance(p, clients, np.eye(3)))
    close(row, step=0.25, counterexample=4 / 9 + (1 / 3 - 4 / 9) / 4)


def test_alignment(studied: Studied, last: Moment, tmp_path: Path) -> None:
    found = written(studied, "alignment", tmp_path)
    means = [class_activations(studied.network, w, studied.test) for w in (last.start, last.trained[0], last.after)]
    for name, other in ((str(last.clients[0]), means[1]), ("aggregated", means[2])):
        for layer in means[0]:
            (row,) = (r for r in found if r["layer"] == layer and str(r["model"]).removesuffix(".0") == name)
            a = alignment(means[0][layer], other[layer])
            close(row, neurons=a.neurons, share=a.share, dead_in_received=a.dead[0], dead_in_model=a.dead[1])
            assert row["share_alive"] == pytest.approx(a.alive, nan_ok=True)


def test_tsne(studied: Studied, last: Moment, tmp_path: Path) -> None:
    found = written(studied, "tsne", tmp_path)
    models = [last.start, *last.trained]
    at = tsne(np.concatenate([features(studied.network, w, studied.test) for w in models]))
    names = ["global", *(f"client {k}" for k in last.clients)]
    assert [r["model"] for r in found] == np.repeat(names, 60).tolist()
    assert [r["class"] for r in found] == studied.test.y.tolist() * 4
    np.testing.assert_allclose([[r["x"], r["y"]] for r in found], at, rtol=1e-6)


def test_landscape_noise(studied: Studied, last: Moment, tmp_path: Path) -> None:
    found = written(studied, "landscape-noise", tmp_path)
    for kind, strength in (("relative", 0.5), ("absolute", 0.05)):
        row = [r for r in found if r["noise"] == kind and r["strength"] == strength][2]
        e = perturbed(
            studied.network, last.after, studied.task, studied.test, strength, relative=kind == "relative", draws=3
        )
        close(row, draw=2, loss=e.loss[0, 2], accuracy=e.accuracy[0, 2])


def test_landscape_hessian(studied: Studied, last: Moment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert analyses_space._SIDE == 41
    monkeypatch.setattr(analyses_space, "_SIDE", 5)
    finding, _ = analyse(studied, "landscape-hessian", tmp_path)
    train = studied.job.federation.train
    some = train.select(balanced_rows(train.y, 166))
    eigen = hessian_eigen(studied.network, last.after, studied.task, some)
    slopes = eigen.vectors @ gradient(studied.network, last.after, studied.task, some)
    surface = plane(studied.network, last.after, studied.task, some, eigen.vectors, [0.5, -1.0])
    (row,) = (r for r in rows(tmp_path / "landscape-hessian.csv") if (r["along_first"], r["along_second"]) == (0.5, -1))
    assert row["loss"] == pytest.approx(surface[0, 1], rel=1e-4)
    for i, row in enumerate(rows(tmp_path / "landscape-hessian-eigenvalues.csv")):
        assert row["value"] == pytest.approx(eigen.values[i], rel=1e-4)
        assert row["slope"] == pytest.approx(float(slopes[i]), rel=1e-3)
        # the dashed line begins with the exact slope, however wide the steps of the grid are
        line = finding.figure.axes[1].get_lines()[2 * i + 1]
        x, y = line.get_xdata(), line.get_ydata()
        assert (y[-1] - y[0]) / (x[-1] - x[0]) == pytest.approx(float(slopes[i]), rel=1e-3)


def test_clients_whose_classes_have_no_test_example(
    trained: Any,
    tmp_path: Path,
) -> None:
    (x, y), (x_test, y_test) = images(60), images(60)
    known = y_test != 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x_test[known], y_test=y_test[known])
    data = ["--data", str(tmp_path / "own.npz"), "--partition", "shards:1", "--rounds", "1"]
    run = Studied.of(trained("fedavg", "--model", "mlp", "--cohort", "6", *data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("personalised", "local-epochs", "weight-divergence", "local-accuracy"):
            analyse(run, name, tmp_path)
    table = np.array([[r["test_before"], r["test_after"]] for r in rows(tmp_path / "personalised.csv")])
    there = np.isfinite(table).all(1)
    assert 1 < there.sum() < len(there)
    shown = analyse(run, "personalised", tmp_path)[0].shown.rows
    np.testing.assert_allclose(np.array([shown[0][3:], shown[1][3:]], float),
                               [table[there].mean(0), table[there].std(0, ddof=1)])  # fmt: skip
    apart = rows(tmp_path / "weight-divergence.csv")
    assert [np.isnan(r["distribution_l2"]) for r in apart] == (~there).tolist()
    assert analyse(run, "weight-divergence", tmp_path)[0].shown.rows[0][3] == there.sum()


def test_a_round_of_one_client_that_cannot_be_judged(trained: Any, tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = images(60), images(60)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x_test[y_test == 0], y_test=y_test[y_test == 0])
    data = ["--data", str(tmp_path / "own.npz"), "--partition", "shards:1", "--cohort", "1", "--rounds", "1"]
    run = Studied.of(trained("fedavg", "--model", "mlp", *data))
    assert run.moment().counts[0, 0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("personalised", "local-epochs", "local-accuracy"):
            analyse(run, name, tmp_path)
        with pytest.raises(SettingError, match="no client has training examples of a class that is in the test set"):
            analyse(run, "weight-divergence", tmp_path)


def test_one_tsne_of_several_runs(trained: Any, tmp_path: Path) -> None:
    """All begin with the weights of seed 0, and so send the same model in round 1."""
    some, others = (Studied.of(trained(name, "--model", "lenet"), [1]) for name in ("fedavg", "fedntd"))
    write(joint({"FedAvg": some, "FedNTD": others}), "tsne", tmp_path)
    found = rows(tmp_path / "tsne.csv")
    expected = ["global", *(f"{n} {k}" for n, r in (("FedAvg", some), ("FedNTD", others)) for k in r.moment().clients)]
    assert list(dict.fromkeys(str(r["model"]) for r in found)) == expected
    assert (tmp_path / "tsne.png").exists()
    with pytest.raises(SettingError, match="runs a, b needs clients that received the same model: begin all of them"):
        joint({"a": some, "b": Studied.of(others.directory, [2])})
