"""What a server knows of its devices by the events that it hears, and the lines that its log has of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedloom.deploy import presence
from fedloom.deploy.presence import AGAIN, LINES, STRANGERS, Presence
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.audit_log import Audit
from fedloom.ranks.communication import UNLISTED

KIEL, BONN = "a" * 32, "b" * 32


class Heard:
    """A presence whose clock is set by hand, the audit log that it hears, and the lines that it says."""

    def __init__(self, path: Path | None = None, begun: bool = True) -> None:
        self.now, self.said = 1000.0, list[str]()
        self.presence = Presence(self.said.append, 20, "0.2.0", lambda: self.now)
        self.audit = Audit(path, self.presence.hear)
        self.audit.names = {KIEL: "Kiel"}
        if begun:
            self.join()
            self.presence.expect([Registration(KIEL, (9,), (3,), (0,), (4,), "float32", name="Kiel")])

    def join(self) -> None:
        self.audit("joined", KIEL, client=0, examples=9, model="logistic", fedloom="0.2.0")

    @property
    def kiel(self) -> dict[str, Any]:
        return next(each for each in self.presence.snapshot()["devices"] if each["id"] == KIEL)

    @property
    def lines(self) -> list[str]:
        """The lines so far, without their time."""
        return [line.split("  ", 1)[1] for line in self.said]


def test_what_a_device_is_asked_and_answers_is_counted() -> None:
    """Seconds are of all exchanges of its last round; bytes of all rounds."""
    its = Heard()
    assert its.kiel["seconds"] is its.kiel["round"] is None
    for start, round in ((1010.0, 0), (1020.0, 0), (1030.0, 1)):
        its.presence.round, its.now = round, start
        its.audit.tell("asked", KIEL, bytes=100)
        its.now = start + 2.25
        its.audit.tell("heard", KIEL, bytes=40)
        assert its.kiel["seconds"] == (4.5 if start == 1020 else 2.25)
        assert its.kiel["round"] == round + 1
        its.audit("answered", KIEL, round=round + 1)
    assert (its.kiel["sent"], its.kiel["received"], its.kiel["answered"]) == (300, 120, 3)
    assert (its.kiel["since"], its.kiel["heard"], its.kiel["state"]) == (1000.0, 1032.25, "connected")
    assert (its.kiel["examples"], its.kiel["client"], its.kiel["name"], its.kiel["version"]) == (9, 0, "Kiel", "0.2.0")
    its.audit("started", KIEL, bytes=7)
    assert its.kiel["sent"] == 307
    its.audit("answered", KIEL, round=9)  # of a run that goes on
    assert (its.kiel["round"], its.presence.snapshot()["round"]) == (9, 8)
    its.presence.round = 20  # after the last round the models are handed out
    its.audit.tell("heard", KIEL, bytes=1)
    assert its.kiel["round"] == 20
    assert its.said == []


def test_a_device_that_is_killed_is_lost_once_and_comes_back() -> None:
    its = Heard()
    its.now = 1100.0
    its.audit("left", KIEL, "its connection ended")
    for round in (3, 3, 4):  # in two exchanges of a round
        its.audit("lost", KIEL, "it is not there", round=round)
    assert its.lines == ["lost: Kiel: its connection ended"]
    assert (its.kiel["state"], its.kiel["since"], its.kiel["lost"]) == ("gone", None, 2)
    assert (its.kiel["why"], its.kiel["when"]) == ("its connection ended", 1100.0)
    its.now = 1200.0
    its.join()
    its.audit.tell("heard", KIEL, bytes=1)
    assert its.lines[1:] == ["back: Kiel"]
    assert (its.kiel["state"], its.kiel["since"], its.kiel["lost"]) == ("connected", 1200.0, 2)
    assert its.said[0].startswith("1970-01-01 ")


def test_a_slow_device_is_lost_and_late_and_answers_again() -> None:
    its = Heard()
    for round in (3, 4):
        its.audit("lost", KIEL, "no answer within 5 s", round=round)
    its.audit("late", KIEL, "its answer came after the deadline, and was dropped")
    its.audit.tell("heard", KIEL, bytes=1)
    its.audit("refused", KIEL, "its loss is NaN", round=5)
    its.audit("declined", KIEL, "battery is 0.2", round=6)
    assert its.lines == [
        "lost in round 3: Kiel: no answer within 5 s",
        "late: Kiel: its answer came after the deadline, and was dropped",
        "back: Kiel answers again",
        "refused in round 5: Kiel: its loss is NaN",
    ]
    counted = {name: its.kiel[name] for name in ("lost", "late", "refused", "declined")}
    assert counted == {"lost": 2, "late": 1, "refused": 1, "declined": 1}
    assert (its.kiel["why"], its.kiel["state"]) == ("battery is 0.2", "connected")


def test_a_removed_device_is_said_once_wherever_it_is() -> None:
    """Whether its connection is cut off first, or the list is read first, or it was not there."""
    its, removed = Heard(), f"removed: Kiel: {UNLISTED}"
    its.presence.look([BONN])
    its.presence.look([KIEL])
    its.audit.tell("heard", KIEL, bytes=1)  # which was under way
    its.audit("left", KIEL, UNLISTED)
    its.audit("left", KIEL, "its connection ended")
    assert its.lines == [removed]
    assert (its.kiel["state"], its.kiel["since"]) == ("removed", None)
    its.join()
    assert its.kiel["state"] == "connected"
    its.audit("left", KIEL, UNLISTED)
    its.presence.look([KIEL])
    its.join()
    its.audit("left", KIEL, "its connection ended")
    assert its.kiel["state"] == "gone"
    its.presence.look([KIEL])
    its.presence.look([KIEL])
    assert its.lines == [removed, "back: Kiel", removed, "back: Kiel", "lost: Kiel: its connection ended", removed]
    assert its.kiel["state"] == "removed"


def test_devices_are_known_before_the_run_begins_and_new_ones_after_it() -> None:
    its = Heard(begun=False)
    its.audit.tell("registered", KIEL, name="Kiel", examples=12)
    its.now = 1050.0
    its.join()
    assert (its.kiel["since"], its.kiel["examples"]) == (1000.0, 9)  # of which not all count
    its.audit.tell("left", KIEL, "its connection ended")
    its.audit.tell("registered", KIEL, name="Kiel", examples=12)
    assert its.kiel["since"] == 1050.0
    rows = [Registration(id, (9,), (3,), (0,), (4,), "float32", name=name) for id, name in ((BONN, "Bonn"), (KIEL, ""))]
    its.presence.expect(rows)
    assert [each["name"] for each in its.presence.snapshot()["devices"]] == ["Bonn", ""]
    assert [each["state"] for each in its.presence.snapshot()["devices"]] == ["awaited", "connected"]
    its.audit("joined", BONN, client=0, examples=9)
    its.audit("joined", "c" * 32, client=2, examples=9)
    came = "registered: Kiel, 12 examples"
    assert its.lines == [came, "lost: Kiel: its connection ended", came, "back: Bonn", f"joined: {'c' * 32}"]


def test_a_device_that_comes_later_is_not_back() -> None:
    """It waits until the run goes on with it."""
    its = Heard()
    its.audit("waits", BONN, name="Bonn", examples=7)
    assert its.presence.snapshot()["devices"][1]["state"] == "connected"
    rows = [Registration(id, (9,), (3,), (0,), (4,), "float32", name=name) for id, name in ((KIEL, "Kiel"), (BONN, ""))]
    its.presence.expect(rows)
    its.audit("came", BONN, round=8, client=1)
    its.audit("joined", BONN, client=1, examples=9)
    assert its.lines == ["registered: Bonn, 7 examples"]
    assert [each["client"] for each in its.presence.snapshot()["devices"]] == [0, 1]


def test_who_registers_and_is_not_taken_is_no_device_and_their_number_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    its = Heard(begun=False)
    monkeypatch.setattr(presence, "MOST", 2)
    for id in (BONN, KIEL, "c" * 32):
        its.audit.tell("registered", id, examples=9)
    assert [each["id"] for each in its.presence.snapshot()["devices"]] == [KIEL, BONN]
    its.presence.expect([Registration(KIEL, (9,), (3,), (0,), (4,), "float32")])
    assert [each["id"] for each in its.presence.snapshot()["devices"]] == [KIEL]


def test_who_is_refused_before_it_is_known_counts_for_no_device() -> None:
    """It may claim the id of one."""
    its = Heard()
    its.audit("refused", KIEL, "device Kiel has joined at another rank", connection=4)
    its.audit("refused", "key abc", "its key is not registered")
    its.audit("left", "e" * 32, "who has never joined")
    assert its.kiel["refused"] == 0
    assert [each["who"] for each in its.presence.snapshot()["refused"]] == [KIEL, "key abc"]
    assert its.lines[1] == "refused: key abc: its key is not registered"
    its.audit("refused", KIEL, "it asks for bytes behind the end")  # at its start: it does not take part
    assert (its.kiel["state"], its.kiel["since"], its.kiel["refused"]) == ("gone", None, 1)


@pytest.mark.parametrize(("who", "most"), [(KIEL, LINES), ("stranger", STRANGERS)])
def test_lines_of_one_device_have_an_end(who: str, most: int) -> None:
    its = Heard()
    for count in range(2 * most):
        its.audit("refused", who, f"reason {count}", **({"round": 1} if who == KIEL else {}))
    assert len(its.said) == most
    assert its.said[-1].endswith("; what else comes of this kind within 10 minutes is in audit.jsonl alone")
    assert "audit.jsonl" not in its.said[-2]
    its.now += AGAIN
    its.audit("refused", who, "later", round=2)
    assert its.said[-1].endswith(": later")


def test_a_round_brings_measures_and_the_end_its_reason() -> None:
    its = Heard()
    history: Any = SimpleNamespace(
        metrics=[{"round": 7, "personal_by_client": {"0": 0.75, "1": 0.5}}], headline=SimpleNamespace(title="accuracy")
    )
    its.presence.see_round(history)
    history.metrics.append({"round": 8})
    its.presence.see_round(history)
    its.now = 2000.0
    its.presence.end("no device is left")
    found = its.presence.snapshot()
    assert (found["round"], found["rounds"], found["measure"], its.kiel["personal"]) == (8, 20, "accuracy", 0.75)
    assert (found["started"], found["ended"], found["why"]) == (1000.0, 2000.0, "no device is left")


def test_the_log_has_names_and_not_what_is_told_beside_it(tmp_path: Path) -> None:
    its = Heard(tmp_path / "audit.jsonl")
    its.audit.tell("asked", KIEL, bytes=3)
    its.audit("left", BONN, "its connection ended" * 99, name="")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["device"], line.get("name")) for line in lines] == [
        ("joined", KIEL, "Kiel"),
        ("left", BONN, None),
    ]
    assert len(lines[1]["why"]) == 300
