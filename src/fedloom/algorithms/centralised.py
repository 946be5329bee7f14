"""Centralised training: one client that holds everybody's examples. The upper reference; not federated.

Each round takes as many steps as a whole cohort would (`Local.steps`, set by the run unless given), so that its
computation equals that of the other methods of a comparison.

Down, up, kept: as FedAvg with one client, which it is. The optimiser's momentum starts empty each round, as theirs
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from fedloom.core.averaging import Averaging


@final
@dataclass(frozen=True, kw_only=True)
class Centralised(Averaging):
    """Everybody's data in one place."""

    pooled: ClassVar[bool] = True
