"""Which methods need not wait: all of the catalogue, each taken or refused with a reason, by what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.testing import Subject
from fedloom.virtual_time.asynchronous_trial import tried
from test_battery import ALGORITHMS as CASES
from tiny import LOCAL, federation, linear

NUMBERS = "uploads single numbers beside models"
OWN = "sends each client what is its own"
REFUSED = {
    "centralised": "has the examples of all clients in one place",
    "scaffold": "uploads control tensors",
    "scaffold_uniform_steps": "uploads control tensors",
    "fedbe": "trains on the server what it has gathered",
    "fedprox_dropped": "asks some of a round's clients alone",
} | {
    name: reason
    for reason, names in {
        NUMBERS: ("fedexp", "q_fedavg", "fednova", "fednova_released_uniform"),
        "uploads fisher tensors": ("fedcurv", "fedcurv_ni", "fedcurv_uniform"),
        r"asks for each upload by itself \(gather\)": ("local_only", "ifca", "ifca_three", "fedfomo", "kt_pfl_weights"),
        OWN: (
            "apfl_ni", "apfl_ni_watches_everyone", "fedprox_stragglers", "lg_fedavg_pretrained_self_distilled",
        ),
        "asks all clients in each round": ("dense", "fed_dafl", "fed_adi", "dense_paper_several_uploads"),
        "mixes architectures in a round": (
            "feddf", "pfeddf", "feddf_uniform_losses", "feddf_validated", "fedproto", "fedproto_last_epoch", "kt_pfl",
            "sim_pfl", "topk_pfl", "fedmd", "fedmd_without_labels", "fedmd_kt",
        ),
    }.items()
    for name in names
}  # fmt: skip


def of(algorithm: Any, *, mixes: bool = False) -> Any:
    subject = Subject.of(algorithm)
    return tried(
        fl.Job(
            algorithm=subject.algorithm, federation=subject.population().federation, model=subject.models,
            settings=fl.RunSettings(cohort_size=1),
        ),
        mixes=mixes,
    )  # fmt: skip


def test_every_method_is_here() -> None:
    assert ALGORITHMS.keys() <= CASES.keys()
    assert REFUSED.keys() <= CASES.keys()


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_method_is_taken_or_refused_with_the_reason(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(fl.SettingError, match=rf"and {type(CASES[name]).__name__} {REFUSED[name]}"):
            of(CASES[name])
    else:
        found = of(CASES[name])
        assert found.keys() == {"upload", "states", "losses", "after"}


@dataclass(frozen=True, kw_only=True)
class Other(fl.FedAvg):
    """FedAvg whose rounds do something else besides."""

    does: str = ""

    @fl.on_client
    def other(self, client: fl.Client[Any], w: fl.Weights) -> tuple[Any, fl.Weighted[fl.Weights]]:
        return client.state, client.weigh(fl.Weights(fl.Params({"other": w.params["bias"][:1]})), "uniform")

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        if self.does == "gathers":
            cohort.gather(self.local_update, self.down(w))
        if self.does == "asks nobody" or (self.does == "every other round" and cohort.round % 2):
            return w
        if self.does == "asks twice":
            super().round(w, cohort)
        if self.does == "other":
            cohort.reduce(self.other, w)
            return w
        if self.does == "fails":
            raise ValueError("no such thing")
        return super().round(w, cohort)


@pytest.mark.parametrize(
    ("does", "match"),
    [
        ("gathers", r"asks for each upload by itself \(gather\): take another method, such as FedAvg"),
        ("asks nobody", r"asks its clients 0 times in round 1"),
        ("every other round", r"asks its clients 0 times in round 2"),
        ("asks twice", r"asks its clients 2 times in round 1"),
        ("other", r"uploads a model in whose place none or several were sent"),
        (
            "fails",
            r"is tried on a few examples before .*, and Other fails: ValueError: no such thing; mend",
        ),
    ],
)
def test_what_a_method_does_besides_is_found(does: str, match: str) -> None:
    settings = fl.RunSettings(cohort_size=3)
    made = fl.Job(algorithm=Other(local=LOCAL, does=does), federation=federation(), model=linear, settings=settings)
    with pytest.raises(fl.SettingError, match=match):
        tried(made, mixes=False)
