"""Sequences are cut to about the longest of their batch where a network answers the same, and nowhere else."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.batch import cut_length
from fedloom.core.cutting import _alike, cuts
from fedloom.core.model import Model
from tokens_made import LOCAL, VOCABULARY, Attending, Recurrent, federation, sequences

LONG = 64


class WithoutMask(Attending):
    """Takes the mean over padding, too."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1, keepdim=True).expand(-1, tokens.shape[1], -1))  # type: ignore[no-any-return]


class Dropping(Attending):
    """Draws more for longer sequences."""

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(tokens), 0.1, self.training)


class OneLength(Attending):
    """Takes sequences of one length."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.view(-1, LONG))


class Begun(Attending):
    """Begins with zeros in its last layer, so that all its first answers are alike."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens).mean(1, keepdim=True)
        return self.head(h).expand(-1, tokens.shape[1], -1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("longest", "width"), [(1, 8), (8, 8), (9, 12), (12, 12), (13, 16), (17, 24), (40, 48), (60, 64)]
)
def test_lengths_are_few(longest: int, width: int) -> None:
    x = torch.zeros((3, LONG), dtype=torch.int16)
    x[1, longest - 1] = 5
    assert cut_length(x, 0) == width
    assert cut_length(x[:, :longest], 0) == longest


@pytest.mark.parametrize(
    ("network", "expected"),
    [(Attending, True), (Recurrent, True), (WithoutMask, False), (Dropping, False), (OneLength, False), (Begun, False)],
)
def test_which_networks_are_given_shorter_sequences(network: Any, expected: bool) -> None:
    model = Model(network)
    assert cuts(model, model.init(0), sequences(LONG), 0) == expected


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("compilation", ["none", "trace"])
def test_a_network_is_given_no_more_than_about_the_longest_sequence(engine: Any, compilation: Any) -> None:
    seen: Counter[bool] = Counter()

    class Noting(Attending):
        def forward(self, tokens: Tensor) -> Tensor:
            seen[tokens.shape[1] > 12] += 1
            return super().forward(tokens)

    def trained(cut: bool) -> Any:
        whole, settings = federation(LONG, cut=cut), {"rounds": 2, "cohort_size": 4, "dtype": "float64", "seed": 1}
        job = fl.Job(
            algorithm=fl.FedAvg(local=LOCAL), federation=whole, model=Noting, task=fl.NextToken(),
            settings=fl.RunSettings(engine=engine, compilation=compilation, **settings),  # type: ignore[arg-type]
        )  # fmt: skip
        found = job.run(on_start=lambda history: seen.clear())
        return found.metrics[-1]["global_loss"], seen[True], seen[False]

    (ours, long, short), (theirs, whole, none) = trained(True), trained(False)
    assert ours == pytest.approx(theirs, abs=1e-9)
    assert long <= 3  # in which memory and the shapes of sums are measured
    assert short > 3
    assert (whole > 3, none) == (True, 0)


def test_answers_at_padding_count_where_targets_say_so() -> None:
    whole = federation(LONG)
    y = whole.train.y.clone()
    y[0, -1] = VOCABULARY - 1
    train = fl.Examples(whole.train.x, y, VOCABULARY, whole.train.normalise)
    job = fl.Job(
        algorithm=fl.FedAvg(local=LOCAL), federation=fl.Federation(train, whole.partition), model=Attending,
        task=fl.NextToken(), settings=fl.RunSettings(cohort_size=2),
    )  # fmt: skip
    assert [model.cut for model in job.population.models.values()] == [None]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_answers_that_are_no_numbers_are_not_called_the_same(value: float) -> None:
    answers = torch.tensor([[value, 1.0]])
    assert not _alike(answers, answers, torch.ones(1, 2, dtype=torch.bool))
