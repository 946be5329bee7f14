"""Run the pages that lead a person in, from top to bottom, and write what they print beneath each block.

    python scripts/run_pages.py [PAGE ...]      such as docs/tutorials/your-data.md; all of them by default

Each page runs in an empty folder. A block `python title="own.py"` is written to that file, another `python` block is
executed in the namespace of the page, a `bash` block has a command of fedloom on each line, and a `text` block beneath
is what the block before it prints. `tests/scripts/test_run_pages.py` runs the same and compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs/get-started.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
_BLOCK = re.compile(r"^```(python|bash|text)(?: title=\"([\w./-]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+\.\d+(?:e-?\d+)?")
_INTERVAL = re.compile(r"\[[-+\d.]+, [-+\d.]+\]")


@contextlib.contextmanager
def within(folder: Path) -> Iterator[None]:
    """Import from a folder as a person who stands in it does, and forget its modules afterwards."""
    with contextlib.chdir(folder):
        sys.path.insert(0, str(folder))
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None)).startswith(str(folder)):
                    del sys.modules[name]


@dataclass(frozen=True)
class Block:
    """A block that is run, and what the page says that it prints."""

    kind: str
    title: str  # the file that it is written to, or ""
    code: str
    printed: str | None  # None where no `text` block stands beneath
    span: tuple[int, int]  # of the printed text in the page


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that are run."""
    found = list(_BLOCK.finditer(text))
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block[1] != "text":
            beneath = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            printed, span = (after[3], after.span(3)) if beneath and after is not None else (None, (0, 0))
            yield Block(block[1], block[2] or "", block[3], printed, span)


def run(text: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run a page in a folder, and yield each block with what it prints."""
    from fedloom.cli.main import main

    space: dict[str, Any] = {"__name__": "page"}
    with within(folder.resolve()):
        for block in blocks(text):
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                if block.title:
                    Path(block.title).write_text(block.code, encoding="utf-8")
                elif block.kind == "python":
                    exec(compile(block.code, "page", "exec", dont_inherit=True), space)
                else:
                    for line in block.code.replace("\\\n", " ").splitlines():
                        program, *arguments = shlex.split(line, comments=True)
                        status = main(arguments) if program == "fedloom" else 2
                        if status:
                            raise RuntimeError(f"{line} ends with {status}")
            yield block, "\n".join(line.rstrip() for line in output.getvalue().strip("\n").splitlines()) + "\n"


def agrees(said: str, printed: str) -> bool:
    """Return whether two texts have the same words, and numbers that another processor may give too.

    Numbers with a point may differ by 0.08, in tables of percent by 8; the ends of intervals, which are far more
    sensitive, are not compared. A line `...` stands for any lines.
    """
    said, printed = (_INTERVAL.sub("[]", text) for text in (said, printed))
    words = [" ".join(_NUMBER.sub("#", text).split()) for text in (said, printed)]
    if "..." in said:
        return re.fullmatch(re.escape(words[0]).replace(re.escape("..."), ".*"), words[1]) is not None
    pairs = zip(_NUMBER.findall(said), _NUMBER.findall(printed), strict=False)
    close = (abs(float(a) - float(b)) <= (0.08 if max(abs(float(a)), abs(float(b))) <= 1 else 8) for a, b in pairs)
    return words[0] == words[1] and all(close)


def renewed(text: str, folder: Path) -> str:
    """Return a page with what its blocks print; a text with `...` stays where it still agrees."""
    made, at = "", 0
    for block, printed in run(text, folder):
        if block.printed is not None:
            kept = "..." in block.printed and agrees(block.printed, printed)
            made += text[at : block.span[0]] + (block.printed if kept else printed)
            at = block.span[1]
    return made + text[at:]


def prepare() -> None:
    """Make output the same everywhere: 110 columns, no colours."""
    os.environ |= {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}


if __name__ == "__main__":
    prepare()
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(renewed(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
        print(page.relative_to(ROOT))
