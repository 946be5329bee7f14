"""The tables of docs/privacy.md on accuracy over epsilon are made of what was measured, and its words agree."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

made = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "make_private.py"))
ROWS = made["kept"]()


def mean(method: str, privacy: str, whose: str = "personal", cohort: str = "100") -> float:
    words = {word: asked for asked, word in made["PRIVACY"].items()}
    of = {"method": method, "privacy": words[privacy], "cohort": cohort}
    found = [100 * float(row[f"{whose}_accuracy"]) for row in ROWS if of.items() <= row.items()]
    return sum(found) / len(found)


def test_the_page_has_the_numbers_that_are_kept() -> None:
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](ROWS), "python scripts/make_private.py"


def test_no_run_spends_more_than_was_asked_for() -> None:
    asked = [(row, row["privacy"].partition("epsilon=")[2].partition(",")[0]) for row in ROWS]
    spent = [float(row["epsilon"]) / float(most) for row, most in asked if most]
    assert len(spent) >= 4 * 9
    assert all(0.99 < share <= 1 for share in spent)


def test_what_the_page_says_follows_from_the_numbers() -> None:
    clipped = mean("fedavg", "clipped", "global")
    lost = [clipped - mean("fedavg", privacy, "global") for privacy in ("neither", "epsilon 8", "epsilon 1")]
    assert [round(2 * points) / 2 for points in lost] == [0, 0.5, 4]
    fedavg, fedrep = ([mean(m, p) for p in ("clipped", "epsilon 4", "epsilon 1")] for m in ("fedavg", "fedrep"))
    assert round(fedrep[0] - fedavg[0]) == 3
    assert all(1.5 < (fedrep[0] - fedrep[i]) / (fedavg[0] - fedavg[i]) < 2.6 for i in (1, 2))
    assert abs(fedrep[2] - fedavg[2]) < 0.5
    assert all(abs(mean("ditto", word) - mean("local_only", "neither")) < 0.6 for word in ("clipped", "epsilon 1"))
    assert abs(mean("local_only", "neither", cohort="1000") - fedrep[1]) < 0.5


def test_a_table_has_means_and_paired_intervals_and_unfinished_runs_are_left_out(tmp_path: Path) -> None:
    privacy = [*made["PRIVACY"]]
    for number, (asked, values) in enumerate({privacy[1]: (0.8, 0.82), privacy[2]: (0.79, 0.8)}.items()):
        for seed, value in enumerate(values):
            run = tmp_path / f"{number}-{seed}"
            run.mkdir()
            settings = {"privacy": asked, "seed": seed, "cohort_size": 100, "rounds": 2}
            (run / "settings.json").write_text(json.dumps({"algorithm": "fedrep", "run": settings}))
            lines = [{"round": t, "personal_accuracy": value, "epsilon": None} for t in range(3)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (run / "manifest.json").write_text("{}")
    assert len(made["measured"](tmp_path)) == 4
    text = made["tables"](made["measured"](tmp_path))
    assert "| `fedrep`, personal, 0, 1 | - | 81.0 ± 1.4 | 79.5 ± 0.7 | - | - | - |" in text
    assert "| `fedrep`, personal | -1.5 [" in text
    (tmp_path / "0-0" / "metrics.jsonl").write_text(json.dumps({"round": 1, "personal_accuracy": 0.1}) + "\n")
    assert len(made["measured"](tmp_path)) == 3
