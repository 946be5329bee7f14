"""Models of Hugging Face, randomly initialised: called with their mask, answered by `.logits`, by any engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.batch import probe
from fedloom.core.model import Model
from fedloom.core.network_makers import seeded
from fedloom.data.inputs import Tokens
from tokens_made import VOCABULARY, federation, sequences

LOCAL = fl.Local(batch_size=8, epochs=1)

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def gpt2(**settings: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **settings},
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert_config(layers: int) -> Any:
    return transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, num_labels=3, initializer_range=0.5,
    )  # fmt: skip


def bert() -> Any:
    return transformers.BertForSequenceClassification(bert_config(2))


def eager() -> Any:
    """Adds its mask to scores."""
    return transformers.BertForSequenceClassification._from_config(bert_config(1), attn_implementation="eager")


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    return transformers.LlamaForCausalLM(config)


def opt() -> Any:
    """Counts places by a mask for each token."""
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32,
        word_embed_proj_dim=16, max_position_embeddings=32, pad_token_id=0,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, bert])
def test_a_model_answers_as_when_it_is_called_with_its_mask(make: Any) -> None:
    ids = sequences(14)[:6]
    model = Model(make).reading(Tokens())
    weights = model.init(0)
    network = seeded(make, 0).eval()
    with torch.no_grad():
        expected = network(ids, attention_mask=(ids != 0).long()).logits
        other = network(ids).logits
        assert torch.allclose(model(weights, ids), expected, atol=1e-6)
    assert make is gpt2 or not torch.allclose(other, expected, atol=1e-4)


@pytest.mark.parametrize("make", [gpt2, bert])
def test_longer_padding_changes_nothing(make: Any) -> None:
    model = Model(make).reading(Tokens())
    weights = model.init(0, torch.float64)
    ids = sequences(10)[:6]
    short, long = (model(weights, x) for x in (ids, torch.nn.functional.pad(ids, (0, 9))))
    if make is gpt2:
        short, long = short[ids != 0], long[:, :10][ids != 0]
    assert torch.allclose(short, long, atol=1e-9)


def test_a_walk_with_token_arrays_and_a_model_in_ten_lines() -> None:
    tokens = np.array(sequences(), dtype=np.int32)
    examples = fl.from_arrays(tokens, fl.data.next_tokens(tokens), num_classes=VOCABULARY)
    clients = fl.federate(examples, fl.iid(examples.y, 8, seed=0), test_fraction=0.25)
    method = fl.FedAvg(local=fl.Local(batch_size=8, epochs=2, optimiser=fl.SGD(lr=0.5)))
    settings = fl.RunSettings(rounds=3, cohort_size=4, measures=("perplexity",))
    history = fl.run(method, clients, gpt2, settings, task=fl.NextToken())
    assert (history.engine, history.engine_reason) == ("workers", "attention with a ready mask on a CPU")
    values = history.series("personal_perplexity")
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    ("make", "form"), [(gpt2, "causal"), (bert, "pairs"), (eager, "added pairs"), (llama, "causal"), (opt, "tokens")]
)
def test_engines_agree_with_padding_and_say_where_they_cannot_stack(make: Any, form: str) -> None:
    classes = make in (bert, eager)
    whole, task = federation(14, classes=classes), fl.Classification() if classes else fl.NextToken()

    def found(engine: Any) -> Any:
        settings = fl.RunSettings(rounds=1, cohort_size=4, seed=2, engine=engine, dtype="float64")
        job = fl.Job(algorithm=fl.FedProx(local=LOCAL), federation=whole, model=make, settings=settings, task=task)
        assert [m.arguments and m.arguments.mask for m in job.population.models.values()] == [form]
        return job.run()

    loop, other = found("loop"), found("auto" if make is opt else "stacked")
    assert other.engine == ("workers" if make is opt else "stacked")
    assert "OPTForCausalLM' cannot be stacked" in other.engine_reason or make is not opt
    assert other.series("global_loss") == pytest.approx(loop.series("global_loss"), abs=1e-9)


def test_dropout_is_by_the_seed() -> None:
    model = Model(lambda: gpt2(resid_pdrop=0.3, attn_pdrop=0.3)).reading(Tokens())
    weights, batch = model.init(0), probe(sequences()[:4])
    one, two = model.train(weights, batch)[0], model.train(weights, batch)[0]
    assert torch.equal(one, two)
    assert not torch.equal(one, model(weights, batch.x))
