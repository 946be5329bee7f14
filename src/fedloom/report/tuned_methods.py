"""Show what tuning moved: the tries of each method of a comparison, the choice, and the numbers before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.evaluate.paired_differences import Noise
from fedloom.report.grouping import method_folder
from fedloom.report.methods import Method, Spread
from fedloom.report.number_table import Column, Interval, Table, format_of
from fedloom.report.over_seeds import compared, noise_of, paired_difference, reading_of
from fedloom.report.printable import printable


def tuning_table(methods: Sequence[Method], tuning: Mapping[str, Any], within: str = "") -> Table | None:
    """Return a row for each method that was tuned; None where none of them is among `methods`.

    `tuning`: as `report.order.tuning_of` returns it. `within`: the folder of the comparison in the methods' names.
    Numbers are those of the last round; that moved is the mean over common seeds, with an interval from two on.
    """
    folders = {method_folder(m.runs[0].folder): m for m in methods}
    known = {name: one for name, one in tuning["methods"].items() if within + name in folders}
    if not known:
        return None
    plain = {name: folders[within + name] for name in known}
    tuned = {name: folders.get(within + str(one.get("folder")), plain[name]) for name, one in known.items()}
    main = next(iter(plain.values())).headline
    columns = [
        Column("method", "method"),
        Column("chosen", "chosen"),
        Column("given_score", "validation as given", format_of(main.unit)),
        Column("score", "validation chosen", format_of(main.unit)),
    ]
    rows: list[list[Any]] = [
        [printable(name), _chosen(one), one.get("given_score"), one.get("score")] for name, one in known.items()
    ]
    for kind, measure in compared(list(plain.values()), headline=True).items():
        if not any(m.has(kind) for m in plain.values()):
            continue
        show = format_of(measure.unit)
        columns += [
            Column(f"{kind}_given", f"{measure.label} as given", show),
            Column(f"{kind}_tuned", f"{measure.label} tuned", show, measure.better),
            Column(f"{kind}_moved", f"{measure.label} moved", show),
        ]
        noise = noise_of(list({m.number: m for m in (*plain.values(), *tuned.values())}.values()), kind, "last", 1)
        for row, name in zip(rows, known, strict=True):
            before, after = reading_of(plain[name], kind, "last", 1), reading_of(tuned[name], kind, "last", 1)
            row += [before, after, _moved(plain[name], tuned[name], kind, before, after, noise)]
    return Table("tuning", columns, rows, [m.number for m in plain.values()])


def describe_tuning(tuning: Mapping[str, Any]) -> str:
    """Return the caption of the table: how many tries, of what, evaluated by which number."""
    by = printable(str(tuning.get("by", "")).replace("_", " "), 40)
    how = "that Optuna picked" if tuning.get("with") == "optuna" else "of a grid"
    tried = {
        printable(key, 40): ", ".join(map(_value, values))
        for one in tuning["methods"].values()
        for key, values in one.get("tried", {}).items()
    }
    return (
        f"Each method had {tuning.get('tries')} tries {how}, the first with the settings given, all with one seed; "
        f"the best by {by} was run with every seed, as were the settings given. Moved: tuned minus as given. "
        f"Varied: {'; '.join(f'{key} in {values}' for key, values in tried.items())}."
    )


def _chosen(one: Mapping[str, Any]) -> str:
    if not one.get("moved"):
        return "as given"
    return printable(" ".join(f"{k.rpartition('.')[2]}={_value(v)}" for k, v in one.get("chosen", {}).items()), 80)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value), 20)


def _moved(
    plain: Method, tuned: Method, kind: str, before: Spread | None, after: Spread | None, noise: Noise | None
) -> Interval | float | None:
    if before is None or after is None:
        return None
    gap = None if plain is tuned else paired_difference(tuned, plain, kind, "last", 1, noise)
    return after.mean - before.mean if gap is None else gap
