"""A word of a table is declared once: readers, paths, help and pages take it from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedloom as fl
from fedloom.data import Dataset
from fedloom.experiments.catalogue import data
from fedloom.tables.table_words import TableWords, example, kinds_of_words

READERS = [fl.read_csv, fl.read_parquet, fl.read_sites, fl.from_frame]
ROWS = "age,label,town,id\n30,0,Kiel,1\n31,1,Kiel,2\n32,0,Ulm,3\n33,1,Ulm,4\n"


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_reader_takes_all_words_with_their_defaults(read: Callable[..., Dataset]) -> None:
    _, *given = inspect.signature(read).parameters.values()
    assert {one.name: one.default for one in given} == {one.name: one.default for one in fields(TableWords)}
    assert all(one.kind is one.KEYWORD_ONLY for one in given)
    assert str(inspect.signature(read).return_annotation) == "Dataset"


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_help_has_a_sentence_of_each_word(read: Callable[..., Dataset]) -> None:
    text = inspect.getdoc(read) or ""
    told, _, raised = text.partition("Args:\n")[2].partition("\n\n")
    assert [f"    {one.name}: " for one in fields(TableWords) if f"    {one.name}: " not in told] == []
    assert "    least: of `federated`, how many rows of a client must have a word for the client to name it;" in told
    assert "words:" not in told
    assert raised.startswith("Raises:\n")


def test_a_path_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(ROWS)
    given: dict[str, Any] = {"path": tmp_path / "t.csv", "drop": ["town"], "name": "people"}
    assert fl.read_csv(**given).train.name == "people"
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'lable'"):
        fl.read_csv(tmp_path / "t.csv", lable="label")  # type: ignore[call-arg]


def test_words_behind_a_path_are_those_of_python(tmp_path: Path) -> None:
    assert set(kinds_of_words()) == {one.name for one in fields(TableWords)} - {"test_fraction", "seed", "name"}
    (tmp_path / "t.csv").write_text(ROWS)
    said = data(f"{tmp_path}/t.csv?client=town&drop=id&target=age&least=1")
    given = fl.read_csv(tmp_path / "t.csv", client="town", drop=["id"], target=["age"])
    assert (said.train.owners, said.train.targets) == (given.train.owners, ("age",)) == (("Kiel", "Ulm"), ("age",))


def test_examples_of_words() -> None:
    assert example() == "label=y&client=c&split=s&group=g&drop=a,b&categories=d&gaps=none&prepare=standard"
    assert example(["client", "gaps"]) == "label=y&split=s&group=g&drop=a,b&categories=d&prepare=standard"


def test_words_that_a_reader_has_no_use_for(tmp_path: Path) -> None:
    for name in ("Kiel", "Ulm"):
        (tmp_path / f"{name}.csv").write_text(ROWS)
    with pytest.raises(ValueError, match=r"each file of .* is a client, got 'client=town': leave it out, or name one"):
        fl.read_sites(f"{tmp_path}/*.csv", client="town")
    with pytest.raises(ValueError, match=r"gaps are words in text files, got gaps=-9,x for frame: leave it out"):
        fl.from_frame(pd.DataFrame({"a": [1], "label": [0]}), gaps=["x", -9])
    with pytest.raises(ValueError, match=r"gaps are words in text files, got gaps=x for none.parquet: leave it out"):
        fl.read_parquet("none.parquet", gaps="x")
