"""Claims with their verdicts, as a page, and as what the package carries of it."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedloom.evaluate.paired_differences import FalseAlarms
from fedloom_papers import note
from fedloom_papers.reproduction.claim_verdicts import RULE, ClaimVerdict, comparisons
from fedloom_papers.reproduction.claims import HOLDS, JUDGED, NOT_RUN, VERDICTS

HEAD = """# What holds

The claims of five papers, with a verdict on each by [kept runs](results/README.md). A paper's name leads to its claims;
a click on a claim shows what was published, what our runs gave and in what they differ. *So far*: less than half of
what the claim compares was run.
"""
JUDGING = """The claims are declared in `papers/src/fedloom_papers`, and this page is made of them by
`python scripts/make_results.py`; `fedloom claims SOURCE` prints it, and `--known DIR` judges runs of your own. Where a
claim is about many columns or methods, the verdict is on those comparisons that were run, and says how many these are
where it is not all. *Length* is that of our runs beside the published ones, and how their settings differ.
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
    """Return the page: a matrix of papers and verdicts, the claims that were judged, and those that were not run.

    Args:
        judged: the claims of each source.
        titles: of the sources.
        linked: the tables whose pages are there, SOURCE/TABLE.
        rates: of false alarms, by column.
    """
    lines = [HEAD, *_matrix("claims", ("holds", "holds so far", *VERDICTS[1:]))]
    for source, mine in judged.items():
        all_of, so_far = (Counter(one.verdict for one in some) for some in (mine, [one for one in mine if one.so_far]))
        cells = [str(all_of[HOLDS] - so_far[HOLDS]), str(so_far[HOLDS])]
        cells += [f"{all_of[v]}, {so_far[v]} so far" if so_far[v] else str(all_of[v]) for v in VERDICTS[1:]]
        lines.append(f"| {' | '.join([_link(titles[source]), *cells])} |")
    lines += ["", "</div>", "", "The same in comparisons. One that several claims need counts once.", ""]
    lines += _matrix("comparisons", (*VERDICTS, "judged"))
    counts_by_source = {titles[source]: comparisons(mine) for source, mine in judged.items()}
    for title, counts in {**counts_by_source, "all": sum(counts_by_source.values(), Counter[str]())}.items():
        cells = [str(counts[v]) for v in VERDICTS]
        cells.append(f"{sum(counts[v] for v in JUDGED)} of {counts.total():,}")
        lines.append(f"| {_link(title) if title in counts_by_source else title} | {' | '.join(cells)} |")
    lines += ["", "</div>", "", *_folded("How verdicts are reached", [JUDGING, RULE, "", told(rates)])]
    for source, mine in judged.items():
        lines += [f"## {titles[source]}", "", *([note(source), ""] if note(source) else [])]
        for one in mine:
            if one.verdict != NOT_RUN:
                lines += _folded(_headed(one), _evidence(one, linked))
    lines += ["## Not run", ""]
    for source, mine in judged.items():
        if found := [one for one in mine if one.verdict == NOT_RUN]:
            lines += [f"**{titles[source]}**", "", *map(_not_run, found), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _matrix(corner: str, heads: Sequence[str]) -> list[str]:
    """Return the head of a table that fits a narrow screen: its place in the site is small print."""
    return ['<div class="matrix" markdown>', "", f"| {corner} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]


def _folded(summary: str, body: Sequence[str]) -> list[str]:
    """Return a paragraph that opens."""
    return ["<details markdown>", f"<summary>{summary}</summary>", "", *body, "", "</details>", ""]


def _headed(one: ClaimVerdict) -> str:
    """Return a claim with its verdict first, as HTML."""
    text = re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(f"{one.claim.text} ({one.claim.where})", quote=False))
    kind = f"{one.verdict}{' so-far' * one.so_far}".replace("within noise", "noise").replace("short run", "short")
    return f'<b class="chip {kind}">{one.said}</b> {text}'


def _evidence(one: ClaimVerdict, linked: Collection[str]) -> list[str]:
    """Return what is known of a claim, and a table of its comparisons, where it has several."""
    row = one.row()
    tables = [
        f"[{table}](results/{one.source}/{table}/results.md)" if f"{one.source}/{table}" in linked else table
        for table in row["tables"]
    ]
    several = len(one.known) > 1
    facts = {"why": row["why"], "published": row["published"], "ours": "" if several else row["ours"]}
    facts |= {"length": row["length"], "seeds": row["seeds"], "runs": ", ".join(tables)}
    lines = [f"- **{word}**: {said}" for word, said in facts.items() if said]
    if several:
        lines += ["", "| verdict | ours | published |", "|---|---|---|"]
        lines += [f"| {f.verdict} | {f.ours} | {f.published or '-'} |" for f in one.known]
    return lines


def _not_run(one: ClaimVerdict) -> str:
    """Return a line on a claim of which nothing is known, or too little."""
    row = one.row()
    said = f"{row['claim']} ({row['where']}). {row['why']}".rstrip()
    return f"- {said} Run: {row['ours']}." if row["ours"] else f"- {said}"


def _link(title: str) -> str:
    anchor = "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")
    return f"[{title.partition(' (')[0]}](#{anchor})"
