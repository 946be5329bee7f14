"""`fedloom claims`: what the papers claim, and what runs say of it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

import fedloom_papers as papers
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal, table

RECORD = Path(papers.__file__).with_name("claims.json")
"""Verdicts of the runs that were kept when this version was made; written by `scripts/make_results.py`."""
_COLOURS = {"holds": "green", "within noise": "yellow", "fails": "red", "short run": "dim", "not run": "dim"}


def show(args: argparse.Namespace, console: Terminal) -> int:
    """Print the claims of one source or of all, with a verdict on each, and what it was made from."""
    record = json.loads(RECORD.read_bytes())
    chosen = papers.STUDIES if args.source is None else (args.source,)
    known = known_folders(args.known)
    for source in chosen:
        _show(_record(source, known) if known else record["sources"][source], console)
    read = f"the runs below {', '.join(map(str, known))}" if known else "the runs that were kept for this version"
    console.print(f"Judged by {read}. {record['rule']}", highlight=False, soft_wrap=False)
    return 0


def known_folders(named: Sequence[str]) -> list[Path]:
    """Return the folders of results that a person names.

    Raises:
        SettingError: one of them is no folder.
    """
    known = [Path(folder) for folder in named]
    if missing := [folder for folder in known if not folder.is_dir()]:
        raise SettingError(f"--known {missing[0]} is no folder; name one with results")
    return known


def results_of(source: str, known: Path) -> Path:
    """Return where the results of a study are in a folder of its results or of those of all studies."""
    return known / source if (known / source).is_dir() else known


def _record(source: str, known: Sequence[Path]) -> Mapping[str, Any]:
    """Return the claims of a source, judged by the runs in folders of results or in those of all papers."""
    from fedloom_papers.reproduction.claim_verdicts import verdicts
    from fedloom_papers.reproduction.claims_page import source_record

    return source_record(papers.title(source), verdicts(source, [results_of(source, one) for one in known]))


def _show(record: Mapping[str, Any], console: Terminal) -> None:
    rows = record["claims"]
    counts = Counter(row["said"].partition(", ")[0] for row in rows)
    words = [words for verdict in _COLOURS for words in (verdict, f"{verdict} so far")]
    out = table(record["title"], ", ".join(f"{counts[said]} {said}" for said in words if counts[said]))
    out.leading = 1  # a claim has several lines
    for heading, share in (("claim", 2), ("ours", 3), ("verdict", 1)):
        out.add_column(heading, overflow="fold", ratio=share)
    for row in rows:
        said = f"{row['where']}; published {row['published']}"
        length = " x ".join(filter(None, (row["length"], row["seeds"] + " seeds" * bool(row["seeds"]))))
        verdict = row["said"], _COLOURS[row["verdict"]] + " dim" * ("so far" in row["said"])
        out.add_row(
            _lines(row["claim"], (said, "dim")),
            _lines(row["ours"], (length, "dim"), (row["why"], "dim")),
            _lines(verdict),
        )
    console.print(out)
    console.print()


def _lines(*texts: str | tuple[str, str]) -> Text:
    """Return texts, each with its style, in lines of their own; empty ones are left out."""
    made = (Text(text) if isinstance(text, str) else Text(*text) for text in texts)
    return Text("\n").join(filter(None, made))
