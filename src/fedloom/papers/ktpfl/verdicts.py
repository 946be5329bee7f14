"""What the paper claims of KT-pFL, as far as it is known, and what runs of the recipes say of each claim.

Its tables are not in the material that we hold. Orders are recalled from it; one re-implementation of 2025 adds that
accuracy no longer rises after 10 to 13 rounds, and that the gain over FedMD is largest with two classes a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedloom.papers import recipes
from fedloom.papers.ktpfl import coefficients, distillation
from fedloom.papers.reproduction.claims import BROKEN, HOLDS, NOT_RUN, Claim, above, claims_page, sentences, verdict_of
from fedloom.papers.reproduction.results import NOT_COMPARABLE, Result, comparable, read, seeds_of

TABLES = ("ktpfl-mixed", "ktpfl-small")  # whose columns are data and setting, of several architectures
OTHERS = ("fedmd_kt", "feddf", "pfeddf", "sim_pfl", "topk_pfl")
PLATEAU = 1.0  # % points: nearer than that to its last accuracy, a run no longer rises

Rows = dict[str, Result]


def judged(folders: Sequence[Path], rounds: int | None = None) -> list[Claim]:
    """Return a verdict on every claim for every column, from the runs below some folders.

    Args:
        folders: of results, as `fedloom reproduce --out` names them.
        rounds: take numbers after at most so many.
    """
    return [v for table in TABLES for v in _verdicts(read(recipes(table), folders, rounds))]


def remarks(results: Sequence[Result]) -> list[str]:
    """Say how the claims came out in the results of one column, in sentences; nothing of what was not run."""
    out = sentences(list(_verdicts(results)))
    for r in results:
        for seed, run in r.runs.items():
            if coefficients.logged(run.history)[0] and run.history.federation:
                out.append(f"{r.recipe.row}, seed {seed}: {coefficients.sentence(run.history)}")
            if (told := distillation.told(run)) is not None:
                out.append(f"{r.recipe.row}, seed {seed}: {told}")
    return out


def page(folders: Sequence[Path], rounds: int | None = None) -> str:
    """Return the claims as Markdown, with what was run."""
    return claims_page("What KT-pFL claims", judged(folders, rounds))


def _verdicts(results: Sequence[Result]) -> Iterator[Claim]:
    columns: dict[tuple[str, str], Rows] = {}
    for r in results:
        if r.recipe.table in TABLES:
            columns.setdefault((r.recipe.table, r.recipe.column), {})[r.recipe.row] = r
    for (table, column), rows in columns.items():
        where = f"{table} {column}"
        for other in OTHERS:
            yield above("KT-pFL is above every comparator", where, rows.get("kt_pfl"), rows.get(other))
        for row in ("sim_pfl", "topk_pfl"):
            yield above("Sim-pFL and TopK-pFL are above FedMD", where, rows.get(row), rows.get("fedmd_kt"))
        yield _plateau(where, rows.get("kt_pfl"))
        other_setting = columns.get((table, f"{column.removesuffix('-two')}-all"))
        if column.endswith("-two") and other_setting is not None:
            yield from _of_both_settings(where, rows, other_setting)


def _of_both_settings(where: str, two: Rows, every: Rows) -> Iterator[Claim]:
    """Judge what is claimed of two classes a client beside every class."""
    for row in ("kt_pfl", "local_only"):
        a, b = two.get(row), every.get(row)
        yield above("Two classes a client are easier than every class", where, a, b, " with two", " with every")
    claim = "The gain over FedMD is largest with two classes a client"
    results = [r for rows in (two, every) for row in ("kt_pfl", "fedmd_kt") if (r := rows.get(row)) is not None]
    if sum(r.accuracy is not None for r in results) < 4:
        yield Claim(claim, where, NOT_RUN, "")
        return
    found = comparable(*results)
    kt, md, kt_all, md_all = (r.accuracy or 0.0 for r in found or results)
    verdict = verdict_of(kt - md > kt_all - md_all) if found else NOT_COMPARABLE
    numbers = f"{kt - md:+.2f} with two, {kt_all - md_all:+.2f} with every"
    numbers += seeds_of(found, *results) if found else ""
    yield Claim(claim, where, verdict, numbers)


def _plateau(where: str, result: Result | None) -> Claim:
    """Judge whether KT-pFL no longer rises after 13 rounds, in runs of at least 15."""
    claim = "KT-pFL no longer rises after 10 to 13 rounds"
    if result is None or result.rounds < 15 or result.failures:
        return Claim(claim, where, NOT_RUN, "")
    curves = [_curve(result.runs[seed].after, result.rounds) for seed in result.seeds]
    mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    there = next(t for t, value in enumerate(mean, 1) if all(v >= mean[-1] - PLATEAU for v in mean[t - 1 :]))
    return Claim(claim, where, HOLDS if there <= 13 else BROKEN, f"within a point of its end from round {there} on")


def _curve(after: Callable[[int, str], float | None], rounds: int) -> list[float]:
    """Return personal accuracy after each round, in %; where it was not measured, that of the round before."""
    out = [0.0]
    for t in range(1, rounds + 1):
        value = after(t, "personal_accuracy")
        out.append(out[-1] if value is None else 100 * value)
    return out[1:]
