"""State what pFedSD claims, and what pages of results say beside orders: lambda = 0 is FedAvg, forgetting is made up.

These two need more than accuracies: the control is compared with FedAvg round by round, and drop and recovery come from
`fedloom analyse RUN recovery`, whose numbers stand beside the run.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, colour, drawing
from fedloom_papers import recipes
from fedloom_papers.pfedsd import changing
from fedloom_papers.pfedsd.recovery import TABLE, recovered, typical
from fedloom_papers.pfedsd.scenarios import SCENARIOS
from fedloom_papers.reproduction.claim_parts import Observation, above, jumps, larger_gain, observed, same_traffic
from fedloom_papers.reproduction.claims import Cell, Claim, Part
from fedloom_papers.reproduction.evidence import place, rows_of
from fedloom_papers.reproduction.results import Result, Run, read
from fedloom_papers.reproduction.run_lengths import length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

RECOVERY = place(TABLE)


class Drop(NamedTuple):
    """Findings of `recovery` in one round of a run: accuracies of K clients on their held-out examples.

    `former` [K]: of the models with which their last rounds ended; `received` [K]: of the global one from which they
    start. `steps`: by variant, the local steps of the median client until it is as good as before, infinite if never.
    `ahead`: the local steps after which clients are better in the mean with the term than without; of those in `at`.
    """

    former: Floats
    received: Floats
    steps: dict[str, float]
    ahead: list[int]
    at: list[int]

    @property
    def mean(self) -> float:
        """The mean drop, a fraction."""
        return float((self.former - self.received).mean())


_NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedper": "FedPer",
    "lg_fedavg": "LG-FedAvg",
    "pfedme": "pFedMe",
    "fedfomo": "FedFomo",
    "local_only": "local training",
}
_PERSONAL = "personal_accuracy"
_NOTHING_LEFT = (
    "On Fashion-MNIST with two classes a client all that have a model of their own are within half a point of 99 %, "
    "less than one of the 140 examples that each holds out."
)


def claims() -> list[Claim]:
    """Return the claims of the paper, in its order; its tables are lost, so they are in words."""
    return list(_claims())


def _claims() -> Iterator[Claim]:
    columns = [(table, column) for table in SCENARIOS for column in dict.fromkeys(r.column for r in recipes(table))]

    def of(row: str, reading: Literal["mean"] | None = None) -> list[Cell]:
        return [Cell(*place, row, reading=reading) for place in columns]

    def over(row: str, reading: Literal["mean"] | None = None) -> list[Part]:
        return [above(a, b) for a, b in zip(of("pfedsd", reading), of(row, reading), strict=True)]

    for row, name in _NAMES.items():
        yield Claim(
            where="Section 4", text=f"pFedSD is above {name} on all data sets and settings", parts=over(row),
            why=_NOTHING_LEFT,
        )  # fmt: skip
    yield Claim(
        where="implied", text="The term itself makes personal models better than FedAvg's, evaluated alike",
        parts=over("fedavg_stored"),
        why="FedAvg's models, each client evaluated by the one that it trained last, are level with pFedSD, tried at "
        "the one strength and temperature of the authors' README.",
    )  # fmt: skip
    yield Claim(
        where="Section 3", text="The term helps on top of other personal methods",
        lacks="`self_distilled` adds it to each of them, but no recipe does, and no run is kept.",
    )  # fmt: skip
    yield Claim(
        where="Section 4", text="pFedSD converges faster than FedAvg, FedProx and local training (mean over rounds)",
        parts=[part for row in ("fedavg", "fedprox", "local_only") for part in over(row, "mean")],
        why=_NOTHING_LEFT,
    )  # fmt: skip
    yield Claim(
        where="Section 4", text="pFedSD is steadier from round to round than FedAvg",
        parts=[
            above(a, b, jumps, " points a round") for a, b in zip(of("fedavg"), of("pfedsd"), strict=True)
        ],
        why="What is measured includes progress, of which FedAvg makes little on CIFAR-100 in its 20 rounds.",
    )  # fmt: skip
    yield Claim(
        where="Figure 2", text="The global model is worse for a client than its own of the round before",
        parts=[
            *(observed([cell], _forgets) for cell in of("pfedsd")),
            *(observed(pair, _loses) for pair in zip(of("fedavg_stored"), of("fedavg"), strict=True)),
        ],
        lacks="No run has been analysed so: `fedloom analyse RUN recovery`.",
    )  # fmt: skip
    yield Claim(
        where="Section 3", text="With the term clients come back to their former accuracy in fewer steps",
        parts=[observed([cell], _recovers) for cell in of("pfedsd")],
        why="The term is ahead in the first steps on both columns; to be within a point of the former model takes "
        "longer with it under two classes a client.",
    )  # fmt: skip
    for text, steps in (
        ("with heterogeneity (Dirichlet)", [("dir0.1", "dir0.5"), ("dir0.5", "dir1")]),
        ("with heterogeneity (classes a client)", [("s2", "s4")]),
        ("as fewer clients take part", [("r0.6", "r1")]),
    ):
        pairs = [
            (column, column.replace(f"-{more}", f"-{less}"))
            for more, less in steps
            for table, column in columns
            if table == "pfedsd-a" and f"-{more}" in column
        ]
        yield Claim(
            where="Figure 2", text=f"That drop grows {text}",
            parts=[
                part
                for a, b in pairs
                for part in (
                    observed([Cell("pfedsd-a", column, "pfedsd") for column in (a, b)], _drops_more),
                    larger_gain(_drop_of(a), _drop_of(b), f"{a} a drop of {{:.2f}} points, {b} of {{:.2f}}"),
                )
            ],
            lacks="No runs of two columns that differ in this alone.",
        )  # fmt: skip
    yield Claim(
        where="Equation 4", text="Without the term (lambda = 0) training is FedAvg's",
        parts=[
            observed([control, other], functools.partial(_control, name))
            for name, row in (("train_loss", "fedavg"), ("personal_accuracy", "fedavg_stored"))
            for control, other in zip(of("pfedsd_lam0"), of(row), strict=True)
        ],
        lacks="No run of the control is kept; the tests of the algorithm hold it to be so, bit for bit.",
    )  # fmt: skip
    yield Claim(
        where="Section 3.2", text="Where data change, the past model teaches better than its stored predictions",
        parts=[
            above(Cell(changing.TABLE, column, "pfedsd"), Cell(changing.TABLE, column, "pfedsd_predictions"))
            for column in changing.COLUMNS
        ],
        why="In a window that moves fast every teacher is behind what it teaches, and FedAvg's models without one are "
        "better than both; of other rules, strengths and temperatures no run is kept.",
    )  # fmt: skip
    yield Claim(
        where="Section 3", text="pFedSD sends no byte more than FedAvg",
        parts=[same_traffic(a, b) for a, b in zip(of("pfedsd"), of("fedavg"), strict=True)],
    )  # fmt: skip


def _forgets(run: Run, rounds: int) -> Observation:
    found = drop(run)
    return None if found is None else (found.mean > 0, f"{percent(found.mean)} points worse in the mean")


def _loses(stored: Run, fedavg: Run, rounds: int) -> Observation:
    """Return whether FedAvg's local models are above its global one after every round, both of all clients."""
    until = min(rounds, stored.rounds, fedavg.rounds)
    pairs = [(stored.after(t, _PERSONAL), fedavg.after(t, _PERSONAL)) for t in range(1, until + 1)]
    losses = [a - b for a, b in pairs if a is not None and b is not None]
    if not losses or alike(stored, fedavg, "train_loss", rounds)[1] is not None:
        return None
    worse = sum(loss > 0 for loss in losses)
    mean = percent(sum(losses) / len(losses))
    return worse == len(losses), f"{mean} points worse in the mean, in {worse} of {len(losses)} rounds"


