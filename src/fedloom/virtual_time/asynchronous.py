"""The setting `asynchrony`: rounds that do not wait for their cohort, on the virtual clock.

Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", OPT 2020, arXiv:1903.03934: the server mixes each model with
its own as it comes. Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022, arXiv:2106.06639: it adds the mean of the differences of as many as are in its
buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.sampler import Arriving, FixedList
from fedloom.core.errors import SettingError
from fedloom.core.grammar import arguments, by_name, find
from fedloom.engines.aggregators import LEAST, aggregator
from fedloom.evaluate.measure import Measure
from fedloom.virtual_time.asynchronous_trial import tried
from fedloom.virtual_time.clock import Clock
from fedloom.virtual_time.replayed_arrivals import Replayed
from fedloom.virtual_time.staleness import weight
from fedloom.virtual_time.training_costs import Cost, Work, costs_of
from fedloom.virtual_time.unwaited_devices import UnwaitedDevices, UploadsOfDevices
from fedloom.virtual_time.unwaited_versions import Ends, Seconds, Unwaited, UnwaitedByClock
from fedloom.virtual_time.uploads_under_way import UploadsUnderWay
from fedloom.virtual_time.virtual_rounds import VIRTUAL_SECONDS


@dataclass(frozen=True)
class Kind:
    """A kind of rounds that do not wait: how it is written, its number, and whether this must be whole."""

    form: str
    number: str
    whole: bool = False


KINDS = by_name(
    (Kind("fedbuff:size=10 or fedbuff:size=10,staleness=polynomial:0.5", "size", whole=True),
     Kind("fedasync:alpha=0.6 or fedasync:alpha=0.6,staleness=hinge:10:4", "alpha"),
     Kind("deadline:seconds=60 or deadline:seconds=60,staleness=constant", "seconds"))
)  # fmt: skip
_STALENESS = "polynomial:0.5"
_MEASURES = (
    VIRTUAL_SECONDS,
    Measure(
        "staleness", "Age of answers", "age",
        "Mean over the answers of a round of the versions that the model had moved while they were under way.",
        unit="", better=None, range=(0.0, None),
    ),
    Measure(
        "staleness_most", "Age of the oldest answer", "oldest age",
        "Versions that the model had moved while the oldest of a round's answers was under way.",
        unit="", better=None, range=(0.0, None),
    ),
    Measure(
        "under_way", "Clients under way", "under way", "Clients under way when a round ends.", unit="", better=None,
        range=(0.0, None),
    ),
)  # fmt: skip


def read(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a kind, and what stands behind it by key.

    Raises:
        SettingError: there is no such kind, a key is unknown or missing, or a number is out of range.
    """
    kind, (name, _, rest) = find("asynchrony", text, KINDS, before="none"), text.partition(":")
    keys: Mapping[str, Any] = {kind.number: int if kind.whole else float, "staleness": str, "arrivals": str}
    found = arguments(f"asynchrony = {name!r}", rest.replace(",", "&"), keys, kind.form) if rest else {}
    if kind.number not in found:
        raise SettingError(f"asynchrony {name!r} needs {kind.number}, got {text!r}: write {kind.form}")
    value = found[kind.number]
    if not (0 < value <= 1 if name == "fedasync" else value > 0):
        rule = "above 0 and at most 1" if name == "fedasync" else "1 or more" if kind.whole else "above 0"
        raise SettingError(f"{kind.number} of asynchrony is {rule}, got {value:g} in {text!r}: correct it")
    return name, found


