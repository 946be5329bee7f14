"""Write the results of recipes as text: rows for a spreadsheet, cells and sentences for people, and a page of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedloom.storage.output import as_csv as table, publish
from fedloom_papers.reproduction.recipe import LEAST_STD, UNKNOWN_STD, Recipe
from fedloom_papers.reproduction.results import Result, orderings, read

Remarks = Callable[[Sequence[Result]], list[str]]


def _nothing(results: Sequence[Result]) -> list[str]:
    return []


_READ = {"last": "last round", "best": "best round", "mean": "mean over rounds"}
_COLUMNS: dict[str, Callable[[Result], object]] = {
    "table": lambda r: r.recipe.table,
    "column": lambda r: r.recipe.column,
    "method": lambda r: r.recipe.row,
    "published": lambda r: r.recipe.accuracy,
    "published_std": lambda r: r.recipe.std,
    "published_forgetting": lambda r: r.recipe.forgetting,
    "published_rounds": lambda r: r.recipe.rounds,
    "measure": lambda r: f"{r.recipe.measure}, {_READ[r.recipe.reading]}",
    "accuracy": lambda r: r.accuracy,
    "last": lambda r: r.last,
    "std": lambda r: r.std,
    "smoothed": lambda r: r.smoothed,
    "forgetting": lambda r: r.forgetting,
    "rounds": lambda r: r.rounds,
    "seeds": lambda r: " ".join(map(str, r.numbers or r.seeds)),
    "failed_seeds": lambda r: " ".join(map(str, r.failures)),
    "difference": lambda r: r.difference,
    "noise": lambda r: r.noise if r.accuracy is not None else None,
    "forgetting_difference": lambda r: r.forgetting_difference,
    "verdict": lambda r: r.verdict,
    "target": lambda r: r.recipe.target,
    "caveat": lambda r: r.recipe.caveat,
    "place": lambda r: r.recipe.place,
}


_NUMBERS = (
    " Within noise: the difference is at most 2 sqrt(published std^2 + our std^2 / seeds). An unknown standard "
    f"deviation is taken from the other side, {UNKNOWN_STD:g} where both are unknown; none is taken to be less than "
    f"{LEAST_STD:g}. A run with fewer rounds than the published one is never more than a short run."
)


def as_csv(results: Iterable[Result]) -> str:
    """Return results as CSV: one row for each cell, accuracies in %, numbers in full."""
    found = list(results)
    columns = dict(_COLUMNS)
    if any(r.recipe.reading == "mean" for r in found):
        columns["best"] = lambda r: r.best
    return table([columns, *([of(r) for of in columns.values()] for r in found)])


def cells(r: Result) -> dict[str, str]:
    """Return a result as people read it: the text of each cell of its row, by the heading of the column."""
    said = {
        "best": r.best,
        "last": r.last,
        "smoothed": r.smoothed,
        "F publ.": r.recipe.forgetting,
        "F ours": r.forgetting,
    }
    text = {heading: "-" if value is None else f"{value:.2f}" for heading, value in said.items()}
    beside = {"last": ("smoothed",), "best": ("last",), "mean": ("best", "last")}[r.recipe.reading]
    unsaid = "failed" if r.recipe.failed else "-"
    return {
        "method": r.recipe.row,
        "published": unsaid if r.recipe.accuracy is None else f"{r.recipe.accuracy:.2f}{_std(r.recipe.std)}",
        "ours": "-" if r.accuracy is None else f"{r.accuracy:.2f}{_std(r.std)}",
        "diff.": "-" if r.difference is None else f"{r.difference:+.2f}",
        **{heading: text[heading] for heading in (*beside, "F publ.", "F ours")},
        "rounds x seeds": f"{r.rounds} x {len(r.numbers or r.seeds)}",
        "verdict": r.verdict,
    }


def told(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return the cells of some rows, without the columns that are empty: a study may have no published number."""
    rows = [cells(r) for r in results]
    empty = {heading for heading in rows[0] if all(row[heading] == "-" for row in rows)}
    return [{heading: text for heading, text in row.items() if heading not in empty} for row in rows]


