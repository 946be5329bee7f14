"""Claims with their verdicts, as a page, and as what the package carries of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedloom.papers.reproduction.claim_verdicts import RULE, ClaimVerdict
from fedloom.papers.reproduction.claims import VERDICTS

HEAD = f"""# What holds

For each claim of the five papers that this library is about: what is published, what our runs gave, and whether it
holds. Made from the declarations in the papers' rooms (`src/fedloom/papers`) and the [kept runs](results/README.md) by
`python scripts/make_results.py`; `fedloom claims SOURCE` prints it, and `--known DIR` judges runs of your own. It grows
as more runs are kept. Where a claim is about many columns or methods, the verdict is on those comparisons that were
run, and says how many these are. *Length* is that of our runs beside the published ones, and how their settings differ.

{RULE}
"""


def source_record(title: str, judged: Sequence[ClaimVerdict]) -> dict[str, Any]:
    """Return the record of a source, as plain values: its title and a row for each claim."""
    return {"title": title, "claims": [one.row() for one in judged]}


def packed(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the package carries: the rows of each source, as JSON."""
    return json.dumps({"rule": RULE.replace("**", ""), "sources": sources}, indent=1, ensure_ascii=False) + "\n"


def as_markdown(
    judged: Mapping[str, Sequence[ClaimVerdict]], titles: Mapping[str, str], linked: Collection[str]
) -> str:
    """Return the page.

    Args:
        judged: the claims of each source.
        titles: of the sources.
        linked: the tables whose pages are there, SOURCE/TABLE.
    """
    lines = [HEAD, f"| paper | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 1) + "|"]
    for source, mine in judged.items():
        counts = Counter(one.verdict for one in mine)
        anchor = "".join(c for c in titles[source].lower() if c.isalnum() or c in " -").replace(" ", "-")
        lines.append(f"| [{titles[source]}](#{anchor}) | {' | '.join(str(counts[v]) for v in VERDICTS)} |")
    for source, mine in judged.items():
        lines += ["", f"## {titles[source]}", "", "| claim | published | ours | length | seeds | verdict | runs |"]
        lines.append("|---" * 7 + "|")
        for one in mine:
            row = one.row()
            links = [
                f"[{table}](results/{source}/{table}/results.md)" if f"{source}/{table}" in linked else table
                for table in row["tables"]
            ]
            verdict = f"**{row['verdict']}**" + f" ({row['judged']} judged)" * bool(row["judged"])
            verdict += f". {row['why']}" * bool(row["why"])
            cells = [f"{row['claim']} ({row['where']})", row["published"], row["ours"], row["length"], row["seeds"]]
            lines.append("| " + " | ".join(cell or "-" for cell in (*cells, verdict, ", ".join(links))) + " |")
        lines += ["", "<details><summary>Each comparison of these</summary>", ""]
        lines += ["| claim | ours | published | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {one.claim.text} | {f.ours} | {f.published or '-'} | {f.verdict} |" for one in mine for f in one.known
        ]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"
