"""State what FedNTD claims: orders and numbers of its tables, its propositions, what its figures show."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fedloom_papers.fedntd import class_preferences, learning_curves, proposition_1, proposition_2, proposition_3
from fedloom_papers.fedntd.claim_numbers import (
    accuracy,
    accurate_as_it_forgets_less,
    aligned,
    alike,
    analysed,
    cell_of,
    column_mean,
    even_earlier,
    flat,
    keep_state,
    moves_with_distance,
    near,
    not_below,
    orders,
    outside,
    sends_more,
    steadier,
    wider,
)
from fedloom_papers.fedntd.recipes import BETAS, CONSTANT, EPOCHS, SKEWS, SWEPT, cells
from fedloom_papers.reproduction.claim_parts import (
    above,
    computed,
    diverges,
    gain,
    last_word,
    level,
    number,
    observed,
    same_traffic,
)
from fedloom_papers.reproduction.claims import Cell, Claim
from fedloom_papers.reproduction.evidence import place

EVIDENCE = tuple(
    place(table)
    for table in (
        *("alignment", "local-accuracy", learning_curves.LOCAL, "weight-divergence", "personalised"),
        *(class_preferences.ANALYSIS, "landscape-noise"),
    )
)
_SHARDS = Cell("fedntd-table1", "cifar10-s2", "fedntd")
_MODELS = "It is measured by `fedloom analyse` of models that are not kept beside the runs."
_WEIGHTS = f"{_MODELS[:-1]}; what one run gave is told on the page of papers."
_PRINTED = "orders of printed numbers"
_METHODS = ("fedavg", "fedcurv", "fedprox", "fednova", "scaffold", "moon", "fedntd")
_CLEAN = (
    "All numbers of full length are higher than printed. The printed ones may be of test images that pass the "
    "augmentation of training; no run that is kept tells."
)


def claims() -> list[Claim]:
    """Return the claims of the paper, in its order."""
    return [*_tables(), *_appendices(), *_theory()]


def _tables() -> Iterator[Claim]:
    best = "FedNTD is the most accurate method wherever it is printed so"
    yield Claim(
        where="Table 1", text=f"{best}, over shards and LDA on four data sets",
        parts=orders("fedntd-table1", accuracy, ours=True), published="above all in 10 of 14 columns",
    )  # fmt: skip
    yield Claim(
        where="Table 1", text="SCAFFOLD is above FedNTD on milder heterogeneity (s = 5 and 10, CIFAR-100 with LDA)",
        parts=[
            above(cell_of("fedntd-table1", column, "scaffold"), cell_of("fedntd-table1", column, "fedntd"))
            for column in ("cifar10-s5", "cifar10-s10", "cifar100-lda0.1")
        ],
        published="65.74, 64.93; 68.97, 68.56; 33.68, 32.37",
    )  # fmt: skip
    yield Claim(
        where="Table 1", text="FedNTD forgets least wherever it is printed so",
        parts=orders("fedntd-table1", lambda c: None if c.forgetting is None else -c.forgetting, ours=True),
        published=_PRINTED,
    )  # fmt: skip
    yield Claim(
        where="Section 5", text="Over methods, accuracy rises as forgetting falls",
        parts=[
            accurate_as_it_forgets_less([cell_of("fedntd-table1", column, row) for row in _METHODS])
            for column in dict.fromkeys(c.column for c in cells("fedntd-table1"))
        ],
    )  # fmt: skip
    for column, printed in (("cifar10-s2", 12.47), ("cifar10-lda0.1", 7.93)):
        yield Claim(
            where="Table 1", text=f"FedNTD gains {printed:g} points over FedAvg ({column})",
            parts=[
                gain(cell_of("fedntd-table1", column, "fedntd"), cell_of("fedntd-table1", column, "fedavg"), printed)
            ],
            published=f"{printed:+.2f} (one-sided)",
        )  # fmt: skip
    yield Claim(
        where="Table 1", text="The orders of the other methods that are clear of printed noise",
        parts=orders("fedntd-table1", accuracy, ours=False), published=_PRINTED,
        why="FedCurv is the corrected one here, the released code loses other clients' terms; and orders are those of "
        "round 40, where numbers swing with the classes of a cohort.",
    )  # fmt: skip
    yield Claim(
        where="Table 1", text="FedNova and SCAFFOLD diverge at LDA 0.05",
        parts=[diverges(cell_of("fedntd-table1", "cifar10-lda0.05", row)) for row in ("fednova", "scaffold")],
        published="10.00 (failed)",
    )  # fmt: skip
    yield Claim(
        where="Tables 1 and 8 to 11", text="The printed accuracies themselves",
        parts=[
            number(Cell(table, c.column, c.row))
            for table in ("fedntd-table1", *(f"fedntd-table{n}" for n in (8, 9, 10, 11)))
            for c in cells(table)
            if c.accuracy is not None and c.note is None and c.row != "fednova"
            and (table == "fedntd-table1" or not c.column.endswith(("-e5", "-r0.1")))
        ],
        published="numbers (two-sided)", why=_CLEAN,
    )  # fmt: skip
    for table, what in (
        (8, "over local epochs, shards"), (9, "over local epochs, LDA"),
        (10, "over the share of clients a round, shards"), (11, "over the share of clients a round, LDA"),
    ):  # fmt: skip
        name = f"fedntd-table{table}"
        yield Claim(
            where=f"Table {table}",
            text=f"{best} ({what})",
            parts=orders(name, accuracy, ours=True),
            published=_PRINTED,
            over=last_word,
        )
    epochs = [cell_of("fedntd-table8", f"cifar10-s2-e{e}", "fedntd") for e in (1, 3, 5, 10)]
    yield Claim(
        where="Table 8", text="More local epochs, up to 10, make FedNTD more accurate",
        parts=[above(more, fewer) for i, fewer in enumerate(epochs) for more in epochs[i + 1 :]],
        published="35.77, 45.47, 52.61, 60.22",
    )  # fmt: skip


def _appendices() -> Iterator[Claim]:
    yield Claim(
        where="Table 13, Figure 13", text="FedAlign is below FedAvg at alpha 0.05 and 0.1",
        parts=[
            above(Cell("fedntd-table13", column, "fedavg"), Cell("fedntd-table13", column, "fedalign"))
            for column in dict.fromkeys(c.column for c in cells("fedntd-table13"))
            if "lda0.05" in column or "lda0.1" in column
        ],
    )  # fmt: skip
    yield Claim(
        where="Appendix G.3", text="FedNTD is the most accurate with ResNet-10 too",
        parts=orders("fedntd-resnet10", accuracy, ours=True), published=_PRINTED,
    )  # fmt: skip
    lams = ("0", "0.1", "0.3", "0.5", "0.7", "0.9", "1")
    yield Claim(
        where="Table 12", text="Accuracy rises from distillation over all classes to not-true distillation",
        parts=[
            above(Cell("fedntd-table12", c, f"kd_ntd-{b}"), Cell("fedntd-table12", c, f"kd_ntd-{a}"))
            for c in ("cifar10-s2", "cifar10-lda0.1")
            for a, b in itertools.pairwise(lams)
        ],
        published="46.2 to 52.6; 50.8 to 54.9",
    )  # fmt: skip
    yield Claim(
        where="Table 13", text="FedNTD is above FedAvg and FedAlign in the protocol of FedAlign",
        parts=orders("fedntd-table13", accuracy, ours=True), published=_PRINTED,
    )  # fmt: skip
    mse = [f"fedntd_mse-{beta}" for beta in ("0.001", "0.005", "0.01", "0.05", "0.1")]
    yield Claim(
        where="Table 14", text="Squared errors of not-true logits help too, but less than FedNTD",
        parts=[
            above(Cell("fedntd-table14", "cifar10-s2", high), Cell("fedntd-table14", "cifar10-s2", low))
            for m in mse
            for high, low in ((m, "fedavg"), ("fedntd", m))
        ],
    )  # fmt: skip
    yield Claim(
        where="Table 14", text="With beta = 0.3 they diverge",
        parts=[diverges(Cell("fedntd-table14", "cifar10-s2", "fedntd_mse-0.3"))], published="failed",
    )  # fmt: skip
    yield Claim(
        where="Table 2", text="Features stay aligned: more neurons keep their class under FedNTD than under FedAvg",
        parts=[
            analysed(Cell("fedntd-table1", column, "fedntd"), "alignment", aligned)
            for column in ("cifar10-s2", "cifar10-lda0.05")
        ],
        published="63.5 to 70.3 %, 59.7 to 75.6 % (linear_1, local)", lacks=_WEIGHTS,
    )  # fmt: skip
    yield Claim(
        where="Table 2", text="On IID clients as many neurons keep their class under FedNTD as under FedAvg",
        parts=[analysed(Cell("fedntd-table2", "cifar10-iid", "fedntd"), "alignment", aligned, alike)],
        published="67.9 and 66.8 % (linear_1, local)", lacks=_MODELS,
    )  # fmt: skip
    yield Claim(
        where="Figures 4 and 6", text="Local training forgets the classes that a client lacks, less so under FedNTD",
        parts=[analysed(_SHARDS, "local-accuracy", outside)], lacks=_WEIGHTS,
    )  # fmt: skip
    yield Claim(
        where="Figure 8", text="Local models move less far from the global one under FedNTD than under FedAvg",
        parts=[analysed(_SHARDS, "weight-divergence", near)], lacks=_WEIGHTS,
    )  # fmt: skip
    yield Claim(
        where="Figure 8", text="Weights move further where a client's classes are further from what the model knows",
        parts=[observed([cell], moves_with_distance) for cell in (_SHARDS, _SHARDS._replace(row="fedavg"))],
        lacks=_WEIGHTS,
    )  # fmt: skip
    yield Claim(
        where="Appendix E, Figure 10", text="Classes become even earlier under FedNTD than under FedAvg",
        parts=[
            observed([cell_of("fedntd-table1", column, row) for row in ("fedntd", "fedavg")], even_earlier)
            for column in dict.fromkeys(c.column for c in cells("fedntd-table1"))
        ],
    )  # fmt: skip
    kd, ntd = (Cell("fedntd-table12", "cifar10-s2", f"kd_ntd-{share}") for share in (0, 1))
    for where, name, high, low in (
        ("Appendix H, Figure 11", "distillation over all classes", ntd, kd),
        ("Appendix I, Figure 12", "SCAFFOLD", _SHARDS, _SHARDS._replace(row="scaffold")),
    ):
        yield Claim(
            where=where, text=f"Local models of {name} have a lower personal accuracy than FedNTD's",
            parts=[analysed(high, "personalised", column_mean("test_after"), other=low)], lacks=_WEIGHTS,
        )  # fmt: skip
    table = "fedntd-table1"
    families = [
        *([(table, f"cifar10-{skew}") for skew in skews] for skews in SKEWS.values()),
        *([("fedntd-section2", f"{data}-{skew}") for skew in CONSTANT] for data in ("cifar10", "cifar100")),
    ]  # mildest first
    yield Claim(
        where="Section 2, Figure 2c", text="Forgetting grows with heterogeneity in FedAvg",
        parts=[
            above(Cell(*more, "fedavg", "forgetting"), Cell(*less, "fedavg", "forgetting"))
            for family in families
            for less, more in itertools.pairwise(family)
        ],
        published="0.59, 0.46, 0.37, 0.26; 0.71, 0.51, 0.36, 0.28 (Table 1)",
    )  # fmt: skip
    yield Claim(
        where="Section 2, Figure 2b",
        text="Accuracy by class is steady from round to round on IID data and fluctuates otherwise",
        parts=[
            observed([Cell("fedntd-section2", c, "fedavg") for c in ("cifar10-iid", "cifar10-lda0.1")], steadier)
        ],
    )  # fmt: skip
    yield from _figure_7()
    yield Claim(
        where="Appendix I, Figures 11 and 12", text="FedNTD's local models keep personal accuracy",
        parts=[analysed(_SHARDS, "personalised", column_mean("test_after"), not_below)], lacks=_WEIGHTS,
    )  # fmt: skip
    yield Claim(
        where="Appendix J, Figure 14", text="FedNTD's loss landscape is flatter than FedAvg's",
        parts=[analysed(Cell("fedntd-table13", "cifar10-lda0.5-k16", "fedntd"), "landscape-noise", flat)],
        lacks=_MODELS,
    )  # fmt: skip

    swept = "fedntd-beta-tau"
    yield Claim(
        where="Figures 15 and 16", text="FedNTD is not sensitive to beta (from 0.3 to 3 by three points at most)",
        parts=[
            level(Cell(swept, column, f"fedntd-beta{beta:g}"), Cell(swept, column, "fedntd-beta1"), 3.0)
            for column in SWEPT
            for beta in BETAS
            if 0.3 <= beta != 1
        ],
    )  # fmt: skip
    yield Claim(
        where="Figures 15 and 16", text="A small tau hurts",
        parts=[above(Cell(swept, column, "fedntd-tau1"), Cell(swept, column, "fedntd-tau0.3")) for column in SWEPT],
    )  # fmt: skip
    yield Claim(
        where="Figures 15 and 16", text="Forgetting falls as beta rises",
        parts=[
            above(Cell(swept, column, less, "forgetting"), Cell(swept, column, more, "forgetting"))
            for column in SWEPT
            for less, more in itertools.pairwise(f"fedntd-beta{beta:g}" for beta in BETAS)
        ],
    )  # fmt: skip


def _figure_7() -> Iterator[Claim]:
    table = learning_curves.TABLE
    skews = [skew for mine in SKEWS.values() for skew in mine]
    columns = [f"cifar10-{skew}-e{epochs}" for epochs in EPOCHS for skew in skews]
    where = "Section 5, Figure 7"
    yield Claim(
        where=where, text="The global model of FedNTD is more accurate than FedAvg's, with 1 and 10 local epochs",
        parts=[above(Cell(table, column, "fedntd"), Cell(table, column, "fedavg")) for column in columns],
        over=last_word,
    )  # fmt: skip
    yield Claim(
        where=where, text="The gain of FedNTD over FedAvg is larger with 10 local epochs than with 1",
        parts=[wider(f"cifar10-{skew}") for skew in skews],
    )  # fmt: skip
    yield Claim(
        where=where, text="FedNTD's local models know the classes that their clients lack better than FedAvg's",
        parts=[
            analysed(Cell(table, column, "fedntd"), learning_curves.LOCAL, column_mean("out_after_mean"))
            for column in columns
        ],
        lacks=_MODELS,
    )  # fmt: skip
    yield Claim(
        where=where,
        text="FedNTD's local models know their clients' own classes as well as FedAvg's (two points less at most)",
        parts=[
            analysed(Cell(table, column, "fedntd"), learning_curves.LOCAL, column_mean("in_after_mean"), not_below)
            for column in columns
        ],
        lacks=_MODELS,
    )  # fmt: skip


def _theory() -> Iterator[Claim]:
    yield Claim(
        where="Proposition 1", text="Gradient diversity falls with beta at a rate of at least M / (1 + beta)^2",
        parts=[computed(proposition_1.holds)], published="a proof",
    )  # fmt: skip
    yield Claim(
        where="Proposition 2", text="Distillation is a part of what a client has and a part of what it lacks",
        parts=[computed(proposition_2.holds)], published="a proof",
    )  # fmt: skip
    yield Claim(
        where="Proposition 3", text="Uniform classes are nearest to other clients' optima, whatever these optima are",
        parts=[computed(proposition_3.holds_as_printed)], published="a proof",
        why="The proof takes distances between optima for distances between class distributions, which is right only "
        "where the optima of the classes are equidistant.",
    )  # fmt: skip
    yield Claim(
        where="Proposition 3", text="The same for equidistant optima, which the proof assumes",
        parts=[computed(proposition_3.holds_equidistant)], published="a proof",
    )  # fmt: skip
    yield Claim(
        where="Table 6", text="FedNTD sends no byte more than FedAvg",
        parts=[
            same_traffic(*(cell_of("fedntd-table1", column, row) for row in ("fedntd", "fedavg")))
            for column in ("cifar10-s2", "cifar10-lda0.1")
        ],
    )  # fmt: skip
    columns = list(dict.fromkeys(c.column for c in cells("fedntd-table1")))
    yield Claim(
        where="Table 6", text="MOON sends no byte more than FedAvg, and SCAFFOLD does; their clients keep a state",
        parts=[
            computed(keep_state),
            *(same_traffic(*(cell_of("fedntd-table1", c, row) for row in ("moon", "fedavg"))) for c in columns),
            *(
                observed([cell_of("fedntd-table1", c, row) for row in ("scaffold", "fedavg")], sends_more)
                for c in columns
            ),
        ],
    )  # fmt: skip
