"""Several seeds: means, deviations and paired intervals by hand; what ± is of; LaTeX, Markdown, CSV, terminal, HTML."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import made_run
from rich.console import Console
from scipy import stats
from torch import nn

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.report import summary
from fedloom.report.number_table import Interval
from fedloom.report.over_seeds import noise_of, paired_difference, partitions_text, reading_of, tail_length


def history(name: str, seed: int | None, accuracies: list[float], held: int = 1, **more: Any) -> fl.History:
    """A run whose global accuracy is known; `held`: what tells its partition from others."""
    metrics = [{"round": t, "global_accuracy": a, **more} for t, a in enumerate(accuracies)]
    settings = {} if seed is None else {"run": {"seed": seed}}
    federation = {"clients": 1, "classes": 2, "shown": [0], "train": [[held, 1]]}
    return fl.History(algorithm=name, metrics=metrics, settings=settings, federation=federation)


def shown(found: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(found)
    return console.file.getvalue()  # type: ignore[attr-defined]


ENDS = {"FedAvg": [0.50, 0.60, 0.55], "FedNTD": [0.54, 0.61, 0.60]}


def made(held: tuple[int, int, int] = (1, 2, 3)) -> dict[str, list[fl.History]]:
    """Two methods with the seeds 0, 1, 2, one in another order, and local-only training."""
    runs = {
        name: [history(name, s, [0.1, 0.3, end], held[s]) for s, end in enumerate(ends)] for name, ends in ENDS.items()
    }
    alone = [history("LocalOnly", s, [0.1, 0.2, 0.3], held[s], personal_accuracy=0.4 + s / 10) for s in range(3)]
    return runs | {"FedNTD": runs["FedNTD"][::-1], "local_only": alone}


def test_means_deviations_and_paired_intervals() -> None:
    found = summary(made())
    accuracy, personal, gaps = found.tables()
    assert [c.heading for c in accuracy.columns[1:]] == [
        "seeds",
        "last round",
        "best on test (optimistic)",
        "mean over rounds",
    ]
    last = accuracy.rows[1][2]
    assert (last.mean, last.std, last.count) == (
        pytest.approx(np.mean(ENDS["FedNTD"])),
        np.std(ENDS["FedNTD"], ddof=1),
        3,
    )
    assert personal.rows[0][2] is None
    interval = gaps.rows[0][1]
    # With training alone, the global models of which all end at 0.3: what a fit of methods and seeds leaves.
    values = np.array([ENDS["FedAvg"], ENDS["FedNTD"], [0.3] * 3])
    left = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    half = stats.t.ppf(0.975, 4) * math.sqrt(2 * (left**2).sum() / 4 / 3)
    theirs = Interval(0.1 / 3, 0.1 / 3 - half, 0.1 / 3 + half, 3)
    assert gaps.rows[0][0] == "FedNTD"
    assert (interval.mean, interval.count) == (pytest.approx(0.1 / 3), 3)
    assert (interval.low, interval.high) == (pytest.approx(theirs.low, abs=1e-4), pytest.approx(theirs.high, abs=1e-4))
    assert gaps.text(interval, gaps.columns[1]) == "+3.3 [-2.8, 9.4]"
    alone = summary({name: runs for name, runs in made().items() if name in ENDS}).differences()
    assert alone is not None
    two = stats.ttest_rel(ENDS["FedNTD"], ENDS["FedAvg"]).confidence_interval()
    assert (alone.rows[0][1].low, alone.rows[0][1].high) == pytest.approx((two.low, two.high))


def test_runs_that_did_not_finish_have_noise_of_their_own() -> None:
    """Three methods that finished agree; two that stopped after one of three rounds differ by seed."""
    plan = {"run": {"rounds": 3}}

    def of(name: str, seed: int, ends: list[float]) -> fl.History:
        made_ = history(name, seed, ends)
        return replace(made_, settings={"run": {**plan["run"], "seed": seed}})

    runs = {f"m{i}": [of(f"m{i}", s, [0.1, 0.2, 0.3, 0.4 + i * s / 1000]) for s in (0, 1)] for i in range(3)}
    short = {f"s{i}": [of(f"s{i}", s, [0.1, 0.2 + i * s / 10]) for s in (0, 1)] for i in range(2)}
    found = summary(runs | short).methods
    assert noise_of(found[:3], "global_accuracy", "last", 1) == (pytest.approx(0.001), 2)
    assert noise_of(found[3:], "global_accuracy", "last", 1) == (pytest.approx(math.sqrt(0.005)), 1)
    both = noise_of(found, "global_accuracy", "last", 1)
    assert both == (pytest.approx(math.sqrt((2 * 1e-6 + 0.005) / 3)), 3)


@pytest.mark.parametrize("n", [2, 5, 21, 22, 40])
def test_the_quantile_of_student(n: int) -> None:
    ends = np.random.default_rng(n).normal(0.5, 0.1, (2, n))
    mine, theirs = (
        summary({"a": [history("a", s, [0.1, e]) for s, e in enumerate(of)], "b": history("b", 0, [0.1, 0.2])}).methods[
            0
        ]
        for of in ends
    )
    found = paired_difference(mine, theirs, "global_accuracy", "last", 1)
    assert found is not None
    expected = stats.ttest_rel(*ends).confidence_interval()
    np.testing.assert_allclose((found.low, found.high), expected, rtol=1e-9, atol=1e-9)


def test_differences_are_those_of_the_numbers_beside_them() -> None:
    """Also of the last rounds, of which there are as many for all methods, as the shortest has."""
    values = {"long": [0.1] + [0.5] * 190 + [0.7] * 10, "level": [0.1] + [0.5] * 200, "short": [0.1] + [0.5] * 20}
    runs = {name: [history(name, seed, row) for seed in (0, 1)] for name, row in values.items()}
    made = summary(runs, against="level", reading="tail")
    rows = {m.label: reading_of(m, "global_accuracy", "tail", tail_length(made.methods)) for m in made.methods}
    gaps = made.differences()
    assert gaps is not None
    assert rows["long"] is not None
    assert rows["long"].mean == pytest.approx(0.7)
    assert gaps.rows[0][1].mean == pytest.approx(0.2)
    (written,) = (r for r in csv.DictReader(io.StringIO(made.csv())) if (r["method"], r["reading"]) == ("long", "tail"))
    assert float(written["difference"]) == pytest.approx(0.2)


def test_differences_take_seeds_that_both_have() -> None:
    runs = made()
    runs["FedNTD"] = runs["FedNTD"][:2]
    gaps = summary(runs).differences()
    assert gaps is not None
    assert gaps.rows[0][1].count == 2
    assert summary({"a": history("a", 0, [0.1, 0.2]), "b": history("b", 0, [0.1, 0.3])}).differences() is None
    nameless = {n: [history(n, None, [0.1, 0.2]), history(n, None, [0.1, 0.4])] for n in "ab"}
    assert summary(nameless).differences() is None  # nothing tells which runs are a pair
    assert summary(made(), against="FedNTD", reading="best").differences().columns[1].heading == "global minus FedNTD"  # type: ignore[union-attr]


def test_what_the_deviation_is_of_is_said() -> None:
    assert "every seed draws its own partition and held-out examples (" in " ".join(shown(summary(made()), 200).split())
    natural = made()
    for one in (each for runs in natural.values() for each in runs):
        one.settings["data"] = {"partition": "natural"}
    said = (
        "the clients are those of the data, and every seed draws its own held-out examples (data.partition_seed fixes"
    )
    assert said in partitions_text(summary(natural).methods)
    fixed = summary(made((1, 1, 1)))
    assert "one partition for all seeds" in fixed.markdown()
    assert "one partition for all seeds" in fixed.latex()
    assert {row["partition"] for row in csv.DictReader(io.StringIO(fixed.csv()))} == {"fixed"}
    runs = made()
    runs["FedAvg"][0].federation = {"clients": 1, "classes": 2}
    assert "not known of all runs" in partitions_text(summary(runs).methods)
    assert ", one seed each" in summary({"a": history("a", 0, [0.1, 0.2])}).captions()["global_accuracy"]


def test_papers_notebooks_and_spreadsheets() -> None:
    runs = made() | {"fed_x & $y$ <b>": [history("x", s, [0.1, 0.2]) for s in range(3)]}
    found = summary(runs)
    tex = found.latex()
    assert (
        r"fed\_x \& \$y\$ \textless{}b\textgreater{} & 3 & 20.0 $\pm$ 0.0 & 20.0 $\pm$ 0.0 & 15.0 $\pm$ 0.0 \\" in tex
    )
    assert r"\shortstack[r]{best on test\\(optimistic)}" in tex
    assert r"FedNTD & +3.3 [$-$2.8, 9.4] \\" in tex
    assert r"FedNTD & 3 & \textbf{58.3 $\pm$ 3.8} &" in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 3
    assert "| FedNTD | 3 | **58.3 ± 3.8** |" in found.markdown()
    assert r"fed\_x & $y$ \<b>" in found.markdown()
    assert "fed_x &amp; $y$ &lt;b&gt;" in found._repr_html_()
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    row = next(r for r in rows if (r["method"], r["reading"]) == ("FedNTD", "last"))
    assert float(row["mean"]) == pytest.approx(np.mean(ENDS["FedNTD"]))
    assert (row["against"], row["pairs"]) == ("FedAvg", "3")
    assert float(row["low"]) < float(row["difference"]) < float(row["high"])
    assert repr(found) == "Summary(FedAvg, FedNTD, local_only, fed_x & $y$ <b>; 3 seeds)"


def test_labels_and_remarks_are_not_markup() -> None:
    runs = {"[red]a[/]": made()["FedAvg"], "b": made()["FedNTD"]}
    found = replace(summary(runs), remarks=("[b]unfinished[/] & so",))
    out = shown(found, 120)
    assert out.count("[red]a[/]") == 2  # in its row, and in the heading of the differences
    assert out.splitlines()[-1] == "[b]unfinished[/] & so"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_number_is_cut_on_a_narrow_terminal(width: int) -> None:
    out = shown(summary(made()), width)
    assert "…" not in out
    assert "58.3 ± 3.8" in out
    assert max(map(len, out.splitlines())) <= width


def test_folders_are_summed_up(tmp_path: Path) -> None:
    for name in ("fedavg", "fedntd"):
        for seed in (0, 1):
            made_run(tmp_path / f"runs/{name}/seed-{seed}", name, seed, rounds=4)
    found = summary(tmp_path / "runs")
    assert [m.label for m in found.methods] == ["fedavg", "fedntd"]
    assert [path.name for path in found.write(tmp_path / "out")] == ["summary.tex", "summary.md", "summary.csv"]
    gaps = found.differences()
    assert gaps is not None
    table = list(csv.DictReader(io.StringIO(gaps.csv())))
    assert isinstance(gaps.rows[0][1], Interval)
    assert float(table[0]["global_accuracy_last_less_fedavg_low"]) == gaps.rows[0][1].low
    assert table[0]["global_accuracy_last_less_fedavg_pairs"] == "2"
    (tmp_path / "runs/fedavg/seed-0/settings.json").write_text(json.dumps({"run": {"seed": 1, "rounds": 9}}))
    assert any("unfinished" in remark for remark in summary(tmp_path / "runs").remarks)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"against": "FedNDT"}, "against must be one of the methods FedAvg, FedNTD, local_only, got 'FedNDT' (did "),
        ({"reading": "lsat"}, "reading must be one of last, tail, validated, best, mean, got 'lsat' (did you mean "),
    ],
)
def test_what_is_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        summary(made(), **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
    with pytest.raises(SettingError, match=r"takes histories of at least one round, got none of a: run"):
        summary({"a": []})
    with pytest.raises(SettingError, match="got none of any method"):
        summary({})


def test_runs_from_python_tell_their_seed_and_partition() -> None:
    """Without a directory too."""
    train = fl.from_arrays(np.eye(8, dtype=np.float32), np.arange(8) % 2)
    federation = fl.federate(train, fl.iid(train.y, 2, seed=0), test=train, test_fraction=0)
    runs: dict[str, list[fl.History]] = {}
    for algorithm in (fl.FedAvg(), fl.FedProx(mu=1.0)):
        for seed in (0, 1):
            settings = fl.RunSettings(rounds=1, cohort_size=2, seed=seed, threads=1, compilation="none")
            model = nn.Linear(8, 2)
            runs.setdefault(type(algorithm).__name__, []).append(fl.run(algorithm, federation, model, settings))
    found = summary(runs)
    assert "one partition for all seeds" in found.captions()["global_accuracy"]
    gaps = found.differences()
    assert gaps is not None
    assert gaps.rows[0][1].count == 2
    assert not math.isnan(gaps.rows[0][1].low)


def test_histories_that_nobody_has_named_are_told_apart_by_their_settings() -> None:
    first, second = made()["FedAvg"][:2]
    other = made()["FedNTD"][-1]
    for given in ((first, second, other), ([first, second, other],), ([first, second], other)):
        found = summary(*given)
        assert [(m.label, len(m.runs)) for m in found.methods] == [("FedAvg", 2), ("FedNTD", 1)]
    assert summary(first).methods[0].label == "FedAvg"


@pytest.mark.parametrize("runs", [(3,), ({"a": []}, "runs"), (fl.History("A"), "runs")])
def test_what_is_no_run_is_refused(runs: tuple[Any, ...]) -> None:
    with pytest.raises(
        SettingError, match=r"takes directories, or histories, or a mapping of names to histories, got "
    ):
        summary(*runs)
    with pytest.raises(SettingError, match=r"takes histories of at least one round: run each first"):
        summary(fl.History("A"))
