"""Central differential privacy of clients: the server clips uploads and adds noise to their sum.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
arXiv:1710.06963, with a fixed denominator (its estimator f_f) and a fixed clip norm; or with one that follows a
quantile of the norms: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
NeurIPS 2021, arXiv:1905.03871, whose noise on the count of clipped uploads is accounted for too (its theorem 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.sampler import Uniform
from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named
from fedloom.evaluate.measure import Measure
from fedloom.privacy import accountant
from fedloom.privacy.begun_rounds import write_down, written
from fedloom.privacy.clipped_sums import ClippedSums, Mechanism, Shapes
from fedloom.privacy.method_trial import shapes_of
from fedloom.privacy.privacy_kinds import NOT_NEGATIVE, POSITIVE, check_delta, wanted
from fedloom.privacy.secret_draws import Poisson
from fedloom.privacy.told_beside import told_beside

_FIRST = 0.1  # clip norm with which an adaptive one begins, the paper's
_BEGUN = "rounds_begun.txt"  # of a run with devices, beside its records
_KEYS = {"epsilon": float, "noise": float, "delta": float, "clip": str}
_ADAPTIVE = Named(("adaptive:QUANTILE",), float, (float,))


@dataclass(frozen=True)
class Asked:
    """Privacy as it was asked for: one of `epsilon` and `noise`, and of a clip norm and a quantile that it follows."""

    delta: float
    epsilon: float | None
    noise: float | None
    clip: float
    quantile: float | None

    @classmethod
    def read(cls, text: str) -> Asked:
        """Return what a text asks for.

        Raises:
            SettingError: something is missing, said twice or out of range.
        """
        rules = {"epsilon": POSITIVE, "noise": NOT_NEGATIVE, "delta": POSITIVE}
        found = wanted(text, _KEYS, "central:epsilon=4,delta=1e-5,clip=0.5", rules)
        return cls(found["delta"], found.get("epsilon"), found.get("noise"), *_clip(found["clip"], text))


def _clip(text: str, whole: str) -> tuple[float, float | None]:
    """Return the clip norm that a run begins with, and the quantile that it follows, if it does."""
    if text.partition(":")[0] == "adaptive":
        (quantile,) = _ADAPTIVE.values("clip", text, whole)
        if not 0 < quantile < 1:
            raise SettingError(
                f"a clip norm follows a quantile above 0 and below 1, got {quantile:g} in {whole!r}: write adaptive:0.5"
            )
        return _FIRST, quantile
    try:
        norm = float(text)
    except ValueError:
        norm = math.nan
    if not 0 < norm < math.inf:
        raise SettingError(
            f"clip of privacy is a norm above 0, or adaptive:QUANTILE, got {text!r} in {whole!r}: write clip=0.5"
        )
    return norm, None


class Central(Part):
    """Private means of what clients upload, and the epsilon of their rounds so far."""

    def __init__(self, asked: Asked, job: Brief) -> None:
        settings, there = job.settings, job.federation.num_clients
        self.asked, self.text, self.rounds = asked, settings.privacy, settings.rounds
        self.simulated = job.federation.train.remote is None
        self.rate = settings.cohort_size / there
        self.expected = float(settings.cohort_size)
        self.seed = settings.seed if self.simulated else None
        self.sampler = Poisson(self.rate, self.seed)
        self.shapes: Shapes = {}
        self.begun = 0  # rounds
        self.state = {"noise": _number(0.0), "clip": _number(asked.clip)}
        self.links = (ClippedSums(self.mechanism, self.clip_by),)
        of, source = (" of a simulation", "the run's seed") if self.simulated else ("", "the system's entropy")
        self.columns = (
            Measure(
                "epsilon",
                f"Epsilon{of}",
                f"epsilon{of}",
                f"(epsilon, {asked.delta:g})-differential privacy of clients so far, of the means of their uploads, "
                f"with noise of {source}; {told_beside(job, losses=True)}.",
                unit="",
                better="low",
                range=(0.0, None),
            ),
            *(
                [
                    Measure(
                        "clip_norm", "Clip norm", "clip norm", "Norm to which the next uploads are clipped.", "", None
                    )
                ]
                if asked.quantile is not None
                else []
            ),
        )

    @classmethod
    def of(cls, job: Brief) -> Central:
        return cls(Asked.read(job.settings.privacy), job)

    def mechanism(self) -> Mechanism:
        """Return what happens to uploads in the next round."""
        return Mechanism(
            shapes=self.shapes, rate=self.rate, seed=self.seed, quantile=self.asked.quantile,
            clip=float(self.state["clip"]), noise=float(self.state["noise"]), expected=self.expected,
        )  # fmt: skip

    def clip_by(self, norm: float) -> None:
        """Clip the uploads of later rounds to this norm."""
        self.state = {**self.state, "clip": _number(norm)}

    def check(self, job: Any) -> None:
        settings, there = job.settings, job.federation.num_clients
        check_delta(self.asked.delta, there)
        for forbidden, what, why in (
            (job.sampler is not None and type(job.sampler) is not Uniform, f"sampler = {job.sampler!r}",
             "draws each client by itself with the same probability, on which epsilon rests"),
            (job.schedule is not None, f"schedule = {type(job.schedule).__name__}", "counts rounds that it draws"),
            (settings.spares, f"spares = {settings.spares}", "draws each client by itself, so nobody has a place"),
            (settings.aggregator != "mean", f"aggregator = {settings.aggregator!r}", "makes the mean itself"),
            (settings.partial_sums, f"partial_sums = {settings.partial_sums}", "clips each upload"),
            ("median" in settings.bound, f"bound = {settings.bound!r}",
             "takes each upload whatever the others are, and a median is of all"),
        ):  # fmt: skip
            if forbidden:
                raise SettingError(f"privacy = {self.text!r} {why}, got {what}: leave one of them out")
        accountant.check_installed()
        self.shapes = shapes_of(job)
        found = self.asked.noise
        if found is None:
            found = accountant.noise_for(self.asked.epsilon or 0.0, self.rounds, self.rate, self.asked.delta)
        self.state = {**self.state, "noise": _number(found)}

    def begin(self, run: Running) -> None:
        self.begun = run.done if self.simulated else len(written(run, _BEGUN))

    def before(self, run: Running) -> None:
        """Write down that a round begins: with devices it is computed anew with other noise where it is lost."""
        self.begun += 1
        if self.simulated:
            return
        if self.asked.epsilon is not None and self._epsilon(self.begun) > self.asked.epsilon:
            raise SettingError(
                f"rounds that were lost count too, and round {run.done + 1} would be the {self.begun}th with epsilon = "
                f"{self._epsilon(self.begun):.4g}, beyond the {self.asked.epsilon:g} that were asked for: the run ends "
                f"with round {run.done}"
            )
        write_down(run, _BEGUN, run.done + 1)

    def after(self, run: Running) -> Record:
        record: Record = {"epsilon": self._epsilon(self.begun)}
        return record if self.asked.quantile is None else record | {"clip_norm": float(self.state["clip"])}

    def stop(self, run: Running, record: Record | None) -> str | None:
        most = self.asked.epsilon
        if most is None or self._epsilon(self.begun + 1) <= most:
            return None
        return (
            f"epsilon is {self._epsilon(self.begun):.4g} after {run.done} rounds, and one more would pass the {most:g} "
            "that were asked for"
        )

    def _epsilon(self, rounds: int) -> float:
        return accountant.epsilon(rounds if self.shapes else 0, self.rate, float(self.state["noise"]), self.asked.delta)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
