"""Claims with their verdicts, as a page, and as what the package carries of it."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedloom.evaluate.paired_differences import FalseAlarms
from fedloom_papers import note
from fedloom_papers.reproduction.claim_verdicts import RULE, ClaimVerdict, comparisons
from fedloom_papers.reproduction.claims import JUDGED, NOT_RUN, SHORT, VERDICTS

HEAD = """# What holds

For each claim of the five papers that this library is about: what is published, what our runs gave, and whether it
holds. Made from the declarations in `papers/src/fedloom_papers` and the [kept runs](results/README.md) by
`python scripts/make_results.py`; `fedloom claims SOURCE` prints it, and `--known DIR` judges runs of your own. It grows
as more runs are kept. Where a claim is about many columns or methods, the verdict is on those comparisons that were
run, and says how many these are: **bold** where all of them were, plain where at least half, *so far* where fewer.
*Length* is that of our runs beside the published ones, and how their settings differ.
"""


def told(rates: Sequence[FalseAlarms]) -> str:
    """Say how often the rule calls equal methods different, by the rates of the columns with kept runs."""
    several = [rate.several for rate in rates]
    low, high, mean = (f"{100 * rate:.1f}" for rate in (min(several), max(several), statistics.fmean(several)))
    one = f"{100 * statistics.fmean(rate.one for rate in rates):.1f}"
    return (
        f"**False alarms**: of comparisons of equal methods the rule calls {mean} % different, {low} to {high} % by "
        f"column, and with one seed {one} %. It is simulated on the cells and seeds of the kept runs, with noise of "
        "each cell's own. What one seed decides by the deviation of other columns or by printed ones is not among them."
    )


def source_record(title: str, judged: Sequence[ClaimVerdict]) -> dict[str, Any]:
    """Return the record of a source, as plain values: its title, a row for each claim, and its comparisons."""
    return {"title": title, "claims": [one.row() for one in judged], "comparisons": comparisons(judged)}


def packed(sources: Mapping[str, Mapping[str, Any]], rates: Sequence[FalseAlarms]) -> str:
    """Return what the package carries: the rule, how often it is wrong, and the rows of each source, as JSON."""
    rule = f"{RULE} {told(rates)}".replace("**", "")
    return json.dumps({"rule": rule, "sources": sources}, indent=1, ensure_ascii=False) + "\n"


def as_markdown(
    judged: Mapping[str, Sequence[ClaimVerdict]],
    titles: Mapping[str, str],
    linked: Collection[str],
    rates: Sequence[FalseAlarms],
) -> str:
    """Return the page.

    Args:
        judged: the claims of each source.
        titles: of the sources.
        linked: the tables whose pages are there, SOURCE/TABLE.
        rates: of false alarms, by column.
    """
    heads = [*(words for v in JUDGED for words in (v, f"{v} so far")), SHORT, NOT_RUN]
    lines = [HEAD, RULE, "", told(rates), "", f"| claims | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for source, mine in judged.items():
        counts = Counter(f"{one.verdict}{' so far' * one.so_far}" for one in mine)
        lines.append(f"| {_link(titles[source])} | {' | '.join(str(counts[v]) for v in heads)} |")
    lines += ["", "The same in comparisons. One that several claims need counts once.", ""]
    lines += [f"| comparisons | {' | '.join(VERDICTS)} | judged |", "|---" * (len(VERDICTS) + 2) + "|"]
    counts_by_source = {titles[source]: comparisons(mine) for source, mine in judged.items()}
    for title, counts in {**counts_by_source, "all": sum(counts_by_source.values(), Counter[str]())}.items():
        cells = [str(counts[v]) for v in VERDICTS]
        cells.append(f"{sum(counts[v] for v in JUDGED)} of {counts.total():,}")
        lines.append(f"| {_link(title) if title in counts_by_source else title} | {' | '.join(cells)} |")
    for source, mine in judged.items():
        lines += [
            "",
            f"## {titles[source]}",
            *([f"\n{note(source)}"] * bool(note(source))),
            "",
            "| claim | verdict | published | ours | length | seeds | runs |",
        ]
        lines.append("|---" * 7 + "|")
        for one in mine:
            row = one.row()
            links = [
                f"[{table}](results/{source}/{table}/results.md)" if f"{source}/{table}" in linked else table
                for table in row["tables"]
            ]
            mark = "*" if one.so_far else "**" if one.judged and not one.judged_parts else ""
            verdict = f"{mark}{one.said}{mark}" + f". {row['why']}" * bool(row["why"])
            cells = [f"{row['claim']} ({row['where']})", verdict]
            cells += [row["published"], row["ours"], row["length"], row["seeds"], ", ".join(links)]
            lines.append("| " + " | ".join(cell or "-" for cell in cells) + " |")
        lines += ["", "<details><summary>Each comparison of these</summary>", ""]
        lines += ["| claim | ours | published | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {one.claim.text} | {f.ours} | {f.published or '-'} | {f.verdict} |" for one in mine for f in one.known
        ]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _link(title: str) -> str:
    anchor = "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")
    return f"[{title}](#{anchor})"
