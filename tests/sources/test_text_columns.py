"""Texts of tables, sites, folders, arrays of tokens and Hugging Face as examples: ids, clients, parts, mistakes."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedloom as fl
from fedloom.data import Dataset, Tokens, natural
from fedloom.experiments import catalogue
from fedloom.experiments.named_code import named_code
from fedloom.sources import load
from fedloom.tables import read_csv, read_npy, read_npz, read_sites
from fedloom.tables.vocabulary import Vocabulary

ROWS = "id,note,mood\n1,good good day,yes\n2,bad day,no\n3,,yes\n4,good night,no\n"


def table(path: Path, text: str = ROWS) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_text_is_the_one_feature_of_a_table(tmp_path: Path) -> None:
    found = read_csv(table(tmp_path / "a.csv"), label="mood", text="note", length=4, test_fraction=0.0).train
    assert found.x.tolist() == [[2, 2, 3, 0], [4, 3, 0, 0], [1, 0, 0, 0], [2, 5, 0, 0]]
    assert found.normalise == Tokens(0, vocabulary=6)
    assert (found.classes, found.y.tolist(), found.columns) == (("no", "yes"), [1, 0, 1, 0], ())
    assert found.preparation is not None
    assert found.preparation.read["dropped"] == ["id"]
    assert found.preparation.facts["prepare"]["vocabulary"] == ["good", "day", "bad", "night"]


def test_a_text_may_be_longer_than_pythons_csv_takes(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    (tmp_path / "t.csv").write_text("note,label\n" + "word " * 60_000 + ",0\nother,1\n")
    train = read_csv(tmp_path / "t.csv", text="note", length=4, test_fraction=0.0).train
    assert train.x.tolist() == [[2] * 4, [3, 0, 0, 0]]
    assert csv.field_size_limit() == limit  # of other readers of the process
    (tmp_path / "u.csv").write_text('note,label\n"word,0\nother,1\n')
    with pytest.raises(ValueError, match="the file must be a table as text, got unexpected end of data: write it"):
        read_csv(tmp_path / "u.csv", text="note", test_fraction=0.0)
    assert csv.field_size_limit() == limit


def test_a_text_may_have_numbers_as_targets(tmp_path: Path) -> None:
    found = read_csv(table(tmp_path / "a.csv"), target="id", text="note", length=2, test_fraction=0.0).train
    assert found.y.tolist() == [1, 2, 3, 4]
    assert found.has_tokens


def test_the_vocabulary_follows_from_the_training_rows_of_each_client(tmp_path: Path) -> None:
    """Held-out rows name no word, and `least` holds for each client by itself."""
    for site, words in (("a", "x x y rare"), ("b", "x y y"), ("c", "x x y y")):
        rows = "".join(f"{words} {site}{i},{'pq'[i % 2]}\n" for i in range(10))
        table(tmp_path / f"{site}.csv", "note,label\n" + rows)
    data = read_sites(tmp_path / "*.csv", text="note", label="label", length=4, least=8, test_fraction=0.0)
    assert data.train.owners == ("a", "b", "c")
    assert data.owners is not None
    made = fl.federate(data.train, natural(data.owners), test_fraction=0.2)
    prepared = made.train.preparation
    assert prepared is not None
    assert prepared.text is not None
    assert prepared.text.vocabulary == Vocabulary("words", ("x", "y", "rare"))
    assert made.train.normalise == Tokens(0, vocabulary=5)
    without = fl.federate(data.train, natural(data.owners), test_fraction=0.3).train.preparation
    assert without is not None
    assert without.text is not None
    assert without.text.vocabulary == Vocabulary("words", ("x", "y"))  # 7 rows name what occurs once in each no more


def test_a_token_that_one_site_alone_has_is_left_out_once_clients_are_known(tmp_path: Path) -> None:
    for site in "abc":
        table(tmp_path / f"{site}.csv", "note,label\n" + f"day only{site} only{site} here,p\nday,q\n" * 4)
    data = read_sites(tmp_path / "*.csv", text="note", label="label", length=4, least_clients=3, test_fraction=0.0)
    assert data.owners is not None
    made = fl.federate(data.train, natural(data.owners), test_fraction=0.0)
    assert made.train.preparation is not None
    assert made.train.preparation.text is not None
    assert made.train.preparation.text.vocabulary == Vocabulary("words", ("day", "here"))
    with pytest.raises(ValueError, match="at most the number of clients that count words, 2, got 3: no word would be"):
        fl.federate(data.train, fl.iid(data.train.y, 2, seed=0), test_fraction=0.0)


def test_plain_texts_may_leave_out_the_characters_of_one_file(tmp_path: Path) -> None:
    folder = plain(tmp_path / "books", one="abcd" * 10, two="abce" * 10)
    data = catalogue.data(f"texts:{folder}?length=5&least_clients=2")
    assert data.owners is not None
    made = fl.federate(data.train, natural(data.owners), test=data.test, held_out=data.held_out)
    assert made.num_classes == 2 + len("abc")
    assert catalogue.data(f"texts:{plain(tmp_path / 'w', a='ab' * 300)}?least_clients=9").train.num_classes == 4
    data = catalogue.data(f"texts:{folder}?length=5&least_clients=3")
    with pytest.raises(ValueError, match="clients that count words, 2, got 3"):
        fl.federate(data.train, natural(data.owners), held_out=data.held_out)  # type: ignore[arg-type]


def test_sites_may_have_other_columns_beside_a_text(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", "note,label,ward\nok then,1,3\nno,0,4\n")
    table(tmp_path / "b.csv", "day;note;label\nmon;well,ok;1\ntue;no;0\n")
    found = read_sites(tmp_path / "*.csv", text="note", label="label", tokens="characters", length=7, test_fraction=0.0)
    assert found.train.shape == (7,)
    assert found.owners is not None
    assert found.owners.tolist() == [0, 0, 1, 1]


class _Lengths:
    size = 50

    def __call__(self, text: str) -> list[int]:
        return [len(word) for word in text.split()] or [49]


def lengths() -> _Lengths:
    return _Lengths()


def test_a_tokeniser_by_name_is_code_that_a_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{table(tmp_path / 'a.csv')}?text=note&label=mood&tokens={__name__}:lengths&length=3"
    found = catalogue.data(source, whole=True).train
    assert found.x.tolist() == [[4, 4, 3], [3, 3, 0], [49, 0, 0], [4, 5, 0]]
    assert found.normalise == Tokens(0, vocabulary=50)
    assert named_code({"data": {"source": source}}) == [f"{__name__}:lengths"]
    assert named_code({"data": {"source": source.replace(f"{__name__}:lengths", "words")}}) == []
    assert named_code({"model": "torchvision:resnet18,own:Net"}) == ["own:Net"]


def plain(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def test_plain_texts_are_clients_whose_next_token_is_predicted(tmp_path: Path) -> None:
    folder = plain(tmp_path / "books", one="abcd" * 10, two="dcba" * 10)
    data = catalogue.data(f"texts:{folder}?length=5")
    assert data.train.owners == ("one", "two")
    assert data.owners is not None
    assert np.bincount(data.owners).tolist() == [8, 8]  # 7 windows of the first 32 characters; 3 remain behind 5
    assert data.held_out is not None
    assert data.held_out.sum() == 2
    assert data.train.num_classes == 6
    x, y = data.train.x.long(), data.train.y
    # b and c occur 16 times before the last characters, a and d 15 times
    assert torch.equal(x[0], torch.tensor([4, 2, 3, 5, 4]))
    assert torch.equal(y[0], torch.tensor([2, 3, 5, 4, 2]))
    assert (y[6] == -100).tolist() == [False, True, True, True, True]  # the last two of 32 characters
    made = fl.federate(data.train, natural(data.owners), test=data.test, held_out=data.held_out)
    assert made.train.y.shape == x.shape
    words = catalogue.data(f"texts:{plain(tmp_path / 'w', a='to be or not to be that ' * 9)}?tokens=words&length=4")
    assert words.train.num_classes == 7


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        plain(tmp_path / part / "neg", a="bad film", b="bad bad")
        plain(tmp_path / part / "pos", a="good film")
    data = catalogue.data(f"texts:{tmp_path}?length=3")
    assert data.train.classes == ("neg", "pos")
    assert data.train.x.tolist() == [[2, 3, 0], [2, 2, 0], [4, 3, 0]]
    assert data.test is not None
    assert data.test.y.tolist() == [0, 0, 1]


def test_folders_that_are_not_read_are_named(tmp_path: Path) -> None:
    for part in ("train", "dev"):
        (tmp_path / part / "good").mkdir(parents=True)
        (tmp_path / part / "good" / "1.txt").write_text("a fine film")
    with pytest.warns(UserWarning, match=r"train/ and test/ are read, and dev/ not: rename the one"):
        load("texts", tmp_path)
    (plain := tmp_path / "plain" / "more").mkdir(parents=True)
    (plain.parent / "one.txt").write_text("abcdefgh" * 20)
    with pytest.warns(UserWarning, match=r"files in the folder itself are read, and more/ not: move their files up"):
        load("texts", plain.parent, length=10)


def test_files_whose_names_begin_with_a_dot_are_no_texts(tmp_path: Path) -> None:
    """macOS writes ._NAME beside each file on a share, Jupyter .ipynb_checkpoints."""
    books = plain(tmp_path / "books", one="abcd" * 200, two="dcba" * 200)
    (books / "._two.txt").write_bytes(b"\x00\x05\x16\x07" + bytes(120))
    assert catalogue.data(f"texts:{books}").train.owners == ("one", "two")
    for kind in ("neg", "pos"):
        (train := tmp_path / "films" / "train").mkdir(exist_ok=True, parents=True)
        (plain(train / kind, a="a film") / "._a.txt").write_bytes(b"\xb0")
    plain(train / ".ipynb_checkpoints", a="a film")
    data = catalogue.data(f"texts:{tmp_path / 'films'}")
    assert (data.train.classes, len(data.train)) == (("neg", "pos"), 2)


def test_arrays_of_tokens(tmp_path: Path) -> None:
    ids = np.arange(1, 41, dtype=np.int32).reshape(10, 4)
    np.save(tmp_path / "a.npy", ids)
    whole = read_npy(tmp_path / "a.npy", test_fraction=0.0)
    assert (whole.test, whole.train.num_classes, whole.train.normalise) == (None, 41, Tokens(vocabulary=41))
    assert whole.train.y[0].tolist() == [2, 3, 4, -100]
    divided = catalogue.data(str(tmp_path / "a.npy"))
    assert divided.test is not None
    assert (len(divided.train), len(divided.test)) == (8, 2)
    y = np.arange(10) % 3
    np.savez(tmp_path / "b.npz", x_train=ids, y_train=y, x_test=ids[:3] + 5, y_test=y[:3])
    classes = read_npz(tmp_path / "b.npz")
    assert (classes.train.num_classes, classes.train.normalise) == (3, Tokens(vocabulary=41))
    names = np.repeat(["kiel", "bonn"], 5)
    np.savez(tmp_path / "c.npz", x_train=ids, x_test=ids, clients_train=names)
    own = read_npz(tmp_path / "c.npz")
    assert own.owners is not None
    assert [own.train.owners[k] for k in own.owners] == names.tolist()
    assert own.train.y.shape == (10, 4)
    np.savez(tmp_path / "d.npz", x_train=ids, x_test=ids, y_train=ids % 7, y_test=ids % 7)
    assert torch.equal(read_npz(tmp_path / "d.npz").train.y, torch.from_numpy(ids % 7).long())


@pytest.mark.parametrize("fraction", [1.5, 1.0, -0.5, float("nan")])
def test_the_part_of_token_arrays_that_is_held_out_is_checked(tmp_path: Path, fraction: float) -> None:
    np.save(tmp_path / "a.npy", np.arange(1, 11).reshape(5, 2))
    with pytest.raises(ValueError, match=r"test_fraction must be in \[0, 1\), got .*: 0.2 holds out a fifth"):
        read_npy(tmp_path / "a.npy", test_fraction=fraction)
    train, test, *_ = read_npy(tmp_path / "a.npy", test_fraction=0.99)  # one is left to train on
    assert test is not None
    assert (len(train), len(test)) == (1, 4)


def test_texts_of_hugging_face_keep_the_numbers_of_their_classes() -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["pos", "neg"]))
    rows = {"text": ["good", "bad film", "good film"], "label": [0, 1, 0]}
    made = datasets.Dataset.from_dict(rows, features=kinds)
    data = fl.sources.texts_of_huggingface(datasets.DatasetDict(train=made, test=made), text="text", length=2)
    assert (data.train.classes, data.train.y.tolist()) == (("pos", "neg"), [0, 1, 0])
    assert data.train.x.tolist() == [[3, 0], [4, 2], [3, 2]] or data.train.x.tolist() == [[2, 0], [4, 3], [2, 3]]
    assert data.test is not None
    few = datasets.Dataset.from_dict(
        {"text": ["bad", "good"], "label": [0, 2]},
        features=datasets.Features(
            text=datasets.Value("string"), label=datasets.ClassLabel(names=["neg", "so", "pos"])
        ),
    )
    for part in fl.sources.texts_of_huggingface(datasets.DatasetDict(train=few, test=few), text="text")[:2]:
        assert part is not None
        assert (part.classes, part.num_classes, part.y.tolist()) == (("neg", "so", "pos"), 3, [0, 2])
    named = datasets.Dataset.from_dict({"text": ["bad", "good"], "label": [1, 2]})
    assert fl.sources.texts_of_huggingface(named, text="text").train.classes == ("1", "2")
    with pytest.raises(ValueError, match="must have the columns review, got text, label: name others as text"):
        fl.sources.texts_of_huggingface(made, text="review")
    with pytest.raises(ValueError, match="must have a split 'train', got a"):
        fl.sources.texts_of_huggingface(datasets.DatasetDict(a=made), text="text")


def _csv(path: Path, said: str, text: str = ROWS) -> Dataset:
    return catalogue.data(f"{table(path / 'a.csv', text)}?{said}")


def _npz(path: Path, **arrays: Any) -> Dataset:
    np.savez(path / "a.npz", **arrays)
    return catalogue.data(str(path / "a.npz"))


IDS = np.ones((4, 3), np.int32)
MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such column": (lambda p: _csv(p, "text=notes&label=mood"), "there is no column 'notes' (did you mean 'note'?)"),
    "a column of numbers": (
        lambda p: _csv(p, "text=id&label=mood"), "the texts of 'id' must be texts, got numbers alone, such as '1'"),
    "no text at all": (
        lambda p: _csv(p, "text=note&label=mood", "note,mood\n,a\n,b\n"), "must have words, got empty cells alone"),
    "a text with two roles": (lambda p: _csv(p, "text=mood&label=mood"), "has one role, got 'mood' in several"),
    "prepared beside a text": (
        lambda p: _csv(p, "text=note&label=mood&prepare=federated"), "got prepare='federated' beside text=note: leave"),
    "categories beside a text": (
        lambda p: _csv(p, "text=note&label=mood&categories=id"), "got categories=id beside text=note"),
    "length without a text": (
        lambda p: _csv(p, "label=mood&length=9"), "length is said of a column of texts, got length=9 without one"),
    "an unknown kind of token": (
        lambda p: _csv(p, "text=note&label=mood&tokens=word"), "tokens are 'words' or 'characters', or a tokeniser"),
    "a tokeniser that is not there": (
        lambda p: _csv(p, "text=note&label=mood&tokens=nowhere:split"), "tokeniser 'nowhere:split': cannot import"),
    "a length that is no number": (
        lambda p: _csv(p, "text=note&label=mood&length=long"), "length of a table is a whole number, 0 or more, got"),
    "words that are all rare": (
        lambda p: _csv(p, "text=note&label=mood&least=50"), "needs tokens that occur at least 50 times at a client"),
    "a number of clients that is none": (
        lambda p: _csv(p, "text=note&label=mood&least_clients=few"), "least_clients of a table is a whole number, 0"),
    "no client at all": (
        lambda p: _csv(p, "text=note&label=mood&least_clients=0"), "least_clients is a whole number from 1, got 0"),
    "a folder without texts": (lambda p: catalogue.data(f"texts:{p}"), "must hold train/<class>/*.txt, or plain *.txt"),
    "texts that are too short": (
        lambda p: catalogue.data(f"texts:{plain(p / 'x', a='abc')}"), "a text must have windows to test on, got texts"),
    "a text that is no UTF-8": (
        lambda p: (plain(p / "x"), (p / "x" / "a.txt").write_bytes(b"\xff\xfea"), catalogue.data(f"texts:{p / 'x'}")),
        "a text must be in UTF-8, got byte 0xff at 0"),
    "an unknown word of a folder": (
        lambda p: catalogue.data(f"texts:{p}/none?size=3"), "each once, some of texts:FOLDER?tokens="),
    "ids below 0": (lambda p: _npz(p, x_train=-IDS, x_test=IDS), "token ids of x_train are 0 or more, got -1"),
    "sequences of two lengths": (
        lambda p: _npz(p, x_train=IDS, x_test=IDS[:, :2]), "x_train and x_test must be as long, got (4, 3) and (4, 2)"),
    "targets of one part": (
        lambda p: _npz(p, x_train=IDS, x_test=IDS, y_train=IDS[:, 0]), "of both parts or of none, got y_train"),
    "clients of other rows": (
        lambda p: _npz(p, x_train=IDS, x_test=IDS, clients_train=np.arange(3)), "client of each of 4 rows, got (3,)"),
    "a network of numbers": (
        lambda p: _built("mlp", _csv(p, "text=note&label=mood")), "mlp reads numbers, got token ids: networks"),
    "a network of tokens for numbers": (
        lambda p: _built("lstm", _csv(p, "label=mood&drop=note")), "lstm reads token ids, got numbers"),
    "another padding": (
        lambda p: _built("lstm", Dataset(fl.from_arrays(IDS, IDS[:, 0], num_classes=2, normalise=Tokens(9)), None)),
        "networks by name take the id 0 for padding, got 9"),
}  # fmt: skip


def _built(name: str, data: Dataset) -> None:
    for make in catalogue.models(name, data.train).values():
        make()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_texts_are_said(mistake: str, tmp_path: Path) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=r".") as error:
        make(tmp_path)
    assert message in str(error.value)


def test_a_table_of_pandas_has_texts_too() -> None:
    frame = pd.DataFrame({"note": ["a b", None], "label": [0, 1], "when": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    found = fl.tables.from_frame(frame, text="note", length=3, test_fraction=0.0).train
    assert found.x.tolist() == [[2, 3, 0], [1, 0, 0]]
