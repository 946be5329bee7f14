"""First hours: the kept minutes, their table, and the commands that stand on pages."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import first_hours  # noqa: E402 : a script, whose dataclasses need a module

sys.path.pop(0)


def test_the_table_is_that_of_the_kept_minutes_which_are_few() -> None:
    """Wrong edit: a number of docs/get-started.md changed by hand, or an hour that takes half of one."""
    with first_hours.KEPT.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["hour"] for row in rows] == [*first_hours.HOURS]
    assert {row["cores"] for row in rows} == {"2"}
    assert 0 < sum(float(row["minutes"]) for row in rows) < 30
    text = first_hours.PAGE.read_text(encoding="utf-8")
    assert first_hours.table() in text
    assert first_hours.renewed(text) == text, "python scripts/first_hours.py --table"


def test_commands_stand_on_their_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong edit: a page without the command or the block by which its person gets what they wanted."""
    ran: list[str] = []
    monkeypatch.setattr(first_hours, "blocks", lambda text: lambda folder: ran.append(text))
    for name, hour in first_hours.HOURS.items():
        if name != "demo":
            hour.run(tmp_path)
    table, method, devices, figure = ran
    assert "fedloom predict runs/sites/fedavg --data new.csv --out predicted.csv" in table
    assert f"fedloom new method mine\nfedloom compare {' '.join(first_hours.OTHERS)} mine:Mine " in method
    assert (devices.count("fedloom serve"), devices.count("fedloom join")) == (1, 2)
    assert figure.startswith("```bash\nfedloom figures apfl-figure-2 dense-curves ")
    assert first_hours.line("README.md", "make demo") == "make demo"


def test_blocks_run_in_a_shell_and_an_hour_that_leaves_less_fails(tmp_path: Path) -> None:
    """Wrong edit: commands are taken as done where one of them, or a process, has failed."""
    page = "```python\nfrom pathlib import Path\n\nx = 2\n```\n\n```bash\nfalse &\nwait\ntouch a\n```\n\n"
    page += "```python\nPath('b').write_text(str(x))\n```\n"
    first_hours.ran(first_hours.Hour("two files", "", first_hours.blocks(page), ("a", "b")), tmp_path)
    assert (tmp_path / "b").read_text() == "2"
    with pytest.raises(RuntimeError, match=r"three files: no c\*, d"):
        first_hours.ran(first_hours.Hour("three files", "", first_hours.blocks(page), ("a", "c*", "d")), tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        first_hours.blocks("```bash\nfalse\ntrue\n```\n")(tmp_path)


def test_a_page_without_the_section_or_command_is_named() -> None:
    with pytest.raises(LookupError, match=r"docs/paths\.md has no section Baker"):
        first_hours.page("docs/paths.md", "Baker")
    with pytest.raises(LookupError, match=r"README\.md shows no command with make bread"):
        first_hours.line("README.md", "make bread")
