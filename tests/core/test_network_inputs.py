"""Networks with several inputs, masks and answers that are objects, by every engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.batch import probe
from fedloom.core.model import Model
from fedloom.data import Tokens
from fedloom.data.inputs import pack
from tokens_made import VOCABULARY, Attending, sequences

IDS = sequences().numpy()
PRICES = np.random.default_rng(0).normal(size=(160, 3)).astype(np.float32)
GIVEN = {"tokens": IDS, "prices": PRICES, "known": PRICES > 0}


class Mixed(nn.Module):
    """Numbers, truth values and tokens, by their names and in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, known: Tensor, prices: Tensor, tokens: Tensor) -> Tensor:
        assert (known.dtype, tokens.dtype) == (torch.bool, torch.int64)
        h = self.embedding(tokens).mean(-2) + self.dense(torch.where(known, prices, 0.0))
        return self.head(h)  # type: ignore[no-any-return]


class InOrder(Mixed):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return super().forward(c, b, a)


def examples() -> fl.Examples:
    return fl.from_arrays(GIVEN, (PRICES[:, 0] > 0) * 1 + (IDS[:, 0] > 6) * 1)


@pytest.mark.parametrize("network", [Mixed, InOrder])
def test_a_forward_is_called_by_names_or_in_order(network: Any) -> None:
    x, inputs = pack({name: torch.from_numpy(values) for name, values in GIVEN.items()})
    model = Model(network).reading(inputs)
    assert model.reading(inputs) is model
    weights = model.init(0)
    module = model.skeleton().to_empty(device="cpu")
    module.load_state_dict(weights.params)
    own = [torch.from_numpy(GIVEN[n]) for n in ("known", "prices", "tokens")]
    expected = module(*(own if network is Mixed else own[::-1]))
    given = inputs(x, torch.float32)
    assert torch.equal(model(weights, given), expected)
    assert torch.equal(model.train(weights, probe(given))[0], expected)
    assert model.features(weights, given, "embedding").shape == (160, 40)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["stacked", "workers"])
def test_engines_agree_on_several_inputs(engine: Any) -> None:
    def found(engine: Any) -> Any:
        whole = fl.federate(examples(), fl.iid(examples().y, 5, seed=0), test=examples(), test_fraction=0.2)
        settings = fl.RunSettings(rounds=2, cohort_size=4, engine=engine, dtype="float64", measures=("auc",))
        history = fl.run(fl.Ditto(local=fl.Local(batch_size=8)), whole, Mixed, settings)
        assert history.engine == engine
        last = history.metrics[-1]
        return [last[name] for name in ("global_loss", "personal_accuracy", "personal_auc", "train_loss")]

    assert found("loop") == pytest.approx(found(engine), abs=1e-9)


@pytest.mark.parametrize("wrap", [lambda out: SimpleNamespace(logits=out), lambda out: {"loss": None, "logits": out}])
def test_logits_are_those_of_an_object_or_a_mapping(wrap: Any) -> None:
    class Wrapped(Attending):
        def forward(self, tokens: Tensor) -> Any:
            return wrap(super().forward(tokens))

    ids = torch.from_numpy(IDS[:5])
    model, plain = Model(Wrapped), Model(Attending)
    weights = plain.init(0)
    assert torch.equal(model(weights, ids), plain(weights, ids))
    assert torch.equal(model.train(weights, probe(ids))[0], plain(weights, ids))
    assert torch.equal(model.with_features(weights, ids, "norm")[0], plain(weights, ids))


def test_a_mask_is_given_to_a_forward_that_asks_for_it() -> None:
    class Masked(Attending):
        def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            assert attention_mask is not None
            assert torch.equal(attention_mask, (tokens != 0).long())
            return super().forward(tokens)

    ids = torch.from_numpy(IDS[:5])
    model = Model(Masked).reading(Tokens())
    assert model(model.init(0), ids).shape == (5, 10, VOCABULARY)
    assert Model(Attending).reading(Tokens()).inputs is None
    with pytest.raises(AssertionError):
        Model(Masked)(model.init(0), ids)
