"""Which methods can be private: all of the catalogue, each taken or refused with a reason, by what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.privacy.method_trial import shapes_of
from fedloom.testing import Subject
from small import ONE_SHOT
from test_battery import ALGORITHMS as CASES
from tiny import LOCAL

GATHERS = r"asks for each upload by itself \(gather\)"
NUMBERS = "uploads single numbers beside named tensors"
COUNTS = "uses who has answered, or how many"
REFUSED = {
    "fedexp": NUMBERS,  # the squared norm of each update
    "q_fedavg": NUMBERS,  # losses, by which it divides
    "fednova": NUMBERS,  # steps, by which it divides
    "fednova_released_uniform": NUMBERS,
    "fedcurv_uniform": COUNTS,
    "fedcurv": COUNTS,  # sums of Fisher information over those who answered
    "fedprox_stragglers": "sends a client what depends on the others of its round",
    "fedprox_dropped": "sends a client what depends on the others of its round",
    "apfl_ni": NUMBERS,  # losses, at which it waits for a plateau
    "apfl_ni_watches_everyone": NUMBERS,
    "centralised": "has the examples of all clients in one place",
} | dict.fromkeys(
    (
        "ifca", "ifca_three", "fedfomo", "fedproto", "fedproto_last_epoch", "feddf", "pfeddf",
        "feddf_uniform_losses", "feddf_validated", "fedbe", *ONE_SHOT, "dense_paper_several_uploads", "kt_pfl",
        "kt_pfl_weights", "sim_pfl", "topk_pfl", "fedmd", "fedmd_without_labels", "fedmd_kt",
    ),
    GATHERS,
)  # fmt: skip


def tried(algorithm: Any, **more: Any) -> Any:
    subject = Subject.of(algorithm)
    settings = fl.RunSettings(cohort_size=1, **more)
    return shapes_of(
        fl.Job(
            algorithm=subject.algorithm, federation=subject.population().federation, model=subject.models,
            settings=settings,
        )
    )  # fmt: skip


def test_every_method_is_here() -> None:
    assert ALGORITHMS.keys() <= CASES.keys()
    assert REFUSED.keys() <= CASES.keys()


@pytest.mark.some(12)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_method_is_taken_or_refused_with_the_reason(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(fl.SettingError, match=f"one in a round, and {type(CASES[name]).__name__} {REFUSED[name]}"):
            tried(CASES[name])
    else:
        assert bool(tried(CASES[name])) is (name != "local_only")  # which uploads nothing


@dataclass(frozen=True, kw_only=True)
class Counted(fl.FedAvg):
    """FedAvg that does what is in `does` besides."""

    does: str = ""

    @fl.on_client
    def counter(
        self, client: fl.Client[Any], w: fl.Weights
    ) -> tuple[Any, fl.Weighted[Annotated[fl.Params, "gradient"]]]:
        return client.state, client.weigh(fl.Params({"n": torch.ones((), dtype=torch.int64)}), "uniform")

    @fl.on_client
    def alone(self, client: fl.Client[Any], w: fl.Weights) -> tuple[Any, fl.Weighted[fl.Weights]]:
        return client.state, client.weigh(fl.Weights(fl.Params({"other": torch.ones(3)})), "uniform")

    @fl.on_client
    def numbers(self, client: fl.Client[Any], w: fl.Weights) -> tuple[Any, fl.Weighted[tuple[fl.Weights, Tensor]]]:
        return client.state, client.weigh((w, torch.ones(())), "uniform")

    @fl.on_client
    def placed(self, client: fl.Client[Any], w: fl.Weights, place: Tensor) -> tuple[Any, fl.Weighted[fl.Weights]]:
        return client.state, client.weigh(w, "uniform")

    @fl.on_client
    def nothing(self, client: fl.Client[Any], w: fl.Weights) -> tuple[Any, tuple[()]]:
        return client.state, ()

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        if self.does == "places":
            return cohort.reduce(self.placed, w, scatter=(torch.arange(len(cohort.ids)),)).mean  # type: ignore[no-any-return]
        if self.does == "fewer":
            cohort = cohort.only(cohort.ids[::2])
        if self.does == "told":
            return cohort.reduce(self.placed, w, torch.tensor(len(cohort.ids))).mean  # type: ignore[no-any-return]
        if self.does in ("counter", "alone", "numbers", "nothing"):
            _ = cohort.reduce(getattr(self, self.does), w).mean
        if self.does == "no mean":
            return w
        if self.does == "everyone":
            _ = cohort.everyone.reduce(self.local_update, w).mean
        if self.does == "second" and cohort.round == 1:
            _ = cohort.reduce(self.local_update, w).mean
        found = cohort.reduce(self.local_update, w)
        if self.does == "noted":
            cohort.note(answered=torch.tensor(len(found.cohort.ids)))
        if self.does == "more" and len(cohort.ids) > 2:
            _ = cohort.reduce(self.local_update, w).mean
        if self.does == "last" and cohort.round == 5:
            cohort.gather(self.local_update, w)
        if self.does == "counts":
            return w.towards(found.mean, 0.1 * len(found.cohort.ids))
        if self.does == "share":
            return w.towards(found.mean, found.share)
        return found.mean  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("counter", "uploads whole numbers"),
        ("numbers", NUMBERS),
        ("places", "sends a client what depends on the others of its round"),
        ("fewer", "sends a client what depends on the others of its round"),
        ("told", "sends a client what depends on the others of its round"),
        ("alone", "uploads a model in whose place none or several were sent"),
        ("nothing", "uploads nothing"),
        ("no mean", "takes 0 means in a round"),
        ("everyone", "asks clients that are not in the round"),
        ("second", "takes 2 means in a round"),
        ("noted", COUNTS),
        ("counts", COUNTS),
        ("more", "takes more means where more clients answer"),
        ("last", GATHERS),
    ],
)
def test_what_a_method_may_not_do(does: str, why: str) -> None:
    with pytest.raises(fl.SettingError, match=f"one in a round, and Counted {why}.*: take a method that averages"):
        tried(Counted(local=LOCAL, does=does), rounds=6)


def test_the_share_of_those_who_answered_is_the_expected_one() -> None:
    assert tried(Counted(local=LOCAL, does="share"))


def test_the_trial_of_a_method_that_fails_says_so() -> None:
    class Fails(fl.FedAvg):
        def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
            raise RuntimeError("no such thing")

    with pytest.raises(fl.SettingError, match=r"tried on a few examples .*, and Fails fails: .*no such"):
        tried(Fails(local=LOCAL))


def test_shapes_are_those_of_uploads() -> None:
    ((name, upload),) = tried(fl.Scaffold(local=LOCAL)).items()
    assert name == ("mlp", "local_update")
    y, dc = upload
    assert y.value.params["head.weight"].shape == dc.value["head.weight"].shape == (3, 8)
    assert not y.value.params["head.weight"].any()


def test_both_methods_of_one_that_changes_over_are_known() -> None:
    found = tried(fl.LGFedAvg(local=LOCAL, global_modules="head.*", pretrain_rounds=3), rounds=6)
    assert found.keys() == {("mlp", "pretrain"), ("mlp", "local_update")}