def _drop_of(column: str) -> tuple[Cell, Cell]:
    """Return what tells the drop in FedAvg's rounds: accuracies of local models and of the global one, mean of all."""
    stored, fedavg = (Cell("pfedsd-a", column, row, reading="mean") for row in ("fedavg_stored", "fedavg"))
    return stored, fedavg


def _drops_more(run: Run, other: Run, rounds: int) -> Observation:
    one, two = drop(run), drop(other)
    if one is None or two is None:
        return None
    return one.mean > two.mean, f"{percent(one.mean)} points, and {percent(two.mean)}"


def _recovers(run: Run, rounds: int) -> Observation:
    found = drop(run)
    if found is None or len(found.steps) < 2:
        return None
    with_term, without = found.steps.values()
    return with_term < without, f"{with_term:g} steps with the term, {without:g} without"


def _control(name: str, control: Run, other: Run, rounds: int) -> Observation:
    count, apart = alike(control, other, name, rounds)
    return (
        (apart is None, f"{count} rounds alike" if apart is None else f"other from round {apart} on") if count else None
    )


def remarks(results: Sequence[Result]) -> list[str]:
    """Say how the claims came out in the results of one column, in sentences; nothing of what was not run."""
    rows = {r.recipe.row: r for r in results}
    out = []
    for other, number, what in (
        ("fedavg", "train_loss", "training losses"),
        ("fedavg_stored", "personal_accuracy", "personal accuracies"),
    ):
        if "pfedsd_lam0" in rows and other in rows:
            out += _same(rows["pfedsd_lam0"], rows[other], number, what)
    for r in results:
        for seed, run in r.runs.items():
            if (found := drop(run)) is not None:
                out.append(f"{r.recipe.row}, seed {seed}: {_sentence(found)}")
    return out


