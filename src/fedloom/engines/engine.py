"""Do for a run what every engine does: rounds, evaluation of personal models, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import NobodyAnswered, NonFiniteError, StackingError
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.network_makers import own_defaults
from fedloom.core.task_measures import Sum, measures_of
from fedloom.core.types import Weights
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.engine_options import Options
from fedloom.engines.message import EVALUATING, GIVEN, Call, EvaluationResult, HeldOutSplit, Split
from fedloom.engines.non_finite import REMEDY, at_batch, finite, first_bad_loss
from fedloom.engines.round_traffic import Traffic
from fedloom.engines.server_side import ServerSide
from fedloom.storage.files import File
from fedloom.storage.store import ClientStore


class Engine(ServerSide):
    """Interface that runs the clients of a population; knows no algorithm by name."""

    # ---- what a run asks of an engine

    @own_defaults()
    def round(
        self, server: dict[str, Any], clients: Sequence[int], round: int, *, joins: bool = False
    ) -> dict[str, Any]:
        """Run one round with these clients, and return the new server states.

        `self.traffic` then tells of this round; where it `joins`, of what was computed of the same round before too.
        """
        if not joins:
            self.traffic = Traffic(travels=self.population.travels)
        self.states.version = round + 1
        cohort = AskedCohort(self, tuple(sorted(map(int, clients))), round)  # its order carries no meaning
        groups = {"": cohort} if self.algorithm.requires.mixed else {str(g.architecture): g for g in cohort.groups}
        if self.chain.always:
            groups = {name: AskedCohort(self, (), round, architecture=name) for name in server if name} | groups
        after = {**server, **{name: self._moved(name, server[name], group) for name, group in groups.items()}}
        self.norms.end_round()
        self.chain.end_round(cohort.clients)
        return after

    def evaluate_counts(
        self, server: dict[str, Any], clients: Sequence[int], round: int, held_out: HeldOutSplit = "test"
    ) -> dict[int, tuple[Any, int]]:
        """Return (sum, examples) of each client's personal model after `round` on its held-out examples.

        The sum is that of the first measure that is one: right answers, squared errors.
        """
        p, found = self.population, self.evaluate(server, clients, round, held_out)
        known = measures_of(p.task)
        name = next(name for name in p.measures if isinstance(known[name], Sum))
        return {k: (result.sums[name].tolist(), int(result.examples)) for k, result in found.items()}

    def evaluate(
        self, server: dict[str, Any], clients: Sequence[int], round: int, split: Split = "test"
    ) -> dict[int, EvaluationResult]:
        """Return how good each client's personal model is after `round`.

        Losses and training rows are measured where "all" are evaluated.
        """
        return self._evaluate(server, clients, round, split)

    def evaluate_models(
        self, models: Mapping[str, Weights], clients: Sequence[int], round: int, split: Split = "test"
    ) -> dict[int, EvaluationResult]:
        """Return the same as `evaluate` for one model of each architecture, shared by all its clients."""
        return self._evaluate(models, clients, round, split, GIVEN)

    def personal(self, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[int, Weights]:
        """Return the models by which clients are evaluated after `round`."""
        return self._evaluate(server, clients, round, None)

    def fixed(self) -> dict[str, Any]:
        """Return what is chosen once for a run because results depend on it in the last bit."""
        rows: dict[str, Any] = {"rows": [*self.keys.rows]} if self.keys.rows else {}
        rows |= {"pools": [*self.keys.pools]} if self.keys.pools else {}
        o = self.options
        rows |= {"partial_sums": o.partial_sums} if o.partial_sums else {}
        rows |= {name: kept for name in ("encoders", "gradients") if (kept := getattr(o, name))}
        return {"engine": self.name, "compilation": o.compilation, "bf16": o.bf16, **rows}

    def variant(self, algorithm: Algorithm[Any, Any], options: Options | None = None) -> Engine:
        """Make the same engine for another algorithm or with other options, with no states; traced steps are shared."""
        return type(self)(self.population, algorithm, options or self.options, programs=self.runtime.programs)

    @classmethod
    def only_computes(cls) -> bool:
        """Return whether this process computes clients for another one, which runs the rounds.

        Raises:
            SettingError: it was not launched as this engine needs it.
        """
        return False

    def serve(self) -> None:  # most are alone
        """Compute clients for the process that runs the rounds, until these are over."""

    def open(self) -> None:  # most need nobody
        """Begin to ask processes that were launched for this run; without this call, clients are computed here."""

    def decliners(self, round: int, clients: Sequence[int]) -> dict[int, str]:
        """Return those of some clients that would decline to take part in a round, and why."""
        faults = self.options.faults
        reasons = {} if faults is None else {k: faults(round, 0, k) for k in clients}
        return {k: why for k, why in reasons.items() if why == "declined"}

    def close(self) -> None:  # most have started nothing
        """End what the engine has started; it can be used again."""

    # ---- checkpoints

    def keep_states(self, budget: int | None, folder: Path | None) -> None:
        """Begin with no states; those beyond `budget` bytes go to files of `folder` (None: a temporary one)."""
        self.states = ClientStore(budget, folder)

    def save(self) -> dict[int, File]:
        """Write the states that moved since the last time, and return the file of each client's newest state.

        The files are safely on disk.
        """
        return self.states.save()

    def restore(self, folder: Path, written: Mapping[int, File], budget: int | None) -> None:
        """Go back to the states of a checkpoint, which are in files of `folder` and are read when asked for.

        `budget`: as for `keep_states`; with None nothing is ever written.
        """
        self.states = ClientStore(budget, folder)
        self.spare(file.name for file in written.values())
        self.states.restore(written, self.fresh)

    def spare(self, names: Iterable[str]) -> None:
        """Delete no file of a state that has one of these names: checkpoints name them."""
        self.states.protected = set(names)

    def _keep_rows(self) -> None:
        for keys, rows, round in self.kept:
            self.states.offer(keys, rows, (round, 0))
            self.states.accept(keys)

    def _moved(self, name: str, before: Any, cohort: AskedCohort) -> Any:
        """Return the server state of one architecture after its round; the one before, if the new one is rejected."""
        for mine in (self.kept, self.noted, self.to_judge):
            mine.clear()
        with executing(Execution()) as own:  # of what the server trains itself
            try:
                after = self.algorithm.round(before, cohort)
            except NobodyAnswered as error:
                self.traffic.unanswered[name] = str(error)
                return before
        if not tree.same_structure(before, after):
            raise StackingError(
                f"round of {type(self.algorithm).__name__} must return a server state like the one that init makes, "
                f"of its structure, shapes and types, got {tree.unlike(after, before)}"
            )
        losses = tuple(t.expand(1, -1) for t in own.losses)
        problem = first_bad_loss(losses, tuple(map(tuple, own.steps))).get(0)
        if problem is not None:
            problem = problem[0], f"{problem[1]} in its own training"
        elif not finite(after):
            problem = None, "its own state is not finite"
        elif not finite([rows for _, rows, _ in self.kept]):
            problem = None, "what it keeps of its clients is not finite"
        else:
            self._keep_rows()
            several = not self.algorithm.requires.mixed and len(self.population.models) > 1
            for found, all_of_them in ((self.noted, self.traffic.noted), (self.to_judge, self.traffic.to_judge)):
                all_of_them.update({f"{key}_{name}" if several else key: value for key, value in found.items()})
            if losses:
                self.traffic.server_losses[name] = float(losses[-1].double().mean())
            return after
        batch, what = problem
        if self.options.on_nonfinite == "stop":
            raise NonFiniteError(what + REMEDY, client=None, round=cohort.round + 1, batch=batch)
        self.traffic.server_refused[name] = at_batch(what, batch)
        return before

    @own_defaults()
    def _evaluate(
        self,
        server: Mapping[str, Any],
        clients: Sequence[int],
        round: int,
        split: Split | None,
        method: str = "personal",
    ) -> dict[int, Any]:
        """Return the results of clients for an evaluation payload, without consequences.

        No state moves, no byte counts, no client is lost, and random draws are used for nothing else. Clients without
        examples to evaluate on are left out.
        """
        out: dict[int, Any] = {}
        rate, mixed = self.algorithm.local.rate(round), self.algorithm.requires.mixed
        for group in AskedCohort(self, tuple(map(int, clients)), round).groups:
            name = str(group.architecture)
            if method == GIVEN:
                sent = server[name]
            else:
                sent = self.algorithm.evaluation_payload(server["" if mixed else name], group.model)
            if not (tree.leaves(sent) or self.algorithm.personalises):
                continue  # another architecture's alone is global, and these clients have nothing of their own
            call = Call(method, (sent,), round, EVALUATING, rate, split)
            for request, _, answer in self.answers(call, sorted(group.clients), lambda ids: ()):
                out.update({k: tree.take(answer.upload, i) for i, k in enumerate(request.clients)})
        return out
