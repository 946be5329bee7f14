"""Make docs/results/README.md: every table of which runs are kept, with what holds of it.

    python scripts/make_results.py

To be run where results were exported; `tests/papers/reproduction/test_kept_results.py` says when.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedloom.papers import recipes, tables
from fedloom.papers.reproduction import kept
from fedloom.papers.reproduction.results_page import kind, shown

KEPT = Path(__file__).parents[1] / "docs" / "results"
TARGET = KEPT / "README.md"
HEAD = """# Kept results

No table of a paper has been reproduced whole. These are the runs that were made, most of them shorter than published
or on less data; [papers](../papers.md) says what is known of each source. A cell is a method in a column of its table;
what each came to is on the page of the table. The runs themselves, with settings and all numbers by round, are in
`runs.jsonl.gz` beside it: `fedloom reproduce TABLE --known docs/results/PAPER` counts them as done.

| paper | table | what | cells with runs | rounds (ours of published) | seeds | verdicts of cells |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Return what the file must hold."""
    rows = []
    for file in sorted(KEPT.glob(f"*/*/{kept.NAME}")):
        name, folder = file.parent.name, file.parents[1]
        results = shown(recipes(name), [folder])
        ran = [r for r in results if r.runs]
        rounds = sorted({(r.rounds, r.recipe.rounds) for r in ran if r.rounds})
        seeds = Counter(len(r.seeds) for r in ran if r.seeds)
        verdicts = Counter(kind(r.verdict) for r in ran)
        cells = [
            folder.name,
            f"[{name}]({folder.name}/{name}/results.md)",
            tables()[name],
            f"{len(ran)} of {len(results)}",
            ", ".join(f"{ours} of {theirs}" for ours, theirs in rounds),
            str(max(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}",
            ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()),
        ]
        rows.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    print(TARGET)
