"""Costs of reaching a level, by hand: rounds, bytes, virtual time; runs that never reach it; intervals."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest
from scipy import stats

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.report import summary
from fedloom.report.level_costs import COSTS, Reach, check_level, cost_table, level_of, level_text, reached, rounding
from fedloom.report.number_table import amount, whole

CURVES = {
    "a": [[0.1, 0.4, 0.6, 0.7, 0.8], [0.1, 0.2, 0.4, 0.7, 0.8], [0.1, 0.3, 0.65, 0.6, 0.8]],
    "b": [[0.1, 0.6, 0.5, 0.9, 0.9], [0.1, 0.5, 0.7, 0.9, 0.9], [0.1, 0.6, 0.7, 0.9, 0.9]],
    "c": [[0.1, 0.2, 0.5, 0.5, 0.5], [0.1, 0.2, 0.6, 0.5, 0.5], [0.1, 0.2, 0.5, 0.5, 0.5]],
    "d": [[0.1, 0.2, 0.3, 0.3, 0.3], [0.1, 0.2, 0.3, 0.3, 0.3], [0.1, 0.2, 0.3, 0.3, 0.3]],
}


def made(clock: bool = True, names: str = "abcd", measure: str = "global_accuracy") -> dict[str, list[fl.History]]:
    """Runs that send 1 MB and get 3 MB a round; a round of seed s takes 10 + s virtual seconds."""

    def run(name: str, seed: int, values: list[float]) -> fl.History:
        records: list[dict[str, Any]] = []
        for t, value in enumerate(values):
            record = {"round": t, measure: value} | ({"bytes_down": 3_000_000, "bytes_up": 1_000_000} if t else {})
            records.append(record | ({"virtual_seconds": t * (10.0 + seed)} if clock else {}))
        return fl.History(algorithm=name, metrics=records, settings={"run": {"seed": seed}})

    return {name: [run(name, s, values) for s, values in enumerate(CURVES[name])] for name in names}


def test_costs_are_those_of_the_first_round_at_the_level() -> None:
    methods = summary(made(names="ab")).methods
    found = reached(methods, methods[0], "global_accuracy", "0.6", "last", [*COSTS])
    assert found is not None
    first = {"a": (2, 3, 2), "b": (1, 2, 1)}
    seconds = {"a": (20.0, 33.0, 24.0), "b": (10.0, 22.0, 12.0)}
    for i, name in enumerate("ab"):
        assert found.costs["rounds_to"][i].costs == first[name]
        assert found.costs["bytes_to"][i].costs == tuple(4e6 * t for t in first[name])
        assert found.costs["bytes_down_to"][i].costs == tuple(3e6 * t for t in first[name])
        assert found.costs["bytes_up_to"][i].costs == tuple(1e6 * t for t in first[name])
        assert found.costs["seconds_to"][i].costs == seconds[name]
    # All differences are -1, so that rounds themselves tell no noise: what is left is that rounds are whole.
    gap = found.gaps["rounds_to"][1]
    half = stats.t.ppf(0.975, 2) * math.sqrt((1 + 1) / 12) / math.sqrt(3)
    assert gap is not None
    assert (gap.mean, gap.low, gap.high) == (-1, pytest.approx(-1 - half), pytest.approx(-1 + half))
    gap, gaps = found.gaps["seconds_to"][1], [-10.0, -11.0, -12.0]
    dev = max(stats.tstd(gaps), math.sqrt(2 * 11**2 / 12))
    assert gap is not None
    assert (gap.mean, gap.high) == (-11, pytest.approx(-11 + stats.t.ppf(0.975, 2) * dev / math.sqrt(3)))
    assert found.gaps["rounds_to"][0] is None


def test_equal_costs_are_not_sure_to_be_equal() -> None:
    runs = made(names="a")
    methods = summary(runs | {"twin": made(names="a")["a"]}).methods
    found = reached(methods, methods[0], "global_accuracy", "0.6", "last", ["rounds_to"])
    assert found is not None
    gap = found.gaps["rounds_to"][1]
    assert gap is not None
    assert gap.mean == 0
    assert -gap.low == gap.high > 0.5


def test_a_run_that_is_measured_in_every_second_round_tells_half_as_well() -> None:
    (every,) = summary(made(names="a")).methods
    runs = made(names="a")["a"]
    for run in runs:
        for record in run.metrics[1::2]:
            del record["global_accuracy"]
    (second,) = summary({"a": runs}).methods
    rounds, moved = COSTS["rounds_to"], COSTS["bytes_to"]
    assert rounding([every, every], "global_accuracy", rounds) == pytest.approx(math.sqrt(2 / 12))
    assert rounding([every, second], "global_accuracy", rounds) == pytest.approx(math.sqrt(5 / 12))
    assert rounding([second, second], "global_accuracy", moved) == pytest.approx(8e6 / math.sqrt(6))


def test_a_run_that_never_reaches_it_is_said_and_leaves_no_mean_and_no_interval() -> None:
    methods = summary(made()).methods
    found = reached(methods, methods[0], "global_accuracy", "0.6", "last", ["rounds_to", "bytes_to"])
    assert found is not None
    some, never = found.costs["rounds_to"][2:]
    assert (some.costs, some.spent) == ((2,), (4, 4))
    assert (never.costs, never.spent) == ((), (4, 4, 4))
    caption, table = cost_table(found, "0.6", "last")
    texts = table.texts()
    assert [c.name for c in table.columns] == ["method", "rounds_to", "bytes_to", "rounds_to_less_a", "bytes_to_less_a"]
    assert texts[2][1:] == ["> 3.3 (1 of 3)", "> 13.3 (1 of 3)", "–", "–"]  # (2 + 4 + 4) / 3
    assert texts[3][1:3] == ["never in 4", "never in 16.0"]
    assert texts[0][1:3] == ["2.3 ± 0.6", "9.33 ± 2.31"]
    assert table.winners(1) == {1}
    assert "none where a run never reaches it" in caption
    assert "> and (1 of 2): so many runs reach it" in caption
    assert r"\textgreater{} 3.3 (1 of 3)" in table.latex(caption)
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [(row["rounds_to"], row["rounds_to_runs"], row["rounds_to_reached"]) for row in rows[2:]] == [
        ("", "3", "1"),
        ("", "3", "0"),
    ]
    assert found.gaps["rounds_to"][2:] == [None, None]
    against_c = reached(methods, methods[2], "global_accuracy", "0.6", "last", ["rounds_to"])
    assert against_c is not None
    assert against_c.gaps["rounds_to"] == [None] * 4
    assert Reach((), (4.0, 6.0, 5.0)).text(whole) == "never in 4 to 6"
    assert Reach((3.0,)).text(amount) == "3.00"


def test_a_level_is_a_value_or_a_share_of_an_end() -> None:
    methods = summary(made(names="ab")).methods
    assert (level_text("0.8"), level_text("95%")) == ((0.8, False), (0.95, True))
    assert level_of(methods[1], "global_accuracy", "95%", "last", 2) == pytest.approx(0.95 * 0.9)
    assert level_of(methods[0], "global_accuracy", "50%", "tail", 2) == pytest.approx((0.75 + 0.75 + 0.7) / 6)
    assert level_of(methods[0], "personal_accuracy", "95%", "last", 2) is None
    (low,) = summary(made(names="a", measure="global_loss")).methods
    assert level_of(low, "global_loss", "50%", "last", 2) == pytest.approx(1.6)
    assert level_of(low, "global_loss", "0.3", "last", 2) == 0.3
    (nothing,) = summary(
        {"a": [fl.History("a", metrics=[{"round": t, "global_accuracy": 0.0} for t in (0, 1)])]}
    ).methods
    assert level_of(nothing, "global_accuracy", "95%", "last", 2) is None
    for wrong in ("much", "0%", "101%", "nan", "%"):
        with pytest.raises(
            SettingError, match=rf"a level is a value of the measure, as 0.8, or a share .*, got '{wrong}'"
        ):
            level_text(wrong)
    check_level("1", methods)
    with pytest.raises(SettingError, match=r"a level of a share is from 0 to 1, got 80: .* have it, 0.8 for 80 %"):
        check_level("80", methods)
    with pytest.raises(SettingError, match=r"a level of a share is from 0 to 1, got -1: write it as records have it$"):
        check_level("-1", methods)


def test_a_summary_has_costs_where_they_are_asked_for() -> None:
    usual = summary(made())
    assert not any(table.name.startswith("cost_") for table in usual.tables())
    assert "reached" not in usual.csv().splitlines()[0]
    found = summary(made(), to="95%", against="b")
    table = found.tables()[-1]
    assert [c.heading for c in table.columns[:4]] == ["method", "rounds", "MB", "virtual s"]
    assert "85.5 % (95 % of b, last round) in global accuracy" in found.markdown()
    rows = [row for row in csv.DictReader(io.StringIO(found.csv())) if row["reading"].startswith("rounds_to")]
    assert {row["reading"] for row in rows} == {"rounds_to 0.855"}
    assert [(row["method"], row["mean"], row["seeds"], row["reached"]) for row in rows] == [
        ("a", "", "3", "0"),
        ("b", "3.0", "3", "3"),
        ("c", "", "3", "0"),
        ("d", "", "3", "0"),
    ]
    chosen = summary(made(clock=False, names="ab"), to=0.6, columns=["last", "bytes_up_to", "seconds_to"])
    assert [c.name for c in chosen.tables()[-1].columns] == ["method", "bytes_up_to"]  # no clock, and no differences
    mixed = summary(made(names="a") | made(clock=False, names="b"), to=0.6)
    assert "seconds_to" not in [c.name for table in mixed.tables() for c in table.columns]
    default = summary(made(names="ab"), columns=["last", "rounds_to", "differences"]).tables()[-1]
    assert [c.name for c in default.columns] == ["method", "rounds_to", "rounds_to_less_a"]
    assert default.rows[1][1].costs == (3, 3, 3)  # 95 % of a is 0.76
