"""FedMD as KT-pFL's authors ported it: the mean of soft predictions, on every engine; KT-pFL without learning C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from spoken import LOCAL, after_a_round, taught, whole

from fedloom.algorithms import FedMDKT, KTpFL
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked, Messages])
def test_everybody_learns_the_mean_of_probabilities(engine: Any) -> None:
    g = golden("ktpfl_dense/fedmd")
    logits = g["party_logits"]
    after, _ = after_a_round(FedMDKT(local=LOCAL, distill=whole(6), num_public=6), logits, engine)
    for mixed in taught(logits, after):
        np.testing.assert_allclose(mixed, g["ktpfl_variant_consensus"], rtol=1e-9)


def test_it_is_kt_pfl_with_uniform_coefficients() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 5, 3))
    settings: dict[str, Any] = {"local": LOCAL, "distill": whole(5), "num_public": 5, "tau": 2.0}
    uniform, _ = after_a_round(FedMDKT(**settings), logits, Loop)
    learnt, c = after_a_round(KTpFL(**settings, eta3=0.0), logits, Loop)
    np.testing.assert_allclose(uniform, learnt, rtol=1e-12)
    torch.testing.assert_close(c, torch.full((4, 4), 0.25), check_dtype=False)
