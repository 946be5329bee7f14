"""The page of a report: elements of HTML, everything from files escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.report.number_table import Table
from fedloom.report.style import colour, dashes, drawing, inline, rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONG = 40  # characters of a cell that gets a wider column


@dataclass
class Page:
    """Sections as they are added, and the files that go beside the page."""

    title: str
    sections: list[tuple[str, str, list[str]]] = field(default_factory=list)  # id, heading, elements
    files: dict[str, bytes] = field(default_factory=dict)

    def section(self, name: str, heading: str) -> None:
        """Begin a section; what is added from now on goes into it."""
        self.sections.append((name, heading, []))

    def add(self, element: str) -> None:
        """Add an element of HTML at the end of the section."""
        self.sections[-1][2].append(element)

    def text(self, words: str, kind: str = "") -> None:
        """Add a paragraph; `kind` is its class in the style sheet."""
        self.add(f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>")

    def heading(self, words: str) -> None:
        """Add a heading within the section."""
        self.add(f"<h3>{escape(words)}</h3>")

    def keep(self, table: Table | None) -> None:
        """Keep a table as a CSV file beside the page, without showing it; None is nothing."""
        if table is not None:
            self.files[f"tables/{table.name}.csv"] = table.csv().encode("utf-8")

    def table(self, table: Table, caption: str, groups: Sequence[int] = ()) -> None:
        """A table in a box that scrolls, its caption, and its CSV. `groups`: columns that begin a group."""
        self.keep(table)
        texts = {i for i, c in enumerate(table.columns) if c.show is None}
        winners = [table.winners(i) for i in range(len(table.columns))]

        def kind(i: int, long: bool = False) -> str:
            names = ["text"] * (i in texts) + ["long"] * long + ["group"] * (i in groups)
            return f' class="{" ".join(names)}"' if names else ""

        head = "".join(f'<th scope="col"{kind(i)}>{escape(c.heading)}</th>' for i, c in enumerate(table.columns))
        body = []
        for k, row in enumerate(table.rows):
            cells = []
            for i, (value, column) in enumerate(zip(row, table.columns, strict=True)):
                words = escape(table.text(value, column))
                if i == 0:
                    mark = swatch(table.numbers[k]) if table.numbers else ""
                    cells.append(f'<th scope="row" class="text">{mark}{words}</th>')
                else:
                    strong = f'<span class="best">{words}</span>' if k in winners[i] else words
                    cells.append(f"<td{kind(i, i in texts and len(words) > _LONG)}>{strong}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        inner = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        self.add(f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">{inner}</div>')
        self.text(caption, "caption")

    def figure(self, figure: Figure, name: str, heading: str, caption: str, wide: bool = False) -> str:
        """The element of a figure, and its files. The caption is its description too."""
        with drawing():
            svg = rendered(figure, "svg")
            self.files[f"figures/{name}.svg"], self.files[f"figures/{name}.png"] = svg, rendered(figure, "png")
        drawn = inline(svg, name, escape(f"{heading}. {caption}"))
        top = f"<h3>{escape(heading)}</h3>" if heading else ""
        box = f'<div class="card"{" tabindex=" + chr(34) + "0" + chr(34) if wide else ""}>{drawn}</div>'
        kind = ' class="wide"' if wide else ""
        return f'<figure{kind} id="figure-{name}">{top}{box}<figcaption>{escape(caption)}</figcaption></figure>'

    def grid(self, figures: Sequence[str]) -> None:
        """Add figures beside each other where the page is wide enough."""
        if figures:
            self.add(f'<div class="grid">{"".join(figures)}</div>')

    def listing(self, values: Mapping[str, str]) -> None:
        """Add names and their values."""
        inner = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in values.items())
        self.add(f'<dl class="settings">{inner}</dl>')

    def html(self) -> str:
        """The whole page, on its own: no other file, no network, no script."""
        css = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
        (_, _, top), *others = self.sections
        links = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _ in others)
        body = "\n".join(
            f'<section id="{name}" aria-labelledby="{name}-heading">\n<h2 id="{name}-heading">{escape(heading)}</h2>\n'
            + "\n".join(elements)
            + "\n</section>"
            for name, heading, elements in others
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n<header>\n"
            + "\n".join(top)
            + f'\n<nav aria-label="Contents"><ol>{links}</ol></nav>\n</header>\n{body}\n</main>\n</body>\n</html>\n'
        )


def notes(remarks: Sequence[str]) -> str:
    """What a reader must know before the numbers."""
    return f'<div class="notes">{"".join(f"<p>{escape(remark)}</p>" for remark in remarks)}</div>' if remarks else ""


def findings(sentences: Sequence[str]) -> str:
    """Sentences as a list of HTML; "" where there is none."""
    return f'<ul class="findings">{"".join(f"<li>{escape(s)}</li>" for s in sentences)}</ul>' if sentences else ""


def swatch(number: int) -> str:
    """A method's line as figures draw it."""
    style = dashes(number)
    pattern = "" if style == "-" else f' stroke-dasharray="{" ".join(str(2 * n) for n in style[1])}"'
    line = f'<line x1="0" y1="4" x2="22" y2="4" stroke="{colour(number)}" stroke-width="3"{pattern}/>'
    return f'<svg class="swatch" viewBox="0 0 22 8" aria-hidden="true">{line}</svg>'
