"""Membership inference: attacks by the loss of a model, as judges of what it tells of its examples.

Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF
2018, arXiv:1709.01604; judged at few false alarms, as in Carlini et al., "Membership Inference Attacks From First
Principles", S&P 2022, arXiv:2112.03570, whose attack with shadow models is beside it where these are asked for.
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
from fedloom.display.progress import optional_progress
from fedloom.evaluate import evaluate_rows
from fedloom.experiments.prediction_rows import held_out_by
from fedloom.experiments.trained_model import ModelAfterRound, client_number, trained_model
from fedloom.privacy import shadows
from fedloom.privacy.central import Central
from fedloom.privacy.private_examples import Examples as PrivateExamples
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, colour, drawing
from fedloom.storage.output import path_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Curve = tuple[Floats, Floats]

_SCORE = "log_loss"
_FEW = 0.01  # share of strangers that are taken for members: an attack that accuses many is of little use
_FEWEST = 0.001
_POINTS = 200  # of the curve that are written
_PROMISE = "most, by epsilon"


def measure(run: AnalysedRun) -> AnalysisResult:
    """Guess by the loss which examples a model was trained on (Yeom et al., CSF 2018).

    An example of low loss is taken for one that was trained on. Members are the training examples of all clients, or of
    `--client` for its own model; strangers are test examples, or what is held out. The same attack on the model before
    training says what stands in the data alone. With `--shadows N` so many runs on random halves of the clients'
    examples are trained, which say how unusual a loss is (LiRA, offline; Carlini et al., S&P 2022).
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
    curves: dict[str, Curve] = {}
    if run.shadows is not None:
        curves[f"{run.shadows} shadows"] = with_shadows(found, run, rows, members, strangers)
    curves |= {
        "after training": roc(*(losses(found, run, e) for e in (members, strangers))),
        "before training": roc(*(losses(before, run, e) for e in (members, strangers))),
    }
    promise = promised(run, found.round)
    if promise is not None:
        far = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 10_001)])
        curves[_PROMISE] = far, shadows.most_found(far, *promise)
    heads = {
        "model": None, "area under curve": lambda v: f"{v:.3f}", "advantage, points": percent,
        "balanced accuracy, %": percent,
        f"found at {_FEW:.0%} false alarms, %": percent, f"found at {_FEWEST:.1%}, %": percent,
    }  # fmt: skip
    numbers = [[name, *strength(*curve)] for name, curve in curves.items()]
    auc = next(area for name, area, *_ in numbers if name == "after training")
    return AnalysisResult(
        draw(curves),
        summary_table(f"Membership by the loss of the {found.whose} after round {found.round}", heads, numbers),
        [
            csv_table(
                "membership-inference",
                ["model", "round", "false_alarms", "members_found"],
                [
                    [name, before.round if name == "before training" else found.round, far, hit]
                    for name, curve in curves.items()
                    for far, hit in zip(*map(thinned, curve), strict=True)
                ],
            )
        ],
        [
            f"{len(members):,} members and {len(strangers):,} strangers. 0.5 is chance, {auc:.3f} what this attack "
            "reaches; it is the simplest one, and that it finds little proves little.",
            *([] if promise is None else [
                f"Epsilon is {promise[0]:.3g} at delta = {promise[1]:g}: of one example that is there or not. "
                "Strangers stand here for examples that are not."
            ]),
        ],
    )  # fmt: skip


