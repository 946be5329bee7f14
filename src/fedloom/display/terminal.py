"""A terminal as commands write on it, and the style of its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedloom.wording import printable


class Terminal(Console):
    """Print texts and cells of tables as they are: they may name files and settings of others.

    [b] is no mark of rich and :on: no picture, a control character is printed as an escape, and a long line is not
    broken, so that a path can be copied; `soft_wrap=False` breaks prose between words. Colours are those of
    `rich.text.Text`.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(markup=False, emoji=False, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(_escaped(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (plain := _escaped(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain  # as long as before, so colours stay where they are
        return super().render(renderable, options)

    def print(self, *objects: Any, **how: Any) -> None:
        texts = all(isinstance(one, str | Text) for one in objects)
        super().print(*objects, **({"soft_wrap": True} if texts else {}) | how)

    def announce(self, kind: str, style: str, text: str) -> None:
        """Print a text after the word that says of which kind it is."""
        self.print(Text.assemble((f"{kind}:", style), " ", self.render_str(text, highlight=False)), highlight=False)


def _escaped(text: str) -> str:
    return "\n".join(printable(line, len(line)) for line in text.split("\n"))


class _Table(Table):
    """A table between words that may be wider than it, which as title and caption of rich it would break."""

    above: str
    below: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.above:
            yield Text(self.above, "table.title")
        yield from super().__rich_console__(console, options)
        if self.below:
            yield Text(self.below, "table.caption")


def table(title: str, caption: str = "") -> Table:
    """Return an empty table in the style of this package: narrow, without vertical lines."""
    made = _Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    made.above, made.below = title, caption
    return made
