"""Texts and tables are printed as they are: what they name may be called as it likes."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from fedloom.display.terminal import Terminal, table

NAMES = ("a[b]c[", "[/b]", "[red]", "shards:100:x:on:", r"\[b]")


def terminal(width: int = 30) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    return Terminal(file=out, width=width, force_terminal=False), out


@pytest.mark.parametrize("name", NAMES)
def test_names_are_no_marks(name: str) -> None:
    console, out = terminal()
    console.print(f"{name} is there")
    console.announce("warning", "yellow", name)
    made = table(name)
    made.add_column(name)
    made.add_row(name)
    console.print(made)
    assert [line.strip() for line in out.getvalue().splitlines() if "─" not in line] == [
        *(f"{name} is there", f"warning: {name}"),
        *(name, name, name),
    ]


def test_control_characters_do_nothing() -> None:
    console, out = terminal()
    console.print("a\x1b[2Jb\nnext")
    console.announce("error", "red", "a\x1b[2Jb")
    made = table("")
    made.add_column("name")
    made.add_row("a\x1b[2Jb")
    made.add_row(Text("a\x1b[2Jb"))
    console.print(made)
    console.print(Text("a\x1b[2Jb"))
    made = table("")
    made.add_column("name")
    made.add_row(Text("a\x1b[2Jb"))
    console.print(made)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("a\ufffd[2Jb") == 5
    assert "\nnext\n" in out.getvalue()


def test_a_long_line_is_not_broken_and_a_table_is() -> None:
    console, out = terminal()
    long = "x" * 100
    console.print(long)
    console.print(Text(long))
    console.announce("error", "red", long)
    assert out.getvalue() == f"{long}\n{long}\nerror: {long}\n"
    made = table("")
    made.add_column(long, overflow="fold")
    console, out = terminal()
    console.print(made)
    assert max(map(len, out.getvalue().splitlines())) <= 30


def test_words_around_a_table_are_as_wide_as_the_terminal() -> None:
    console, out = terminal(60)
    made = table("a title that is wider than its table", "words below it, and these too fill a line of the terminal")
    made.add_column("name")
    made.add_row("a")
    console.print(made)
    first, *_, last = out.getvalue().splitlines()
    assert (first.rstrip(), last.rstrip()) == (
        "a title that is wider than its table",
        "words below it, and these too fill a line of the terminal",
    )


def test_colours_are_those_of_a_text() -> None:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard", width=30)
    console.announce("warning", "yellow", "[b] is 3")
    assert out.getvalue() == "\x1b[33mwarning:\x1b[0m [b] is 3\n"
