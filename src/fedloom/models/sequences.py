"""Networks of token ids: an LSTM, a causal transformer and a text CNN.

Their input are whole numbers (B, T), padded at the end with the id 0; what stands at the end as padding moves nothing
that counts. With `next_token` they say at each place which token follows, logits (B, T, V); else which class the text
is of, logits (B, C). Like all networks here they have a `body` and a `classifier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier

PADDING = 0  # its id, which stands for no token

Positions = Literal["learned", "sinusoidal"]


def _check(name: str, dropout: float, **sizes: int) -> None:
    for what, size in sizes.items():
        if size < 1:
            raise ValueError(f"{what} of {name} must be at least 1, got {size}: give a larger one")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}: 0 turns it off")


def _last(z: Tensor, tokens: Tensor) -> Tensor:
    """Return of states (B, T, F) those at the last token of each text, (B, F)."""
    at = ((tokens != PADDING).sum(1) - 1).clamp(min=0)
    return z.gather(1, at[:, None, None].expand(-1, 1, z.shape[2]))[:, 0]


class _LSTMBody(nn.Module):
    """Embeddings and LSTM: (B, T) to states (B, T, H), or to those at the last tokens, (B, H)."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int, dropout: float, every: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.every = every

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        z = self.dropout(self.lstm(self.embedding(x))[0])
        return z if self.every else _last(z, x)


class TextLSTM(FeatureClassifier):
    """Embeddings, LSTM layers from left to right, and a linear layer: LEAF's network for Shakespeare, by default.

    That is 8 values for each character, two layers of 256 units (McMahan et al., 2017); LEAF predicts the character
    behind a window, this one that behind each place of it. For classes the state at the last token counts.

    Args:
        vocabulary: V, the number of token ids, padding among them.
        num_classes: C; the number of token ids with `next_token`.
        width: values of an embedding.
        hidden: units of a layer.
        layers: how many there are.
        dropout: probability with which what a layer returns is zeroed in training, in [0, 1).
        next_token: predict at each place which token follows.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int,
        *,
        width: int = 8,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        next_token: bool = False,
    ) -> None:
        _check("an LSTM", dropout, vocabulary=vocabulary, width=width, hidden=hidden, layers=layers)
        super().__init__(_LSTMBody(vocabulary, width, hidden, layers, dropout, next_token), hidden, num_classes)


class _Attention(nn.Module):
    """Causal self-attention with several heads: each place sees itself and what stands before it.

    It is written in plain operations: `vmap` has no rule for the fused kernel on a CPU, and that has no second
    derivative.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        length = x.shape[1]
        # Padding stands at the end, where no token sees it: no other mask is needed.
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        weights = self.dropout(scores.masked_fill(later, -torch.inf).softmax(-1))
        out: Tensor = self.outputs((weights @ v).transpose(1, 2).flatten(2))
        return out


class _Block(nn.Module):
    """A layer of a transformer, normalised before each part (pre-norm)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), _Attention(width, heads, dropout)
        self.norm, self.first, self.second = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        out: Tensor = x + self.dropout(self.second(F.gelu(self.first(self.norm(x)))))
        return out


class _TransformerBody(nn.Module):
    """Embeddings, positions and blocks: (B, T) to (B, T, F), or to the mean over the tokens, (B, F)."""

    def __init__(
        self, vocabulary: int, length: int, width: int, layers: int, heads: int, positions: Positions, dropout: float,
        every: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width) if positions == "learned" else None
        self.length, self.every = length, every
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        # those of GPT-2: PyTorch's, of deviation 1, are large beside what the layers add
        for table in (self.embedding, self.positions):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        if self.positions is not None and x.shape[1] > self.length:
            raise ValueError(
                f"this transformer has learned positions up to {self.length} tokens, got {x.shape[1]}: cut the texts, "
                "or make it with a greater length, or with positions='sinusoidal'"
            )
        z = self.embedding(x)
        if self.positions is not None:
            z = z + self.positions(torch.arange(x.shape[1], device=x.device))
        else:
            z = z + _sinusoids(x.shape[1], z.shape[2], z.dtype, z.device)
        z = self.dropout(z)
        for block in self.blocks:
            z = block(z)
        states: Tensor = self.norm(z)
        if self.every:
            return states
        real = (x != PADDING).to(states.dtype).unsqueeze(-1)
        return (states * real).sum(1) / real.sum(1).clamp(min=1)


def _sinusoids(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the positions of Vaswani et al. (2017), (T, F): sines in even places, cosines in odd ones.

    They are as large as embeddings begin, with a deviation of 0.02.
    """
    half = torch.arange(0, width, 2, device=device, dtype=torch.float64)
    angles = torch.arange(length, device=device, dtype=torch.float64)[:, None] * torch.exp(
        half * (-math.log(10_000.0) / width)
    )
    return 0.02 * torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].to(dtype)


