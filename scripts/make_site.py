"""Lay out the pages of the documentation site, from which `make docs` builds it.

    python scripts/make_site.py [FOLDER]      FOLDER: build/pages, where mkdocs.yml looks for them

Written are README.md as the home page, the pages of docs/ and papers/docs/, and the notes at the root; pages of the
public names, by the stub; llms.txt; and a page with the text of each file that another page links to, so that no link
leaves the version that is read. Equations of algorithms are typeset. Nothing of fedloom is imported.
"""

from __future__ import annotations

import ast
import html
import json
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build/pages"
ANSWERS = "how-to.md"  # which a search names before pages of names
AT_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(!?\[(?:[^\]`]|`[^`]*`)*\]\()([^)\s]+)(\))|`[^`\n]*`")  # or code in a sentence
_CODE = re.compile(r"(^ *```.*?^ *```$|(?<=\n\n)(?:    [^\n]*\n|\n(?=    ))+)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".csv": "text", ".txt": "text"}


@dataclass
class Site:
    """The pages so far, by their places in the site, and what they link to."""

    pages: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)  # pictures and the paper: copied as they are
    wanted: dict[str, Path] = field(default_factory=dict)  # files and folders whose text becomes a page
    beside: dict[str, str] = field(default_factory=dict)  # texts that are no pages

    def place(self, path: Path, anchor: str) -> tuple[str, str]:
        """Return where something of the repository stands in the site, and the anchor there."""
        name = path.relative_to(ROOT).as_posix()
        if name in AT_ROOT:
            return AT_ROOT[name], anchor
        inside = re.sub(r"^(papers/)?docs/", "", name)
        if inside != name and path.suffix == ".md":
            return inside.replace("README.md", "index.md"), anchor
        if path.suffix in (".svg", ".png", ".pdf"):
            self.files[inside] = path
            return inside, ""
        page = path.suffix == ".md"
        place = f"source/{name}" if page else f"source/{name}.md"
        self.wanted[place] = path
        return place, anchor if page else ""

    def linked(self, text: str, source: Path, place: str) -> str:
        """Return a page of the repository with its links as they are in the site."""

        def link(found: re.Match[str]) -> str:
            target = found[2]
            if not target or target.startswith(("https://", "http://", "mailto:")):
                return found[0]
            path, _, anchor = target.partition("#")
            there = Path(os.path.normpath(source.parent / path)) if path else source
            if not there.exists():
                raise LookupError(f"{source.relative_to(ROOT)} links to {target}, which does not exist")
            to, anchor = self.place(there, anchor)
            relative = "" if to == place else os.path.relpath(to, PurePosixPath(place).parent)
            return f"{found[1]}{relative}{f'#{anchor}' if anchor else ''}{found[3]}"

        parts = _CODE.split(text)
        return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))

    def add(self, source: Path, place: str = "") -> None:
        """Add a page of the repository."""
        place = place or self.place(source, "")[0]
        read = source.read_text(encoding="utf-8")
        if source.parent.name == "algorithms":
            read = equations(read)
        self.pages[place] = self.linked(spaced(read), source, place)


def spaced(text: str) -> str:
    """Return a page in which a blank line stands before each list, as Python-Markdown wants it."""
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL)
    pattern = re.compile(r"^(?!\s*[-|]|\s*\d+\. |\s*$|    )(.+)\n(?=- |1\. )", re.MULTILINE)
    return "".join(part if number % 2 else pattern.sub(r"\1\n\n", part) for number, part in enumerate(parts))


# ---- equations

_WORDS = "alpha beta gamma delta epsilon eta theta lam lambda mu nu tau sigma rho pi phi omega kappa Delta Theta"
_GREEK = dict(zip(_WORDS.split(), "αβγδεηθλλμντσρπφωκΔΘ", strict=True))


def typeset(equation: str) -> str:
    """Return indented lines of an equation as HTML: Greek letters, arrows, sums, indices and powers.

    Words of several letters stay as they are, since they are names of settings.
    """
    text = html.escape(re.sub(r"^    ", "", equation, flags=re.MULTILINE), quote=False)
    for word, letter in _GREEK.items():
        text = re.sub(rf"(?<![A-Za-z`_]){word}(?![A-Za-z])(?!_[a-z]{{3}})", letter, text)
    text = re.sub(r"(?<![A-Za-z])sum(?=_|\b)", "Σ", text).replace("||", "‖").replace("&lt;-", "←")
    text = re.sub(r"\bsqrt\(", "√(", text).replace("&lt;=", "≤").replace("&gt;=", "≥")
    one = r"(?<![A-Za-z0-9_`])([A-Za-zα-ωΔΘΣ]|‖)"
    text = re.sub(rf"{one}_([A-Za-z0-9]+|\{{[^}}]+\}})", lambda m: f"{m[1]}<sub>{m[2].strip('{}')}</sub>", text)
    text = re.sub(r"\^(\([^)]+\)|-?\w+)", lambda m: f"<sup>{m[1]}</sup>", text)
    return f'<pre class="equations">{text}</pre>'


def equations(text: str) -> str:
    """Return a section with its indented blocks typeset, those of Python apart."""

    def block(found: re.Match[str]) -> str:
        python = found[0].lstrip().startswith(("@", "class ", "import ", "fedloom "))
        return found[0] if python else typeset(found[0].rstrip("\n")) + "\n"

    return re.sub(r"(?:^    .*\n)+", block, text, flags=re.MULTILINE)


# ---- the public names

