"""Which classes are rare."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.rare_classes import rare_classes


@pytest.mark.parametrize(
    ("counts", "rare"),
    [
        ([95, 5], []),  # 5 % is a tenth of a half: not below it
        ([951, 49], [1]),
        ([0, 951, 49], [2]),  # a class without examples counts nowhere
        ([100] * 10, []),
        ([100] * 9 + [9], [9]),  # 1.0 % of ten classes is not below 1 %, 9 of 909 are
        ([10], []),
    ],
)
def test_a_rare_class_has_less_than_a_tenth_of_an_equal_share(counts: list[int], rare: list[int]) -> None:
    assert rare_classes(np.array(counts)).tolist() == rare
