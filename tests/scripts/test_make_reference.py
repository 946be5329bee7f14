"""The reference for programs and the list of pages are what the script makes, short, and their templates run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/make_reference.py"))
RUN: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/run_pages.py"))
MOST = 7600  # words


def test_pages_are_made_from_the_declarations() -> None:
    assert MADE["PAGE"].read_text(encoding="utf-8") == MADE["page"](), "python scripts/make_reference.py"


def test_the_list_of_pages_is_that_of_the_navigation() -> None:
    """What a page says of itself may be older: each sentence of each page would have to be followed."""
    listed, made = (
        re.findall(r"^(#.*|- \[[^\]]+\]\([^)]+\))", text, re.MULTILINE)
        for text in (MADE["LIST"].read_text(encoding="utf-8"), MADE["llms"]())
    )
    assert listed == made, "python scripts/make_reference.py"


def test_the_reference_is_short_and_whole() -> None:
    text = MADE["PAGE"].read_text(encoding="utf-8")
    assert len(text.split()) <= MOST
    assert "{{" not in text
    assert not re.search(r"\]\([^)]*\)", "\n".join(MADE["rules"]()))


def test_a_name_that_is_gone_is_refused() -> None:
    """Else a line of the frame would be left out in silence."""
    with pytest.raises(LookupError, match="fedloom has no Federaton"):
        list(MADE["functions"]("Federaton"))
    with pytest.raises(LookupError, match=r"fedloom has no module fedloom\.core\.nowhere"):
        list(MADE["functions"]("core.nowhere:normal"))


def test_signatures_have_types_where_there_is_no_default() -> None:
    (iid,) = MADE["functions"]("iid")
    assert iid.startswith("- `iid(labels: Ints, num_clients: int, seed: int) -> Partition`: ")
    (shards,) = MADE["functions"]("shards")
    assert "num_classes=None)" in shards
    held = list(MADE["members"]("Batch", "mean", "x"))
    assert held[2:] == [
        "- `x: Tensor`: [B, ...]",
        "- `mean(per_example: Tensor) -> Tensor`: the mean over the real rows, []",
    ]


def test_every_setting_of_a_section_is_named() -> None:
    text = "\n".join(MADE["settings"]("run", "mirror"))
    assert all(f"`{key}=" in text for key in MADE["schema"]()["run"]["properties"])
    assert '`mirror="none"`' in text.splitlines()[-1]


def test_the_list_names_each_page_of_the_site_once() -> None:
    text = MADE["LIST"].read_text(encoding="utf-8")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(links) == len(set(links)) > 60
    assert all((ROOT / link).exists() for link in links)
    pages = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "results"}
    assert pages <= set(links)
    assert re.match(r"# fedloom\n\n> Federated learning .*\.\n", text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_templates_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb", "MPLBACKEND": "agg"}.items():
        monkeypatch.setenv(name, value)
    run = list(RUN["run"](MADE["PAGE"].read_text(encoding="utf-8"), tmp_path))
    assert len(run) >= 15
    assert (tmp_path / "figures/moved.csv").exists()
    assert (tmp_path / "model.safetensors").exists()
