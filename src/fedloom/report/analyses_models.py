"""Analyses of gradients, distillation and neurons: FedNTD's definition 2, propositions 1 to 3, and section 5.1."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.analysis import (
    COUNTEREXAMPLE,
    Parts,
    alignment,
    balanced_rows,
    class_activations,
    class_gradients,
    closed_form,
    cosines,
    diversity_at,
    expected_distance,
    gradient,
    gradient_diversity,
    gram,
    kl_parts,
    relabelled,
    shares,
)
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.report import analysis_maps as maps
from fedloom.report.comparison import amount, percent
from fedloom.report.finding import Finding, numbers, ratio, short
from fedloom.report.studied import Studied

Floats = npt.NDArray[np.float64]

_PER_CLASS = 200  # training examples of each class for its gradient


def diversity(run: Studied) -> Finding:
    """Gradient diversity of a round's clients at the global model that they receive (definition 2)."""
    rows: list[list[Any]] = []
    for m in run.moments():
        table = torch.stack([gradient(run.network, m.start, run.task, m.own(i)) for i in range(len(m.clients))])
        mean = float(table.double().mean(0).norm())
        norms = table.double().norm(dim=1)
        rows.append([m.number, len(m.clients), gradient_diversity(table), float(norms.mean()), mean])
        clients, between = m.clients, cosines(gram(table))  # in the end those of the last round
    names = ["round", "clients", "diversity", "mean_norm", "norm_of_mean"]
    pairs = [[k, *row] for k, row in zip(clients, between, strict=True)]
    heads = {"round": None, "clients": None, "diversity": amount, "mean norm": amount, "norm of the mean": amount}
    return Finding(
        maps.diversity(np.array(rows, np.float64), clients, between),
        short("Gradient diversity: 1 where all clients agree", heads, rows),
        [
            numbers("gradient-diversity", names, rows),
            numbers("gradient-diversity-cosines", ["client", *map(str, clients)], pairs),
        ],
        [
            "Full gradients over each client's training examples, not augmented, in evaluation mode.",
            *run.left_out(row[0] for row in rows),
        ],
    )


