"""Words and categories of new rows that the rows of a run did not have."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from fedloom.core.errors import SettingWarning, warn
from fedloom.tables.preparation import Preparation
from fedloom.tables.vocabulary import PADDING, UNKNOWN, TextPreparation

_SHOWN = 8  # columns in a message


def warn_of_unknown(x: npt.NDArray[Any], prepared: Preparation) -> None:
    """Warn of words outside the vocabulary, and of categories without a feature, with their numbers.

    `x`: what `prepared` made of new rows.
    """
    if (text := prepared.text) is not None:
        _warn_of_words(x, text)
        return
    if (known := prepared.constants) is None:  # a transformer of scikit-learn does not tell
        return
    start, found = len(known.numbers) + len(known.masks), []
    for name, words in known.words.items():
        features = x[:, start : start + len(words)]
        start += len(words)
        if unknown := int((features == 0).all(1).sum()):
            found.append(f"{unknown:,} in {name!r}")
    if found:
        more = f" and more in {len(found) - _SHOWN} other columns" if len(found) > _SHOWN else ""
        warn(
            f"categories that no training row has are 0 in every feature, got of {len(x):,} rows "
            f"{', '.join(found[:_SHOWN])}{more}: spell categories as in the run's table",
            SettingWarning,
        )


def _warn_of_words(ids: npt.NDArray[Any], text: TextPreparation) -> None:
    if text.vocabulary is None:  # a tokeniser of somebody's own has other ids
        return
    kind, unknown, count = text.vocabulary.kind, int((ids == UNKNOWN).sum()), int((ids != PADDING).sum())
    if unknown:
        warn(
            f"{unknown:,} of {count:,} {kind} of {text.column!r} are not in the vocabulary of the run, and all alike "
            "to its models: expect less of texts with many of them",
            SettingWarning,
        )