_GROUPS = {
    "run": ("Runs", "Start a run, resume it, choose who takes part, measure its rounds.", ("coordinator", "evaluate")),
    "data": ("Data", "Examples, clients, partitions.", ("data", "sources", "tables")),
    "algorithm": (
        "Write an algorithm",
        "What an algorithm is made of: the class, a client, the server's view of a round.",
        ("core.algorithm", "core.requires", "core.averaging", "core.own_steps", "core.client", "core.cohort",
         "core.types", "core.fold"),
    ),
    "training": (
        "Local training",
        "Batches, losses, optimisers and networks.",
        ("core.batch", "core.batches", "core.derivatives", "core.losses", "core.model", "core.optimiser",
         "core.local_training", "core.augment", "core.tree"),
    ),
    "tasks": ("Tasks", "Losses and measures by the kind of target.", ("tasks", "core.task", "core.task_measures",
        "algorithms.shared.ldam", "algorithms.pfedsd")),
    "files": ("Results and files", "Reports, weights, predictions, sweeps, trackers, commands.",
        ("report", "experiments", "display.command")),
    "failures": ("Attacks and failures", "Clients that lie, fail or answer late.", ("engines",)),
    "bounds": ("Bounds and errors", "Types by which settings are checked, and what a wrong one raises.",
        ("core.choices", "core.errors")),
}  # fmt: skip


def public() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each public name that the stub lists, algorithms apart."""
    for node in ast.parse((ROOT / "src/fedloom/__init__.pyi").read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedloom"):
            yield from ((node.module, a.name) for a in node.names if a.name not in ("*", "ALGORITHMS"))


def group_of(module: str) -> str:
    """Return the page on which the names of a module stand."""
    if module == "fedloom.core":  # `tree`
        return "training"
    for group, (_, _, rooms) in _GROUPS.items():
        if any(f"{module}.".startswith(f"fedloom.{room}.") for room in rooms):
            return group
    raise LookupError(f"{module} has public names, and no page of _GROUPS in scripts/make_site.py lists it")


def add_names(site: Site) -> None:
    """Add a page of public names for each group, and a list of all before docs/api.md's text."""
    pages: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for module, name in public():
        pages[group_of(module)].append((name, f"{module}.{name}"))
    lists = "| page | names |\n|---|---|\n"
    for group, (title, what, _) in _GROUPS.items():
        names = sorted(pages[group])
        body = "".join(f"## `fl.{name}` {{ #{name} }}\n\n::: {path}\n\n" for name, path in names)
        site.pages[f"api-{group}.md"] = f"# {title}\n\n{what}\n\n{body}"
        lists += f"| [{title}](api-{group}.md) | {' '.join(f'[`{n}`](api-{group}.md#{n})' for n, _ in names)} |\n"
    classes = " ".join(f"[`{kind}`](algorithms/{name}.md)" for name, kind in kinds().items())
    lists += f"| [Algorithms](algorithms.md) | {classes} |\n"
    before, _, after = site.pages["api.md"].partition("\n")
    site.pages["api.md"] = f"{before}\n\n{lists}\n{after.strip()}\n"


def kinds() -> dict[str, str]:
    """Return the class of each algorithm, by the pages of these."""
    pages = sorted((ROOT / "docs/algorithms").glob("*.md"))
    return {page.stem: re.findall(r"`fl\.(\w+)` \(\[source\]", page.read_text(encoding="utf-8"))[0] for page in pages}


# ---- files that pages link to


def text_of(path: Path) -> str:
    """Return a file, a notebook or a list of a folder's files as a page."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if path.is_dir():
        found = sorted(
            p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts
        )
        return f"{head}A folder of the repository, with these files:\n\n" + "".join(f"- `{one}`\n" for one in found)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        bodies = ["".join(cell["source"]) for cell in cells]
        fenced = [f"```python\n{b}\n```" if c["cell_type"] == "code" else b for b, c in zip(bodies, cells, strict=True)]
        return (
            head
            + "A notebook of the repository; a test runs it.\n\n"
            + "\n\n".join(re.sub(r"^# ", "## ", b, flags=re.M) for b in fenced)
            + "\n"
        )
    language = _LANGUAGES.get(path.suffix, "text")
    return f"{head}A file of the repository, as it is in this version.\n\n````{language}\n{text}\n````\n"


def site() -> Site:
    """Return all pages and pictures of the site."""
    made = Site()
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "papers/docs").rglob("*.md")]
    sources = [*pages, *(ROOT / name for name in AT_ROOT)]
    for source in sorted(sources):
        if source.exists():
            made.add(source)
    add_names(made)
    listed = ROOT / "llms.txt"
    links = made.linked(listed.read_text(encoding="utf-8"), listed, "llms.txt")
    made.beside["llms.txt"] = re.sub(r"\.md(?=[)#])", ".html", links)
    while missing := [place for place in made.wanted if place not in made.pages]:
        for place in missing:
            path = made.wanted[place]
            made.pages[place] = text_of(path)
            if path.suffix == ".md":
                made.add(path, place=place)
    made.pages["index.md"] = f"---\nhide:\n  - toc\n---\n\n{made.pages['index.md']}"  # the picture has the room
    made.pages[ANSWERS] = f"---\nsearch:\n  boost: 4\n---\n\n{made.pages[ANSWERS]}"
    return made


def write(made: Site, folder: Path) -> None:
    """Write the pages and copy the pictures into an empty folder."""
    if folder.exists():
        shutil.rmtree(folder)
    for place, text in {**made.pages, **made.beside}.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for place, path in {**made.files, "site.css": ROOT / "scripts/site.css"}.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / place)


if __name__ == "__main__":
    everything = site()
    write(everything, Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES)
    print(f"{len(everything.pages)} pages")
