"""Under which key a store has what."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedloom.core.errors import SettingError
from fedloom.storage.keys import Keys, Place

KEYS = Keys(3, ("loss", "model"), ("images", "labels"), "Mine")


def test_the_table_in_its_docstring() -> None:
    """A layout on disk: checkpoints of other versions have these keys."""
    assert [KEYS.place(k) for k in range(3)] == [Place("state", "", k) for k in range(3)]
    assert [KEYS.row("loss", k) for k in range(3)] == [3, 4, 5]
    assert [KEYS.row("model", k) for k in range(3)] == [6, 7, 8]
    assert [KEYS.entry("images", i) for i in range(3)] == [9, 11, 13]
    assert [KEYS.entry("labels", i) for i in range(3)] == [10, 12, 14]
    assert KEYS.first_entry == 9
    assert KEYS.entries("images", list(range(15))) == [9, 11, 13]
    assert KEYS.entries("labels", list(range(15))) == [10, 12, 14]


@pytest.mark.slow
@given(st.integers(1, 50), st.integers(0, 3), st.integers(0, 3), st.data())
def test_every_key_has_one_place_and_every_place_one_key(
    clients: int, rows: int, pools: int, data: st.DataObject
) -> None:
    keys = Keys(clients, tuple(f"row {i}" for i in range(rows)), tuple(f"pool {i}" for i in range(pools)))
    key = data.draw(st.integers(0, keys.first_entry + 20 if pools else keys.first_entry - 1))
    place = keys.place(key)
    back = {
        "state": lambda: place.number,
        "row": lambda: keys.row(place.name, place.number),
        "entry": lambda: keys.entry(place.name, place.number),
    }
    assert back[place.kind]() == key
    assert place.kind == "entry" or place.number < clients
    assert all(
        (key in keys.entries(pool, [key])) == (place == Place("entry", pool, place.number)) for pool in keys.pools
    )


def test_names_that_are_not_there() -> None:
    with pytest.raises(SettingError, match=r"Mine keeps rows named \['loss', 'model'\], got 'modell': see init_rows"):
        KEYS.row("modell", 0)
    with pytest.raises(SettingError, match=r"Mine has pools named \['images', 'labels'\], got 'image': see init_pools"):
        KEYS.entry("image", 0)
