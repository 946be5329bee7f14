"""Make what is said of kept runs: the pages of tables, their index, and claims.md with what the package has of it.

    python scripts/make_results.py

To be run where results were exported or what is said of them has changed;
`papers/tests/reproduction/test_kept_results.py` says when.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedloom_papers import STUDIES, recipes, study, tables, title
from fedloom_papers.commands.show_claims import RECORD
from fedloom_papers.reproduction import kept
from fedloom_papers.reproduction.claim_verdicts import verdicts
from fedloom_papers.reproduction.claims_page import as_markdown, packed, source_record
from fedloom_papers.reproduction.results_page import kind, pages, shown
from fedloom_papers.reproduction.table_noise import false_alarms_of

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "papers" / "docs" / "results"
TARGET = KEPT / "README.md"
CLAIMS = ROOT / "papers" / "docs" / "claims.md"
HEAD = """# Kept results

No table of a paper has been reproduced whole. These are the runs that were made, most of them shorter than published
or on less data; [what holds](../claims.md) has the verdict on each claim, [papers](../../../docs/papers.md)
what is known of each source. A cell is a method in a column of its table; what each came to is on the page of the
table. The runs themselves, with settings and all numbers by round, are in `runs.jsonl.gz` beside it:
`fedloom reproduce TABLE --known papers/docs/results/PAPER` counts them as done.

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


def claims() -> dict[Path, str]:
    """Return what the page of claims and the file of the package must hold."""
    evaluated = {source: verdicts(source, [KEPT / source]) for source in STUDIES}
    titles = {source: title(source) for source in STUDIES}
    kept_tables = [file.parent for file in sorted(KEPT.glob(f"*/*/{kept.NAME}"))]
    rates = [rate for at in kept_tables for rate in false_alarms_of(at.name, at.parent)]
    linked = {f"{file.parents[1].name}/{file.parent.name}" for file in KEPT.glob("*/*/results.md")}
    return {
        CLAIMS: as_markdown(evaluated, titles, linked, rates),
        RECORD: packed({source: source_record(titles[source], found) for source, found in evaluated.items()}, rates),
    }


def tables_pages() -> dict[Path, str]:
    """Return what the files of each table with kept runs must hold."""
    out = {}
    for file in sorted(KEPT.glob(f"*/*/{kept.NAME}")):
        name, folder = file.parent.name, file.parents[1]
        _, texts = pages(f"{name}: {tables()[name]}", recipes(name), [folder], remarks=study(name).remarks)
        out |= {file.parent / text: said for text, said in texts.items()}
    return out


if __name__ == "__main__":
    for path, text in {**tables_pages(), TARGET: page(), **claims()}.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
