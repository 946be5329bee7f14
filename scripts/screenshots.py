"""Screenshots of the page in a real browser, its size and the seconds that writing it takes: `make screenshots`.

Of the reports on the directories that are named; without any, on runs made here: three methods with three seeds, a
sweep, one run alone, and 12 runs of 200 rounds (their numbers are made up). Each at 1280, 1920 and 390 px, light
and dark; with the pointer over a curve, with lines smoothed, a table sorted and a client chosen, and printed. A page
that the browser reports anything about is an error, and so is a table that a window of 1280 px cuts.

    python scripts/screenshots.py --site build/site

looks at all pages of the documentation at 1280 and 390 px instead: one that scrolls sideways is an error, and so is a
home whose first screen ends before the second command. Pictures are taken of some pages, light and dark.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from fedloom.cli.main import main as fedloom
from fedloom.report import write_report

SIZES = {1280: 800, 1920: 1080, 390: 844}  # CSS pixels: a laptop's window, a screen's, a telephone's
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
FLAGS = ("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking")
COMMON = ["--model", "logistic", "--clients", "15", "--cohort", "5", "--partition", "shards:2", "--threads", "1"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, help="of runs")
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--site", type=Path, help="folder of the documentation, as `make docs` writes it")
    asked = parser.parse_args()
    browser = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("screenshots need playwright: pip install playwright", file=sys.stderr)
        return 2
    if browser is None:
        print(
            f"screenshots need a browser, none of {', '.join(BROWSERS)} is on the PATH: install one (on Debian: "
            "apt-get install chromium), or name one as BROWSER_PATH=/path/to/chrome",
            file=sys.stderr,
        )
        return 2
    said: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=list(FLAGS))
        if asked.site is not None:
            said += looked_at(chromium, asked.site, asked.out / "site")
        for directory in asked.directories or (() if asked.site is not None else runs(asked.out / "runs")):
            name = directory.resolve().name
            start = time.perf_counter()
            page = write_report(directory, asked.out / name)
            seconds = time.perf_counter() - start
            print(f"{name}: {page.stat().st_size / 1e6:.2f} MB, {seconds:.1f} s")
            said += [f"{name}: {line}" for line in photographed(chromium, page)]
        chromium.close()
    print("\n".join([f"screenshots: {asked.out}", *said]))
    return bool(said)


def photographed(chromium, page: Path) -> list[str]:  # type: ignore[no-untyped-def]
    """Take the pictures of a page, next to it; what the browser had to say of it."""
    said: list[str] = []
    for width, height in SIZES.items():
        for scheme in ("light", "dark"):
            shown = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            shown.on("console", lambda message: said.append(message.text))
            shown.on("pageerror", lambda error: said.append(str(error)))
            shown.goto(page.resolve().as_uri())
            if (wide := shown.evaluate("document.documentElement.scrollWidth")) > width:
                said.append(f"is {wide} px wide in a window of {width}")
            picture(shown, page.with_name(f"{width}-{scheme}.png"), full_page=True)
            if curve := shown.query_selector("svg[data-x]"):
                curve.scroll_into_view_if_needed()
                box = curve.bounding_box()
                shown.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
                picture(shown, page.with_name(f"{width}-{scheme}-pointer.png"))
            if width >= 1280:
                said.extend(f"{width}: {name} is cut" for name in cut(shown))
            used(shown, page.with_name(f"{width}-{scheme}-used.png"))
            if scheme == "light" and width > height:
                shown.pdf(path=page.with_name("printed.pdf"), format="A4", print_background=True)
            shown.close()
    return said


PICTURED = ("index", "paths", "claims", "algorithms", "algorithms/fedntd", "get-started", "privacy", "composing")


def looked_at(chromium, site: Path, out: Path) -> list[str]:  # type: ignore[no-untyped-def]
    """Open each page of the documentation, and take pictures of some; what is wider than its window, or below it."""
    said: list[str] = []
    out.mkdir(parents=True, exist_ok=True)
    pages = [page for page in sorted(site.rglob("*.html")) if page.relative_to(site).parts[0] != "source"]
    for width, height in ((1280, 800), (390, 844)):
        for scheme in ("light", "dark"):
            shown = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            for page in pages:
                name = page.relative_to(site).with_suffix("").as_posix()
                if scheme == "dark" and name not in PICTURED:
                    continue
                shown.goto(page.resolve().as_uri())
                if (wide := shown.evaluate("document.documentElement.scrollWidth")) > width:
                    said.append(f"{name} is {wide} px wide in a window of {width}")
                if name in PICTURED:
                    picture(shown, out / f"{name.replace('/', '-')}-{width}-{scheme}.png")
                if name == "index" and width > height:
                    end = shown.query_selector(".md-content pre").bounding_box()
                    if end["y"] + end["height"] > height:
                        said.append(
                            f"the two commands of the home end at {end['y'] + end['height']:.0f} px of {height}"
                        )
            shown.close()
    print(f"{len(pages)} pages of {site}")
    return said


def cut(shown) -> list[str]:  # type: ignore[no-untyped-def]
    """Tables and figures that are wider than their place."""
    boxes = "[...document.querySelectorAll('.scroll, .card')].filter((box) => box.clientWidth + 2 < box.scrollWidth)"
    return list(shown.evaluate(f"{boxes}.map((box) => box.getAttribute('aria-label') || box.parentElement.id)"))


def used(shown, path: Path) -> None:  # type: ignore[no-untyped-def]
    """Use what a reader may (curves over bytes, smoothing, heads of tables, a client), and take a picture."""
    for kind, chosen in ((".over", "bytes"), (":not(.over)", "5")):
        if (choice := shown.query_selector(f"main > .choice{kind} select, .methods .choice{kind} select")) is not None:
            choice.select_option(chosen)
    for head in shown.query_selector_all("#summary th:nth-child(2) .sort"):
        head.click()
    if len(chosen := shown.query_selector_all(".view select")) > 1 and len(chosen[1].query_selector_all("option")) > 1:
        chosen[1].select_option(index=1)
    picture(shown, path, full_page=True)


def picture(shown, path: Path, full_page: bool = False, tries: int = 4) -> None:  # type: ignore[no-untyped-def]
    """Take a picture; a browser on a busy machine sometimes fails to, of a long page, and does it when asked again."""
    from playwright.sync_api import Error

    try:
        shown.screenshot(path=path, full_page=full_page)
    except Error:
        if tries == 1:
            raise
        time.sleep(2)
        picture(shown, path, full_page, tries - 1)


def runs(folder: Path) -> list[Path]:
    """Folders of runs to report on, made where they are not there yet."""
    small, sweep, long = folder / "compare", folder / "sweep", folder / "long"
    if not small.exists():
        seeds = ["--seed", "0,1,2", "--partition-seed", "0"]
        asked = ["compare", "fedavg", "fedprox", "pfedsd", *COMMON, "--rounds", "30", "--epochs", "2", *seeds]
        fedloom([*asked, "--out", str(small)])
    if not sweep.exists():
        over = ["--over", "mu=0.001,0.01,0.1,1", "--over", "local.lr=0.01,0.05,0.2", "--val-fraction", "0.2"]
        asked = ["sweep", "fedprox", *COMMON, "--rounds", "10", "--epochs", "1", "--seed", "0,1", *over]
        fedloom([*asked, "--out", str(sweep)])
    if not long.exists():
        for method, level in {"fedavg": 0.6, "fedprox": 0.62, "scaffold": 0.7, "local_only": 0.5}.items():
            for seed in range(3):
                made_up(long / method / f"seed-{seed}", method, seed, level)
    return [small, sweep, small / "pfedsd" / "seed-0", long]


def made_up(folder: Path, algorithm: str, seed: int, level: float, rounds: int = 200, clients: int = 20) -> None:
    """A run directory with numbers of nobody's: what a long run with ten classes writes."""
    rng = np.random.default_rng([seed, *algorithm.encode()])
    folder.mkdir(parents=True)
    metrics = []
    for t in range(rounds + 1):
        accuracy = float(np.clip(level * (1 - 0.95 ** (t / 4)) + 0.02 * rng.normal(), 0, 1))
        classes = np.clip(accuracy + 0.12 * rng.normal(size=10), 0, 1)
        personal = np.clip(accuracy + 0.1 + 0.1 * rng.normal(size=clients), 0, 1)
        record = {
            "round": t,
            "global_accuracy": accuracy,
            "global_loss": 2.3 * (1 - accuracy),
            "class_accuracy": classes.tolist(),
            "personal_accuracy": float(personal.mean()),
            "personal_std": float(personal.std()),
            "personal_worst_tenth": float(np.sort(personal)[:2].mean()),
            "personal_by_client": {str(k): float(v) for k, v in enumerate(personal)},
        }
        if t:
            record |= {"clients": [0, 1], "train_loss": 2 / t, "bytes_down": 4_000_000, "bytes_up": 1_000_000}
            record |= {"forgetting": 0.3 - 0.2 * level + 0.02 * float(rng.normal()) if t > 1 else None}
            record |= {"in_local_accuracy": accuracy + 0.1 * (1 - accuracy), "out_local_accuracy": accuracy * 0.9}
        metrics.append(record)
    laps = [{"round": t, "seconds": {"train": 0.5 * (t > 0), "evaluate": 0.25}} for t in range(rounds + 1)]
    asked = {
        "algorithm": algorithm,
        "model": "mlp",
        "data": {"source": "made_up", "clients": clients},
        "run": {"rounds": rounds, "cohort_size": 2, "seed": seed},
    }
    held = rng.integers(0, 60, (clients, 10)).tolist()
    federation = {"clients": clients, "classes": 10, "shown": list(range(clients)), "train": held}
    for name, lines in {"metrics.jsonl": metrics, "timing.jsonl": laps}.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, content in {"settings.json": asked, "federation.json": federation}.items():
        (folder / name).write_text(json.dumps(content))


if __name__ == "__main__":
    sys.exit(main())
