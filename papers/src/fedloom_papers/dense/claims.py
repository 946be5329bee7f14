"""State what DENSE claims: orders of its tables, what each term adds, what it costs."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from fedloom.coordinator.history import Record
from fedloom_papers import recipes
from fedloom_papers.dense.recipes import ALPHAS, LAMBDA1
from fedloom_papers.reproduction.claim_parts import Observation, above, gain, number, observed, total, whole
from fedloom_papers.reproduction.claim_verdicts import sentences
from fedloom_papers.reproduction.claims import Cell, Claim, Part
from fedloom_papers.reproduction.results import Result, Run

DISTILLED = ("feddf", "fed_dafl", "fed_adi", "dense")
STEEP = ("cifar10", "cifar100", "svhn", "tiny")  # where FedAvg is far below at every alpha
_NAMES = {"feddf": "FedDF", "fed_dafl": "Fed-DAFL", "fed_adi": "Fed-ADI"}
_ENSEMBLE = "On these clients the ensemble is itself below or level with the mean of the weights on one of two seeds."


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Return the claims of the paper: those of Table 1 first."""
    return *_table_1(), *_others(), *_ablation()


def remarks(results: Sequence[Result]) -> list[str]:
    """Say how the claims came out in the results of one column, in sentences; nothing of what was not run."""
    return sentences(claims(), results)


def _table_1() -> Iterator[Claim]:
    table = "dense-table1"
    columns = _columns(table)
    yield Claim(
        where="Table 1", text="One-shot FedAvg is below all that distil, at alpha 0.1 and on images in colour",
        parts=[
            above(Cell(table, column, row), Cell(table, column, "fedavg"), instead=_beside_uploads(table, column))
            for column in columns
            if column.startswith(STEEP) or "-a0.1-" in column
            for row in DISTILLED
        ],
        why=f"{_ENSEMBLE} FedDF learns from images of MNIST.",
    )  # fmt: skip
    for row, name in _NAMES.items():
        yield Claim(
            where="Table 1", text=f"DENSE is above {name}",
            parts=[above(Cell(table, column, "dense"), Cell(table, column, row)) for column in columns],
            lacks="It has been run with fewer steps of its own than published, and so in no order." * (row != "feddf"),
        )  # fmt: skip
    yield Claim(
        where="Table 1", text="The ensemble is above every student",
        parts=[
            above(Cell(table, column, "ensemble"), Cell(table, column, row)) for column in columns for row in DISTILLED
        ],
        why=_ENSEMBLE,
    )  # fmt: skip
    yield Claim(
        where="Table 1", text="DENSE rises with alpha",
        parts=[
            above(Cell(table, column.replace(f"-a{low:g}-", f"-a{high:g}-"), "dense"), Cell(table, column, "dense"))
            for low, high in itertools.pairwise(ALPHAS)
            for column in columns
            if f"-a{low:g}-" in column
        ],
    )  # fmt: skip
    yield Claim(
        where="Table 1", text="All methods, not DENSE alone, fall as alpha falls",
        parts=[
            above(Cell(table, column.replace(f"-a{low:g}-", f"-a{high:g}-"), row), Cell(table, column, row))
            for low, high in itertools.pairwise(ALPHAS)
            for column in columns
            if f"-a{low:g}-" in column
            for row in ("fedavg", "feddf", "fed_dafl", "fed_adi")
        ],
    )  # fmt: skip
    yield Claim(
        where="Figure of images", text="Synthetic images do not resemble the clients' examples",
        lacks="It is said of pictures that people look at: `fedloom analyse RUN synthetic-images` draws them.",
    )  # fmt: skip
    yield Claim(
        where="Introduction", text="DENSE gains 5.08 points over the best other method on CIFAR-10 at alpha 0.3",
        parts=[
            gain(Cell(table, column, "dense"), Cell(table, column, "fed_adi"), 5.08)
            for column in columns
            if column.startswith("cifar10-a0.3-")
        ],
        published="+5.08 (one-sided)",
    )  # fmt: skip
    yield Claim(
        where="Table 1", text="The printed accuracies themselves",
        parts=[number(Cell(r.table, r.column, r.row)) for r in recipes(table) if r.target],
        published="numbers (two-sided)",
        lacks="No cell has been run at its full length.",
    )  # fmt: skip