def _same(control: Result, other: Result, number: str, what: str) -> list[str]:
    """Say whether a number of the control, lambda = 0, is that of another row in every round in which both have it.

    Runs with other settings than each other say nothing of it.
    """
    out = []
    for seed in sorted(control.runs.keys() & other.runs.keys()):
        a, b = control.runs[seed].history, other.runs[seed].history
        if control.recipe.changed(a.settings) != other.recipe.changed(b.settings):
            continue
        count, apart = alike(control.runs[seed], other.runs[seed], number, control.wanted)
        verdict = f"are those of {other.recipe.row} in all of {count} rounds"
        if apart is not None:
            verdict = f"are NOT those of {other.recipe.row} from round {apart} on"
        out += [f"lambda = 0, seed {seed}: {what} {verdict}."] * bool(count)
    return out


def alike(one: Run, other: Run, number: str, rounds: int) -> tuple[int, int | None]:
    """Return in how many rounds both runs have a number, and the first in which it differs."""
    pairs = [
        (x["round"], x[number], y[number])
        for x, y in zip(one.history.metrics, other.history.metrics, strict=False)
        if 0 < x["round"] <= rounds and None not in (x.get(number), y.get(number))
    ]
    return len(pairs), next((t for t, a, b in pairs if a != b), None)


def drop(run: Run) -> Drop | None:
    """Return what `fedloom analyse RUN recovery` found of a run, None where it was not asked.

    Raises:
        SettingError: its file is damaged.
    """
    with rows_of(run, TABLE) as rows:
        if rows is None:
            return None
        at = sorted({int(row["step"]) for row in rows})
        clients = sorted({int(row["client"]) for row in rows})
        former = {int(row["client"]): float(row["former"]) for row in rows}
        of = {(row["variant"], int(row["step"]), int(row["client"])): float(row["accuracy"]) for row in rows}
        variants = list(dict.fromkeys(row["variant"] for row in rows))
        v = np.array([former[k] for k in clients])
        curves = {name: np.array([[of[name, t, k] for k in clients] for t in at]) for name in variants}
        received = next(iter(curves.values()))[at.index(0)]
    means = [curve.mean(1) for curve in curves.values()]
    ahead = [t for t, x, y in zip(at, means[0], means[-1], strict=True) if x > y]
    return Drop(v, received, {name: typical(recovered(at, v, curve)) for name, curve in curves.items()}, ahead, at[1:])


