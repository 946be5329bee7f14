"""The tables of docs/sixteen.md are made of what was measured, and its words agree with them."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

made = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "make_sixteen.py"))
ROWS = made["kept"]()


def test_the_page_has_the_numbers_that_are_kept() -> None:
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](ROWS), "python scripts/make_sixteen.py"


def test_dittos_global_model_is_that_of_fedavg() -> None:
    numbers = {
        name: {(r["partition"], r["seed"]): r["global_accuracy"] for r in ROWS if (r["method"], r["settings"]) == key}
        for name, key in {"fedavg": ("fedavg", "given"), "ditto": ("ditto", "given")}.items()
    }
    assert numbers["fedavg"]
    assert numbers["ditto"] == numbers["fedavg"]


def row(method: str, seed: str, settings: str, personal: float, chosen: str = "") -> dict[str, str]:
    numbers = dict.fromkeys(made["SHARES"], str(personal)) | {"mb_a_round": "2"}
    own = {"method": method, "seed": seed, "settings": settings, "chosen": chosen}
    return {"partition": "dirichlet:0.1", "rounds": "30"} | own | numbers


def test_a_table_has_means_over_seeds_and_paired_intervals() -> None:
    rows = [row("fedavg", s, "given", 0.5 + 0.02 * i) for i, s in enumerate("012")]
    rows += [row("fedrep", s, "given", 0.6 + 0.02 * i + 0.01 * (i == 1)) for i, s in enumerate("012")]
    text = made["tables"](rows)
    assert "| `fedavg` | 52.0 ± 2.0 | 52.0 ± 2.0 |" in text
    # differences 10, 11, 10: mean 10.33, deviation 0.577, half 4.303 * 0.577 / sqrt(3) = 1.434
    assert "| `fedrep` |" in text
    assert "+10.3 [+8.9, +11.8]" in text


def test_a_tuned_table_has_what_tuning_left_alone_beside_what_it_moved() -> None:
    rows = [row("fedavg", "0", "given", 0.5), row("fedrep", "0", "given", 0.6)]
    rows.append(row("fedrep", "0", "tuned", 0.7, "lr=0.1"))
    given, tuned = made["tables"](rows).split("\n\n")
    assert re.search(r"`fedrep` \| 60\.0", given)
    assert re.search(r"`fedrep` \| 70\.0.*lr=0\.1", tuned)
    assert re.search(r"`fedavg` \| 50\.0.*as given", tuned)


def test_what_is_measured_again_takes_the_place_of_the_methods_it_has(tmp_path: Path) -> None:
    def comparison(name: str, method: str, tuned: bool, runs: list[str], accuracy: float) -> Path:
        folder = tmp_path / name
        one = {"moved": tuned, "chosen": {"local.lr": 0.1}}
        folder.mkdir()
        (folder / "comparison.json").write_text(json.dumps({"tuning": {"methods": {method: one}}}))
        for run in runs:
            (folder / run).mkdir(parents=True)
            settings = {"data": {"partition": "dirichlet:0.1"}, "run": {"seed": 0}}
            (folder / run / "settings.json").write_text(json.dumps(settings))
            line = {"round": 30, "bytes_down": 1, "bytes_up": 1, "global_accuracy": accuracy}
            (folder / run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return folder

    before = [row(m, "0", s, 0.5, "lr=1" * (s == "tuned")) for s in ("given", "tuned") for m in ("fedavg", "fedrep")]
    first = comparison("first", "fedavg", True, ["tuning/fedavg/trial-000/seed-0", "fedavg-tuned/seed-0"], 0.9)
    found = made["measured"]([first], before)
    assert [(r["method"], r["settings"], r["global_accuracy"], r["chosen"]) for r in found] == [
        ("fedavg", "given", "0.5", ""),
        ("fedrep", "given", "0.5", ""),
        ("fedavg", "tuned", "0.9", "lr=0.1"),
        ("fedrep", "tuned", "0.5", "lr=1"),
    ]
    second = comparison("second", "fedavg", False, ["tuning/fedavg/trial-000/seed-0"], 0.9)  # as given is best now
    assert [(r["method"], r["settings"]) for r in made["measured"]([second], found)] == [
        ("fedavg", "given"),
        ("fedrep", "given"),
        ("fedrep", "tuned"),
    ]


@pytest.mark.parametrize("partition", made["TITLES"])
def test_every_method_has_a_row_or_none_has(partition: str) -> None:
    there = {r["method"] for r in ROWS if r["partition"] == partition}
    assert there in (set(), set(made["METHODS"]))


def test_a_seed_that_diverged_is_named() -> None:
    rows = [row("fedavg", seed, "given", 0.5) for seed in "01"]
    lost = dict.fromkeys((*made["SHARES"], "mb_a_round"), "") | {"rounds": "9"}
    one = made["tables"]([*rows, row("fedrep", "0", "given", 0.6), row("fedrep", "1", "given", 0) | lost])
    assert "| `fedrep` (without seed 1) | 60.0 | 60.0 |" in one
    assert "| `fedrep` diverged | - |" in made["tables"]([*rows, row("fedrep", "0", "given", 0) | lost])


def test_what_the_page_says_of_tuning_follows_from_the_numbers() -> None:
    page = made["PAGE"].read_text(encoding="utf-8")
    tuned = {p: made["tables"](ROWS).split(f"| {t}, tuned")[1].split("\n\n")[0] for p, t in made["TITLES"].items()}
    for table in tuned.values():
        for line in table.splitlines()[2:]:
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            above_fedavg, above_alone = (float(c.split("[")[1].split(",")[0]) if "[" in c else -1 for c in cells[7:9])
            assert above_alone <= 0, line
            assert above_fedavg <= 0 or (cells[0] == "`fedprox`" and table is tuned["pathological:2"]), line
    assert "Dirichlet 0.1: no method is established above FedAvg, nor above training alone" in page
    assert "Of the global models FedProx's alone is established above FedAvg's" in page