def as_markdown(title: str, results: Sequence[Result], remarks: Remarks = _nothing) -> str:
    """Return results as a page: a table for each column that has runs, how orders came out, and what is doubtful."""
    there = [r for r in results if r.runs]
    of_forgetting = "; F is forgetting" * any(r.forgetting is not None for r in there)
    numbers = _NUMBERS * any(r.recipe.accuracy is not None for r in results)
    for factor in {r.recipe.smoothing for r in results} - {None}:
        numbers += (
            f" Smoothed: ours as an exponential moving average over rounds with factor {factor:g}, as printed numbers "
            "may be; verdicts and orders are on the last round."
        )
    lines = [
        f"# {title}",
        "",
        f"{'; '.join(dict.fromkeys(_measured(r.recipe) for r in results))} in %, mean ± standard deviation over seeds "
        f"after the rounds named{of_forgetting}.{numbers}",
        "",
        summary(results),
    ]
    for column in dict.fromkeys(r.recipe.column for r in there):
        mine = [r for r in there if r.recipe.column == column]
        rows = told(mine)
        lines += ["", f"## {column}", "", f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
        lines += [f"| {' | '.join(row.values())} |" for row in rows]
        lines += [f"\n{line}" for line in (*order_lines(mine), *remarks(mine))]
    caveats: dict[str, list[str]] = {}
    for r in there:
        if r.recipe.caveat:
            caveats.setdefault(r.recipe.caveat, []).append(f"{r.recipe.column} {r.recipe.row}")
        for run in r.runs.values():
            if run.history.unproved:
                whose = f"{r.recipe.column} {r.recipe.row}, seed {run.seed}"
                caveats.setdefault(run.history.unproved, []).append(whose)
    if caveats:
        lines += ["", "## What is doubtful", ""]
        lines += [f"- {', '.join(who)}: {why}." for why, who in caveats.items()]
    failures = [(r, seed, why) for r in there for seed, why in r.failures.items()]
    if failures:
        lines += ["", "## Runs that failed", ""]
        lines += [f"- {r.recipe.column} {r.recipe.row}, seed {seed}: {why}" for r, seed, why in failures]
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result]) -> str:
    """Say in a sentence how many cells have runs, and how many of these have which verdict."""
    counts = Counter(kind(r.verdict) for r in results if r.runs)
    verdicts = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    return f"{sum(counts.values())} of {len(results)} cells have runs{verdicts}."


def _measured(recipe: Recipe) -> str:
    """Say what the accuracies of a recipe are."""
    what = recipe.measure.replace("_", " ").capitalize()
    what = "Accuracy of the global model" if recipe.measure == "global_accuracy" else what
    best = "of the best round, chosen on the test examples (optimistic)"
    if recipe.reading == "mean":
        return f"{what}, mean over all rounds with that before training; beside it that {best}, and the last,"
    return f"{what} {best}," if recipe.reading == "best" else what


def kind(verdict: str) -> str:
    """Return a verdict without its numbers and names."""
    return "with some seeds failed" if verdict.endswith(" failed") else verdict.partition(" (")[0].partition(":")[0]


def order_lines(results: Sequence[Result]) -> list[str]:
    """Say how the published orders of some results came out; nothing where there is no pair.

    Orders of runs that are shorter than published, or have other settings, are none of the published ones.
    """
    found = orderings(r for r in results if r.full)
    others = len(orderings(results)) - len(found)
    left_out = f"{others} published order{'s' * (others > 1)} left out, of unfinished runs or other settings."
    if not found:
        return [left_out] * (others > 0)
    clear = [o for o in found if o.clear]
    text = f"Published orders that hold in ours: {sum(o.holds for o in found)} of {len(found)}"
    if clear:
        text += f"; of those clear of noise, {sum(o.holds for o in clear)} of {len(clear)}."
    else:
        text += "; none is clear of noise." if any(o.clear is not None for o in found) else "; all are in words."
    broken = [f"{o.above} above {o.below}{' (clear)' if o.clear else ''}" for o in found if not o.holds]
    text += f" Not: {', '.join(broken)}." if broken else ""
    partly = [f"{o.above} above {o.below} (not in {', '.join(map(str, o.against))})" for o in found if o.by_the_mean]
    text += f" In the mean, but not in every seed: {', '.join(partly)}." if partly else ""
    return [f"{text} {left_out}" if others > 0 else text]


def write(
    title: str,
    recipes: Sequence[Recipe],
    folders: Sequence[Path],
    rounds: int | None = None,
    remarks: Remarks = _nothing,
) -> list[Result]:
    """Write results.csv and results.md of a table's recipes into its folder in the first of `folders`.

    Variants stand there if they have runs. `rounds`: take numbers after so many where runs are longer. `remarks`: what
    the results of a column say of other claims (`Study.remarks`).

    Raises:
        SettingError: a file of a run is damaged.
        StorageError: a file cannot be written.
    """
    results, texts = pages(title, recipes, folders, rounds, remarks)
    for name, text in texts.items():
        publish(folders[0], f"{recipes[0].table}/{name}", text.encode())
    return results


def shown(recipes: Sequence[Recipe], folders: Sequence[Path], rounds: int | None = None) -> list[Result]:
    """Return the results of all published cells, and those of variants that have runs."""
    return [r for r in read(recipes, folders, rounds) if r.runs or not r.recipe.variant]


def pages(
    title: str,
    recipes: Sequence[Recipe],
    folders: Sequence[Path],
    rounds: int | None = None,
    remarks: Remarks = _nothing,
) -> tuple[list[Result], dict[str, str]]:
    """Return what `write` writes: the results, and the texts of its files by name."""
    results = shown(recipes, folders, rounds)
    return results, {"results.csv": as_csv(results), "results.md": as_markdown(title, results, remarks)}


def _std(value: float | None) -> str:
    return "" if value is None else f" ± {value:.2f}"