def _sentence(found: Drop) -> str:
    """State drop and recovery, and whether they are as claimed."""
    worse = int((found.received < found.former).sum())
    out = f"the global model is worse than the former one of {worse} of {len(found.former)} clients, by "
    out += f"{percent(found.mean)} points in the mean"
    if len(found.steps) > 1:
        with_term, without = found.steps.values()
        took = [f"{steps:g} steps" if np.isfinite(steps) else "not at all" for steps in (with_term, without)]
        out += f"; the median client comes back within a point after {took[0]} with the term, {took[1]} without"
        holds = found.mean > 0 and with_term < without
        out += f": as claimed, {'yes' if holds else 'NO'}. The mean is higher with the term after "
        ahead = ", ".join(map(str, found.ahead)) or "none"
        out += f"{ahead} of {', '.join(map(str, found.at))} steps"
    return out + "."


def drops(table: str, folders: Sequence[Path]) -> AnalysisResult:
    """Return the drop from the former to the global model in every run of a table that `recovery` has analysed.

    The paper claims that it grows with label skew and with lower participation.

    Args:
        table: a table of this study.
        folders: of results, as `fedloom reproduce --out` names them.

    Raises:
        SettingError: there is no such table, or no run of it was analysed, or a file is damaged.
    """
    found, rounds = list[tuple[str, str, int, Drop]](), list[int]()
    for r in read(recipes(table), folders):
        for seed, run in r.runs.items():
            if (one := drop(run)) is not None:
                found.append((r.recipe.column, r.recipe.row, seed, one))
                rounds.append(run.rounds)
    if not found:
        raise SettingError(
            f"{', '.join(map(str, folders))} holds no run of {table} with its {RECOVERY}: fedloom analyse RUN recovery"
        )
    rows = [[c, row, seed, d.former.mean(), d.received.mean(), d.mean, *_steps(d)] for c, row, seed, d in found]
    heads = {"column": None, "method": None, "seed": None, "former": percent, "received": percent, "drop": percent}
    return AnalysisResult(
        draw(
            [(column, row, d.mean) for column, row, _, d in found],
            length(rounds, SCENARIOS[table].rounds, Counter(place[:2] for place in found).values()),
        ),
        summary_table("Accuracy of former and received models, %, and the drop", heads, [row[:6] for row in rows]),
        [csv_table(f"{table}-drops", [*heads, "steps with the term", "steps without"], rows)],
    )


def _steps(found: Drop) -> tuple[float, float]:
    steps = [*found.steps.values(), np.nan, np.nan]
    return steps[0], steps[1]


def draw(found: Sequence[tuple[str, str, float]], long: str) -> Figure:
    """Draw a group of dots for each column: the mean drop of each run, a colour for each method.

    `long`: how long the runs are.
    """
    columns = list(dict.fromkeys(column for column, _, _ in found))
    methods = list(dict.fromkeys(method for _, method, _ in found))
    with drawing():
        figure, axes = panels(1, (min(WIDE[0], 3.0 + 1.0 * len(columns)), WIDE[1]))
        for i, method in enumerate(methods):
            mine = [(columns.index(c), 100 * value) for c, m, value in found if m == method]
            axes[0].plot(*zip(*mine, strict=True), ls="", marker="o", ms=4, color=colour(i), label=method)
        axes[0].set_xticks(range(len(columns)), columns, rotation=30, ha="right")
        axes[0].set_xlim(-0.5, len(columns) - 0.5)
        axes[0].set_ylabel("drop (points)")
        axes[0].axhline(0, lw=0.8, color="0.6")
        title(axes[0], f"former minus received model\n{long}")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return figure
