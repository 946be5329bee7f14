"""`fedloom analyse`: measurements inside the rounds of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedloom.analyses import analyse, every
from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult
from fedloom.core.errors import SettingError, StorageError
from fedloom.display.terminal import Terminal, table
from fedloom.experiments.coercion import coerce
from fedloom.experiments.stored_experiments import print_code
from fedloom.storage.output import path_below
from fedloom.wording import did_you_mean

_MOST_ROWS = 12  # of a table on the terminal; all are in the CSV file


def run(args: argparse.Namespace, console: Terminal) -> int:
    """Analyse a run, and print each analysis: its table, its meaning, and the paths of its files."""
    analyses = every()
    if args.list:
        listing = table("Analyses", "fedloom analyse RUN NAME [NAME ...], or all of them: fedloom analyse RUN all")
        listing.add_column("name", no_wrap=True)
        listing.add_column("what it measures", overflow="fold")
        for name, measure in analyses.items():
            listing.add_row(name, (measure.__doc__ or "").partition("\n")[0])
        console.print(listing)
        return 0
    if args.directory is None or not args.names:
        raise SettingError(
            "fedloom analyse needs a run and the names of analyses: fedloom analyse RUN NAME; --list shows all names"
        )
    all_names = args.names == ["all"]
    if "all" in args.names and not all_names:
        raise SettingError(f"all stands alone, got {' '.join(args.names)}: fedloom analyse RUN all")
    names = list(analyses) if all_names else list(dict.fromkeys(args.names))
    if unknown := next((name for name in names if name not in analyses), None):
        raise SettingError(
            f"there is no analysis {unknown!r}{did_you_mean(unknown, analyses)}; fedloom analyse --list shows all "
            "[FL-RUN-014]"
        )
    print_code(args.directory, args, console)
    analysed = AnalysedRun.of(
        args.directory, _rounds(args), args.model, allow_code=args.allow_code, client=args.client, steps=args.steps,
        shadows=args.shadows,
    )  # fmt: skip
    out = path_below(Path(args.directory), "analysis") if args.out is None else Path(args.out)
    skipped: dict[str, list[str]] = {}  # names by reason; the other analyses continue
    for name in names:
        try:
            result, files = analyse(analysed, name, out, analyses)
        except (SettingError, StorageError, ValueError) as error:
            if len(names) == 1:
                raise
            skipped.setdefault(str(error), []).append(name)
            continue
        _show(result, files, console)
    lines = [f"not measured: {', '.join(whose)}: {reason}" for reason, whose in skipped.items()]
    if lines and not all_names:
        raise SettingError("\n".join(lines))
    for line in lines:
        console.print(line, highlight=False)
    if sum(map(len, skipped.values())) == len(names):
        raise SettingError(f"no analysis applies to the run in {args.directory}")
    return 0


def _rounds(args: argparse.Namespace) -> list[int] | None:
    if args.round is not None:
        return [args.round]
    if args.rounds is None:
        return None
    if args.rounds == "all":
        return []
    parts = args.rounds.split(",")
    if "all" in parts:
        raise SettingError(f"--rounds takes numbers, as in 1,50,100, or all alone, got {args.rounds}")
    return [int(coerce(part, int, "--rounds")) for part in parts]


def _show(result: AnalysisResult, files: list[Path], console: Terminal) -> None:
    summary, rows = result.summary, result.summary.rows
    more = f"{len(rows) - _MOST_ROWS} more rows are in the CSV file" if len(rows) > _MOST_ROWS else ""
    output = table(summary.name, more)
    for i, column in enumerate(summary.columns):
        is_text = any(isinstance(row[i], str) for row in rows)
        output.add_column(column.heading, justify="left" if is_text else "right", overflow="fold")
    for row in rows[:_MOST_ROWS]:
        output.add_row(*(summary.text(v, c) for v, c in zip(row, summary.columns, strict=True)))
    console.print(output)
    for line in result.remarks:
        console.print(line, highlight=False, soft_wrap=False)
    kinds = ", ".join(str(path) if i == 0 else path.name for i, path in enumerate(files))
    console.print(f"files: {kinds}\n", highlight=False)
