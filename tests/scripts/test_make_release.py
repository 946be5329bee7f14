"""What is released: archives without results and golden files, and a README without dead links."""

from __future__ import annotations

import io
import re
import runpy
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import fedloom

ROOT = Path(__file__).parents[2]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/make_release.py"))
NEEDED = list(MADE["NEEDED"]["fedloom"])


def wheel(folder: Path, names: list[str], package: str = "fedloom") -> Path:
    path = folder / f"{package}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "")
    return path


def source(folder: Path, names: list[str]) -> Path:
    path = folder / "fedloom-1.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            file.addfile(tarfile.TarInfo(f"fedloom-1/{name}"), io.BytesIO())
    return path


def test_archives_hold_the_library_and_no_results(tmp_path: Path) -> None:
    whole = [f"src/{name}" for name in NEEDED]
    assert MADE["wrong"](wheel(tmp_path, NEEDED)) == []
    assert MADE["wrong"](source(tmp_path, whole)) == []
    assert MADE["wrong"](wheel(tmp_path, NEEDED[1:])) == ["fedloom-1-py3-none-any.whl lacks fedloom/py.typed"]
    assert MADE["wrong"](source(tmp_path, [*whole, "docs/results/a.csv", "tests/golden/b.npz"])) == [
        "fedloom-1.tar.gz holds docs/results/a.csv", "fedloom-1.tar.gz holds tests/golden/b.npz",
    ]  # fmt: skip
    assert MADE["wrong"](source(tmp_path, [*whole, "papers/README.md"])) == ["fedloom-1.tar.gz holds papers/README.md"]
    assert MADE["wrong"](wheel(tmp_path, ["fedloom_papers/py.typed"], "fedloom_papers")) == [
        "fedloom_papers-1-py3-none-any.whl lacks fedloom_papers/claims.json"
    ]


def test_both_distributions_have_the_licence_of_the_repository() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert [(ROOT / folder / "LICENSE").read_text(encoding="utf-8") == text for folder in MADE["FOLDERS"].values()] == [
        True, True,
    ]  # fmt: skip


def test_links_of_the_readme_are_absolute_or_plain_text() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    link = re.compile(r"\]\((?!https?://|#)")
    assert link.search(text)
    assert not link.search(MADE["readme"](text, None))
    made = MADE["readme"](text, "https://example.org/fedloom/blob/v1")
    assert not link.search(made)
    assert "(https://example.org/fedloom/blob/v1/docs/guide.md)" in made
    assert "](https://example.org/fedloom/raw/v1/papers/docs/results/fedntd/" in made
    assert MADE["readme"]("[a](b.md) [c](https://d.org)", None) == "a [c](https://d.org)"


def test_citation_and_changelog_name_the_version_its_date_and_the_licence() -> None:
    """Wrong edits: a version that is raised without its heading; a heading whose date the citation does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (version, date), *_ = re.findall(r"^## \[(\d[^]]*)\] - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    assert version == fedloom.__version__
    assert f"\nversion: {version}\ndate-released: {date}\n" in cited
    assert f"\nlicense: {project['license']}\n" in cited
