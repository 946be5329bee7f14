"""Run directories that somebody has damaged or made up: a page, or an error that names the file; never a traceback."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made import made_run

from fedloom.cli.main import main

FILES = ("metrics.jsonl", "timing.jsonl", "settings.json", "manifest.json", "federation.json")


def nested(depth: int, mapping: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if mapping else [value]
    return value


ODD: list[Any] = [
    *(None, True, -1, 0, 2**63, -(10**19), 1e308, -1e308, 5e-324, 0.5, "", "1", "a\0b", "\ud800", "=cmd|' /C calc'!A0"),
    *("x" * 5000, "../../etc/passwd", [], {}, [None], [[1], [2, 3]], {"": {}}, {"a\0": "\n"}, {"kind": 5}),
    *(nested(90), nested(900), nested(90, True), nested(900, True)),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    out = value.copy()
    out[path[0]] = replaced(value[path[0]], path[1:], by)
    return out


def odd_value(text: str, draw: random.Random) -> str:
    """One value of one record, or document, becomes another."""
    lines = text.splitlines() if "\n" in text.strip() else [text]
    i = draw.randrange(len(lines))
    found = json.loads(lines[i])
    lines[i] = json.dumps(replaced(found, draw.choice(list(places(found))), draw.choice(ODD)))
    return "\n".join(lines) + "\n"


def lost_key(text: str, draw: random.Random) -> str:
    found = json.loads(text.splitlines()[0])
    found.pop(draw.choice([*found, "none"]), None)
    return "\n".join([json.dumps(found), *text.splitlines()[1:]]) + "\n"


def cut(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text))]


def flipped(text: str, draw: random.Random) -> str:
    i = draw.randrange(len(text))
    return text[:i] + chr(ord(text[i]) ^ (1 << draw.randrange(7))) + text[i + 1 :]


DAMAGE: tuple[Callable[[str, random.Random], str], ...] = (odd_value, odd_value, odd_value, lost_key, cut, flipped)


def damaged(folder: Path, draw: random.Random) -> str:
    """Damage one file, sometimes two, of a run; what was done."""
    done = []
    for _ in range(draw.choice((1, 1, 2))):
        path, how = folder / draw.choice(FILES), draw.choice(DAMAGE)
        if path.stat().st_size > 3:
            try:
                path.write_text(how(path.read_text("utf-8"), draw), encoding="utf-8", errors="surrogatepass")
            except (ValueError, RecursionError, IndexError):  # what an earlier damage left is no document
                continue
            done.append(f"{how.__name__} in {path.name}")
    return ", ".join(done)


def outcome(folder: Path, capsys: pytest.CaptureFixture[str], said: str) -> int:
    """What `fedloom report` makes of it; an exception ends the test."""
    status = main(["report", str(folder), "--out", str(folder.parent / "out")])
    error = capsys.readouterr().err
    assert status in (0, 2), said
    assert error.startswith("error: ") == (status == 2), f"{said}: {error}"
    assert (folder.parent / "out" / "report.html").exists() == (status == 0), said
    return status


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two sound runs to damage; figures are made, but rendered only in the slow form."""
    monkeypatch.setattr("fedloom.report.page.rendered", lambda figure, kind: b'<svg viewBox="0 0 1 1">\n</svg>')
    made_run(tmp_path / "base/a", rounds=3, clients=4)
    made_run(tmp_path / "base/b", "fedntd", rounds=3, clients=4)
    return tmp_path


def campaign(folder: Path, capsys: pytest.CaptureFixture[str], seeds: range) -> list[int]:
    out = []
    for seed in seeds:
        for name in ("run", "out"):
            shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(folder / "base", folder / "run")
        out.append(outcome(folder / "run", capsys, f"{seed}: {damaged(folder / 'run/a', random.Random(seed))}"))
    return out


@pytest.mark.slow
def test_every_damage_ends_in_a_page_or_an_error(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(campaign(quick, capsys, range(20))) == {0, 2}


@pytest.mark.slow
def test_many_damages_end_in_a_page_or_an_error(
    quick: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(figure: Any, kind: str) -> bytes:
        figure.draw_without_rendering()
        return b'<svg viewBox="0 0 1 1">\n</svg>'

    campaign(quick, capsys, range(1000, 1080))
    monkeypatch.setattr("fedloom.report.page.rendered", drawn)
    campaign(quick, capsys, range(20))


@pytest.mark.parametrize("mapping", [False, True])
def test_deep_nesting_is_refused_by_name(mapping: bool, quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quick / "base/a/settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"x": nested(900, mapping)}))
    assert main(["report", str(quick / "base"), "--out", str(quick / "out")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "settings.json" in error
    assert "nested too deeply" in error


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("settings.json", {"algorithm": "a\0b"}),
        ("metrics.jsonl", {"global_loss": 1e308, "train_loss": -1e308}),
        ("timing.jsonl", {"seconds": {"train": 1e308, "evaluate": 1e308}, "peak_rss_mib": 1e308}),
        ("federation.json", {"sizes": {"min": -1, "median": 1e308, "max": 1}}),
    ],
)
def test_odd_values_give_a_page(file: str, change: Any, quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quick / "base/a" / file
    lines = path.read_text().splitlines()
    path.write_text("".join(json.dumps(json.loads(line) | change) + "\n" for line in lines))
    assert outcome(quick / "base", capsys, file) == 0
    page = (quick / "out/report.html").read_text()
    assert ("a: numbers beyond 1e+30 are left out." in page) == file.endswith(".jsonl")


def test_numbers_of_clients_fit_into_an_integer(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quick / "base/a/federation.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"clients": 10**19, "shown": [10**19 - 1] * len(found["shown"])}))
    assert outcome(quick / "base", capsys, "clients") == 2


@pytest.mark.slow
@pytest.mark.parametrize("link", ["report", "report/figures", "report/tables", "report/report.html"])
def test_a_report_is_not_written_through_links(link: str, quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside, place = quick / "outside", quick / "base" / link
    outside.mkdir()
    (outside / "mine").write_text("mine")
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside / "mine" if link.endswith("html") else outside)
    assert main(["report", str(quick / "base")]) == 2
    assert "is a link, and would be written through: remove it, or name another place" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("mine", "mine")]


@pytest.mark.slow
def test_formulas_in_names_stay_text(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quick / "base/a/settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"algorithm": "=cmd|' /C calc'!A0"}))
    assert outcome(quick / "base", capsys, "formula") == 0
    for table in (quick / "out/tables").iterdir():
        cells = [cell.strip('"') for line in table.read_text().splitlines() for cell in line.split(",")]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))], table.name
    assert "'=cmd|" in (quick / "out/tables/rounds.csv").read_text()
