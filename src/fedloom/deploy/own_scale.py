"""Warning that tables of devices are scaled each by itself, which its server and a device give."""

from __future__ import annotations

from fedloom.core.errors import SettingWarning, warn
from fedloom.data import Dataset
from fedloom.tables.preparation import preparation_of


def warn_about_own_scale(source: str, dataset: Dataset) -> None:
    """Warn if columns were prepared by these rows alone, since a simulation scales them by those of all clients."""
    made = preparation_of(dataset.train)
    if made is not None and made.text is None and made.common is None:
        warn(
            "with devices each table is prepared by its own rows alone, where a simulation takes the means, deviations "
            f"and medians of all clients' rows, got {source!r}: a simulated result does not carry over, and a trained "
            "model has no scale of its own; prepare all tables with prepare=federated, or scale their columns by the "
            "same numbers first and leave prepare out",
            SettingWarning,
        )
