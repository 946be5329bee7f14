"""Folders of text files: a folder for each class, or plain texts whose next token is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.data.examples import Dataset, Examples
from fedloom.data.inputs import IGNORED, Tokens
from fedloom.tables.data_frames import from_frame
from fedloom.tables.file_checks import check_link, read_whole, refuse, refuse_other_kinds, visible, warn_of_folders
from fedloom.tables.preparation import Preparation
from fedloom.tables.vocabulary import TextPreparation, tokens_of

_TRAINED = 0.8  # of a file's text, from its beginning


def texts(
    folder: Path,
    *,
    tokens: Any = None,
    length: int | None = None,
    most: int = 10_000,
    least: int = 1,
    least_clients: int = 1,
) -> Dataset:
    """Return token ids (N, length) of text files (.txt, UTF-8), by a vocabulary that clients count.

    `{train,test}/<class>/*.txt` are texts of classes, as in the folder of a film review corpus; without `test/`, there
    is no test set. `*.txt` alone are plain texts: windows of `length` tokens that follow one another, and the token
    that follows each place. Each file is a natural client then; the first 80 % of its tokens are to train on, `length`
    tokens are left out, and the others are to test on.

    Args:
        folder: with the files.
        tokens: "words" or "characters"; without it, words of texts of classes and characters of plain ones. Of texts of
            classes also a tokeniser.
        length: most tokens of a text, or those of a window; without it, 128 and 80.
        most: the largest vocabulary.
        least: how often a client must have a token to name it.
        least_clients: how many clients must have a token for it to be in the vocabulary.
    """
    if (folder / "train").is_dir():
        return _of_classes(folder, tokens or "words", length or 128, most, least, least_clients)
    files = visible(folder.glob("*.txt"))
    if not files:
        refuse(
            folder, "the folder must hold train/<class>/*.txt, or plain *.txt", "neither",
            "make one folder for each class, or give the folder with the files",
        )  # fmt: skip
    if not isinstance(tokens or "characters", str):
        refuse(folder, "the next token of plain texts is a character or a word", repr(tokens), "tokens=words")
    warn_of_folders(folder, ())
    how = TextPreparation("text", tokens or "characters", (length or 80) + 1, most, least, least_clients=least_clients)
    return _plain(folder, files, how)


def _of_classes(folder: Path, tokens: Any, length: int, most: int, least: int, least_clients: int) -> Dataset:
    import pandas as pd

    rows: list[tuple[str, str, str]] = []
    warn_of_folders(folder)
    for part in ("train", "test"):
        if (folder / part).is_dir():
            check_link(folder / part, folder)
            classes = visible(p for p in (folder / part).iterdir() if p.is_dir())
            if not classes:
                refuse(folder / part, "the folder must hold a folder for each class", "none", "make one for each")
            for place in classes:
                files = visible(place.glob("*.txt"))
                if not files:
                    refuse(place, "the folder of a class must hold .txt files", "none", "remove it, or fill it")
                rows += [(_text(path, folder), place.name, part) for path in files]
    known = {label for _, label, part in rows if part == "train"}
    if extra := sorted({label for _, label, _ in rows} - known):
        refuse(folder / "test", "test/ must hold classes of train/", ", ".join(extra)[:100], "rename the folders")
    frame = pd.DataFrame(rows, columns=["text", "label", "part"])
    split = "part" if "test" in set(frame["part"]) else None
    return from_frame(
        frame if split else frame[["text", "label"]], label="label", split=split, text="text", tokens=tokens,
        length=length, most=most, least=least, least_clients=least_clients, test_fraction=0.0,
        name=folder.resolve().name or "texts",
    )  # fmt: skip


def _plain(folder: Path, files: Sequence[Path], how: TextPreparation) -> Dataset:
    import pandas as pd

    assert isinstance(how.tokens, str)
    length, kind = how.length - 1, how.tokens
    cells: list[tuple[str, ...]] = []
    owners, held_out, names = list[int](), list[bool](), list[str]()
    for path in files:
        tokens = tokens_of(_text(path, folder), kind)
        cut = int(_TRAINED * len(tokens))
        parts = [[part[i : i + length + 1] for i in range(0, len(part) - 1, length)]
                 for part in (tokens[:cut], tokens[cut + length :])]  # fmt: skip
        if not parts[0]:
            refuse(path, "a text must have two tokens to train on", f"{len(tokens)} {kind}", "leave the file out")
        for i, part in enumerate(parts):
            cells += map(tuple, part)
            owners += [len(names)] * len(part)
            held_out += [bool(i)] * len(part)
        names.append(path.stem)
    if not any(held_out):
        refuse(folder, "a text must have windows to test on", f"texts of at most {max(map(len, cells))} tokens",
               "give longer ones, or a smaller length")  # fmt: skip
    frame = pd.DataFrame({"text": pd.Series(cells, dtype=object)})
    rows = np.flatnonzero(~np.array(held_out))
    ids = torch.ones(len(cells), length, dtype=torch.uint8)  # until they are counted
    sizes = np.bincount(np.array(owners)[rows], minlength=len(names))
    # On a device these files are one client of many: `federate` leaves out what too few clients have.
    made = Preparation(frame, how).fitted_on_some(rows, np.zeros(len(cells), np.int64), sizes)
    bare = Examples(
        ids, torch.full(ids.shape, IGNORED), 2, Tokens(), folder.resolve().name or "texts", owners=tuple(names)
    )
    train = replace(bare, preparation=made).prepared(made)
    out = np.array(held_out)
    return Dataset(train, train.select(np.flatnonzero(out)), np.array(owners, np.int64), out)


def _text(path: Path, folder: Path) -> str:
    check_link(path, folder)
    refuse_other_kinds(path, "a text must be in UTF-8")
    try:
        return read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(path, "a text must be in UTF-8", f"byte {error.object[error.start]:#x} at {error.start}",
               "write it again in UTF-8")  # fmt: skip
