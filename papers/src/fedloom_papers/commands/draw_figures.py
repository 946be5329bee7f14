"""`fedloom figures`: figures of papers, drawn of many runs."""

from __future__ import annotations

import argparse

import fedloom_papers as papers
from fedloom.analyses import write_analysis
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal, table
from fedloom.storage.files import path_of
from fedloom.wording import did_you_mean
from fedloom_papers.commands.cost_curves import NAME, curves
from fedloom_papers.commands.show_claims import known_folders, results_of


def draw(args: argparse.Namespace, console: Terminal) -> int:
    """Draw figures of the runs in folders of results, or list which there are."""
    sources = {name: source for source in papers.STUDIES for name in papers.figures(source)}
    if args.list:
        out = table("Figures", "fedloom figures NAME --known DIR --out DIR")
        out.add_column("name", no_wrap=True)
        out.add_column("what is drawn", overflow="fold")
        for name, source in sources.items():
            drawn = papers.figures(source)[name]
            about = (getattr(drawn, "func", drawn).__doc__ or "").strip().partition("\n")[0]
            out.add_row(name, about)
        out.add_row(NAME, (curves.__doc__ or "").partition("\n")[0])
        console.print(out)
        return 0
    if not args.names or not args.known or args.out is None:
        raise SettingError("say what to draw, of which runs, and where to: fedloom figures NAME --known DIR --out DIR")
    if unknown := next((name for name in args.names if name not in (*sources, NAME)), None):
        raise SettingError(f"there is no figure {unknown!r}{did_you_mean(unknown, (*sources, NAME))}; --list names all")
    if args.over is not None and (of_paper := next((name for name in args.names if name != NAME), None)):
        raise SettingError(
            f"what a paper's figure is drawn over is as it was printed, got --over {args.over} with {of_paper}: leave "
            f"it out, or draw {NAME}"
        )
    known = [] if {*args.names} == {NAME} else known_folders(args.known)
    for name in dict.fromkeys(args.names):
        if name == NAME:
            result = curves([path_of(folder) for folder in args.known], args.over or "rounds")
            name = result.tables[0].name
        else:
            source = sources[name]
            result = papers.figures(source)[name]([results_of(source, folder) for folder in known])
        for line in result.remarks:
            console.print(line, highlight=False, soft_wrap=False)
        files = write_analysis(result, name, args.out)
        kinds = ", ".join(str(path) if i == 0 else path.name for i, path in enumerate(files))
        console.print(f"files: {kinds}", highlight=False)
    return 0
