"""The tables of docs/sixteen.md are made of what was measured, and its words agree with them."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from fedloom.evaluate.paired_differences import Noise

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
    rows = made["measured"]([], rows)
    assert [(r["method"], r["settings"], r["chosen"]) for r in rows] == [
        ("fedavg", "given", ""), ("fedrep", "given", ""), ("fedavg", "tuned", "as given"),
        ("fedrep", "tuned", "lr=0.1"),
    ]  # fmt: skip
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
        ("fedavg", "tuned"),
        ("fedrep", "tuned"),
    ]
    again = made["measured"]([second], found)
    assert [r["global_accuracy"] for r in again if r["chosen"] == "as given"] == ["0.5"]  # those of what is given now


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


def columns(table: str) -> list[dict[str, str]]:
    """Differences to FedAvg and to training alone of a table, by method."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:] if "|" in line]
    return [{cells[0].split("`")[1]: cells[at] for cells in rows} for at in (7, 8)]


def parts() -> dict[tuple[str, str], list[dict[str, str]]]:
    text = made["tables"](ROWS)
    return {
        (name, how): columns(text.split(f"| {title}, {how}")[1].split("\n\n")[0])
        for name, title in made["TITLES"].items()
        for how in ("as given", "tuned")
    }


def test_intervals_are_counted_and_those_that_survive_the_correction_are_bold() -> None:
    cells = [cell for part in parts().values() for column in part for cell in column.values() if "[" in cell]
    bold = [cell for cell in cells if cell.startswith("**")]
    told = made["PAGE"].read_text(encoding="utf-8")
    assert f"{len(cells)} intervals of 95 %" in told
    assert f"the {len(bold)} that survive Holm's correction" in told
    for cell in bold:  # they leave out 0 uncorrected too
        low, high = (float(number) for number in re.search(r"\[(.*), (.*)\]", cell).groups())
        assert low * high > 0


def test_holms_correction_is_of_a_column() -> None:
    """Four differences with a deviation of 1, over two seeds: bounds by Student's t with 50 degrees of freedom."""
    gaps = {"a": [1.9, 2.1], "b": [1.7, 1.7], "c": [1.5, 1.5], "d": [0.1, 0.1]}
    stats = pytest.importorskip("scipy.stats")
    bounds = [stats.t.ppf(1 - 0.025 / k, 50) / 2**0.5 for k in (4, 3, 2, 1)]
    assert bounds[0] < 2.0
    assert bounds[1] > 1.7 > bounds[2]  # alone it would be clear: it is not where the one before it is not
    assert made["_surviving"](gaps, Noise(1.0, 50)) == ({"a"}, ["a", "b", "c", "d"])
    assert made["_surviving"]({"a": gaps["a"], "b": gaps["b"]}, Noise(1.0, 50))[0] == {"a", "b"}


def test_what_the_page_says_of_differences_follows_from_the_numbers() -> None:
    page, found = made["PAGE"].read_text(encoding="utf-8"), parts()
    above = {
        (*of, method, at)
        for of, part in found.items()
        for at, column in enumerate(part)
        for method, cell in column.items()
        if "[" in cell and float(cell.split("[")[1].split(",")[0]) > 0
    }
    given = {(name, "as given", "fedadam", 0) for name in made["TITLES"]}
    assert above == given | {("dirichlet:0.1", "as given", "feddyn", 0), ("pathological:2", "as given", "fedntd", 0)}
    assert {of for of in above if found[of[:2]][of[3]][of[2]].startswith("**")} == given
    assert "Dirichlet 0.1: no method is established above FedAvg, nor above training alone" in page
    assert "Of the global models none is established above FedAvg's" in page
    prose = page.partition("<!-- to here -->")[2]
    for name, how, method, at, sign in (
        ("dirichlet:0.1", "as given", "fedadam", 0, 1), ("pathological:2", "as given", "fedadam", 0, 1),
        ("dirichlet:0.1", "as given", "feddyn", 0, 1), ("pathological:2", "as given", "fedntd", 0, 1),
        ("pathological:2", "as given", "pfedsd", 1, -1), ("dirichlet:0.1", "tuned", "ditto", 1, -1),
        ("pathological:2", "tuned", "moon", 0, -1), ("dirichlet:0.1", "tuned", "fedadam", 0, 1),
        ("pathological:2", "tuned", "fedprox", 0, 1), ("pathological:2", "tuned", "fedadam", 0, 1),
    ):  # fmt: skip
        mean, low, high = (float(number) for number in re.findall(r"[-+][\d.]+", found[name, how][at][method]))
        low, high = sorted((sign * low, sign * high))
        assert re.search(rf"{sign * mean:.1f}[a-z ]* \[{low:.1f}, {high:.1f}\]", prose), (name, how, method)