def _others() -> Iterator[Claim]:
    table = "dense-clients"
    yield Claim(
        where="Table of clients", text="DENSE is above one-shot FedAvg with 5 to 50 clients",
        parts=[above(Cell(table, column, "dense"), Cell(table, column, "fedavg")) for column in _columns(table)],
        over=lambda cell: cell.column.split("-")[2],
    )  # fmt: skip
    yield Claim(
        where="Table of clients", text="DENSE falls as clients grow in number",
        parts=[
            above(Cell(table, f"{data}-a0.5-m5-{network}", "dense"), Cell(table, f"{data}-a0.5-m50-{network}", "dense"))
            for data in ("cifar10", "svhn")
            for network in ("cnn", "resnet18")
        ],
        published="62.19 to 28.51; 80.03 to 59.27",
    )  # fmt: skip
    yield Claim(
        where="Table of clients", text="The others fall too as clients grow in number",
        parts=[
            above(Cell(table, f"{data}-a0.5-m5-{network}", row), Cell(table, f"{data}-a0.5-m50-{network}", row))
            for data in ("cifar10", "svhn")
            for network in ("cnn", "resnet18")
            for row in dict.fromkeys(r.row for r in recipes(table) if r.row != "dense")
        ],
    )  # fmt: skip
    readme = "dense-readme"
    yield Claim(
        where="Longer local training", text="After 400 local epochs DENSE is above every local model",
        parts=[whole(observed([Cell(readme, "cifar10-a0.5-m5", "dense")], _above_clients))],
        lacks="It has been run with 40 local epochs, and its student with 20 of 200 epochs, eight of them at chance.",
    )  # fmt: skip
    yield Claim(
        where="Longer local training", text="There one-shot FedAvg is below every local model",
        parts=[whole(observed([Cell(readme, "cifar10-a0.5-m5", "dense", called="fedavg")], _mean_below_clients))],
        lacks="It has been run with 40 local epochs alone.",
    )  # fmt: skip
    yield Claim(
        where="README of the code", text="Its run: FedAvg 30.93, ensemble 71.81",
        parts=[number(Cell(readme, "cifar10-a0.5-m5", row)) for row in ("fedavg", "ensemble")],
        published="30.93, 71.81 (two-sided)",
        lacks="It has been run with 40 of the 400 local epochs alone.",
    )  # fmt: skip
    five = [f"cifar10-a{alpha:g}-m5-five" for alpha in ALPHAS]
    yield Claim(
        where="Heterogeneous models", text="DENSE is best with clients of five architectures",
        parts=[
            above(Cell("dense-heterogeneous", column, "dense"), Cell("dense-heterogeneous", column, row))
            for column in five
            for row in _NAMES
        ],
    )  # fmt: skip
    yield Claim(
        where="LDAM", text="Clients that train with margins help where labels are highly skewed (alpha 0.1)",
        parts=_printed_above("dense-ldam", "dense_ldam"),
    )  # fmt: skip
    yield Claim(
        where="Several rounds", text="Accuracy is best after five rounds of uploads",
        parts=_printed_above("dense-rounds", "dense-r5"),
    )  # fmt: skip
    yield Claim(
        where="Section 3", text="Clients upload once: one model each, and nothing later",
        parts=[observed([Cell("dense-table1", column, "dense")], _one_upload) for column in _columns("dense-table1")],
    )  # fmt: skip


def _ablation() -> Iterator[Claim]:
    table = "dense-ablation"
    for row, text, why in (
        ("without_bn", "L_BN helps",
         "The released code's L_BN is always 0, so the printed numbers may never have had it. Here images do come "
         "nearer to the clients' statistics, with two BatchNorm layers about as near as real images with uniform "
         "labels; but they teach worse with two, and with eight by one seed of two."),
        ("without_div", "L_div helps", ""),
        ("ce_only", "Both together help", "L_BN takes off here what L_div adds."),
    ):  # fmt: skip
        parts = [above(Cell(table, c, "dense"), Cell(table, c, f"dense-{row}")) for c in _columns(table)]
        if row == "without_bn":
            parts += _weighed(lambda with_it, without: above(with_it, without))
        yield Claim(where="Ablation", text=text, parts=parts, why=why)
    yield Claim(
        where="Eq. 3", text="L_BN brings images nearer to the statistics of the clients",
        parts=_weighed(lambda with_it, without: above(without, with_it, of=_distances)),
    )  # fmt: skip


def _weighed(compare: Callable[[Cell, Cell], Part]) -> list[Part]:
    """Return a part for each weight of L_BN beside none."""
    table = "dense-lambda1"
    return [
        compare(Cell(table, column, f"dense-lambda{weight:g}"), Cell(table, column, "dense-lambda0"))
        for column in _columns(table)
        for weight in LAMBDA1
        if weight
    ]


def _distances(result: Result) -> dict[int, float]:
    """Return how far the images that are kept lie from the statistics of the clients, L_BN, mean over epochs."""
    logged = {s: [run.after(t, "server_bn") for t in range(2, result.rounds + 1)] for s, run in result.runs.items()}
    return {s: statistics.fmean(there) for s, values in logged.items() if (there := [v for v in values if v])}


def _columns(table: str) -> list[str]:
    return list(dict.fromkeys(r.column for r in recipes(table)))


def _beside_uploads(table: str, column: str) -> Cell:
    """Return one-shot FedAvg's number, which stands in the record of every upload, as the ensemble's does."""
    return Cell(table, column, "ensemble", measure="mean_accuracy", called="fedavg")


def _printed_above(table: str, row: str) -> list[Part]:
    """Return a part for each row of a column that another is said to be above."""
    return [
        above(Cell(table, r.column, row), Cell(table, r.column, other))
        for r in recipes(table)
        if r.row == row
        for other in r.above
    ]


def _above_clients(run: Run, rounds: int) -> Observation:
    return _beside_clients(run, run.after(min(rounds, run.rounds), "global_accuracy"), above=True)


def _mean_below_clients(run: Run, rounds: int) -> Observation:
    return _beside_clients(run, run.after(1, "mean_accuracy"), above=False)


def _beside_clients(run: Run, value: float | None, above: bool) -> Observation:
    singly = list(_upload(run).get("upload_accuracy", {}).values())
    if value is None or not singly:
        return None
    holds = value > max(singly) if above else value < min(singly)
    return holds, f"{100 * value:.1f}, local models {100 * min(singly):.1f} to {100 * max(singly):.1f}"


def _one_upload(run: Run, rounds: int) -> Observation:
    first, whole = (total(run, until, "bytes_up") for until in (1, rounds))
    clients = len(_upload(run).get("upload_accuracy", {}))
    return (whole == first, f"{first / clients:,.0f} bytes a client, then {whole - first:,.0f}") if clients else None


def _upload(run: Run) -> Record:
    return next((m for m in run.history.metrics if m["round"] == 1), {})
