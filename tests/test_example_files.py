"""The examples: every settings file and every script runs, shortened, and the documentation names each."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.cli.main import main

ROOT = Path(__file__).parents[1]
FILES = sorted(p for p in (ROOT / "examples").iterdir() if p.suffix in (".toml", ".py", ".ipynb"))
SETTINGS = [p for p in FILES if p.suffix == ".toml"]
SHORT = ["--rounds", "1", "--epochs", "1", "--cohort", "3"]


@pytest.fixture(autouse=True)
def _in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("own", "own_algorithm", "own_clusters", "own_twins"):
        monkeypatch.setitem(sys.modules, name, None)  # what is imported under these names goes when the test ends
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("file", SETTINGS, ids=lambda p: p.stem)
def test_settings_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = next(line for line in file.read_text().splitlines() if "fedloom " in line)  # as its head says
    words = line.partition("fedloom ")[2].split()
    words[words.index("--settings") + 1] = str(file)
    words[words.index("--out") + 1] = str(tmp_path)
    assert main([*words, *SHORT, *["--seed", "0"] * ("--seed" in words)]) == 0, capsys.readouterr().err
    runs = list(tmp_path.rglob("metrics.jsonl"))
    assert runs
    for run in runs:
        records = [json.loads(row) for row in run.read_text().splitlines()]
        assert [r["round"] for r in records] == [0, 1]
        assert records[1]["personal_accuracy"] > 0


@pytest.mark.slow
def test_own_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["own.py", str(tmp_path)])
    runpy.run_path("own.py", run_name="__main__")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 11
    assert (tmp_path / "client-3.pt").exists()
    assert capsys.readouterr().out.count("round 7, client ") == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "method", "gain"),
    [("own_algorithm", "Ditto", 0.0), ("own_clusters", "Halved", 0.3), ("own_twins", "Twins", 0.1)],
)
def test_a_method_of_ones_own_is_checked_and_beats_fedavg(
    file: str, method: str, gain: float, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(f"{file}.py", run_name="__main__")
    out = capsys.readouterr().out
    assert out.startswith("checks that do not apply: {'neutral_is_fedavg': 'declares no neutral settings'}\n")
    reached = {line.split()[0]: float(line.split()[-1]) for line in out.splitlines()[1:]}
    assert reached[method] > reached["FedAvg"] + gain


@pytest.mark.parametrize(
    ("directions", "chosen"),
    [
        ([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]),
        ([[1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]),
        ([], [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_the_two_clients_least_alike(directions: list[list[float]], chosen: list[list[float]]) -> None:
    least_alike = runpy.run_path("own_clusters.py")["least_alike"]
    assert [row.tolist() for row in least_alike(torch.tensor(directions).reshape(-1, 2))] == chosen


@pytest.mark.slow
def test_masks_of_garments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["segmentation.py", "--short"])
    found = runpy.run_path("segmentation.py", run_name="__main__")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["mean", "IoU", "worst", "site", *found["KINDS"]]
    assert [row[:26].strip() for row in rows] == [*found["METHODS"]]
    numbers = [float(n) for row in rows for n in row[26:].split() if n != "/"]
    assert len(numbers) == len(rows) * 8
    assert not any(n < 0 or n > 100 for n in numbers)  # NaN of a class that nobody has


def test_garments_are_masks_and_sites_differ_by_contrast() -> None:
    made = runpy.run_path("segmentation.py")["federation"](30, 0)
    x, y, sizes = made.train.x[:, 0], made.train.y, made.partition.sizes + made.local_test.sizes
    assert sizes.tolist() == [30] * 6
    assert y.unique().tolist() == [0, 1, 2, 3]
    brighter = [float(x[k * 30 : k * 30 + 30][y[k * 30 : k * 30 + 30] > 0].float().mean()) for k in range(6)]
    ground = [float(x[k * 30 : k * 30 + 30][y[k * 30 : k * 30 + 30] == 0].float().mean()) for k in range(6)]
    assert [a > b for a, b in zip(brighter, ground, strict=True)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.name)
def test_the_documentation_names_it(file: Path) -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    assert any(f"examples/{file.name}" in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers
def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    cells = json.loads(Path("adapters.ipynb").read_text(encoding="utf-8"))["cells"]
    there: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "adapters.ipynb", "exec"), there)
    sent = {name: found[0] for name, found in there["table"].items()}
    reached = {name: found[1] for name, found in there["table"].items()}
    print(sent, reached)
    assert sent["B of B A"] == 4 * there["networks"]["B of B A"].num_params < sent["B and A"] < sent["all"] / 4
    assert min(reached.values()) > 0.5  # of four classes
    assert "bytes up" in capsys.readouterr().out
