"""Proposition 2: distillation taken apart into what a client has and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import logits
from fedloom.analyses.panels import panels, title
from fedloom.core.losses import divergence, not_true
from fedloom.report.number_table import amount
from fedloom.report.style import FAINT, INK, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """Distillation from the global model over N examples, taken apart (FedNTD, proposition 2). Means over examples.

    `true` + `not_true` = `full`, and each equals its sum over classes: `true` weighs class c by p_c (what the client
    has), `not_true` by (1 - p_c) / (C - 1) (what it lacks). `not_true` is not the loss of FedNTD, which is over
    probabilities that sum to 1 without the true class: `full` = `binary` + mean of (1 - q_global(y)) * its loss.
    """

    full: float  # KL(q_global || q_local)
    true: float  # the term of each example's own class
    not_true: float  # the terms of all other classes
    true_by_class: Floats  # [C]: p_c times the mean over the examples of c
    not_true_by_class: Floats  # [C]: (C - 1) times (1 - p_c)/(C - 1) times the mean over the examples of other classes
    binary: float  # KL between (true, not true) of both models
    weighted_ntd: float  # mean of (1 - q_global(y)) * L_NTD
    ntd: float  # mean of L_NTD, the loss of FedNTD at tau = 1 without its weight


def kl_parts(local: Tensor, received: Tensor, y: Tensor, temperature: float = 1.0) -> Parts:
    """Take the divergence of a local model from the received one apart, over some examples.

    Args:
        local: logits of the local model, [N, C].
        received: logits of the global model that the client received, [N, C].
        y: true classes, [N].
        temperature: of both softmaxes; nothing is multiplied by its square.

    Raises:
        ValueError: there are no examples, or shapes differ.
    """
    if local.shape != received.shape or y.shape != local.shape[:1] or not len(y):
        raise ValueError(f"logits [N, C] and classes [N], N >= 1, got {[list(t.shape) for t in (local, received, y)]}")
    student, teacher = local.double() / temperature, received.double() / temperature
    q, log_q, log_l = teacher.softmax(1), teacher.log_softmax(1), student.log_softmax(1)
    terms = q * (log_q - log_l)  # [N, C]
    own = F.one_hot(y, local.shape[1]).bool()
    n, C = terms.shape
    count = own.sum(0).double()
    share = count / n
    true_mean = (terms * own).sum(0) / count.clamp(min=1)  # over the examples of c; 0 where there are none
    other_mean = (terms * ~own).sum(0) / (n - count).clamp(min=1)
    of_rest = (1 - share) / (C - 1)
    ntd = divergence(not_true(student, y), not_true(teacher, y).softmax(1))
    right = q[own]
    rest_q, rest_l = _log_rest(teacher, own), _log_rest(student, own)
    binary = right * (log_q[own] - log_l[own]) + rest_q.exp() * (rest_q - rest_l)
    return Parts(
        full=float(terms.sum(1).mean()),
        true=float(terms[own].mean()),
        not_true=float((terms * ~own).sum(1).mean()),
        true_by_class=(share * true_mean).cpu().numpy(),
        not_true_by_class=((C - 1) * of_rest * other_mean).cpu().numpy(),
        binary=float(binary.mean()),
        weighted_ntd=float(((1 - right) * ntd).mean()),
        ntd=float(ntd.mean()),
    )


def holds() -> tuple[bool, str]:
    """Return whether the parts are those of the proposition on made-up logits, and the numbers in words."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for C in (3, 10):
        local, received = (torch.randn(200, C, generator=generator, dtype=torch.float64) * 3 for _ in range(2))
        y = torch.randint(C, (200,), generator=generator)
        parts = kl_parts(local, received, y)
        worst = max(worst, *(abs(error) for error in _errors(parts)))
    said = "agree within 1e-9" if worst < 1e-9 else f"differ by up to {worst:.1e}"
    return worst < 1e-9, f"KL of 400 examples, its two parts and their sums over classes {said} nats"


def _errors(p: Parts) -> tuple[float, ...]:
    """Return by how much the equations of the proposition are missed."""
    by_class = (float(p.true_by_class.sum()) - p.true, float(p.not_true_by_class.sum()) - p.not_true)
    return p.full - p.true - p.not_true, *by_class, p.full - p.binary - p.weighted_ntd


