"""The tables of docs/time.md on what ways of running cost are made of what was measured."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

made = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "make_time.py"))


def test_the_page_has_the_numbers_that_are_kept() -> None:
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](made["kept"]()), "python scripts/make_time.py"


def test_a_level_is_that_of_the_same_seed_and_what_is_not_reached_is_said(tmp_path: Path) -> None:
    """Of 0.8 the level is 0.76: the run that waits reaches it at 30 s, the other after 5 s, and once never."""
    runs = {"sync": ((10, 0.5), (30, 0.77), (50, 0.8)), "fedbuff": ((5, 0.77), (9, 0.7))}
    for way, ends in runs.items():
        for seed in (0, 1):
            run = tmp_path / "fmnist" / way / str(seed)
            run.mkdir(parents=True)
            (run / "settings.json").write_text(json.dumps({"run": {"rounds": len(ends)}}))
            (run / "manifest.json").write_text("{}")
            lines = [{"round": 0, "global_accuracy": 0.1, "virtual_seconds": 0.0}]
            for t, (at, accuracy) in enumerate(ends, 1):
                worse = 0.1 * seed * (way == "fedbuff")
                sent = {"bytes_up": 1_000_000, "bytes_down": 3_000_000}
                lines.append({"round": t, "global_accuracy": accuracy - worse, "virtual_seconds": float(at), **sent})
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = made["measured"](tmp_path)
    text = made["tables"](rows)
    assert "| waits for all 20 | 0, 1 | 30.0 ± 0.0 | 1 | 8.00 ± 0.00 | 80.0 ± 0.0 |" in text
    assert "| `asynchrony = fedbuff:size=10` | 0, 1 | 5.00 (1 of 2) | 0.17 | 4.00 (1 of 2) | 65.0 ± 7.1 |" in text
    assert "whole uploads" not in text
    small = [row | {"way": "bits:4?feedback=false", "up_to": "250000"} for row in rows if row["way"] == "sync"]
    text = made["tables"](rows + small)
    assert "| whole uploads | 0, 1 | 2.00 ± 0.00 | 1 | 30.0 ± 0.0 | 80.0 ± 0.0 |" in text
    assert "| `bits:4` | 0, 1 | 0.25 ± 0.00 | 0.12 ± 0.00 | 30.0 ± 0.0 | 80.0 ± 0.0 |" in text
    cut = tmp_path / "fmnist/fedbuff/0/metrics.jsonl"
    cut.write_text(cut.read_text().splitlines()[0] + "\n")  # a run that goes on
    assert len(made["measured"](tmp_path)) == len(rows) - 1
    for gone in (tmp_path / "fmnist/sync").iterdir():  # runs of another day: levels are those that are kept
        (gone / "metrics.jsonl").unlink()
    kept = {row["seed"]: row["level"] for row in made["kept"]() if row["data"] == "fmnist"}
    assert {row["seed"]: row["level"] for row in made["measured"](tmp_path)} == {"1": kept["1"]}


def test_rounds_without_an_evaluation_reach_no_level(tmp_path: Path) -> None:
    """Wrong edit: a level that is read of a round whose global model nobody evaluated."""
    run = tmp_path / "fmnist" / "sync" / "0"
    run.mkdir(parents=True)
    (run / "settings.json").write_text(json.dumps({"run": {"rounds": 2}}))
    (run / "manifest.json").write_text("{}")
    lines = [
        {"round": 0, "global_accuracy": 0.1, "virtual_seconds": 0.0},
        {"round": 1, "virtual_seconds": 3.0, "bytes_up": 1, "bytes_down": 1},
        {"round": 2, "global_accuracy": 0.8, "virtual_seconds": 7.0, "bytes_up": 1, "bytes_down": 1},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["seconds_to"] for row in made["measured"](tmp_path)] == ["7"]
