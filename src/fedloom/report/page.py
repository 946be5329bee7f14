"""Page of a report: its sections in order, and their rendering as HTML."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedloom.report.level_costs import TO
from fedloom.report.number_table import Table
from fedloom.report.run_view import as_json
from fedloom.report.style import FIGURES, colour, dark_colour, dashes, drawing, ink, inline, rendered, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SERIES = range(7)  # colours of figures of one method or of none


class Section(NamedTuple):
    """Section of the page: its blocks are names of the template's macros with their arguments.

    `begins`: whether a part of the page begins with it. `folded`: whether it is shown when its heading is opened.
    """

    name: str
    heading: str
    blocks: list[tuple[str, Any]]
    begins: bool
    folded: bool


class ShownTable(NamedTuple):
    """Table on the page, its caption, and the name that links to it and that its CSV has."""

    table: Table
    caption: str
    name: str


class PageFigure(NamedTuple):
    """Figure on the page. `names`: of its lines, by number."""

    name: str
    heading: str
    caption: str
    svg: Markup
    wide: bool
    names: str


@dataclass
class Page:
    """Sections in the order of their addition, and the files beside the page. `methods`: labels by number."""

    title: str
    methods: Mapping[int, str]
    lead: str
    remarks: Sequence[str] = ()
    verdict: Sequence[str] = ()
    first: PageFigure | None = None
    standing: ShownTable | None = None
    sections: list[Section] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    prefix: str = ""  # of names in the part of the page that was begun
    over: str = "rounds"  # what files of curves are drawn over, and what the page's script begins with
    to: str = TO  # the level of the costs of reaching it
    axes: dict[str, Markup] = field(default_factory=dict)  # what else it can draw them over, as JSON, by prefix

    def part(self, prefix: str, heading: str) -> None:
        """Begin a part of the page: names of its sections, figures and tables begin with `prefix`."""
        self.prefix = prefix
        self.section("part", heading, begins=True)

    def begin(self, lead: str, verdict: Sequence[str], first: PageFigure | None, standing: ShownTable | None) -> None:
        """Add the first screen of a part: a curve, what ran, and what is established."""
        self._add("opening", (lead, (), verdict, first, standing))

    def section(self, name: str, heading: str, *, begins: bool = False, folded: bool = False) -> None:
        """Begin a section; later blocks go into it."""
        self.sections.append(Section(self.prefix + name, heading, [], begins, folded))

    def _add(self, kind: str, shown: Any) -> None:
        self.sections[-1].blocks.append((kind, shown))

    def text(self, words: str) -> None:
        """Add a paragraph."""
        self._add("text", words)

    def note_missing(self, words: str) -> None:
        """Add a sentence that names a missing part and the reason."""
        self._add("missing", words)

    def heading(self, words: str) -> None:
        """Add a heading within the section."""
        self._add("heading", words)

    def add_csv(self, table: Table | None) -> None:
        """Add a table as a CSV file beside the page, without showing it; None adds nothing."""
        if table is not None:
            self.files[f"tables/{self.prefix}{table.name}.csv"] = table.csv().encode("utf-8")

    def table(self, table: Table, caption: str) -> None:
        """Add a table and its caption, and keep its CSV."""
        self._add("table", self.keep(table, caption))

    def keep(self, table: Table, caption: str) -> ShownTable:
        """Keep a table's CSV, and return the table as the page shows it."""
        self.add_csv(table)
        return ShownTable(table.filled(), caption + table.bold_note, self.prefix + table.name)

    def figure(
        self,
        figure: Figure,
        name: str,
        heading: str,
        caption: str,
        *,
        wide: bool = False,
        names: Mapping[int, str] | None = None,
        digits: int | None = None,
        kept: Figure | None = None,
    ) -> PageFigure:
        """Render a figure for `grid`, and keep its files. The caption is its description too.

        `digits`: decimals of the values under the pointer, where it has curves; `names` are theirs, by number. `kept`:
        of curves over rounds, the figure that the files are of, which may be drawn over another axis.
        """
        name = self.prefix + name
        with drawing():
            svg = rendered(figure, "svg")
            figure.set_layout_engine("none")  # it stays where it is now
            more = {} if digits is None else scales(figure) | {"data-digits": str(digits)}
            if kept is not None:
                more["data-axes"] = self.prefix
            known = {"svg": svg} if kept in (None, figure) else {}
            rendered_files = {kind: known.get(kind) or rendered(kept or figure, kind) for kind in FIGURES}
        self.files |= {f"figures/{name}.{kind}": data for kind, data in rendered_files.items()}
        inlined = Markup(inline(svg, name, f"{heading}. {caption}", more))  # inline escapes what it serialises
        line_names = "" if digits is None else json.dumps(dict(names or self.methods))
        return PageFigure(name, heading, caption, inlined, wide, line_names)

    def grid(self, *figures: PageFigure) -> None:
        """Add figures, side by side where the page is wide enough."""
        if figures:
            self._add("grid", figures)

    def keep_axes(self, axes: Mapping[str, Any]) -> None:
        """Keep what the page's script can draw the curves of this part over, in place of rounds."""
        if axes:
            self.axes[self.prefix] = Markup(as_json(axes))

    def view(self, json_text: str) -> None:
        """Add a view of one run and one client, whose numbers are JSON; the page's script shows what is chosen."""
        self._add("view", Markup(json_text))

    def listing(self, values: Mapping[str, str]) -> None:
        """Add names and their values."""
        self._add("listing", values)

    def html(self) -> str:
        """Return the whole page, which needs no other file and no network, and runs only its own script and style."""
        template = _templates()
        numbers = sorted({*_SERIES, *self.methods})
        colours = [(colour(n).lower(), ink(n), dark_colour(n)) for n in numbers]
        css, script = template.get_template("page.css").render(colours=colours), _read_text("page.js")
        page_text = template.get_template("page.html").render(
            page=self,
            css=Markup(css),
            script=Markup(script),
            policy={"style": _digest(css), "script": _digest(script)},
            tables=sorted(name.removeprefix("tables/") for name in self.files if name.startswith("tables/")),
        )
        return page_text.lstrip()  # of the lines between macros


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"stroke": lambda number: colour(number).lower(), "pattern": _pattern}
    return environment


def _pattern(number: int) -> str:
    """Return the dashes of a method's line, as SVG has them; "" for a solid line."""
    style = dashes(number)
    return "" if style == "-" else " ".join(str(2 * n) for n in style[1])


def _read_text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the name that a content security policy has for a text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
