"""Style of tables on a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table


def table(title: str, caption: str | None = None) -> Table:
    """Return an empty table in the style of this package: narrow, without vertical lines."""
    return Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
