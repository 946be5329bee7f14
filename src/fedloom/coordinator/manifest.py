"""Describe a run before its first round: what its documents say, and what must stay the same when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedloom.coordinator import chance_level as chance, descriptions as facts
from fedloom.coordinator.assembly import Assembly
from fedloom.coordinator.directory import initial_name
from fedloom.coordinator.history import Record
from fedloom.coordinator.plan import Plan
from fedloom.coordinator.run_documents import FORMAT
from fedloom.core.averaging import Averaging
from fedloom.core.fold.execution import threads
from fedloom.core.network_copies import stored_names
from fedloom.core.task_measures import measures_of
from fedloom.storage import codec
from fedloom.storage.files import digest_of, path_of


@dataclass(frozen=True)
class Manifest:
    """Facts of a run.

    Attributes:
        assembly: what computes the run.
        stored_start: the file of weights as the run's manifest has it; empty for a new run.
    """

    assembly: Assembly
    stored_start: Mapping[str, Any]

    @property
    def job(self) -> Plan:
        return self.assembly.job

    def settings(self) -> Record:
        """Return how the run was asked for."""
        asked = {"algorithm": type(self.assembly.algorithm).__name__, "run": self.job.settings}
        return asked if self.job.described is None else dict(self.job.described)

    def known(self) -> Record:
        """Return the facts that a history has without a directory too."""
        job = self.job
        known = {"algorithm": type(self.assembly.algorithm).__name__, "hyper_parameters": self.assembly.algorithm}
        known |= {"task": job.population.task, "sampler": self.assembly.sampler, "faults": job.faults, "new": job.new}
        return known | self._attack() | self._front() | self._measures() | self.chance() | self._columns()

    def facts(self) -> Record:
        """Return what must be the same for a run to go on."""
        job, p = self.job, self.job.population
        frozen = {n: m for n, m in p.models.items() if m.num_frozen}
        count = torch.get_num_threads() if self.assembly.num_threads is None else self.assembly.num_threads
        return {
            "format": FORMAT,
            "algorithm": type(self.assembly.algorithm).__name__,
            "hyper_parameters": self.assembly.algorithm,
            "run": job.settings,
            "task": p.task,
            "sampler": self.assembly.sampler,
            "faults": job.faults,
            **self._attack(),
            **({} if job.new is None else {"new": job.new}),
            **({"parts": job.parts} if job.parts else {}),
            **({} if job.schedule is None else {"schedule": job.schedule}),
            "engine": self.assembly.engine.name,
            "engine_reason": self.assembly.reason,
            "fixed": {"threads": count, **self.assembly.engine.fixed()},
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
        for i, name in enumerate(self.assembly.trained.models):
            model = self.job.population.models[name]
            if model.num_frozen:
                begins = self.assembly.engine.runtime.initial(name)
                tensors = {**begins.params, **begins.buffers, **model.frozen}
                out[initial_name(i)] = codec.pieces({n: tensors[n] for n in stored_names(model.skeleton())})
        return out

    def beside(self) -> Record:
        """Return what the manifest says that may change when a run goes on."""
        return {**self._start(), **self.chance(), **self._columns()}

    def _columns(self) -> Record:
        """Describe the columns of the user's own parts."""
        columns = [vars(column) for column in self.assembly.parts.columns.values()]
        return {"columns": columns} if columns else {}

    def _start(self) -> Record:
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
        algorithm, initial = self.assembly.algorithm, self.assembly.engine.runtime.initial
        if not isinstance(algorithm, Averaging):
            return {}
        named = {n: algorithm.shared_tensors(initial(n)) for n in self.assembly.trained.models}
        shared = {n: names for n, names in named.items() if names is not None}
        return {"shared": shared} if shared else {}

    def _initial(self) -> Record:
        """Return the digests of the weights that networks start from, by architecture."""
        with threads(self.assembly.num_threads):  # as in the run: some code that makes weights gives other bits else
            return {n: self.assembly.engine.runtime.digest(n) for n in self.assembly.trained.models}

    def _front(self) -> Record:
        return {"front": self.assembly.fronts} if self.assembly.fronts else {}

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
