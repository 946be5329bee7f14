"""Try a method on one batch before the first run of several, so that its mistakes show in seconds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from fedloom.coordinator.job import Job
from fedloom.coordinator.part import Part
from fedloom.coordinator.rounds import Coordinator
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import FedloomError, NonFiniteError, SettingError, first_line
from fedloom.evaluate.measure import HEADLINE


def try_round(job: Job, parts: Sequence[Part] = (), *, each: str = "method of a comparison", which: str = "") -> None:
    """Compute a job's first round with one batch for each client, one by one in this process; nothing is written.

    `parts`: of one's own, in the place of the job's. `each`, `which`: in an error, what is tried, and which of them it
    is (the name of the algorithm).

    Devices are asked nothing, and of a method that trains on the server, which has no small round, nothing is computed.
    Nor is anything said of a loss that is not finite: whether a run that diverges stops others is not decided here.

    Raises:
        SettingError: the method's code fails.
    """
    if job.federation.train.remote is not None or job.algorithm.requires.server_training:
        return
    settings = replace(job.settings, engine="auto", monitor=HEADLINE, target=None, patience=None).for_debugging()
    made = replace(
        job, settings=settings, algorithm=_short(job.algorithm), faults=None, attack=None, parts=parts, schedule=None
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come with the run
            one = Coordinator(made, trains=False)
            with one.threads(), closing(one.engine):
                one.running.server = one.engine.init()
                one.run_round()
    except NonFiniteError:
        return
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"every {each} is tried on one batch before the first run begins, and "
            f"{which or type(job.algorithm).__name__} fails: {what}; mend it, or leave it out"
        ) from (error.__cause__ or error)


def _short(algorithm: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    """Return the same with one step for each client; with one epoch, where it takes no steps."""
    try:
        return replace(algorithm, local=replace(algorithm.local, steps=1))
    except SettingError:
        return replace(algorithm, local=replace(algorithm.local, epochs=1))
