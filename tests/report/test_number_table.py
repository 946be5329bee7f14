"""Tables of numbers: in full as CSV, and as people read them."""

from __future__ import annotations

import csv
import io
import math

import pytest

from fedloom.report.methods import Spread
from fedloom.report.number_table import Column, Table, amount, percent, whole


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0123, "0.0123"), (1.2345, "1.23"), (12.345, "12.3"), (123.45, "123"), (123456.7, "123,457")],
)
def test_amounts_have_three_digits(value: float, text: str) -> None:
    assert amount(value) == text


def test_numbers_are_written_as_people_do() -> None:
    assert (percent(0.7084), percent(-0.0001), percent(1)) == ("70.8", "0.0", "100.0")
    assert (whole(3), whole(1200.0), whole(7.5)) == ("3", "1,200", "7.5")
    assert amount(0.00271, like=12.7) == "0.0"


def test_a_spread_is_written_with_the_decimals_of_its_mean() -> None:
    table = Table("t", [Column("mb", "MB", amount)], [])
    cell = [table.text(Spread(12.72, std, 3), table.columns[0]) for std in (0.61, 2e-16, 0.0, math.nan)]
    assert cell == ["12.7 ± 0.6", "12.7 ± 0.0", "12.7 ± 0.0", "12.7"]  # several seeds can be seen
    share = Column("a", "a", percent)
    assert [table.text(Spread(mean, 2e-4, 2), share) for mean in (0.76, 0.0)] == ["76.0 ± 0.0", "0.0 ± 0.0"]
    assert table.text(Spread(0.0, 0.0, 2), table.columns[0]) == "0 ± 0"
    assert table.text(None, table.columns[0]) == "–"


def test_the_best_of_a_column_is_known() -> None:
    columns = [Column("m", "m"), Column("a", "a", percent, "high"), Column("b", "b", percent, "low")]
    table = Table("t", columns, [["x", 0.5, 0.1], ["y", Spread(0.7, 0.1, 2), 0.1], ["z", None, 0.2]])
    assert [table.winners(i) for i in range(3)] == [set(), {1}, {0, 1}]
    assert Table("t", columns, [["x", 0.5, 0.1], ["y", 0.5, 0.1]]).winners(1) == set()


def test_a_csv_gives_every_number_back_in_full() -> None:
    rows = [['a, "b"\nc', Spread(1 / 3, math.sqrt(2), 3), None], ["=x", None, 0.1 + 0.2]]
    table = Table("t", [Column("m", "m"), Column("a", "a", percent), Column("b", "b", percent)], rows)
    found = list(csv.DictReader(io.StringIO(table.csv())))
    assert list(found[0]) == ["m", "a", "a_std", "a_runs", "b"]
    assert [row["m"] for row in found] == ['a, "b"\nc', "'=x"]  # no formula
    assert (float(found[0]["a"]), float(found[0]["a_std"]), found[0]["a_runs"]) == (1 / 3, math.sqrt(2), "3")
    assert (found[0]["b"], found[1]["a"], float(found[1]["b"])) == ("", "", 0.1 + 0.2)


def test_a_table_in_latex_has_its_heads_above_its_rows() -> None:
    columns = [Column("m", "method"), Column("a", "accuracy", str, "high")]
    lines = Table("t", columns, [["a_b", 1.0], ["c", 2.0]], [0, 1]).latex("Title %").splitlines()
    assert lines[lines.index(r"\toprule") :] == [
        r"\toprule",
        r"\shortstack[r]{method} & \shortstack[r]{accuracy} \\",
        r"\midrule",
        r"a\_b & 1.0 \\",
        r"c & \textbf{2.0} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert r"\begin{tabular}{lr}" in lines
    assert r"\caption{Title \% Bold: the best of each column; no test of significance.}" in lines