class CausalTransformer(FeatureClassifier):
    """A transformer in which each place sees what stands before it (Vaswani et al., 2017; pre-norm, as GPT-2).

    For classes, features are the mean over the tokens of a text.

    Args:
        vocabulary: V, the number of token ids, padding among them.
        num_classes: C; the number of token ids with `next_token`.
        length: most tokens of a text, for learned positions.
        width: values of a token in each layer, a multiple of `heads`.
        layers: how many there are.
        heads: of attention, in each layer.
        positions: "learned", or "sinusoidal", which texts of any length have.
        dropout: probability with which what each part returns, and weights of attention, are zeroed in training, in
            [0, 1).
        next_token: predict at each place which token follows.

    Raises:
        ValueError: a number is out of range, or `positions` unknown.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int,
        *,
        length: int = 80,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        positions: Positions = "learned",
        dropout: float = 0.0,
        next_token: bool = False,
    ) -> None:
        _check("a transformer", dropout, vocabulary=vocabulary, length=length, width=width, layers=layers, heads=heads)
        if width % heads:
            raise ValueError(f"width must be a multiple of the {heads} heads, got {width}: make it {heads * 16}")
        if positions not in ("learned", "sinusoidal"):
            raise ValueError(f"positions must be 'learned' or 'sinusoidal', got {positions!r}: choose one of these")
        body = _TransformerBody(vocabulary, length, width, layers, heads, positions, dropout, next_token)
        super().__init__(body, width, num_classes)


class _CNNBody(nn.Module):
    """Embeddings, convolutions over windows of several sizes, and the greatest value of each map, (B, F)."""

    def __init__(self, vocabulary: int, width: int, maps: int, sizes: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, maps, size) for size in sizes)
        self.dropout = nn.Dropout(dropout)
        self.longest = max(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        # Behind a text stand zeros, whatever padding it has: so a window begins at each token and at no other place.
        real = (x != PADDING).unsqueeze(1)
        z = F.pad(self.embedding(x).transpose(1, 2).where(real, 0.0), (0, self.longest - 1))
        found = []
        for convolution in self.convolutions:
            values = F.relu(convolution(z))[:, :, : x.shape[1]]
            found.append(values.where(real, 0.0).amax(2))
        out: Tensor = self.dropout(torch.cat(found, 1))
        return out


class TextCNN(FeatureClassifier):
    """The text CNN of Kim (EMNLP 2014): windows of 3, 4 and 5 words, 100 maps each, the greatest value of each map.

    Differences: windows begin at each word, the last ones reaching beyond the text, where his text is at least as long
    as a window; no bound on the norm of the classifier's weights; embeddings begin at random (his CNN-rand).

    Args:
        vocabulary: V, the number of token ids, padding among them.
        num_classes: C.
        width: values of an embedding.
        maps: of each size of window.
        sizes: of windows, in tokens.
        dropout: probability with which features are zeroed in training, in [0, 1).

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int,
        *,
        width: int = 300,
        maps: int = 100,
        sizes: Sequence[int] = (3, 4, 5),
        dropout: float = 0.5,
    ) -> None:
        _check("a text CNN", dropout, vocabulary=vocabulary, width=width, maps=maps, sizes=min(sizes, default=0))
        super().__init__(_CNNBody(vocabulary, width, maps, sizes, dropout), maps * len(sizes), num_classes)


class _CategoryBody(nn.Module):
    """Numbers (B, N) beside embeddings of categories (B, K), and hidden layers: features (B, F)."""

    def __init__(
        self, numbers: int, categories: Sequence[int], hidden: Sequence[int], dropout: float, one_hot: bool
    ) -> None:
        super().__init__()
        self.numbers, self.sizes, self.one_hot = numbers, [*categories], one_hot
        widths = [embedding_width(size) for size in categories]
        self.embeddings = nn.ModuleList(nn.Embedding(size, w) for size, w in zip(categories, widths, strict=True))
        layers: list[nn.Module] = []
        inputs = numbers + sum(widths)
        for outputs in hidden:
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
            inputs = outputs
        self.layers = nn.Sequential(*layers)

    def forward(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        if categories is None:
            numbers, categories = numbers[:, : self.numbers], numbers[:, self.numbers :]
        if self.one_hot:
            blocks = zip(torch.split(categories, self.sizes, 1), self.embeddings, strict=True)
            embedded = [block @ cast(nn.Embedding, embedding).weight for block, embedding in blocks]
        else:
            ids = categories.long().unbind(1)
            embedded = [embedding(column) for embedding, column in zip(self.embeddings, ids, strict=True)]
        out: Tensor = self.layers(torch.cat([numbers.to(embedded[0].dtype), *embedded], 1))
        return out


def embedding_width(size: int) -> int:
    """Return how many values an embedding of so many categories has: fastai's rule, min(600, round(1.6 n^0.56))."""
    return min(600, round(1.6 * math.pow(size, 0.56)))


class CategoryMLP(FeatureClassifier):
    """Fully connected layers over numbers and embeddings of categories (Guo and Berkhahn, 2016).

    It takes two inputs, numbers (B, N) and ids of categories (B, K), whole numbers from 0; or one, numbers first and
    ids behind them, (B, N + K).

    Args:
        numbers: N.
        categories: how many ids each of the K columns of categories has.
        num_classes: C.
        hidden: widths of the hidden layers; the last one is the feature size.
        dropout: probability with which units of hidden layers are zeroed in training, in [0, 1).
        one_hot: whether a category is columns of 0 and 1, as in a prepared table, in the place of its id: (B, sum of
            `categories`) for (B, K). One that is 0 in all of them, a word that no training example has, is embedded as
            zeros.

    Raises:
        ValueError: there is no column of categories or no hidden layer, or a number is out of range.
    """

    def __init__(
        self,
        numbers: int,
        categories: Sequence[int],
        num_classes: int,
        *,
        hidden: Sequence[int] = (200,),
        dropout: float = 0.0,
        one_hot: bool = False,
    ) -> None:
        if not categories or not hidden:
            raise ValueError(
                f"embeddings of categories need a column of them and a hidden layer, got {tuple(categories)} and "
                f"{tuple(hidden)}: use MLP for numbers alone"
            )
        _check("an MLP", dropout, categories=min(categories), hidden=min(hidden))
        super().__init__(_CategoryBody(numbers, categories, hidden, dropout, one_hot), hidden[-1], num_classes)

    def features(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        """Return the input of the classifier, (B, F)."""
        features: Tensor = self.body(numbers, categories)
        return features

    def forward(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        """Return the logits, (B, C)."""
        logits: Tensor = self.classifier(self.features(numbers, categories))
        return logits
