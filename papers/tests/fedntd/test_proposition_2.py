"""Proposition 2: distillation taken apart into what a client has and what it lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import golden

from analysed import analyse, rows
from fedloom.analyses import AnalysedRun
from fedloom.analyses.analysed_run import ReplayedRound
from fedloom_papers.fedntd import proposition_2
from fedloom_papers.fedntd.proposition_2 import kl_parts


@pytest.mark.parametrize("tau", [1, 2])
def test_parts_are_those_of_the_reference(tau: int) -> None:
    g = golden("fedntd/ntd_variants_derived")
    local, received, y = (torch.as_tensor(g[name]) for name in ("logits", "teacher", "labels"))
    found = kl_parts(local, received, y, tau)

    def mean(name: str) -> float:
        return float(g[f"tau{tau}_{name}"].mean())

    assert found.full == pytest.approx(mean("kl_full_per_sample"), abs=1e-12)
    assert found.true == pytest.approx(mean("true_part_per_sample"), abs=1e-12)
    assert found.not_true == pytest.approx(mean("nottrue_part_per_sample"), abs=1e-12)
    assert found.binary == pytest.approx(mean("kl_binary_per_sample"), abs=1e-12)
    assert found.ntd == pytest.approx(mean("ntd_per_sample"), abs=1e-12)
    assert found.full == pytest.approx(found.true + found.not_true, abs=1e-12)
    assert found.full == pytest.approx(found.binary + found.weighted_ntd, abs=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 1, 3, 3, 3, 0], [2] * 7])
def test_parts_are_sums_over_classes(labels: list[int]) -> None:
    """Also where a class has no example, or all of them."""
    g = torch.Generator().manual_seed(0)
    found = kl_parts(torch.randn(7, 4, generator=g), torch.randn(7, 4, generator=g), torch.tensor(labels))
    assert found.true_by_class.sum() == pytest.approx(found.true, abs=1e-12)
    assert found.not_true_by_class.sum() == pytest.approx(found.not_true, abs=1e-12)
    missing = sorted(set(range(4)) - set(labels))
    assert (found.true_by_class[missing] == 0).all()


def test_extreme_logits_stay_finite() -> None:
    found = kl_parts(torch.tensor([[80.0, 0, 0]]), torch.tensor([[100.0, 0, 0]]), torch.tensor([0]))
    assert all(np.isfinite(v) for v in (found.full, found.binary, found.ntd, found.weighted_ntd))
    with pytest.raises(ValueError, match=r"logits \[N, C\] and classes \[N\]"):
        kl_parts(torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(2, dtype=torch.int64))


@pytest.mark.slow
def test_proposition_2(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    finding, _ = analyse(lenet_run, "proposition-2", tmp_path)
    row, own = rows(tmp_path / "proposition-2.csv")[1], lenet_round.own(1)
    logits = [
        lenet_run.network(w, own.normalise(own.x, torch.float32)) for w in (lenet_round.trained[1], lenet_round.start)
    ]
    p = kl_parts(*logits, own.y)
    sums = {"true_from_classes": p.true_by_class.sum(), "not_true_from_classes": p.not_true_by_class.sum()}
    for name, value in sums.items():
        assert row[name] == pytest.approx(value, rel=1e-4)
    for name in ("full", "true", "not_true", "binary", "ntd", "weighted_ntd"):
        assert row[name] == pytest.approx(getattr(p, name), rel=1e-4), name
    assert row["client"] == lenet_round.clients[1]
    # an error is as large as it is, whatever the divergences are
    told = [float(line.split()[-2]) for line in finding.remarks]
    found = [r["full"] - r["true"] - r["not_true"] for r in rows(tmp_path / "proposition-2.csv")]
    assert told[0] == pytest.approx(np.abs(found).max(), rel=0.06, abs=1e-15)
    assert all(line.endswith(" nats") for line in finding.remarks)
    assert max(told) < 1e-6


@pytest.mark.parametrize("clients", [1, 30])
def test_each_client_has_its_own_mark_of_the_whole_divergence(clients: int) -> None:
    table = np.arange(clients * 8, dtype=float).reshape(clients, 8)
    axes = proposition_2.draw(list(range(clients)), table, np.ones((2, 3))).axes
    (marks,) = (c for c in axes[0].collections if c.get_label().startswith("KL"))
    ends = np.array([s[:, 0] for s in marks.get_segments()])
    assert (ends[1:, 0] > ends[:-1, 1]).all()  # none reaches the next
    assert (ends[:, 0] < np.arange(clients) - 0.3).all()
    assert (ends[:, 1] > np.arange(clients) + 0.3).all()
    assert [s[0, 1] for s in marks.get_segments()] == table[:, 0].tolist()
    assert [ax.get_ylabel() for ax in axes] == ["nats", "nats", "nats"]


def test_a_distillation_loss_far_below_kl_is_seen() -> None:
    table = np.array([[4.9, -0.1, 5.0, -0.1, 5.0, 4.8, 0.026, 0.02]])
    axes = proposition_2.draw([3], table, np.ones((2, 3))).axes
    (bar,) = axes[1].patches
    low, high = axes[1].get_ylim()
    assert bar.get_height() == 0.026
    assert bar.get_height() > 0.8 * (high - low)
    assert axes[2].get_xlabel() == "output class"
    assert axes[2].get_title(loc="left").startswith("contribution to KL of each output class")
