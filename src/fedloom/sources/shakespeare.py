"""Shakespeare by speaking role in LEAF's layout (Caldas et al., 2018): the next character of each place of a text."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.examples import Dataset, Examples
from fedloom.data.inputs import IGNORED, Tokens
from fedloom.tables import file_checks
from fedloom.tables.file_checks import check_link, read_whole, refuse, visible
from fedloom.tables.vocabulary import Vocabulary, narrow, padded

# ALL_LETTERS of LEAF's models/utils/language_utils.py, in its order
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
VOCABULARY = Vocabulary("characters", tuple(LETTERS))
WINDOW = 80  # characters of an example
_TRAINED = 0.8  # of a role's text, from its beginning

Windows = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


def shakespeare(folder: Path, *, roles: int = 0, characters: int = 0) -> Dataset:
    """Return windows of 80 characters (N, 80) of each role, and the character that follows each place.

    Natural clients are roles. Of the texts that LEAF calls raw (`all_data/*.json`, also compressed as .json.xz) the
    first 80 % of a role are to train on; then 80 characters are left out, and the others are to test on. Windows follow
    one another; the last one is filled with padding. Roles without a window to test on are left out. Of LEAF's samples
    (`{train,test}/*.json`, x of 80 characters and y the next one) the last place alone counts.

    Args:
        folder: with the files, also below `data/` and `all_data/`.
        roles: take so many of the roles, at equal distances in their order; 0: all. Those with fewer characters than
            `characters` are not counted.
        characters: read no more than the first so many characters of a role; 0: all.
    """
    for name, value in (("roles", roles), ("characters", characters)):
        if value < 0:
            raise ValueError(f"{name} of shakespeare is a whole number from 0, got {value}: 0 takes all")
    place = next((p for p in (folder / "data", folder) if (p / "train").is_dir()), None)
    if place is None:
        texts = dict(_texts(folder))
        parts = {role: _divided(text[: characters or None]) for role, text in texts.items() if len(text) >= characters}
    else:
        parts = _samples(place, folder)
    there = [role for role, (train, test) in parts.items() if len(train[0]) and len(test[0])]
    if roles > len(there):
        least = f" and {characters} characters" if characters else ""
        refuse(folder, f"there must be {roles} roles with examples to test on{least}", len(there), "take fewer")
    if not there:
        refuse(folder, "a role must have examples to train and to test on", "none", "take more characters")
    if roles:
        there = [there[i * len(there) // roles] for i in range(roles)]
    return _dataset([parts[role] for role in there], tuple(there))


def _dataset(parts: Sequence[tuple[Windows, Windows]], names: tuple[str, ...]) -> Dataset:
    each = [windows for both in parts for windows in both]
    sizes = [len(x) for x, _ in each]
    train = Examples(
        torch.from_numpy(np.concatenate([x for x, _ in each])),
        torch.from_numpy(np.concatenate([y for _, y in each])),
        VOCABULARY.size,
        Tokens(vocabulary=VOCABULARY.size),
        "shakespeare",
        owners=names,
    )
    held_out = np.repeat([out for _ in parts for out in (False, True)], sizes)
    owners = np.repeat(np.repeat(np.arange(len(parts)), 2), sizes)
    return Dataset(train, train.select(np.flatnonzero(held_out)), owners, held_out)


def windows(ids: Sequence[int], length: int, size: int) -> Windows:
    """Return windows of ids that follow one another (n, length), and the id that follows each place, -100 at the end.

    `size`: how many ids there are.
    """
    starts = range(0, max(0, len(ids) - 1), length)
    x = narrow(padded([ids[i : min(i + length, len(ids) - 1)] for i in starts], length), size)
    return x, padded([ids[i + 1 : i + 1 + length] for i in starts], length, IGNORED)


def _divided(text: str) -> tuple[Windows, Windows]:
    ids, cut = VOCABULARY.read(text), int(_TRAINED * len(text))
    return windows(ids[:cut], WINDOW, VOCABULARY.size), windows(ids[cut + WINDOW :], WINDOW, VOCABULARY.size)


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the roles of all files and what they say."""
    places = (folder / "data" / "all_data", folder / "all_data", folder / "data", folder)
    found = next((f for p in places if (f := visible([*p.glob("*.json"), *p.glob("*.json.xz")]))), [])
    if not found:
        refuse(
            folder, "the folder must hold all_data/*.json of LEAF, or train/ and test/ of its samples", "none",
            "run LEAF's preprocess.sh for shakespeare, or give the folder with such files",
        )  # fmt: skip
    seen: set[str] = set()
    for path in found:
        check_link(path, folder)
        for role, own in _users(path):
            text = own.get("raw")
            if not isinstance(text, str):
                refuse(path, f"role {role!r} must have its text as raw", type(text).__name__, "give LEAF's all_data")
            if role in seen:
                refuse(path, "files must name a role once", repr(role), "merge its texts")
            seen.add(role)
            yield role, text


def _samples(place: Path, folder: Path) -> dict[str, tuple[Windows, Windows]]:
    found: dict[str, list[Windows]] = {}
    nothing = np.empty((0, WINDOW), np.uint8), np.empty((0, WINDOW), np.int64)
    for i, part in enumerate(("train", "test")):
        files = visible((place / part).glob("*.json"))
        if not files:
            refuse(place / part, "the folder must hold .json files of LEAF", "none", "run LEAF's preprocess.sh")
        for path in files:
            check_link(path, folder)
            for role, own in _users(path):
                x, y = (own.get(key) for key in "xy")
                if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                    refuse(path, f"role {role!r} must have lists x and y of one length", type(x).__name__)
                for text, count in ((x, WINDOW), (y, 1)):
                    if wrong := [t for t in text if not isinstance(t, str) or len(t) != count]:
                        refuse(path, f"examples of role {role!r} must have {count} characters", repr(wrong[0])[:60])
                if x:
                    ids = narrow(np.array([VOCABULARY.read(t) for t in x]), VOCABULARY.size)
                    targets = np.full(ids.shape, IGNORED, np.int64)
                    targets[:, -1] = VOCABULARY.ids(y)
                    found.setdefault(role, [nothing, nothing])[i] = ids, targets
    return {role: (train, test) for role, (train, test) in found.items()}


def _users(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the users of a file and what it holds of each."""
    try:
        content = json.loads(_unpacked(path))
    except (ValueError, RecursionError, lzma.LZMAError, EOFError) as error:
        refuse(path, "the file must be one whole JSON document", error)
    users, data = (content.get(k) if isinstance(content, dict) else None for k in ("users", "user_data"))
    rule = "the file must hold users, a list of names, and user_data, an object of the same users"
    if not isinstance(users, list) or not isinstance(data, dict):
        refuse(path, rule, f"{type(users).__name__} and {type(data).__name__}")
    if (number := next((user for user in users if not isinstance(user, str)), None)) is not None:
        refuse(path, rule, f"the user {number!r:.60}", "write names as text")
    if {*users} != data.keys():
        refuse(path, rule, f"{len(users)} and {len(data)}, which differ")
    for user in users:
        if not isinstance(data[user], dict):
            refuse(path, f"user_data of {user!r} must be an object", type(data[user]).__name__)
        yield user, data[user]


def _unpacked(path: Path) -> bytes:
    if path.suffix != ".xz":
        return read_whole(path)
    with lzma.open(path) as file:
        content = file.read(file_checks.LIMIT + 1)
    if len(content) > file_checks.LIMIT:
        refuse(path, f"the file must unpack to at most {file_checks.LIMIT} bytes", "more", "divide it")
    return content
