"""Sentences of a report that stand by themselves."""

from __future__ import annotations

from typing import Any

from fedloom.report.sentences import describe_changes


def test_changes_of_devices_in_words() -> None:
    """Also where the file has been damaged: what is no event is left out."""
    whole: dict[str, Any] = {
        "shown": [0, 1, 2],
        "client_names": ["Kiel", "Ulm", "Bremen"],
        "events": [
            {"round": 4, "event": "came", "client": 2},
            {"round": 1005, "event": "removed", "client": 0},
            {"round": 1006, "event": "back", "client": 0},
            {"round": 7, "event": "renewed", "client": 101},
        ],
    }
    assert describe_changes(whole) == (
        "Devices changed: client Bremen came from round 4 on; client Kiel was removed from round 1,005 on; client Kiel "
        "was back from round 1,006 on; client 101 had other examples from round 7 on."
    )
    assert describe_changes({}) == describe_changes({"events": None}) == ""
    damaged = [3, {"round": "4", "event": "came", "client": 2}, {"round": 4, "event": "<b>", "client": 2}]
    assert describe_changes(whole | {"events": damaged}) == ""
    many = describe_changes(whole | {"events": whole["events"][:1] * 23})
    assert many.endswith("; client Bremen came from round 4 on; and 3 changes more.")
    assert many.count("came") == 20
