"""Names of before work with a warning that names today's, in classes of one's own and in calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import pytest

import fedloom as fl
from fedloom import coordinator
from fedloom.core.renamed import OF_ALGORITHM
from fedloom.engines.cohort import AskedCohort


def test_every_old_name_leads_to_todays() -> None:
    one = fl.FedAvg()
    for old, new in OF_ALGORITHM.items():
        assert hasattr(fl.Algorithm, new)
        with pytest.warns(FutureWarning, match=f"{old} of FedAvg is called {new}: rename it, the old name goes in 0.3"):
            found = getattr(one, old)
        assert found == getattr(one, new)


def test_old_names_of_a_room_lead_to_todays() -> None:
    with pytest.warns(FutureWarning, match=r"Past of fedloom\.coordinator is called RoundReplay: rename it, the old"):
        assert coordinator.Past is coordinator.RoundReplay  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'fedloom\.coordinator' has no attribute 'Future'"):
        _ = coordinator.Future  # type: ignore[attr-defined]


def test_old_names_of_cohorts_and_histories() -> None:
    history = fl.History("fedavg", metrics=[{"round": 0, "global_accuracy": 0.5}])
    with pytest.warns(FutureWarning, match="readings of History is called summaries"):
        assert history.readings("global_accuracy") == history.summaries("global_accuracy")  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning, match="judge of AskedCohort is called evaluate"):
        assert AskedCohort.judge is AskedCohort.evaluate  # type: ignore[attr-defined]


def test_a_class_of_before_runs_as_one_of_today() -> None:
    with pytest.warns(FutureWarning) as caught:

        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Before(fl.FedAvgFT):
            personal_trains: ClassVar[bool] = True

            @property
            def fewest_logits(self) -> int:
                return 7

            def suited(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
                return super().suited(federation, models)

            def judged_with(self, server: fl.Weights, model: fl.Model) -> Any:
                return super().judged_with(server, model), "and more"

    names = {str(w.message).split()[0] for w in caught}
    assert names == {"fewest_logits", "judged_with", "personal_trains", "suited"}
    made: Any = Before()
    assert (made.min_logits, made.trains_for_evaluation, made.personalises) == (7, True, True)
    with pytest.warns(FutureWarning, match="judged_with of Before is called evaluation_payload"):
        payload, more = made.evaluation_payload(fl.Weights(params=fl.Params()), None)
    assert isinstance(payload, fl.Weights)
    assert more == "and more"


def test_super_is_the_class_above_whatever_the_name() -> None:
    class Middle(fl.FedAvg):
        @property
        def min_logits(self) -> int:
            return 5

    class Last(Middle):
        @property
        def min_logits(self) -> int:
            return 1 + int(super().fewest_logits)  # type: ignore[misc]

    with pytest.warns(FutureWarning):
        assert Last().min_logits == 6


def test_a_class_that_is_made_again_or_is_for_both_versions_means_todays_name() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True, slots=True)  # which makes it twice
    class Slotted(fl.FedAvg):
        @property
        def min_logits(self) -> int:
            return 4

    assert Slotted().min_logits == 4
    with pytest.warns(FutureWarning, match="fewest_logits of Both is called min_logits"):

        class Both(fl.FedAvg):
            min_logits = property(lambda self: 4)
            fewest_logits = property(lambda self: 3)

    assert Both().min_logits == 4


# ---- settings of a run


def test_bounds_of_a_run_work_by_their_old_names() -> None:
    """In Python and in a file of settings; `none` of an older run's settings.json is warned of by nobody."""
    old = {
        "norm_bound = 10": ({"norm_bound": 10}, "refuse:sent:10"),
        "median_bound = 2.5": ({"median_bound": 2.5}, "refuse:median:2.5"),
        "aggregator = clip": ({"aggregator": "clip"}, "clip:median:1"),
        "aggregator = clip:0.1": ({"aggregator": "clip:0.1"}, "clip:0.1"),
    }
    for said, (given, bound) in old.items():
        words = f"{said} is written bound = '{bound}' now: rename it, the old name goes in 0.3"
        for make in (
            lambda given=given: fl.RunSettings(**given),
            lambda given=given: fl.Experiment.of({"run": given}).run,
        ):
            with pytest.warns(FutureWarning) as caught:
                made = make()
            assert [str(w.message) for w in caught] == [words]
            assert (made.bound, made.aggregator) == (bound, "mean")
            assert dataclasses.replace(made, rounds=3).bound == bound
    older = {"run": {"norm_bound": None, "median_bound": None, "aggregator": "median"}}
    assert (fl.Experiment.of(older).run.bound, fl.Experiment.of(older).run.aggregator) == ("none", "median")


def test_of_several_old_bounds_one_stays_and_beside_todays_name_none() -> None:
    def bound(section: dict[str, Any]) -> str:
        with pytest.warns(FutureWarning):
            return fl.Experiment.of({"run": section}).run.bound

    assert bound({"norm_bound": 10.0, "median_bound": 5.0}) == "refuse:median:5.0"
    assert bound({"median_bound": 5.0, "aggregator": "clip"}) == "clip:median:1"
    assert bound({"norm_bound": 3, "median_bound": None}) == "refuse:sent:3"
    assert bound({"median_bound": 5, "bound": "refuse:median:5"}) == "refuse:median:5"
    words = "one bound, got bound = 'clip:1' and median_bound, which is bound = 'refuse:median:5' now: leave median"
    with pytest.warns(FutureWarning), pytest.raises(fl.SettingError, match=words):
        fl.RunSettings(median_bound=5, bound="clip:1")
