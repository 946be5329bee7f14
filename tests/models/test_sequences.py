"""Networks of tokens and of categories: padding, causality, independent arithmetic, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloom import Model
from fedloom.models import MODELS, CategoryMLP, CausalTransformer, Reads, TextCNN, TextLSTM, build
from fedloom.models.sequences import _sinusoids, embedding_width

V = 11
MAKERS: dict[str, Any] = {
    "lstm": lambda **more: TextLSTM(V, V, width=3, hidden=5, **more),
    "transformer": lambda **more: CausalTransformer(V, V, length=12, width=8, heads=2, **more),
    "sinusoidal": lambda **more: CausalTransformer(V, V, width=8, heads=2, positions="sinusoidal", **more),
    "cnn": lambda **more: TextCNN(V, 3, width=4, maps=5, **more),
}
EACH = [("lstm", True), ("transformer", True), ("sinusoidal", True), ("lstm", False), ("transformer", False),
        ("cnn", False)]  # fmt: skip


def made(name: str, every: bool) -> nn.Module:
    torch.manual_seed(3)
    network: nn.Module = MAKERS[name](**({"next_token": True} if every else {})).double()
    return network.eval()


def texts() -> Tensor:
    x = torch.randint(1, V, (4, 7), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((7, 4, 2, 1)):
        x[row, length:] = 0
    return x


@pytest.mark.parametrize(("name", "every"), EACH)
def test_a_padded_text_has_the_answers_of_the_text_alone(name: str, every: bool) -> None:
    network, x = made(name, every), texts()
    padded = network(F.pad(x, (0, 5)))
    for row, length in enumerate((7, 4, 2, 1)):
        alone = network(x[row : row + 1, :length])
        own = padded[row : row + 1, :length] if every else padded[row : row + 1]
        assert torch.allclose(own, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "every"), EACH)
def test_gradients_of_padded_texts_are_those_of_the_texts(name: str, every: bool) -> None:
    network, x = made(name, every), texts()

    def slope(tokens: Tensor) -> list[Tensor]:
        out = network(tokens)
        out = out[tokens != 0].sin() if every else out.sin()
        return list(torch.autograd.grad(out.sum(), list(network.parameters())))

    for a, b in zip(slope(x), slope(F.pad(x, (0, 3))), strict=True):
        own = a if a.shape == b.shape else F.pad(a, (0, 0, 0, b.shape[0] - a.shape[0]))
        assert torch.allclose(own, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "every"), EACH)
def test_a_row_of_padding_alone_is_no_nan(name: str, every: bool) -> None:
    network = made(name, every)
    out = network(torch.zeros(2, 6, dtype=torch.int64))
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), list(network.parameters())))


@pytest.mark.parametrize("name", ["lstm", "transformer", "sinusoidal"])
def test_no_place_sees_what_follows(name: str) -> None:
    network, x = made(name, True), texts()[:1]
    other = x.clone()
    other[0, 4] = other[0, 4] % (V - 1) + 1
    a, b = network(x), network(other)
    assert torch.equal(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:])


@pytest.mark.parametrize(("name", "every"), EACH)
def test_the_order_of_tokens_counts(name: str, every: bool) -> None:
    network, x = made(name, every), texts()[:1]
    assert not torch.allclose(network(x)[:, -1], network(x.flip(1))[:, -1])


@pytest.mark.parametrize(("name", "every"), [("transformer", True), ("transformer", False), ("cnn", False)])
def test_a_stack_of_networks_has_the_gradients_of_each(name: str, every: bool) -> None:
    network, x = made(name, every), texts()
    own = {n: p.detach() for n, p in network.named_parameters()}
    many = {n: torch.stack([p, 2 * p]) for n, p in own.items()}

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, params, (x,)).square().mean()

    stacked = vmap(grad(loss))(many, torch.stack([x, x.flip(0)]))
    for k, tokens in enumerate((x, x.flip(0))):
        alone = grad(loss)({n: p[k] for n, p in many.items()}, tokens)
        for n, g in alone.items():
            assert torch.allclose(stacked[n][k], g, rtol=0, atol=1e-10), n


def test_attention_is_that_of_pytorch() -> None:
    network = made("transformer", True)
    attention = network.body.blocks[0].attention  # type: ignore[union-attr, index]
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).double()
    theirs.in_proj_weight.data.copy_(attention.inputs.weight)  # type: ignore[union-attr, arg-type]
    theirs.in_proj_bias.data.copy_(attention.inputs.bias)  # type: ignore[union-attr, arg-type]
    theirs.out_proj.weight.data.copy_(attention.outputs.weight)  # type: ignore[union-attr, arg-type]
    theirs.out_proj.bias.data.copy_(attention.outputs.bias)  # type: ignore[union-attr, arg-type]
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
    assert torch.allclose(attention(x), expected, atol=1e-12)  # type: ignore[operator]


def test_sinusoids_are_those_of_the_paper() -> None:
    at = _sinusoids(6, 7, torch.float64, torch.device("cpu")) / 0.02
    for t in range(6):
        for i in range(7):
            angle = t / 10_000 ** (2 * (i // 2) / 7)
            assert math.isclose(at[t, i], math.cos(angle) if i % 2 else math.sin(angle), abs_tol=1e-12)


def test_the_maps_of_the_text_cnn_by_hand() -> None:
    """One map over windows of two words: the greatest of ReLU(w . window + b), the last window ending in zeros."""
    network = TextCNN(4, 1, width=1, maps=1, sizes=(2,), dropout=0.0)
    with torch.no_grad():
        network.body.embedding.weight.copy_(torch.tensor([[9.0], [1.0], [2.0], [-4.0]]))  # type: ignore[union-attr]
        network.body.convolutions[0].weight.copy_(torch.tensor([[[1.0, 3.0]]]))  # type: ignore[union-attr, index]
        network.body.convolutions[0].bias.fill_(0.5)  # type: ignore[union-attr, index]
    x = torch.tensor([[1, 2, 3, 0, 0], [3, 1, 0, 0, 0], [3, 3, 0, 0, 0], [2, 0, 0, 0, 0]])
    # 1 + 6 + .5; -4 + 3 < 1 + 0 + .5; all below 0; 2 + .5: the padding's 9 is in none of them
    assert network.features(x)[:, 0].tolist() == [7.5, 1.5, 0.0, 2.5]


def test_numbers_stand_beside_embeddings() -> None:
    network = CategoryMLP(2, (3, 4), 2, hidden=(5,))
    numbers, ids = torch.tensor([[0.5, -1.0], [2.0, 3.0]]), torch.tensor([[2, 0], [1, 3]])
    body: Any = network.body
    row = torch.cat([numbers, body.embeddings[0].weight[ids[:, 0]], body.embeddings[1].weight[ids[:, 1]]], 1)
    expected = network.classifier(F.relu(row @ body.layers[0].weight.T + body.layers[0].bias))
    assert torch.allclose(network(numbers, ids), expected)
    assert torch.equal(network(torch.cat([numbers, ids], 1)), network(numbers, ids))
    assert [embedding_width(n) for n in (2, 10, 50, 100_000)] == [2, 6, 14, 600]
    hot = CategoryMLP(2, (3, 4), 2, hidden=(5,), one_hot=True)
    hot.load_state_dict(network.state_dict())
    columns = torch.cat([F.one_hot(ids[:, 0], 3), F.one_hot(ids[:, 1], 4)], 1)
    assert torch.allclose(hot(torch.cat([numbers, columns], 1)), network(numbers, ids))
    row[:, 2:] = 0
    expected = network.classifier(F.relu(row @ body.layers[0].weight.T + body.layers[0].bias))
    assert torch.allclose(hot(F.pad(numbers, (0, 7))), expected)


def test_dropout_acts_in_training_only() -> None:
    for network in (
        TextLSTM(V, V, width=3, hidden=5, dropout=0.5, next_token=True),
        CausalTransformer(V, V, length=7, width=8, heads=2, dropout=0.5, next_token=True),
        TextCNN(V, 3, width=4, maps=50, dropout=0.5),
    ):
        x = texts()
        assert torch.equal(network.eval()(x), network.eval()(x))
        assert not torch.equal(network.train()(x), network.train()(x))


def test_settings_follow_a_name() -> None:
    reads = Reads(tokens=50, next_token=True)
    network: Any = build("lstm?hidden=7&layers=1&dropout=0.25", (20,), 50, reads)
    assert (network.body.lstm.hidden_size, network.body.lstm.num_layers, network.body.dropout.p) == (7, 1, 0.25)
    sinusoidal: Any = build("transformer?positions=sinusoidal&width=32", (20,), 50, reads)
    assert sinusoidal.body.positions is None
    assert Model(lambda: build("transformer?heads=2", (20,), 50, reads)).num_params == 50 * 64 + 20 * 64 + sum(
        [2 * (4 * 64 + 4 * 64 * 64 + 4 * 64 + 8 * 64 * 64 + 5 * 64), 2 * 64, 64 * 50 + 50]
    )


@pytest.mark.parametrize(
    ("name", "shape", "reads", "message"),
    [
        ("lstm", (3, 32, 32), Reads(), "lstm reads token ids, got numbers: networks of these are logistic, svm, mlp"),
        ("mlp", (80,), Reads(9), "mlp reads numbers, got token ids: networks of these are lstm, transformer, text_cnn"),
        ("text_cnn", (80,), Reads(9, True), "use 'lstm' or 'transformer'"),
        ("lstm?hiden=3", (80,), Reads(9), "some of lstm?width=8"),
        ("lstm?hidden=3&hidden=4", (80,), Reads(9), "each once"),
        ("lstm?hidden=many", (80,), Reads(9), "hidden of lstm is a whole number, got 'hidden=many'"),
        ("lstm?hidden=0", (80,), Reads(9), "hidden of an LSTM must be at least 1, got 0"),
        ("transformer?dropout=1", (80,), Reads(9), "dropout must be in [0, 1), got 1.0"),
        ("transformer?width=30", (80,), Reads(9), "width must be a multiple of the 4 heads, got 30: make it 64"),
        ("transformer?positions=none", (80,), Reads(9), "positions must be 'learned' or 'sinusoidal', got 'none'"),
        ("lenet?hidden=3", (3, 32, 32), Reads(), "of lenet one says nothing, got 'hidden=3'"),
        ("transformer", (8, 10), Reads(9), "pad each text to one row"),
        ("category_mlp", (8,), Reads(), "category_mlp reads numbers beside ids of categories, got numbers"),
    ],
)
def test_what_is_refused(name: str, shape: tuple[int, ...], reads: Reads, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        build(name, shape, 4, reads)
    assert message in str(error.value)


def test_a_text_longer_than_learned_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="positions up to 12 tokens, got 13: cut the texts"):
        made("transformer", True)(torch.ones(1, 13, dtype=torch.int64))


def test_a_category_mlp_needs_categories() -> None:
    with pytest.raises(ValueError, match="use MLP for numbers alone"):
        CategoryMLP(2, (), 2)


def test_inputs_of_networks_in_words() -> None:
    assert {name: MODELS[name].inputs for name in ("mlp", "lstm", "text_cnn", "category_mlp")} == {
        "mlp": "1 x 28 x 28, 10 classes",
        "lstm": "80 of 90 token ids, the next one",
        "text_cnn": "60 of 10000 token ids, 2 classes",
        "category_mlp": "6 numbers, categories of 10 and 50, 2 classes",
    }