class Asynchronous(Part):
    """Part of a run whose model moves before all clients of a cohort have answered.

    Simulated clients come by a clock, or as a log says; devices as they come.
    """

    columns: tuple[Measure, ...] = _MEASURES

    def __init__(self, text: str, clock: Clock | None, *, devices: bool = False) -> None:
        self.name, found = read(text)
        self.text, self.size, mixes = text, found.get("size", 1), self.name == "fedasync"
        ends = Ends(seconds=found["seconds"]) if self.name == "deadline" else Ends(size=self.size)
        self.cost = Cost(0, 0)  # of a client's exchange
        self._clock = clock
        age, share = weight(found.get("staleness", _STALENESS)), found.get("alpha", 1.0)
        self.schedule: Unwaited
        if clock is not None:
            self.schedule = UnwaitedByClock(ends, clock, self._seconds)
        elif devices:
            self.schedule = UnwaitedDevices(ends)
        else:
            self.schedule = Replayed(ends, Path(found["arrivals"]))
        kind = UploadsOfDevices if devices else UploadsUnderWay
        self._link = kind(self.schedule, age, mixes=mixes, share=share)  # type: ignore[arg-type]
        self.links = (self._link,)
        self.columns = _MEASURES if clock is not None else _MEASURES[1:]

    @classmethod
    def of(cls, job: Brief) -> Asynchronous:
        """Return the part of a run.

        Raises:
            SettingError: the setting is written otherwise, or there is no clock.
        """
        settings, devices = job.settings, job.federation.train.remote is not None
        text, clock = settings.asynchrony, settings.clock
        _, found = read(text)
        masks = settings.secure_aggregation
        for forbidden, why in (
            (
                devices and masks != "none",
                f"{text!r} weighs each upload by its age, got secure_aggregation = {masks!r}",
            ),
            (devices and clock != "none", f"devices take real time, got clock = {clock!r}"),
            (devices and "arrivals" in found, f"devices come as they do, got asynchrony = {text!r} with a log"),
            ("arrivals" in found and clock != "none", f"who comes is in the log (arrivals), got clock = {clock!r} too"),
        ):
            if forbidden:
                raise SettingError(f"{why}: leave it out")
        if devices or "arrivals" in found:
            return cls(text, None, devices=devices)
        if clock == "none":
            raise SettingError(
                f"asynchrony = {text!r} is by the virtual clock, and there is none: set clock, such as "
                "lognormal:example=0.01,spread=1,down=20,up=5 (--clock)"
            )
        return cls(text, Clock.of(clock, settings.seed, job.federation.num_clients))

    def check(self, job: Any) -> None:
        settings, there = job.settings, job.federation.num_clients
        sampler = job.sampler.sampler if isinstance(job.sampler, Arriving) else job.sampler
        rule = aggregator(settings.aggregator)
        needs = 0 if settings.aggregator == "mean" or self.name == "deadline" else max(LEAST, rule.needs)
        for forbidden, what, why in (
            (job.schedule is not None, f"schedule = {type(job.schedule).__name__}", "has a schedule of its own"),
            (isinstance(sampler, FixedList), "a list of the clients of each round",
             "draws who starts as places get free"),
            (settings.privacy != "none", f"privacy = {settings.privacy!r}",
             "has no rounds of whole cohorts to account for"),
            (settings.secure_aggregation != "none", f"secure_aggregation = {settings.secure_aggregation!r}",
             "weighs each upload by its age"),
            (settings.partial_sums, f"partial_sums = {settings.partial_sums}", "keeps each upload until it comes"),
            (settings.spares, f"spares = {settings.spares}", "waits for nobody whom one could replace"),
            (settings.deadline and self._clock is not None, f"deadline = {settings.deadline or 0:g}",
             "has virtual seconds, and the deadline of processes is of real ones"),
            (self._clock is not None and self._clock.deadline, f"clock = {settings.clock!r} with a deadline",
             "takes who comes late in a later round"),
            (settings.stateless or job.begun_parts.wants.states, "stateless = true", "moves states as answers come"),
            (self.size < needs, f"aggregator = {settings.aggregator!r}, which needs {needs} uploads",
             f"moves the model by {self.size} at a time"),
            (self.size > there, f"{there} clients", "takes as many answers of different clients"),
            (self.name == "fedasync" and any(not e.of_downloads for e in job.begun_parts.encoders),
             "compressed uploads", "mixes models, and encoders send differences (fedbuff takes these)"),
        ):  # fmt: skip
            if forbidden:
                raise SettingError(f"asynchrony = {self.text!r} {why}, got {what}: leave one of them out")
        self._link.blank = tried(job, mixes=self.name == "fedasync")
        if isinstance(self.schedule, Replayed):
            self.schedule.log.check(settings.rounds, there, settings.cohort_size)
        if self._clock is not None:
            (self.cost,) = costs_of(job).values()

    def _seconds(self, run: Running) -> Seconds:
        """Return what says how long a client trains from a version of the model."""
        assert self._clock is not None
        work, clock, cost = Work(run.engine, self._clock.by_flops), self._clock, self.cost

        def seconds(client: int, version: int) -> float:
            examples, steps, flops = work.of(client, version, cost)
            return clock.seconds(client, version, examples, steps, flops, cost.down, cost.up)

        return seconds

    @property
    def state(self) -> Any:
        return () if self._clock is None else {"files": torch.tensor(self._clock.files)}

    @state.setter
    def state(self, kept: Any) -> None:
        assert self._clock is not None
        self._clock.check_files(int(kept["files"]))

    def after(self, run: Running) -> Record:
        at = self.schedule.at
        moment = {} if self._clock is None else {"virtual_seconds": 0.0 if at is None else at.now}
        if run.done == 0 or at is None:
            return moment
        ages = at.ages
        return moment | {
            "staleness": sum(ages) / len(ages), "staleness_most": float(max(ages)), "under_way": float(len(at.left)),
        }  # fmt: skip

    def end(self, run: Running) -> Record:
        if isinstance(self._link, UploadsOfDevices):
            self._link.end()
        elif isinstance(self.schedule, Replayed):
            self.schedule.check_end(run)
        return {}
