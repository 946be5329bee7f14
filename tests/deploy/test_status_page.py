"""The page of devices: what stands on it, in a real browser too, and that no name of a device becomes a part of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedloom.deploy import status_page
from fedloom.deploy.presence import Presence, Seen
from fedloom.deploy.status_file import StatusFile
from fedloom.deploy.status_page import POLICY, page
from fedloom.deploy.status_server import serve_page

NOW = 1_800_000_000.0
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def content(*devices: Seen, **more: Any) -> dict[str, Any]:
    return {
        "server": "runs", "devices": [vars(its) for its in devices], "written": NOW, "started": NOW - 60, "ended": None,
        "why": "", "begun": True, "least": 1, "round": 7, "rounds": 20, "measure": "accuracy", "refused": [],
    } | more  # fmt: skip


class Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_texts_from_outside_are_texts() -> None:
    device = Seen("a" * 32, HOSTILE, 0, "gone", version=HOSTILE, lost=1, why=HOSTILE, when=NOW)
    stranger = {"who": HOSTILE, "why": HOSTILE, "when": NOW}
    read = Read(page(content(device, measure=HOSTILE, refused=[stranger]), HOSTILE, NOW))
    assert {tag for tag, _ in read.tags} == {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "progress", "table", "thead", "tr", "th",
        "tbody", "td", "span", "ul", "li", "footer",
    }  # fmt: skip
    assert not [name for _, its in read.tags for name in its if name.startswith("on") or name in ("src", "href")]
    assert "".join(read.texts).count("<script>alert(1)</script>") == 9
    assert "script" not in POLICY  # which default-src refuses


def test_it_says_how_the_run_and_each_device_are() -> None:
    here = Seen("a" * 32, "Kiel", 0, "connected", NOW - 190, NOW - 2, "0.2.0", 120, 7, 1.5, personal=0.8333333)
    text = page(content(here, Seen("b" * 32, "Bonn", 1, "gone")), "two", NOW)
    read = Read(text)
    assert ("progress", {"max": "20", "value": "7", "aria-label": "rounds"}) in read.tags
    assert [its["class"] for tag, its in read.tags if tag == "span" and its["class"] != "plain"] == ["here", "away"]
    assert {"Kiel", "3 min", "2 s ago", "120", "0.8333", "gone"} <= set(read.texts)
    assert "Round 7 of 20. 1 of 2 devices are connected" in text
    assert "What was lost" not in text
    assert "No device yet." in page(content(), "two", NOW)


@pytest.mark.slow
def test_a_browser_shows_it_at_each_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sideways scroll or a complaint, in the light and in the dark; it loads itself again."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    spec = importlib.util.spec_from_file_location("shots", Path(__file__).parents[2] / "scripts/screenshots.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    browser = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, script.BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    presence = Presence(print, 20, "0.2.0", lambda: time.time() - 3500)  # "58 min ago" is long
    for k, name in enumerate(("Kiel", "Klinikum-" + "x" * 55, HOSTILE)):
        presence.hear({"event": "joined", "device": f"{k:032x}", "name": name, "client": k, "examples": 123_456})
        presence.hear({"event": "asked", "device": f"{k:032x}", "bytes": 123_456_789})
        presence.hear({"event": "heard", "device": f"{k:032x}", "bytes": 123_456_789})
    presence.has_begun = True
    presence.hear({"event": "left", "device": f"{1:032x}", "why": "its key is not registered any more"})
    said: list[str] = []
    monkeypatch.setattr(status_page, "RENEWED", 600)  # a busy browser takes longer than 5 s for a picture
    shots = Path(os.environ.get("FEDLOOM_SHOTS", tmp_path))
    with (
        serve_page(StatusFile(tmp_path, presence, print), 0, False, print) as address,
        driver.sync_playwright() as playwright,
    ):
        chromium = playwright.chromium.launch(executable_path=browser, args=list(script.FLAGS))
        for width, height in script.SIZES.items():
            for scheme in ("light", "dark"):
                shown = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                shown.on("console", lambda message: said.append(message.text))
                shown.on("pageerror", lambda error: said.append(str(error)))
                shown.goto(address)
                assert shown.evaluate("document.documentElement.scrollWidth") <= width
                assert shown.locator("tbody tr").count() == 3
                assert HOSTILE in shown.locator("body").inner_text()
                shown.screenshot(path=shots / f"devices-{width}-{scheme}.png", full_page=True)
                shown.close()
        monkeypatch.setattr(status_page, "RENEWED", 1)
        shown = chromium.new_page()
        shown.goto(address)
        presence.hear({"event": "joined", "device": f"{1:032x}", "name": "Bonn", "client": 1, "examples": 120})
        shown.get_by_text("Bonn").first.wait_for(timeout=60_000)
        chromium.close()
    assert said == []
