"""What a record says of the clients and messages of a round."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from fedloom.coordinator.round_record import Clock, of_traffic, peak_rss_mib
from fedloom.engines.round_traffic import Traffic


def test_who_failed_where_and_what_travelled() -> None:
    lost = [SimpleNamespace(client=k, reason="gone", exchange=e) for k, e in ((3, 0), (5, 1))]
    traffic = Traffic(
        asked={2, 3, 5}, down=Counter({2: 10, 3: 4}), up=Counter({2: 7}), failed=lost, accepted=1,  # type: ignore[arg-type]
        kinds=Counter({"up_model": 7, "down_model": 14, "up_state": 0}), losses={5: 9.0, 2: 1.0},
        server_losses={"": 0.5}, noted={"mine": 3}, server_refused={"": "diverged", "mlp": "lost"},
    )  # fmt: skip
    assert of_traffic(traffic, [5, 2, 8, 3]) == {
        "clients": [5, 2, 3], "failed": {"3": "gone", "5": "gone"}, "failed_at": {"5": [1]},
        "server_refused": "diverged; mlp: lost", "train_loss": 1.0, "server_loss": 0.5, "mine": 3,
        "bytes_down": 14, "bytes_up": 7, "bytes_down_model": 14, "bytes_up_model": 7,
    }  # fmt: skip
    refused = of_traffic(Traffic(asked={1}, refused=1), [1])
    assert (refused["all_refused"], refused["train_loss"], refused["failed"]) == (1, None, {})


@pytest.mark.parametrize(("system", "unit"), [("linux", 1 << 10), ("darwin", 1 << 20), ("win32", None)])
def test_memory_is_told_in_mebibytes_whatever_the_system_counts_in(
    system: str, unit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3 * (unit or 1)))
    monkeypatch.setattr(sys, "platform", system)
    assert peak_rss_mib() == (None if unit is None else 3)


def test_a_lap_begins_where_the_last_one_ended() -> None:
    clock = Clock()
    clock._last -= 5
    clock.lap("first")
    clock.lap("second")
    assert 5 <= clock.laps["first"] < 6
    assert clock.laps["second"] < 1
