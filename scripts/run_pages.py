"""Run the pages that lead a person in, from top to bottom, and write what they print beneath each block.

    python scripts/run_pages.py [PAGE ...]      such as docs/tutorials/your-data.md; all of them by default

Each page runs in an empty folder. A block `python title="own.py"` is written to that file, another `python` block is
executed in the namespace of the page, a `bash` block has a command of fedloom on each line, and a `text` block beneath
is what the block before it prints. As in a shell, a line that ends with `&` starts a process and goes on, `A=1` before
a command is of its environment, and `wait` waits for these processes. A `toml title="fed.toml"` block is written, too.
`tests/scripts/test_run_pages.py` runs the same and compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in ("get-started", "paths")),
    *(page for room in ("tutorials", "deployments") for page in sorted((ROOT / "docs" / room).glob("*.md"))),
]
SECONDS = 300  # for processes that a block starts; beside other work
_BLOCK = re.compile(r"^```(python|bash|text|toml)(?: title=\"([\w./-]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


class Started:
    """Processes that the lines of a block start side by side; those that are left at its end are killed."""

    def __init__(self) -> None:
        self.running: list[tuple[list[str], subprocess.Popen[str]]] = []

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        for _, process in self.running:
            process.kill()
            process.communicate()

    def start(self, words: list[str]) -> None:
        """Start a command of fedloom, with variables before it."""
        at = next(i for i, word in enumerate(words) if "=" not in word)
        if words[at] != "fedloom":
            raise RuntimeError(f"{' '.join(words)} is no command of fedloom")
        command = [sys.executable, "-m", *words[at:]]
        env = os.environ | dict(word.split("=", 1) for word in words[:at])
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.running.append((words, subprocess.Popen(command, env=env, **pipe)))  # type: ignore[call-overload]

    def wait(self) -> None:
        """Wait for all of them."""
        while self.running:
            words, process = self.running[0]
            said, _ = process.communicate(timeout=SECONDS)
            del self.running[0]
            if process.returncode:
                raise RuntimeError(f"{' '.join(words)} ends with {process.returncode}: {said[-2000:]}")


def in_process(code: str) -> None:
    """Run lines of commands of fedloom in this process, those that end with & side by side in others."""
    from fedloom.cli.main import main

    with Started() as started:
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words == ["wait"]:
                started.wait()
            elif words[-1] == "&":
                started.start(words[:-1])
            elif status := main(words[1:]) if words[0] == "fedloom" else 2:
                raise RuntimeError(f"{line} ends with {status}")


def run(text: str, folder: Path, commands: Callable[[str], None] = in_process) -> Iterator[tuple[Block, str]]:
    """Run a page in a folder, and yield each block with what it prints. `commands`: runs the code of a shell block."""
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
                    commands(block.code)
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
