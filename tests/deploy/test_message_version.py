"""Versions of fedloom whose messages have one number work together; with another form it is raised."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import RefusedError
from fedloom.deploy import registration
from fedloom.deploy.registration import MESSAGES, check_versions, versions
from fedloom.testing.in_process import InProcess
from site_devices import members, serve, settings, source_of_server, write_sites

KEPT = Path(__file__).with_name("messages.json")  # of the number, the form of each message of a small run
OURS = {"fedloom": "0.3.0", "messages": "4", "PyTorch": "2"}


def form(data: bytes) -> str:
    """Return the form of a message: the names in it, without values, bytes and numbers."""
    with contextlib.suppress(ValueError):
        return f"JSON: {', '.join(sorted(json.loads(data)))}"
    (size,) = struct.unpack("<I", data[20:24])  # behind a seal and a checksum
    text = json.loads(data[24 : 24 + size])
    return f"head: {', '.join(sorted(text['head']))}; parts: {', '.join(sorted(text['parts']))}"


@pytest.mark.filterwarnings("ignore:.*with nothing here")
def test_the_form_of_messages_has_the_number_that_is_kept(tmp_path: Path) -> None:
    write_sites(tmp_path)
    down, up = set[str](), set[str]()

    def heard(device: Callable[[bytes], bytes | None]) -> Callable[[bytes], bytes | None]:
        def answer(data: bytes) -> bytes | None:
            down.add(form(data))
            if (said := device(data)) is not None:
                up.add(form(said))
            return said

        return answer

    words = settings("ditto", **{"run.rounds": 2})
    serve(tmp_path, words, InProcess([heard(each) for each in members(tmp_path)]), source_of_server(tmp_path)).run()
    found = {"number": MESSAGES, "down": sorted(down), "up": sorted(up)}
    assert found == json.loads(KEPT.read_text(encoding="utf-8")), (
        "a message has another form: raise MESSAGES of deploy/registration.py, and write to tests/deploy/messages.json "
        + json.dumps(found, indent=2)
    )


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (OURS | {"messages": "3", "fedloom": "0.2.9"}, "0.2.9 with messages of version 3"),
        ({"fedloom": "0.2.0", "PyTorch": "2"}, "0.2.0 with messages of a version that it does not say"),
        (OURS | {"PyTorch": "1"}, "0.3.0 with PyTorch 1"),
        (None, "of a version that it does not say with messages of a version that it does not say"),
        (OURS | {"messages": "\x1b[2J"}, "0.3.0 with messages of a version that it does not say"),
        (OURS | {"messages": 4}, "0.3.0 with messages of a version that it does not say"),
    ],
)
def test_others_are_refused(theirs: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "versions", lambda: OURS)
    with pytest.raises(RefusedError) as error:
        check_versions(theirs, "this device", "the server")
    said = str(error.value)
    assert said.startswith(f"this device has fedloom {words}, and the server fedloom 0.3.0 with ")
    assert said.endswith("both sides need the same, so install one of them on both")


def test_another_version_of_fedloom_with_the_same_messages_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "versions", lambda: OURS)
    assert check_versions(OURS | {"fedloom": "0.3.1"}, "this device", "the server") == "0.3.1"


def test_versions_are_those_of_this_process() -> None:
    assert versions()["messages"] == str(MESSAGES)
