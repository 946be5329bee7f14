"""Mean losses, and the first that is not finite, of clients that take different numbers of steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedloom.core.errors import NonFiniteError
from fedloom.engines.non_finite import at_batch, finite, first_bad_loss, mean_losses, refused

NAN, INF = float("nan"), float("inf")


def test_the_mean_is_that_of_the_last_training_in_which_a_client_took_a_step() -> None:
    request: Any = SimpleNamespace(clients=(3, 5, 9))
    answer: Any = SimpleNamespace(
        losses=[torch.tensor([[1.0, 3.0], [8.0, NAN], [NAN, NAN]]), torch.tensor([[7.0], [NAN], [NAN]])],
        steps=[(2, 1, 0), (1, 0, 0)],
    )
    assert mean_losses(request, answer) == {3: 7.0, 5: 8.0}


def test_the_first_loss_that_is_not_finite_is_named_and_padding_is_none() -> None:
    losses = [torch.tensor([[1.0, INF, NAN], [NAN, 1.0, 1.0], [1.0, NAN, NAN]])]
    assert first_bad_loss(losses, [(3, 3, 1)]) == {0: (1, "the loss is inf"), 1: (0, "the loss is nan")}
    later = [*losses, torch.tensor([[NAN], [1.0], [NAN]])]
    assert first_bad_loss(later, [(1, 3, 1), (1, 1, 1)]) == {
        0: (0, "the loss is nan"), 1: (0, "the loss is nan"), 2: (0, "the loss is nan"),
    }  # fmt: skip
    assert [at_batch("lost", 4), at_batch("lost", None)] == ["lost at batch 4", "lost"]
    assert [finite({"a": torch.tensor([1.0, x])}) for x in (2.0, INF, NAN)] == [True, False, False]
    assert finite({"a": torch.tensor([1, 2])})


def test_rounds_in_errors_are_counted_from_one_and_the_server_is_blamed_for_what_it_sent() -> None:
    for sent, client, said in (
        (NAN, None, "what it sends to update is not finite"),
        (1.0, 4, "the loss is nan; a lower"),
    ):
        call = SimpleNamespace(method="update", round=2, broadcast=(torch.tensor([sent]),))
        request: Any = SimpleNamespace(call=call, scatter=())
        with pytest.raises(NonFiniteError, match=said) as stopped:
            refused(request, {4: (1, "the loss is nan")}, stop=True)
        assert (stopped.value.client, stopped.value.round) == (client, 3)
        why = "the loss is nan at batch 1" if client else "what the server sent is not finite"
        assert refused(request, {4: (1, "the loss is nan")}, stop=False) == {4: why}
