"""Replay of a run of devices that did not wait: a simulation in which clients start and come as its log says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedloom.coordinator.part import Running
from fedloom.core.errors import SettingError
from fedloom.storage.codec import digest
from fedloom.virtual_time.arrivals_log import NAME, ArrivalsLog
from fedloom.virtual_time.unwaited_versions import Course, Ends, UnderWay, Unwaited, Version


class Replayed(Unwaited):
    """Rounds that do not wait, as a log has them.

    Args:
        ends: when the model moved.
        run: folder of the run of devices.

    Raises:
        SettingError: there is no log.
    """

    def __init__(self, ends: Ends, run: Path) -> None:
        super().__init__(ends)
        path = run / NAME
        if not path.is_file():
            raise SettingError(
                f"{path} is written by a run of devices that does not wait, and is not there: name the folder of such "
                "a run (arrivals=RUN)"
            )
        self.log = ArrivalsLog(path)

    def course(self, run: Running, places: int) -> Course:
        return _Logged(self.log, run, places)

    def check_end(self, run: Running) -> None:
        """Raise SettingError if the run has come to another state than the devices' run had after as many rounds."""
        moment = self.log.moments.get(run.done)
        if model := self.log.ends.get(run.done, moment and moment.model):
            _check(model, run, run.done)


class _Logged:
    """Clients that start and come as a log says."""

    def __init__(self, log: ArrivalsLog, run: Running, places: int) -> None:
        self.log, self.run, self.places = log, run, places

    def version(self, number: int, under_way: Mapping[int, UnderWay], now: float, order: Iterator[int]) -> Version:
        moment = self.log.moments[number]
        _check(moment.model, self.run, number)
        return moment.after(under_way, self.places)


def _check(model: str, run: Running, number: int) -> None:
    """Raise SettingError if the server's state is not that which the log has of a version."""
    if (found := digest(run.server)) != model:
        raise SettingError(
            f"version {number} of the model has other bits than the log says, {found[:8]} and not {model[:8]}: take "
            "the settings of that run, the data of its devices in the order of devices.json, and the same packages on "
            "a processor of the same kind (--engine loop --threads 1)"
        )
