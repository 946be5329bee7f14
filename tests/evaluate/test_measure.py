"""Every number of a round is declared once."""

from __future__ import annotations

import fedloom as fl
from fedloom.algorithms import FedNTD
from fedloom.evaluate.measure import MEASURES, TUNABLE, VALIDATION, lower_is_better
from tiny import LOCAL, federation, linear

OTHERS = {"round", "bytes_down", "bytes_up", "bytes_down_model", "bytes_up_model"}


def test_each_number_of_a_record_is_declared() -> None:
    settings = fl.RunSettings(
        rounds=2, cohort_size=3, threads=1, engine="loop", per_client=True, evaluate_training=True
    )
    new = fl.NewClients(1)
    found = fl.run(FedNTD(local=LOCAL), federation(val_fraction=0.2), linear, settings, new=new, progress=False)
    numbers = {name for record in found for name, value in record.items() if isinstance(value, int | float)}
    assert numbers - OTHERS <= set(MEASURES)
    assert {m for m in MEASURES if m != "server_loss" and "personalised" not in m} <= numbers


def test_directions_and_what_sweeps_choose_by() -> None:
    assert [name for name in TUNABLE if lower_is_better(name)] == [
        "train_loss", "global_loss", "forgetting", "personal_std",
    ]  # fmt: skip
    assert lower_is_better("drop")
    assert lower_is_better("server_ce_loss")
    assert not lower_is_better("server_agree")
    assert TUNABLE[0] == VALIDATION
    assert [m.caption for m in MEASURES.values() if m.caption != m.meaning] == [
        f"{MEASURES[name].meaning} Lower is better." for name in ("forgetting", "personal_std", "drop")
    ]