def with_shadows(
    found: ModelAfterRound, run: AnalysedRun, rows: npt.NDArray[np.int64], members: Examples, strangers: Examples
) -> Curve:
    """Return the curve of the likelihood ratio attack; shadows are trained first, in the folder of the run.

    Args:
        found: the model at hand.
        run: of it.
        rows: of the members, among the training examples.
        members: examples that it was trained on.
        strangers: examples that it was not trained on.
    """
    job, count = run.job, run.shadows or 0
    folder = path_below(run.directory, "analysis") / "shadows"
    with optional_progress("shadows", count * job.settings.rounds, None) as show:
        made = shadows.trained(job, count, folder, show)
    inside, said = [], []
    for number, (directory, one) in enumerate(made):
        model = trained_model(directory, one, client=run.client, at=found.round, model=run.model)
        apart = shadows.half(len(strangers), job.settings.seed, number, "strangers")
        inside.append(np.concatenate([np.isin(rows, one.federation.partition.indices), apart]))
        said.append(shadows.confidence(np.concatenate([losses(model, run, e) for e in (members, strangers)])))
    seen = shadows.confidence(np.concatenate([losses(found, run, e) for e in (members, strangers)]))
    left = ~np.all(inside, axis=0)  # of a client with one example it is always there
    scores = shadows.likelihood_scores(seen[left], np.array(said)[:, left], np.array(inside)[:, left])
    first = int(left[: len(members)].sum())
    return roc(-scores[:first], -scores[first:])


def promised(run: AnalysedRun, round: int) -> tuple[float, float] | None:
    """Return epsilon and delta of each example in the model that is looked at, after a round; None: it has none.

    Privacy of clients is that of each of their examples too, in the global model alone.
    """
    part = next((p for p in run.job.begun_parts.all if isinstance(p, Central | PrivateExamples)), None)
    if part is None or (isinstance(part, Central) and run.client is not None):
        return None
    return float(run.history.metrics[round]["epsilon"]), part.asked.delta


def losses(model: ModelAfterRound, run: AnalysedRun, examples: Examples) -> Floats:
    """Return the loss of a model on each of N examples, [N]."""
    found = evaluate_rows(model.model, model.weights, run.task, (_SCORE,), examples).sums[_SCORE]
    return found.double().numpy()


def roc(members: Floats, strangers: Floats) -> Curve:
    """Return shares of strangers and of members whose loss is at most a threshold, over all thresholds; both rise."""
    from sklearn.metrics import roc_curve

    truth = np.repeat([1, 0], [len(members), len(strangers)])
    false_alarms, hits, _ = roc_curve(truth, -np.concatenate([members, strangers]), drop_intermediate=False)
    return false_alarms, hits


def strength(false_alarms: Floats, hits: Floats) -> tuple[float, float, float, float, float]:
    """Return the area under a curve, its largest height above chance, balanced accuracy, and its height at few alarms.

    The last two are those at one false alarm in a hundred, and in a thousand.
    """
    from sklearn.metrics import auc

    best = float((hits - false_alarms).max())
    few, fewest = (float(hits[false_alarms <= share].max()) for share in (_FEW, _FEWEST))
    return float(auc(false_alarms, hits)), best, (1 + best) / 2, few, fewest


def thinned(values: Floats) -> Floats:
    """Return about as many values as are written, with both ends."""
    return np.asarray(values[np.unique(np.linspace(0, len(values) - 1, _POINTS).round().astype(int))])


def draw(curves: dict[str, Curve]) -> Figure:
    """Draw members that are found over strangers that are accused, in logarithms: few false alarms are what counts."""
    with drawing():
        figure, (axes,) = panels(1)
        measured = (far for name, (far, _) in curves.items() if name != _PROMISE)
        low = max(1e-4, min(float(far[far > 0].min(initial=1.0)) for far in measured))
        axes.plot([low, 1], [low, 1], linestyle=":", color=FAINT, label="chance")
        looks = {"after training": colour(0), "before training": FAINT, _PROMISE: colour(1)}
        for name, (false_alarms, hits) in curves.items():
            axes.plot(
                np.maximum(false_alarms, low), np.maximum(hits, low), label=name, drawstyle="steps-post",
                color=looks.get(name, colour(2)),
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, 1)
        axes.set_ylim(low, 1.05)
        axes.set_xlabel("strangers taken for members (share)")
        axes.set_ylabel("members found (share)")
        title(axes, "guessed by the loss of each example")
        figure.legend(loc="outside lower right", ncols=5)
    return figure
