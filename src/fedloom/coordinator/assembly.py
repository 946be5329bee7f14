"""Assembly of a run from its plan: the engine, built once, with the data, the algorithm and the parts of the run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedloom.coordinator.cached_fronts import Frame, settled
from fedloom.coordinator.engine_choice import check_used, choose, choose_compilation
from fedloom.coordinator.evaluation import Evaluation, panel_of
from fedloom.coordinator.part import Parts, encoders_of, gradients_of
from fedloom.coordinator.plan import Plan
from fedloom.coordinator.sampler import DeviceSampler, Uniform
from fedloom.coordinator.schedule import Schedule
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.thread_count import choose_threads
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError
from fedloom.engines.attacks import poisoned
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import FaultsInWords
from fedloom.engines.message import EVALUATION
from fedloom.engines.population import Population

_AT_NO_TIME = 1 << 62  # a round that no run has


@dataclass(frozen=True)
class Assembly:
    """All that computes a run.

    Attributes:
        job: what was asked for.
        algorithm: as the engine runs it.
        trained: the population that trains, one client where examples are pooled.
        engine: that computes clients.
        reason: why it was chosen.
        num_threads: of PyTorch; None: as many as it chooses.
        fronts: frozen fronts that are computed once, in words, by architecture.
        parts: of the run.
        evaluation: measures models for them.
        sampler: of the clients of each round, as it was asked for.
        schedule: says who is asked when.
    """

    job: Plan
    algorithm: Algorithm[Any, Any]
    trained: Population
    engine: Engine
    reason: str
    num_threads: int | None
    fronts: Mapping[str, str]
    parts: Parts
    evaluation: Evaluation
    sampler: DeviceSampler
    schedule: Schedule


def assemble(job: Plan, stored: Mapping[str, Any], *, trains: bool = True) -> Assembly:
    """Return what computes a run.

    Args:
        job: what was asked for.
        stored: the manifest of a run that was started before, whose fixed choices are used again; empty for a new one.
        trains: whether rounds are computed with it, so that it pays to compute frozen fronts first.

    Raises:
        SettingError: no engine can compute it.
    """
    population, settings, who = job.population, job.settings, job.trainees
    fixed, parts = stored.get("fixed", {}), job.begun_parts.copied()
    algorithm, cohort_size, trained = who.algorithm, who.cohort_size, who.population(population)
    kind, reason = choose(stored.get("engine", settings.engine), trained, algorithm.training, cohort_size)
    count = fixed.get("threads", settings.threads)
    num_threads = choose_threads(kind, algorithm, trained, cohort_size) if count is None else count
    check_used(settings.engine, kind, settings.chunk, settings.workers, settings.deadline)
    form = settings.compilation
    if form == "auto":
        form = fixed.get("compilation") or choose_compilation(
            kind, trained, algorithm.training, cohort_size, settings.rounds
        )
    named = {f.name for f in fields(Options)} & {f.name for f in fields(settings)}
    options = Options(
        **{name: getattr(settings, name) for name in named - {"compilation", "aggregator"}},
        compilation=form,
        chunks=fixed.get("chunks"),
        absent=parts.absent,
        faults=None if who.faults is None else FaultsInWords(who.faults),
        attack=who.attack,
        aggregator=who.aggregator,
        links=parts.links,
        encoders=parts.encoders,
        gradients=next(filter(None, (part.gradients for part in parts.all)), None),
        counts_states=settings.stateless or parts.wants.states,
        works=parts.wants.trained,
    )
    if kind.elsewhere:
        _check_devices(options, settings)
    panel = panel_of(population, settings.panel, parts.held_out)
    examples, fronts = population, dict[str, str]()
    if trains:
        examples, fronts = settled(job, Frame(kind, options, algorithm, trained, panel, cohort_size, num_threads))
    if examples is not population:
        trained = who.population(examples)
    if options.attack is not None:
        trained = poisoned(trained, options.attack)
    engine: Engine = kind(trained, algorithm, options)
    engine.fleet = job.fleet
    never, whole = parts.held_out & parts.absent(_AT_NO_TIME), settings.per_client or settings.evaluate_training
    return Assembly(
        job=job, algorithm=algorithm, trained=trained, engine=engine, reason=stored.get("engine_reason", reason),
        num_threads=num_threads, fronts=fronts, parts=parts,
        evaluation=Evaluation(algorithm, examples, engine, panel, never, whole),
        sampler=parts.sampler or job.sampler or Uniform(settings.seed),
        schedule=copy.deepcopy(job.schedule) or parts.schedule or Schedule(),
    )  # fmt: skip


def _check_devices(options: Options, settings: RunSettings) -> None:
    """Raise SettingError where clients elsewhere would have to know more than settings, or to import code."""
    own = [type(e).__name__ for e in options.encoders] if options.encoders != encoders_of(settings) else []
    own += [type(options.gradients).__name__] if options.gradients != gradients_of(settings) else []
    own += [name for name in options.works if name != EVALUATION]
    if own:
        raise SettingError(
            f"devices know a run by its settings and import no code that a server names, and {own[0]} of a part of "
            "one's own is for clients: leave the part out, or simulate it with fedloom run"
        )
