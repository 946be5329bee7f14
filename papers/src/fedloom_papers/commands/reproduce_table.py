"""`fedloom reproduce`: published tables, run and compared."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from fedloom.cli.index import INDEX
from fedloom.cli.options import parse_pairs, seed_list
from fedloom.coordinator import Job
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal, table
from fedloom.experiments.cluster_jobs import Cell, console_of_script, script_of
from fedloom.experiments.coercion import coerce
from fedloom.experiments.settings_sections import DataSettings
from fedloom.experiments.shown_runs import print_setup, train
from fedloom.wording import some_of
from fedloom_papers import Study, find, recipes, study, tables
from fedloom_papers.reproduction.copies import export
from fedloom_papers.reproduction.hours import said
from fedloom_papers.reproduction.recipe import Recipe
from fedloom_papers.reproduction.results import Result
from fedloom_papers.reproduction.results_page import order_lines, summary, told, write
from fedloom_papers.reproduction.running import NO_DATA, Outcome, reproduce, standing, unsettled, with_changes
from fedloom_papers.reproduction.unfinished_runs import export_unfinished

_COLUMNS = ("method", "published", "ours", "diff.", "F publ.", "F ours", "rounds x seeds", "verdict")  # what fits


def run(args: argparse.Namespace, console: Terminal) -> int:
    """Run recipes, write and show their results.

    The exit status is 0 if all requested runs exist, 1 if some do not, 2 if nothing could be run.
    """
    only, methods = _names("--only", args.only), _names("--methods", args.methods)
    if args.table is None:
        if not args.list:
            raise SettingError("name a table; fedloom reproduce --list shows all")
        if only or methods:
            raise SettingError("--only and --methods choose from a table: name it, fedloom reproduce TABLE --list")
        return _list_tables(console)
    cells = find(args.table, only, methods)
    if args.list:
        return _list(cells if methods else _with_variants(cells), console)
    if args.out is None:
        raise SettingError("results need a directory; name it with --out DIR")
    folders = [Path(args.out), *map(Path, args.known)]
    if missing := [folder for folder in folders[1:] if not folder.is_dir()]:
        raise SettingError(f"--known {missing[0]} is no folder; name one with results")
    rounds = None if args.rounds is None else int(coerce(args.rounds, int, "--rounds"))
    seeds = _parse_seeds(args)
    if args.runs_only and (args.report_only or args.export is not None):
        raise SettingError("--runs-only compares nothing and copies nothing: leave out --report-only and --export")
    cells = with_changes(cells, _changes(args))
    if args.script is not None:
        console_of_script(args)
        groups = unsettled(cells, args.data, folders[0], seeds=seeds, rounds=rounds, known=folders[1:])
        todo = [_cell(args, seed, group) for seed, group in groups]
        print(script_of(todo, args.script, args.out, "without --script"), end="")
        return 0
    by_cell = {(r.row, r.column): r for r in cells}
    all_cells = [by_cell.get((r.row, r.column), r) for r in recipes(args.table)]
    outcomes: list[Outcome] = []
    try:
        if args.report_only:
            outcomes += standing(cells, folders[0], seeds=seeds, rounds=rounds, known=folders[1:])
        else:
            _run(args, cells, folders, seeds, rounds, outcomes, console)
    finally:  # also show the results of an interrupted call
        if outcomes and not args.runs_only:
            results = write(_title(args.table), all_cells, folders, rounds, study(args.table).remarks)
            _show([r for r in results if r.recipe in cells and r.runs], study(args.table), console)
            console.print(f"{summary(results)} Results: {folders[0] / args.table / 'results.md'}")
    if args.report_only:
        existing, failed = (sum(o.status.startswith(word) for o in outcomes) for word in ("there", "failed"))
        console.print(f"{existing} of {len(outcomes)} requested runs exist" + f", {failed} failed" * bool(failed))
    if args.export is not None:
        study_ = study(args.table)
        copies = cells if only or methods else all_cells  # with the other readings that were run
        copied = export(copies, folders[0], Path(args.export), rounds, study_.evidence)
        unfinished = export_unfinished(copies, folders[0], Path(args.export), rounds)
        for name in study_.tables:  # others there share runs; and runs that were there before may be longer than these
            if name == args.table or (Path(args.export) / name / "results.md").is_file():
                write(_title(name), recipes(name), [Path(args.export)], remarks=study_.remarks)
        noun = "run" if len(copied) == 1 else "runs"
        archives = f", and {len(unfinished)} unfinished, to go on with --known {args.export}" * bool(unfinished)
        console.print(f"{len(copied)} {noun} copied to {args.export}{archives}")
    if outcomes and all(outcome.skipped for outcome in outcomes):
        return 2
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _cell(args: argparse.Namespace, seed: int, group: Sequence[Recipe]) -> Cell:
    """Return the command that runs a group of cells with a seed, in the words that were given."""
    columns, rows = (",".join(dict.fromkeys(names)) for names in ([r.column for r in group], [r.row for r in group]))
    words = ["reproduce", args.table, "--only", columns, "--methods", rows, "--seed", str(seed), "--runs-only"]
    for flag in ("data", "out", "rounds", "threads", "mirror"):
        words += [] if (value := getattr(args, flag)) is None else [f"--{flag}", value]
    words += [word for flag in ("set", "known") for value in getattr(args, flag) for word in (f"--{flag}", value)]
    return Cell(f"{group[0].place}/seed-{seed}", tuple(words))


def _run(
    args: argparse.Namespace,
    cells: list[Recipe],
    folders: list[Path],
    seeds: list[int],
    rounds: int | None,
    outcomes: list[Outcome],
    console: Terminal,
) -> None:
    last: list[object] = [None]

    def with_progress(name: str, job: Job, directory: Path) -> object:
        if job.federation is not last[0]:
            print_setup(job.federation, job.population.models, job.settings, console)
        last[0] = job.federation
        return train(name, job, console, directory, resume=True)

    left_out: dict[tuple[str, DataSettings], str] = {}  # columns whose data are missing, and why

    def report_outcome(outcome: Outcome) -> None:
        outcomes.append(outcome)
        column, data = outcome.recipe.column, outcome.recipe.asked.data
        if outcome.status.startswith(NO_DATA):
            if (column, data) not in left_out:  # the same for each seed and method that has these data
                reason = outcome.status.removeprefix("skipped: ")
                rows = {r.row: r.asked.data == data for r in cells if r.column == column}
                missing = column if all(rows.values()) else ", ".join(f"{column}/{row}" for row in rows if rows[row])
                first = next((other for (other, _), theirs in left_out.items() if theirs == reason), None)
                text = f"{missing} left out: {reason}" if first is None else f"{missing} left out, as {first} is"
                console.print(text, highlight=False)
                left_out[column, data] = reason
        elif outcome.status not in ("done", "there"):
            text = f"{column}/{outcome.recipe.row}/seed-{outcome.seed} {outcome.status}"
            console.print(text, highlight=False)

    reproduce(
        cells,
        args.data,
        folders[0],
        seeds=seeds,
        rounds=rounds,
        known=folders[1:],
        mirror=args.mirror,
        train=with_progress,
        tell=report_outcome,
    )
    if existing := sum(outcome.status == "there" for outcome in outcomes):
        console.print(f"{existing} of {len(outcomes)} runs existed already")


def _changes(args: argparse.Namespace) -> dict[str, str]:
    return parse_pairs([*args.set, *([] if args.threads is None else [f"run.threads={args.threads}"])])


def _title(name: str) -> str:
    return f"{name}: {tables()[name]}"


def _names(flag: str, text: str | None) -> list[str]:
    """Return the names of a flag, none if it is not given; refuse an empty text, as from an unset variable."""
    names = [name for name in (text or "").split(",") if name]
    if text is not None and not names:
        raise SettingError(f"{flag} takes at least one name, got {text!r}; leave it out for all")
    return names


def _parse_seeds(args: argparse.Namespace) -> list[int]:
    if args.seed is not None:
        return seed_list(args.seed)
    count = int(coerce("1" if args.seeds is None else args.seeds, int, "--seeds"))
    if count < 1:
        raise SettingError(f"--seeds must be >= 1, got {count}")
    return list(range(count))


def _list_tables(console: Terminal) -> int:
    out = table("Published tables", "fedloom reproduce TABLE --list shows columns and methods")
    for heading in ("table", "about", "cells", "rounds"):
        out.add_column(heading, no_wrap=heading != "about")
    for key, description in tables().items():
        cells = find(key)
        out.add_row(key, description, str(len(cells)), str(max(r.rounds for r in cells)))
    console.print(out)
    return 0


def _with_variants(cells: list[Recipe]) -> list[Recipe]:
    """Return every reading of the settings in the columns of some recipes."""
    columns = {r.column for r in cells}
    return [r for r in recipes(cells[0].table) if r.column in columns]


def _list(cells: list[Recipe], console: Terminal) -> int:
    lines = {
        "columns": dict.fromkeys(r.column for r in cells),
        "methods": dict.fromkeys(r.row for r in cells if not r.variant),
        "other readings": dict.fromkeys(r.row for r in cells if r.variant),
    }
    for what, names in lines.items():
        if names:
            console.print(f"{what}: {', '.join(names)}", highlight=False)
    costs = {name: str(of["facts"]["cost"]).split(" / ") for name, of in INDEX["algorithms"].items()}
    work = {name: float(cost[-1]) for name, cost in costs.items() if len(cost) == 3 and cost[-1] != "-"}
    if hours := said([r for r in cells if not r.variant], work):
        console.print(hours, highlight=False, soft_wrap=True)
    for caveat in dict.fromkeys(r.caveat for r in cells if r.caveat):
        matching = [r for r in cells if r.caveat == caveat]
        methods = list(dict.fromkeys(r.row for r in matching))
        if len(matching) < len(lines["columns"]) * len(methods):
            methods = [f"{r.column} {r.row}" for r in matching]
        console.print(f"{some_of(methods, 3)}: {caveat}", highlight=False)
    for why in dict.fromkeys(r.missing for r in cells if r.missing):
        console.print(Text(why, "yellow"), highlight=False)
    return 0


def _show(results: list[Result], study_: Study, console: Terminal) -> None:
    for column in dict.fromkeys(r.recipe.column for r in results):
        mine = [r for r in results if r.recipe.column == column]
        out = table(f"{column}: accuracy in %", "\n".join((*order_lines(mine), *study_.remarks(mine))))
        rows = told(mine)
        for heading in [heading for heading in _COLUMNS if heading in rows[0]]:
            left = heading in ("method", "verdict")
            lines = heading.replace(" ", "\n", 1)
            out.add_column(lines, justify="left" if left else "right", no_wrap=heading != "verdict")
        for row in rows:
            out.add_row(*(row[heading] for heading in _COLUMNS if heading in row))
        console.print()
        console.print(out)