def _log_rest(logits: Tensor, own: Tensor) -> Tensor:
    """Return log(1 - q(y)) without cancellation, [N]."""
    others = logits.masked_fill(own, -torch.inf)
    return others.logsumexp(1) - logits.logsumexp(1)


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure distillation on each client's examples after training, in its true and not-true parts (proposition 2).

    KL(global, local) is computed in two ways.
    """
    run.require_classes("proposition 2")
    m = run.replayed()
    parts: list[Parts] = []
    for i, trained in enumerate(m.trained):
        own = m.own(i)
        y = own.y.to(next(iter(trained.params.values())).device)
        parts.append(kl_parts(logits(run.network, trained, own), logits(run.network, m.start, own), y))
    sums = [(float(p.true_by_class.sum()), float(p.not_true_by_class.sum())) for p in parts]
    names = ["client", "full", "true", "not_true", "true_from_classes", "not_true_from_classes", "binary", "ntd"]
    rows = [
        [k, p.full, p.true, p.not_true, *s, p.binary, p.ntd, p.weighted_ntd]
        for k, p, s in zip(m.clients, parts, sums, strict=True)
    ]
    table = np.array([row[1:] for row in rows], np.float64)
    errors = np.abs([_errors(p) for p in parts]).max(0)
    checks = (
        "full = true + not-true",
        "true part = sum over classes by p",
        "not-true part = sum over classes by 1 - p",
        "full = binary + (1 - q) NTD",
    )
    by_class = np.array([[p.true_by_class, p.not_true_by_class] for p in parts]).mean(0)
    classes = [[c, *by_class[:, c]] for c in range(by_class.shape[1])]
    return AnalysisResult(
        draw(m.clients, table, by_class),
        summary_table(
            f"Distillation over {len(rows)} clients of round {m.number}: KL(global || local), nats, mean",
            {"full": amount, "true": amount, "not true": amount, "NTD loss": amount},
            [table[:, [0, 1, 2, 6]].mean(0)],
        ),
        [
            csv_table("proposition-2", [*names, "weighted_ntd"], rows),
            csv_table("proposition-2-by-class", ["class", "true", "not_true"], classes),
        ],
        [f"{check}: largest difference {error:.1e} nats" for check, error in zip(checks, errors, strict=True)],
    )


def draw(clients: Sequence[int], table: Floats, by_class: Floats) -> Figure:
    """Draw distillation by client and by class.

    `table` [K, 8]: full, true, not true, ...; `by_class`: true and not-true part, mean over clients, [2, C].

    The NTD loss is far smaller than KL: it has a panel and a scale of its own.
    """
    with drawing():
        figure, axes = panels(3, width_ratios=(1.3, 1, 1.3))
        x = np.arange(len(clients))
        for i, (column, label) in enumerate(((1, "true part"), (2, "not-true part"))):
            axes[0].bar(x + (i - 0.5) * 0.36, table[:, column], 0.34, color=colour(i), label=label)
        axes[0].hlines(table[:, 0], x - 0.39, x + 0.39, color=INK, lw=2, label="KL: true + not-true part")
        title(axes[0], "KL(global ‖ local), each client's examples")
        axes[1].bar(x, table[:, 6], 0.68, color=colour(2), label="NTD loss")
        title(axes[1], "NTD loss, the same examples")
        for ax, most in ((axes[0], 12), (axes[1], 8)):
            step = max(1, -(-len(clients) // most))
            ax.set_xticks(x[::step], [str(k) for k in clients[::step]])
            ax.set_xlabel("client")
        places = np.arange(by_class.shape[1])
        for i in (0, 1):
            axes[2].bar(places + (i - 0.5) * 0.36, by_class[i], 0.34, color=colour(i))
        axes[2].set_xlabel("output class")
        if len(places) <= 20:
            axes[2].set_xticks(places)
        title(axes[2], "contribution to KL of each output class,\nmean over clients")
        for ax in axes:
            ax.set_ylabel("nats")
            ax.axhline(0, color=FAINT, lw=0.8)
        figure.legend(loc="outside lower right", ncols=4)
    return figure
