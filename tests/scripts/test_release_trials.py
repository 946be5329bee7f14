"""What a release is tried with: every extra has a line that needs it, and what has passed is not tried again."""

from __future__ import annotations

import json
import runpy
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("packaging")
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/release_trials.py"))
NEEDED = """Metadata-Version: 2.4
Name: fedloom
Version: 1
Requires-Dist: numpy>=1.26
Requires-Dist: flwr==1.42.0; extra == "flower"
Requires-Dist: cryptography>=44; extra == "flower"
Requires-Dist: onnx>=1.16; extra == "onnx"
"""


def wheel(folder: Path, text: str = NEEDED) -> Path:
    path = folder / "fedloom-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("fedloom-1.dist-info/METADATA", text)
    return path


def test_each_extra_is_tried_by_itself_with_newest_and_lowest_versions() -> None:
    """Wrong edit: an extra of pyproject.toml without a line of `LINES`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - set(MADE["NOT_TRIED"])
    assert set(MADE["LINES"]) == extras
    names = [trial.name for trial in MADE["trials"]()]
    assert {*extras, *(f"lowest-{extra}" for extra in extras), "lowest-base", *MADE["PYTHONS"]} == set(names)
    assert len(names) == len(set(names))


def test_what_an_extra_needs_is_read_from_the_wheel(tmp_path: Path) -> None:
    assert MADE["requirements"](wheel(tmp_path), "flower") == ["numpy>=1.26", "flwr==1.42.0", "cryptography>=44"]
    assert MADE["requirements"](wheel(tmp_path), "") == ["numpy>=1.26"]


def test_what_has_passed_with_this_wheel_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong edit: a digest that is not of the wheel; a failure that is recorded as passed."""
    made, asked = MADE["results"].__globals__, []

    def tried(trial: Any, wheel: Path) -> str:
        asked.append(trial.name)
        if trial.name == "onnx":
            raise made["FailedError"]("it fails")
        return ""

    monkeypatch.setitem(made, "WORK", tmp_path / "trials")
    monkeypatch.setitem(made, "tried", tried)
    chosen = [trial for trial in MADE["trials"]() if trial.name in ("nats", "onnx")]

    def verdicts(of: Path) -> list[str]:
        return [verdict for _, verdict, _ in MADE["results"](chosen, of)]

    assert verdicts(wheel(tmp_path)) == verdicts(wheel(tmp_path)) == ["failed", "passed"]
    assert asked == ["onnx", "nats", "onnx"]
    assert verdicts(wheel(tmp_path, f"{NEEDED}Requires-Dist: rich\n")) == ["failed", "passed"]
    assert asked[3:] == ["onnx", "nats"]


def test_a_trial_that_is_unknown_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert MADE["main"](["natz"]) == 2
    assert "there is no trial natz, only 3.11, 3.12, " in capsys.readouterr().out


@pytest.mark.slow
def test_a_bill_of_materials_is_written_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong edit: that cyclonedx-bom cannot be installed ends the run, or is not said."""
    made = MADE["bill_of_materials"].__globals__

    def refused(*words: object, python: Path | None = None) -> str:
        raise made["NotHereError"]("no route")

    monkeypatch.setitem(made, "DIST", tmp_path / "dist")
    monkeypatch.setitem(made, "uv", refused)
    said = MADE["bill_of_materials"](Path(sys.executable), "mine")
    held = json.loads((tmp_path / "dist/mine.pip-inspect.json").read_text(encoding="utf-8"))["installed"]
    assert {"torch", "numpy"} <= {one["metadata"]["name"] for one in held}
    why = "of pip inspect, for cyclonedx-bom cannot be installed: no route"
    assert said == f"bill of materials: dist/mine.pip-inspect.json, {len(held)} packages; {why}"
    assert MADE["audit"](Path(sys.executable)) == ["pip-audit: cannot be installed: no route"]


def test_what_an_audit_could_not_look_up_is_not_sound() -> None:
    """Wrong edit: packages that were skipped are counted as looked up, since pip-audit says "no known" of them too."""
    flaw = {"id": "CVE-1", "fix_versions": ["3"]}
    found = [{"name": "a", "skip_reason": "no network"}, {"name": "b", "version": "2", "vulns": [flaw]}]
    assert list(MADE["audited"](json.dumps({"dependencies": found}), "")) == [
        "pip-audit: 1 packages looked up, 1 could not be",
        "pip-audit: b 2 has CVE-1, mended in 3",
    ]
    assert list(MADE["audited"]("", "warning\nno route")) == ["pip-audit: no answer: no route"]
