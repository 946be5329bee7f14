"""A network that looks at its mask is given one that is ready, where it answers the same, and so is stacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.core.masking import masking
from fedloom.core.model import Model
from fedloom.core.network_inputs import mask_of
from fedloom.data.inputs import Tokens
from tokens_made import LOCAL, VOCABULARY, Attending, federation, sequences

PLACES = 14


class Looking(Attending):
    """Looks at a mask of tokens, as models of Hugging Face do, and takes a ready one as it is."""

    causal, added = True, False

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        assert attention_mask is not None
        if attention_mask.ndim == 2:
            places = tokens.shape[1]
            seen = torch.ones(places, places, dtype=torch.bool)
            seen = (seen.tril() if self.causal else seen)[None, None]
            if not attention_mask.all():
                seen = seen & (attention_mask != 0)[:, None, None]
            none = torch.zeros(seen.shape, dtype=self.head.weight.dtype)
            attention_mask = none.masked_fill(~seen, torch.finfo(none.dtype).min) if self.added else seen
        h = self.embedding(tokens)
        scores = (self.query(h) @ self.key(h).transpose(1, 2))[:, None]
        if self.added:
            scores = scores + attention_mask
        else:
            assert attention_mask.dtype == torch.bool
            scores = scores.masked_fill(~attention_mask, -1e9)
        return self.head(self.norm(h + scores[:, 0].softmax(-1) @ self.value(h)))  # type: ignore[no-any-return]


class LookingAround(Looking):
    causal = False


class Adding(Looking):
    added = True


class AddingAround(Adding):
    causal = False


class Counting(Looking):
    """Needs the share of tokens, which a ready mask does not tell; without padding it is 1."""

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        assert attention_mask is not None
        found = super().forward(tokens, attention_mask)
        share = attention_mask.to(found.dtype).mean(-1)[:, None, None] if attention_mask.ndim == 2 else 1.0
        return found * share  # type: ignore[no-any-return]


FORMS: Any = [
    (Looking, "causal"), (LookingAround, "pairs"), (Adding, "added causal"), (AddingAround, "added pairs"),
    (Counting, "tokens"),
]  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("network", "form"), FORMS)
def test_the_form_of_a_mask_is_that_with_the_same_answers(network: Any, form: str, several: bool) -> None:
    ids = sequences(PLACES)
    mask = (ids != 0).long()
    given: Any = {"tokens": ids, "attention_mask": mask} if several else ids
    examples = fl.from_arrays(given, fl.data.next_tokens(ids), num_classes=VOCABULARY, normalise=Tokens())
    before = Model(network).reading(examples.normalise)
    model = masking(before, 0, torch.float64, torch.device("cpu"), examples)
    assert model.arguments is not None
    assert model.arguments.mask == form
    weights = before.init(1, torch.float64)
    x = examples.normalise(examples.x, torch.float64)
    real = mask != 0
    assert torch.allclose(model(weights, x)[real], before(weights, x)[real], atol=1e-12)


def test_all_of_equal_length_are_tried_with_padding() -> None:
    """A mask for each pair would do as well as long as there is no padding."""
    ids = sequences(PLACES)[:, :3]
    examples = fl.from_arrays(ids, ids[:, 0] // 4, num_classes=3)
    model = masking(
        Model(Counting).reading(examples.normalise), 0, torch.float64, torch.device("cpu"), examples
    )  # fmt: skip
    assert model.arguments is not None
    assert model.arguments.mask == "tokens"


def test_ready_masks() -> None:
    real = torch.tensor([[True, True, False]])
    assert mask_of(real, "tokens", torch.float64).tolist() == [[1, 1, 0]]
    assert mask_of(real, "pairs", torch.float64).int().tolist() == [[[[1, 1, 0]] * 3]]
    assert mask_of(real, "causal", torch.float64).int().tolist() == [[[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]]
    added = mask_of(real, "added pairs", torch.float32)
    assert (added[0, 0, 0].tolist(), added.dtype) == ([0.0, 0.0, torch.finfo(torch.float32).min], torch.float32)


@pytest.mark.some(1)
@pytest.mark.parametrize("network", [Looking, Adding])
def test_a_stack_agrees_with_the_loop_where_a_mask_is_ready(network: Any) -> None:
    def found(engine: Any) -> Any:
        settings = fl.RunSettings(rounds=2, cohort_size=4, engine=engine, dtype="float64", seed=1)
        history = fl.run(fl.FedAvg(local=LOCAL), federation(PLACES), network, settings, task=fl.NextToken())
        return history.engine, history.metrics[-1]["global_loss"]

    (loop, expected), (stacked, ours) = found("loop"), found("stacked")
    assert (loop, stacked) == ("loop", "stacked")
    assert ours == pytest.approx(expected, abs=1e-9)
    assert found("auto")[0] == "workers"


def test_a_network_without_a_ready_mask_runs_on_workers_and_says_why() -> None:
    settings = fl.RunSettings(rounds=1, cohort_size=4)
    job = fl.Job(
        algorithm=fl.FedAvg(local=LOCAL), federation=federation(PLACES), model=Counting, task=fl.NextToken(),
        settings=settings,
    )  # fmt: skip
    history = job.run()
    assert history.engine == "workers"
    assert "token ids on a CPU, and model 'Counting' cannot be stacked" in history.engine_reason