def proposition_1(run: Studied) -> Finding:
    """Diversity against beta: closed form, orthogonal class gradients, and the measured ones with their Gram matrix."""
    m, train = run.moment(), run.job.federation.train
    chosen = train.select(balanced_rows(train.y.cpu().numpy(), _PER_CLASS))
    found, there = class_gradients(run.network, m.start, run.task, chosen)
    G = gram(found)
    share = shares(m.counts[:, there.numpy()])
    form = closed_form(share)
    betas = np.linspace(0, form.C - 1, 10 * (form.C - 1) + 1)
    curves = np.stack([form.at(betas), diversity_at(share, betas), diversity_at(share, betas, G)], axis=1)
    cosine = cosines(G)
    off = cosine[~np.eye(form.C, dtype=bool)]
    norms = np.sqrt(np.diag(G))
    of_sum = float(np.sqrt(max(G.sum(), 0.0)) / norms.sum())
    step = max(1, (len(betas) - 1) // 9)
    heads = {"beta": ratio, "closed form": amount, "orthogonal": amount, "measured": amount}
    rows = np.column_stack([betas, curves]).tolist()
    gram_rows = [[int(c), *row] for c, row in zip(there, G, strict=True)]
    return Finding(
        maps.proposition_1(betas, curves, there.tolist(), cosine),
        short(
            f"Gradient diversity if clients had the gradients of proposition 1, round {m.number}", heads, rows[::step]
        ),
        [
            numbers("proposition-1", ["beta", "closed_form", "orthogonal", "measured"], rows),
            numbers("proposition-1-gram", ["class", *(str(int(c)) for c in there)], gram_rows),
        ],
        [
            "Closed form: class gradients orthogonal and of equal norm, clients' mean class distribution uniform. "
            "Orthogonal: these clients' own mean. Measured: the Gram matrix of class gradients at the received model.",
            f"Cosines between class gradients are {off.min():.2f} to {off.max():.2f}, mean {off.mean():.2f}; their "
            f"norms {norms.min():.3g} to {norms.max():.3g}; the norm of their sum is {100 * of_sum:.0f} % of the sum "
            "of their norms. Proposition 1 assumes cosines of 0 and equal norms.",
        ],
    )


def proposition_2(run: Studied) -> Finding:
    """Distillation on each client's examples after training, in its true and not-true parts (proposition 2)."""
    run.needs_classes("proposition 2")
    m = run.moment()
    parts: list[Parts] = []
    for i, trained in enumerate(m.trained):
        own = m.own(i)
        y = own.y.to(next(iter(trained.params.values())).device)
        parts.append(kl_parts(_logits(run, trained, own), _logits(run, m.start, own), y))
    sums = [(float(p.true_by_class.sum()), float(p.not_true_by_class.sum())) for p in parts]
    names = ["client", "full", "true", "not_true", "true_from_classes", "not_true_from_classes", "binary", "ntd"]
    rows = [
        [k, p.full, p.true, p.not_true, *s, p.binary, p.ntd, p.weighted_ntd]
        for k, p, s in zip(m.clients, parts, sums, strict=True)
    ]
    table = np.array([row[1:] for row in rows], np.float64)
    errors = [
        np.abs(table[:, 0] - table[:, 1] - table[:, 2]).max(),
        np.abs(table[:, 1] - table[:, 3]).max(),
        np.abs(table[:, 2] - table[:, 4]).max(),
        np.abs(table[:, 0] - table[:, 5] - table[:, 7]).max(),
    ]
    checks = (
        "full = true + not-true",
        "true part = sum over classes by p",
        "not-true part = sum over classes by 1 - p",
        "full = binary + (1 - q) NTD",
    )
    by_class = np.array([[p.true_by_class, p.not_true_by_class] for p in parts]).mean(0)
    classes = [[c, *by_class[:, c]] for c in range(by_class.shape[1])]
    return Finding(
        maps.proposition_2(m.clients, table, by_class),
        short(
            f"Distillation over {len(rows)} clients of round {m.number}: KL(global || local), nats, mean",
            {"full": amount, "true": amount, "not true": amount, "NTD loss": amount},
            [table[:, [0, 1, 2, 6]].mean(0)],
        ),
        [
            numbers("proposition-2", [*names, "weighted_ntd"], rows),
            numbers("proposition-2-by-class", ["class", "true", "not_true"], classes),
        ],
        [f"{check}: largest difference {error:.1e} nats" for check, error in zip(checks, errors, strict=True)],
    )


def proposition_3(run: Studied) -> Finding:
    """Expected distance to clients' optima as p leaves uniform, with its assumption and without (proposition 3)."""
    run.needs_classes("proposition 3")
    m = run.moment()
    steps = np.linspace(0, 1, 41)
    C = m.counts.shape[1]
    family = relabelled(shares(m.counts))
    corners = {
        "a class": np.eye(C)[0],
        "two classes": (np.eye(C)[0] + np.eye(C)[1]) / 2,
        "a client": shares(m.counts)[0],
    }
    lines = {
        name: np.array([expected_distance((1 - s) / C + s * end, family, np.eye(C)) for s in steps])
        for name, end in corners.items()
    }
    end = np.array([0.5, 0.5, 0.0])
    wrong = np.array([expected_distance((1 - s) / 3 + s * end, *_counterexample()) for s in steps])
    rising = all(bool((line >= line[0] - 1e-12).all()) for line in lines.values())
    rows = [[s, *(line[i] for line in lines.values()), wrong[i]] for i, s in enumerate(steps)]
    names = ["step", *(f"towards_{name.replace(' ', '_')}" for name in lines), "counterexample"]
    told = [["equidistant optima, " + n, line[0], line[-1]] for n, line in lines.items()]
    told.append(["counterexample, optima 0, 0, 1", wrong[0], wrong[-1]])
    return Finding(
        maps.proposition_3(steps, lines, wrong),
        short("E ||w_p' - w_p||", {"family and where p goes": None, "p uniform": ratio, "p there": ratio}, told),
        [numbers("proposition-3", names, rows)],
        [
            "Assumption: optima of the class losses that no permutation of classes changes (equidistant), and a family "
            f"of clients that no rotation of the classes changes (those of round {m.number}, each in every rotation). "
            f"Then uniform p is best: {'so it is here' if rising else 'NOT SO HERE'}.",
            "Without the assumption it is false: C = 3, optima 0, 0, 1, clients of one class each: uniform p gives "
            "4/9, p = (1/2, 1/2, 0) gives 1/3.",
        ],
    )


def neurons(run: Studied) -> Finding:
    """Share of neurons that prefer the same class: global model received, local models, aggregated (section 5.1)."""
    m = run.moment()
    network, test = run.network, run.test
    start, after = (class_activations(network, w, test) for w in (m.start, m.after))
    others = {str(k): class_activations(network, w, test) for k, w in zip(m.clients, m.trained, strict=True)}
    others["aggregated"] = after
    rows: list[list[Any]] = []
    for layer, means in start.items():
        for name, found in others.items():
            a = alignment(means, found[layer])
            rows.append([layer, name, a.neurons, a.share, a.alive, *a.dead])
    names = ["layer", "model", "neurons", "share", "share_alive", "dead_in_received", "dead_in_model"]
    told: list[list[Any]] = []
    for layer in start:
        mine = np.array([r[3:7] for r in rows if r[0] == layer and r[1] != "aggregated"], np.float64)
        whole = next(r for r in rows if r[0] == layer and r[1] == "aggregated")
        known = mine[np.isfinite(mine[:, 1]), 1]
        alive = known.mean() if len(known) else np.nan
        dead = f"{whole[5]}, {mine[:, 3].mean():.1f}, {whole[6]}"
        told.append([layer, whole[2], mine[:, 0].mean(), alive, whole[3], whole[4], dead])
    heads = {"layer": None, "neurons": None, "local, %": percent, "alive, %": percent, "aggregated, %": percent}
    heads |= {"alive, % ": percent, "dead: received, local, aggregated": None}
    return Finding(
        maps.alignment(rows, list(start)),
        short(f"Neurons that prefer the same class as in the model received in round {m.number}", heads, told),
        [numbers("alignment", names, rows)],
        [
            "On the test set, after the non-linearity; a channel is one neuron. A dead neuron counts as preferring "
            "class 0; alive: only neurons that are alive in both models."
        ],
    )


def _counterexample() -> tuple[Floats, Floats]:
    return COUNTEREXAMPLE.clients, COUNTEREXAMPLE.optima


def _logits(run: Studied, weights: Weights, examples: Examples) -> Tensor:
    like = next(iter(weights.params.values()))
    edges = [*range(0, len(examples), run.network.evaluation_batch(250)), len(examples)]
    with torch.no_grad():
        parts = [
            run.network(weights, examples.normalise(examples.x[a:b].to(like.device), like.dtype))
            for a, b in pairwise(edges)
        ]
    return torch.cat(parts)
