"""Texts of site files from the command line to predictions and an exported file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import safetensors

from fedloom.cli.main import main
from fedloom.tables.vocabulary import TextPreparation


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for k, site in enumerate(("a", "b")):
        rows = "".join(f"{i},{('calm', 'loud')[i % 2]} room {site},{('good', 'bad')[i % 2]}\n" for i in range(20 + k))
        (tmp_path / f"{site}.csv").write_text("id,note,mood\n" + rows)
    return tmp_path


@pytest.mark.slow
def test_texts_of_sites_are_learnt_and_predicted(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = f"{sites}/*.csv?text=note&label=mood&length=4", sites / "run"
    said = f"--rounds 12 --cohort 2 --lr 0.2 --batch-size 5 --epochs 2 --engine loop --seed 0 --out {out}"
    model = ["--model", "text_cnn?width=4&maps=4&dropout=0"]
    assert main(["run", "fedavg", "--data", source, *model, *said.split()]) == 0
    (sites / "later").mkdir()
    new = sites / "later" / "new.csv"
    new.write_text("note,ward\ncalm room,3\nloud nobody,4\n,5\n")
    assert main(["predict", str(out), "--data", str(new), "--out", str(sites / "later" / "said.csv")]) == 0
    with (sites / "later" / "said.csv").open(newline="") as file:
        assert [row["prediction"] for row in csv.DictReader(file)][:2] == ["good", "bad"]
    assert main(["export", str(out), str(sites / "m.safetensors")]) == 0
    with safetensors.safe_open(sites / "m.safetensors", framework="pt") as file:
        kept = TextPreparation.read(json.loads(file.metadata()["text"]))
    assert kept.vocabulary is not None
    assert {*kept.vocabulary.tokens} == {"room", "calm", "loud", "a", "b"}
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert list(kept.vocabulary.tokens) == _found(manifest, "vocabulary")
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", f"{_with_moods(new)}", "--measures", "accuracy"]) == 0
    said = "2 of 5 words of 'note' are not in the vocabulary of the run, and all alike to its models: expect"
    assert said in (err := capsys.readouterr().err)
    assert err.count("warning: ") == 1


def _with_moods(new: Path) -> Path:
    header, *lines = new.read_text().splitlines()
    new.write_text("\n".join([f"{header},mood", *(f"{line},good" for line in lines)]))
    return new


def _found(described: object, name: str) -> object:
    """The first entry of this name, however deep."""
    inner = (
        list(described.values()) if isinstance(described, dict) else described if isinstance(described, list) else []
    )
    if isinstance(described, dict) and isinstance(described.get(name), list):
        return described[name]
    return next((found for one in inner if (found := _found(one, name)) is not None), None)
