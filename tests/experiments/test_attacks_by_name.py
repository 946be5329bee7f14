"""Attacks by name, and the settings of a run that say them."""

from __future__ import annotations

import pytest

from fedloom import (
    Backdoor,
    Constant,
    Experiment,
    FlippedLabels,
    InnerProduct,
    LittleIsEnough,
    Noise,
    Scale,
    StandStill,
)
from fedloom.core.errors import SettingError
from fedloom.engines.attacks import Attack
from fedloom.experiments.catalogue import attack


@pytest.mark.some(5)
@pytest.mark.parametrize(
    ("text", "who", "made"),
    [
        ("sign_flip", "0.25", Scale(-1.0, share=0.25, seed=5)),
        ("scale:10", "0,3,7", Scale(10.0, clients=(0, 3, 7), seed=5)),
        ("noise:0.5", "3", Noise(0.5, clients=(3,), seed=5)),
        ("labels", "1.0", FlippedLabels(share=1.0, seed=5)),
        ("alie", "0.5", LittleIsEnough(share=0.5, seed=5)),
        ("alie:1.5", "0.5", LittleIsEnough(1.5, share=0.5, seed=5)),
        ("stand_still", "0.25", StandStill(share=0.25, seed=5)),
        ("constant:0.05", "3", Constant(0.05, clients=(3,), seed=5)),
        ("inner_product:2", "0.5", InnerProduct(2.0, share=0.5, seed=5)),
        ("backdoor:7", "0.25", Backdoor(7, share=0.25, seed=5)),
        ("backdoor:7:4", "3", Backdoor(7, 4.0, clients=(3,), seed=5)),
        ("none", None, None),
    ],
)
def test_attacks_by_name(text: str, who: str | None, made: Attack | None) -> None:
    assert attack(text, who, 5) == made
    assert Experiment.of({"clients": {"attack": text, "attackers": who}, "run": {"seed": 5}}).job().attack == made


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("text", "who", "message"),
    [
        ("sign_filp", "0.2", "unknown attack 'sign_filp' (did you mean 'sign_flip'?); there are none, sign_"),
        ("scale", "0.2", "this attack is written scale:X, got 'scale'"),
        ("sign_flip:2", "0.2", "this attack is written sign_flip, got 'sign_flip:2'"),
        ("alie:a", "0.2", "this attack is written alie or alie:Z, got 'alie:a'"),
        ("backdoor", "0.2", "this attack is written backdoor:CLASS or backdoor:CLASS:BOOST, got 'backdoor'"),
        ("backdoor:1:2:3", "0.2", "this attack is written backdoor:CLASS or backdoor:CLASS:BOOST"),
        ("backdoor:1.5", "0.2", "this attack is written backdoor:CLASS or backdoor:CLASS:BOOST"),
        ("noise:-1", "0.2", "the standard deviation of noise is above 0, got -1"),
        (
            "labels",
            "a quarter",
            "clients.attackers is a share of the clients with a point, 0.25, or a list, 0,3,7, got",
        ),
        ("labels", "1,", "clients.attackers is a share of the clients with a point"),
        ("labels", "1.5", "the share of attackers is above 0 and at most 1, got 1.5"),
        ("labels", None, "clients.attack says what the clients of clients.attackers do, got attack = 'labels' and att"),
        (
            "none",
            "0.2",
            "attack = 'none' and attackers = '0.2': set both (--attack sign_flip --attackers 0.25) or none",
        ),
    ],
)
def test_names_that_are_wrong(text: str, who: str | None, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment.of({"clients": {"attack": text, "attackers": who}}).job()
    assert message in str(caught.value)


def test_an_unknown_rule_is_refused_where_it_is_set() -> None:
    with pytest.raises(SettingError, match=r"did you mean 'median'"):
        Experiment.of({"run": {"aggregator": "medain"}})
