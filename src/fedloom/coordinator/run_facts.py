"""Describe a run before its first round: what its documents say, and what must stay the same when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedloom.coordinator import chance, facts
from fedloom.coordinator.directory import initial_name
from fedloom.coordinator.history import Record
from fedloom.coordinator.job import Plan
from fedloom.coordinator.reading import FORMAT
from fedloom.coordinator.sampler import DeviceSampler
from fedloom.core.algorithm import Algorithm
from fedloom.core.fold.execution import threads
from fedloom.core.network_copies import stored_names
from fedloom.core.task_measures import measures_of
from fedloom.engines.engine import Engine
from fedloom.engines.population import Population
from fedloom.storage import codec
from fedloom.storage.files import digest_of, path_of


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run.

    Attributes:
        job: what was asked for.
        sampler: of the clients of each round.
        algorithm: as the engine runs it.
        engine: that computes clients.
        reason: why it was chosen.
        trained: the population that trains, one client where examples are pooled.
        fronts: frozen fronts that are computed once, in words, by architecture.
        num_threads: of PyTorch; None: as many as it chooses.
        stored_start: the file of weights as the run's manifest has it; empty for a new run.
    """

    job: Plan
    sampler: DeviceSampler
    algorithm: Algorithm[Any, Any]
    engine: Engine
    reason: str
    trained: Population
    fronts: Mapping[str, str]
    num_threads: int | None
    stored_start: Mapping[str, Any]

    def settings(self) -> Record:
        """Return how the run was asked for."""
        asked = {"algorithm": type(self.algorithm).__name__, "run": self.job.settings}
        return asked if self.job.described is None else dict(self.job.described)

    def known(self) -> Record:
        """Return the facts that a history has without a directory too."""
        job = self.job
        known = {"algorithm": type(self.algorithm).__name__, "hyper_parameters": self.algorithm}
        known |= {"task": job.population.task, "sampler": self.sampler, "faults": job.faults, "new": job.new}
        return known | self._attack() | self._front() | self._measures() | self.chance()

    def facts(self) -> Record:
        """Return what must be the same for a run to go on."""
        job, p = self.job, self.job.population
        frozen = {n: m for n, m in p.models.items() if m.num_frozen}
        count = torch.get_num_threads() if self.num_threads is None else self.num_threads
        return {
            "format": FORMAT,
            "algorithm": type(self.algorithm).__name__,
            "hyper_parameters": self.algorithm,
            "run": job.settings,
            "task": p.task,
            "sampler": self.sampler,
            "faults": job.faults,
            **self._attack(),
            **({} if job.new is None else {"new": job.new}),
            "engine": self.engine.name,
            "engine_reason": self.reason,
            "fixed": {"threads": count, **self.engine.fixed()},
            "models": {n: m.num_params for n, m in p.models.items()},
            **({"frozen": {n: m.num_frozen for n, m in frozen.items()}} if frozen else {}),
            **self._front(),
            "initial": self._initial(),
            **self._shared(),
            **self._measures(),
            "federation": facts.parts(p.federation),
            **({"code": job.code} if job.code else {}),
            "versions": facts.versions(),
        }

    def initial_files(self) -> dict[str, Any]:
        """Return the files that hold what networks with frozen parts begin with, by name, in pieces.

        With them a run needs nothing but its directory: no checkpoint has frozen tensors.
        """
        out = {}
        for i, name in enumerate(self.trained.models):
            model = self.job.population.models[name]
            if model.num_frozen:
                begins = self.engine.runtime.initial(name)
                tensors = {**begins.params, **begins.buffers, **model.frozen}
                out[initial_name(i)] = codec.pieces({n: tensors[n] for n in stored_names(model.skeleton())})
        return out

    def start(self) -> Record:
        """Return the file of weights that the run starts from, if words name one: `verify` looks whether it changed.

        Of a file that is gone, what the run has written of it before.
        """
        named = (self.job.described or {}).get("start")
        if named is None:
            return {}
        if self.stored_start.get("file") == str(named) and not path_of(named).is_file():
            return {"start": self.stored_start}
        return {"start": {"file": str(named), "digest": digest_of(path_of(named))}}

    def _shared(self) -> Record:
        """Return the names of the tensors that are shared, by architecture, where some stay with the clients."""
        initial = self.engine.runtime.initial
        named = {n: self.algorithm.shared_tensors(initial(n)) for n in self.trained.models}
        shared = {n: names for n, names in named.items() if names is not None}
        return {"shared": shared} if shared else {}

    def _initial(self) -> Record:
        """Return the digests of the weights that networks start from, by architecture."""
        with threads(self.num_threads):  # as in the run: some code that makes weights gives other bits else
            return {n: self.engine.runtime.digest(n) for n in self.trained.models}

    def _front(self) -> Record:
        return {"front": self.fronts} if self.fronts else {}

    def _attack(self) -> Record:
        """Describe who lies and how, where somebody does."""
        attack = self.job.attack
        if attack is None:
            return {}
        return {"attack": attack, "attackers": sorted(attack.attackers(self.job.population.num_clients))}

    def chance(self) -> Record:
        """Return the values of the run's measures for a model that looks at no input, by their names in records."""
        p, known = self.job.population, measures_of(self.job.population.task)
        return {"chance": chance.of_federation(p.federation, [known[name] for name in p.measures])}

    def _measures(self) -> Record:
        """Describe the measures of the records, the headline first, where these are more or others than accuracy."""
        p = self.job.population
        if p.measures == ("accuracy",):
            return {}
        known, shown = measures_of(p.task), ("name", "title", "meaning", "better", "unit")
        return {"measures": [{field: getattr(known[name], field) for field in shown} for name in p.measures]}
