"""The page of a server's devices: one text of HTML, without scripts and without anything from elsewhere.

Names of devices and their reasons come from outside, so that every text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from typing import Any

from fedloom.deploy.presence import CONNECTED
from fedloom.deploy.status_table import COLUMNS, reasons, rows, sentences

RENEWED = 5  # seconds after which a browser loads the page again
_TITLES = {
    "device": "Device", "there": "There", "heard": "Heard", "examples": "Examples", "round": "Round",
    "s": "Seconds", "down": "Down", "up": "Up", "lost": "Rounds lost", "personal": "Personal",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #57606a; --line: #d8dee4; --ground: #ffffff;
  --card: #f6f8fa; --link: #0757a8; --good: #116329; --bad: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #a3acb8; --line: #333a44; --ground: #14171c;
  --card: #1c2027; --link: #7ab7f5; --good: #5fd38a; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 68.5rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: 0 0 .5rem; max-width: 46rem; }
progress { width: 100%; height: .7rem; margin: .5rem 0 1.5rem; accent-color: var(--link); }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .45rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: .85rem; white-space: nowrap; }
td { white-space: nowrap; }
td:first-child { white-space: normal; min-width: 9rem; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
.away { color: var(--bad); font-weight: 600; }
.here { color: var(--good); }
ul { margin: 0; padding-left: 1.1rem; max-width: 46rem; }
li { margin: .3rem 0; }
footer { color: var(--soft); font-size: .85rem; margin-top: 2.5rem; }
@media (max-width: 46rem) {
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody { display: block; }
  tr { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: .1rem 1rem;
    background: var(--card); border-radius: 8px; border: 1px solid var(--line); padding: .7rem .9rem;
    margin: 0 0 .75rem; }
  td { display: flex; justify-content: space-between; gap: .5rem; border: 0; padding: .1rem 0; font-size: .95rem;
    white-space: normal; }
  td::before { content: attr(data-title); color: var(--soft); font-weight: 400; white-space: nowrap; }
  td:first-child { grid-column: 1 / -1; font-size: 1.05rem; }
  td:first-child::before { content: none; }
}
"""
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


def page(content: Mapping[str, Any], title: str, now: float) -> str:
    """Return the page.

    Args:
        content: of the status file, with how the server is.
        title: of the run.
        now: seconds since 1970.
    """
    heads = "".join(f'<th scope="col">{_TITLES[name]}</th>' for name in COLUMNS)
    body = "\n".join(map(_row, content["devices"], rows(content, now)))
    told = "".join(f"<li>{escape(text)}</li>" for text in reasons(content))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{RENEWED}">
<title>{escape(title)}: devices</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(" ".join(sentences(content)))}</p>
<progress max="{int(content["rounds"])}" value="{int(content["round"])}" aria-label="rounds"></progress>
{f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if body else "<p>No device yet.</p>"}
{f"<h2>What was lost or refused</h2><ul>{told}</ul>" if told else ""}
<footer>This page can be read only, on this host alone, and renews itself every {RENEWED} seconds.</footer>
</body>
</html>
"""


def _row(its: Mapping[str, Any], texts: tuple[str, ...]) -> str:
    kinds = {"there": "here" if its["state"] == CONNECTED else "away"}
    ago = {"heard": " ago" * (its["heard"] is not None)}
    cells = (
        f'<td data-title="{_TITLES[name]}"><span class="{kinds.get(name, "plain")}">'
        f"{escape(text + ago.get(name, ''))}</span></td>"
        for name, text in zip(COLUMNS, texts, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"
