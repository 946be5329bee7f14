"""What docs/tables.md says of union against shared: from the numbers that are kept, which a run makes again."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

made = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_columns.py"))
ROWS = made["kept"]()


def test_the_page_has_the_table_of_the_numbers_that_are_kept() -> None:
    page = made["PAGE"].read_text(encoding="utf-8")
    assert page.partition(made["BEGIN"])[2].partition(made["END"])[0] == made["table"](ROWS)


@pytest.mark.slow
@pytest.mark.skipif("FEDLOOM_DATA" not in os.environ, reason="needs FEDLOOM_DATA, with vehicle_ditto_train.npz")
def test_a_run_makes_the_numbers_again() -> None:
    """Another machine may count one of 372 test rows otherwise."""
    vehicle = Path(os.environ["FEDLOOM_DATA"]) / "vehicle_ditto_train.npz"
    if not vehicle.is_file():
        pytest.skip(f"needs {vehicle}")
    again = made["measure"](vehicle, "logistic", "each:0.1", 0)
    kept = [row for row in ROWS if (row["model"], row["lacks"], row["seed"]) == ("logistic", "each:0.1", "0")]
    assert [row["features"] for row in again] == [row["features"] for row in kept]
    for mine, other in zip(again, kept, strict=True):
        assert float(mine["accuracy"]) == pytest.approx(float(other["accuracy"]), abs=0.01)
