"""Membership inference: an attack by the loss of a model, as judge of what it tells of its examples.

Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF
2018, arXiv:1709.01604; judged at few false alarms, as in Carlini et al., "Membership Inference Attacks From First
Principles", S&P 2022, arXiv:2112.03570, and without their shadow models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title
from fedloom.core.errors import SettingError
from fedloom.core.task_measures import measures_of
from fedloom.data import Examples
from fedloom.evaluate import evaluate_rows
from fedloom.experiments.prediction_rows import held_out_by
from fedloom.experiments.trained_model import ModelAfterRound, client_number, trained_model
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_SCORE = "log_loss"
_FEW = 0.01  # share of strangers that are taken for members: an attack that accuses many is of little use
_POINTS = 200  # of the curve that are written


def measure(run: AnalysedRun) -> AnalysisResult:
    """Guess by the loss which examples a model was trained on (Yeom et al., CSF 2018).

    An example of low loss is taken for one that was trained on. Members are the training examples of all clients, or of
    `--client` for its own model; strangers are test examples, or what is held out. The same attack on the model before
    training says what stands in the data alone.
    """
    run.require_classes("membership inference")
    job, at = run.job, max(run.rounds) if run.rounds else None
    federation = job.federation
    if _SCORE not in measures_of(run.task):
        raise SettingError(
            f"membership is guessed from the {_SCORE} of single examples, which {type(run.task).__name__} has not"
        )
    found = trained_model(run.directory, job, client=run.client, at=at, model=run.model)
    clients = range(federation.num_clients) if run.client is None else [client_number(federation, run.client)]
    rows = np.concatenate([federation.partition.rows(k) for k in clients])
    own = run.client is not None or federation.test is None
    strangers = federation.train.select(held_out_by(federation, run.client)) if own else run.test
    members = federation.train.select(rows)
    before = trained_model(run.directory, job, client=run.client, at=0, model=run.model)
    curves = {
        "after training": roc(*(losses(found, run, e) for e in (members, strangers))),
        "before training": roc(*(losses(before, run, e) for e in (members, strangers))),
    }
    heads = {
        "model": None, "area under curve": lambda v: f"{v:.3f}", "advantage, points": percent,
        f"found at {_FEW:.0%} false alarms, %": percent,
    }  # fmt: skip
    numbers = [[name, *strength(*curve)] for name, curve in curves.items()]
    auc = numbers[0][1]
    return AnalysisResult(
        draw(curves),
        summary_table(f"Membership by the loss of the {found.whose} after round {found.round}", heads, numbers),
        [
            csv_table(
                "membership-inference",
                ["model", "round", "false_alarms", "members_found"],
                [
                    [name, model.round, far, hit]
                    for (name, curve), model in zip(curves.items(), (found, before), strict=True)
                    for far, hit in zip(*map(thinned, curve), strict=True)
                ],
            )
        ],
        [
            f"{len(members):,} members and {len(strangers):,} strangers. 0.5 is chance, {auc:.3f} what this attack "
            "reaches; it is the simplest one, and that it finds little proves little."
        ],
    )


def losses(model: ModelAfterRound, run: AnalysedRun, examples: Examples) -> Floats:
    """Return the loss of a model on each of N examples, [N]."""
    found = evaluate_rows(model.model, model.weights, run.task, (_SCORE,), examples).sums[_SCORE]
    return found.double().numpy()


def roc(members: Floats, strangers: Floats) -> tuple[Floats, Floats]:
    """Return shares of strangers and of members whose loss is at most a threshold, over all thresholds; both rise."""
    from sklearn.metrics import roc_curve

    truth = np.repeat([1, 0], [len(members), len(strangers)])
    false_alarms, hits, _ = roc_curve(truth, -np.concatenate([members, strangers]), drop_intermediate=False)
    return false_alarms, hits


def strength(false_alarms: Floats, hits: Floats) -> tuple[float, float, float]:
    """Return the area under a curve, its largest height above chance, and its height at few false alarms."""
    from sklearn.metrics import auc

    return float(auc(false_alarms, hits)), float((hits - false_alarms).max()), float(hits[false_alarms <= _FEW].max())


def thinned(values: Floats) -> Floats:
    """Return about as many values as are written, with both ends."""
    return np.asarray(values[np.unique(np.linspace(0, len(values) - 1, _POINTS).round().astype(int))])


def draw(curves: dict[str, tuple[Floats, Floats]]) -> Figure:
    """Draw members that are found over strangers that are accused, in logarithms: few false alarms are what counts."""
    with drawing():
        figure, (axes,) = panels(1)
        low = max(1e-4, min(float(far[far > 0].min(initial=1.0)) for far, _ in curves.values()))
        axes.plot([low, 1], [low, 1], linestyle=":", color=FAINT, label="chance")
        for (name, (false_alarms, hits)), shade in zip(curves.items(), (colour(0), FAINT), strict=True):
            axes.plot(
                np.maximum(false_alarms, low), np.maximum(hits, low), label=name, drawstyle="steps-post", color=shade
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, 1)
        axes.set_ylim(low, 1.05)
        axes.set_xlabel("strangers taken for members (share)")
        axes.set_ylabel("members found (share)")
        title(axes, "guessed by the loss of each example")
        figure.legend(loc="outside lower right", ncols=3)
    return figure
