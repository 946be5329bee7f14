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
from fedloom.core.cutting import alike, cuts
from fedloom.core.model import Model
from fedloom.data.inputs import Inputs, Tokens, pack
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
    assert cut_length(x, Tokens()) == width
    assert cut_length(x[:, :longest], Tokens()) == longest


@pytest.mark.parametrize(
    ("network", "expected"),
    [(Attending, True), (Recurrent, True), (WithoutMask, False), (Dropping, False), (OneLength, False), (Begun, False)],
)
def test_which_networks_are_given_shorter_sequences(network: Any, expected: bool) -> None:
    model = Model(network)
    assert cuts(model, model.init(0), sequences(LONG), Tokens()) == expected


@pytest.mark.some(1)
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
    assert not alike(answers, answers, torch.ones(1, 2, dtype=torch.bool))


IDS = sequences(LONG)
PRICES = torch.linspace(-1, 1, 160 * 3).reshape(160, 3)
GIVEN = {"prices": PRICES, "tokens": IDS, "mask": (IDS != 0).int(), "lengths": (IDS != 0).sum(1), "known": PRICES > 0}


class Beside(Attending):
    """Numbers beside tokens and their mask: a class of each example."""

    def __init__(self, classes: int | None = 3) -> None:
        super().__init__(classes)
        self.dense = nn.Linear(3, 8)

    def forward(self, prices: Tensor, tokens: Tensor, mask: Tensor, lengths: Tensor, known: Tensor) -> Tensor:
        more = self.dense(torch.where(known, prices, 0.0)).unsqueeze(1)
        real = mask.to(more.dtype).unsqueeze(2)
        h = (self.embedding(tokens) + more) * real
        return self.head(self.norm(h.sum(1) / lengths.unsqueeze(1)))  # type: ignore[no-any-return]


class EachPlace(Beside):
    """The next token of each place."""

    def __init__(self) -> None:
        super().__init__(None)

    def forward(self, prices: Tensor, tokens: Tensor, mask: Tensor, lengths: Tensor, known: Tensor) -> Tensor:
        return self.head(self.embedding(tokens) + self.dense(prices).unsqueeze(1))  # type: ignore[no-any-return]


class TakesMean(Beside):
    """Takes the mean over padding, too."""

    def forward(self, prices: Tensor, tokens: Tensor, mask: Tensor, lengths: Tensor, known: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))  # type: ignore[no-any-return]


def test_rows_of_several_inputs_are_shortened_and_unpacked() -> None:
    x, how = pack(GIVEN)
    assert [part.name for part in how.sequences] == ["tokens", "mask"]
    assert how.ends(x).tolist() == (IDS != 0).sum(1).tolist()
    assert cut_length(x, how) == 12
    whole, cut = how.unpack(x), how.unpack(how.shortened(x, 12))
    for name, values in cut.items():
        expected = whole[name][:, :12] if name in ("tokens", "mask") else whole[name]
        assert torch.equal(values, expected), name


@pytest.mark.parametrize("padding", [0, 11])
def test_inputs_end_where_all_of_them_are_padding(padding: int) -> None:
    tokens = torch.tensor([[3, 4, padding, padding], [3, padding, padding, padding]])
    x, how = pack({"tokens": tokens, "mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]), "n": torch.ones(2)}, padding)
    assert how.ends(x).tolist() == [2, 3]
    _, none = pack({"numbers": torch.ones(2, 4), "n": torch.ones(2).long()})
    assert none.sequences == ()
    assert pack({"tokens": tokens}, padding, cut=False)[1] != pack({"tokens": tokens}, padding)[1]


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("network", "engine", "compilation"),
    [
        (Beside, "loop", "trace"), (Beside, "stacked", "none"), (Beside, "workers", "none"),
        (EachPlace, "loop", "none"), (EachPlace, "stacked", "trace"), (TakesMean, "loop", "none"),
    ],
)  # fmt: skip
def test_several_inputs_are_cut_where_a_network_answers_the_same(network: Any, engine: Any, compilation: Any) -> None:
    y = fl.data.next_tokens(IDS) if network is EachPlace else (PRICES[:, 0] > 0) * 1 + (IDS[:, 0] > 6) * 1
    places: Counter[int] = Counter()

    class Noting(network):  # type: ignore[misc]
        def forward(self, prices: Tensor, tokens: Tensor, mask: Tensor, lengths: Tensor, known: Tensor) -> Tensor:
            places[tokens.shape[-1]] += 1
            return super().forward(prices, tokens, mask, lengths, known)  # type: ignore[no-any-return]

    def trained(cut: bool) -> Any:
        examples = fl.from_arrays(
            GIVEN, y, normalise=Tokens(cut=cut), num_classes=VOCABULARY if network is EachPlace else 3
        )
        whole = fl.federate(examples, fl.iid(examples.y, 5, seed=0), test=examples, test_fraction=0.2)
        job = fl.Job(
            algorithm=fl.FedAvg(local=LOCAL), federation=whole, model=Noting,
            task=fl.NextToken() if network is EachPlace else fl.Classification(),
            settings=fl.RunSettings(
                rounds=2, cohort_size=4, engine=engine, compilation=compilation, dtype="float64", seed=1
            ),
        )  # fmt: skip
        assert isinstance(examples.normalise, Inputs)
        assert [m.cut for m in job.population.models.values()] == [examples.normalise if cut and helps else None]
        found = job.run(on_start=lambda history: places.clear())
        last = found.metrics[-1]
        return [last[name] for name in ("global_loss", "train_loss")], +places

    helps = network is not TakesMean
    (ours, short), (theirs, whole) = trained(True), trained(False)
    assert ours == pytest.approx(theirs, abs=1e-9)
    assert set(whole) <= {LONG}
    if helps and engine != "workers":  # whose clients are computed elsewhere
        assert short[12] + short[8] > 3
        assert short[LONG] <= 3  # in which memory and the shapes of sums are measured


@pytest.mark.parametrize("several", [False, True])
def test_targets_that_are_several_numbers_are_not_cut(several: bool) -> None:
    """Twenty labels of each sequence are more than the places that short ones have."""
    y = torch.randint(0, 2, (160, 20), generator=torch.Generator().manual_seed(0)).double()
    examples = fl.from_arrays({"tokens": IDS} if several else IDS, y)
    whole = fl.federate(examples, fl.iid(y, 5, seed=0), test=examples, test_fraction=0.2)
    job = fl.Job(
        algorithm=fl.FedAvg(local=LOCAL), federation=whole, model=lambda: Attending(20), task=fl.MultiLabel(),
        settings=fl.RunSettings(rounds=1, cohort_size=4, engine="loop"),
    )  # fmt: skip
    assert [m.cut for m in job.population.models.values()] == [examples.normalise]
    assert job.run().metrics[-1]["global_loss"] < 1
