"""Values as people write them."""

from __future__ import annotations

import pytest

from fedloom.core.errors import SettingError
from fedloom.experiments.coercion import coerce


def test_none_and_lists_are_read_from_text_and_from_values() -> None:
    for text in ("none", "None", None):
        assert coerce(text, int | None, "k") is None
    assert coerce("3", int | None, "k") == 3
    assert (
        coerce("0.9,0.5", tuple[float, float], "betas")
        == coerce([0.9, 0.5], tuple[float, float], "betas")
        == (0.9, 0.5)
    )
    assert coerce("1,2,3", tuple[int, ...], "k") == (1, 2, 3)
    with pytest.raises(SettingError, match="betas must be a list of 2, with commas between them, got"):
        coerce("0.9", tuple[float, float], "betas")
    with pytest.raises(SettingError, match="k must be a list, got 3"):
        coerce(3, tuple[int, ...], "k")
