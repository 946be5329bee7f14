"""What people get wrong first with tokens: the rule, the value and the remedy, before any work starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.data import Tokens, next_tokens
from fedloom.experiments import catalogue
from tokens_made import VOCABULARY, Attending, classifier, federation, sequences

IDS = sequences().numpy()
CLASSES = IDS[:, 0] // 4


def check(x: Any, y: Any, model: Any = Attending, task: Any = None, method: Any = None, **more: Any) -> None:
    """Make a run of these arrays, and check it."""
    examples = fl.from_arrays(x, y, **more)
    whole = fl.federate(examples, fl.iid(examples.y, 4, seed=0))
    fl.Job(
        algorithm=method or fl.FedAvg(), federation=whole, model=model, task=task or fl.NextToken(),
        settings=fl.RunSettings(cohort_size=2),
    ).check()  # fmt: skip


class Once(Attending):
    """Answers once for a sequence."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens)[:, -1]


class Named(nn.Module):
    """Takes tokens and no lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(tokens)  # type: ignore[no-any-return]


class FewPlaces(Attending):
    """Knows four places."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(4, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        self.places(torch.arange(tokens.shape[1]))
        return super().forward(tokens)


Y = next_tokens(IDS)
V = {"num_classes": VOCABULARY}
OTHER: dict[str, Any] = {"task": fl.Classification(), "model": classifier}
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "ids beyond the embedding": (
        lambda: check(np.where(IDS == 3, 99, IDS), Y, **V),
        r"below the sizes of a network's tables, got ids up to 99 .* embedding of 12: make the table as large",
    ),
    "more places than the network knows": (
        lambda: check(IDS, Y, FewPlaces, **V), r"sequences of 10 places, and FewPlaces with .*places of 4.*shorter"
    ),
    "negative ids": (lambda: check(IDS - 1, Y, **V), r"token ids are 0 or more, got -1 in example 0"),
    "ids with fractions": (
        lambda: check(IDS / 2, Y, normalise=Tokens(), **V), r"token ids of Tokens are integers, got \d.5: x.astype"
    ),
    "ids that are floats": (
        lambda: check(IDS.astype(np.float32), CLASSES, **OTHER), r"an embedding takes token ids, .* got torch.f"
    ),
    "numbers that are integers": (
        lambda: check(IDS, CLASSES, lambda: nn.Linear(10, 3), fl.Classification()),
        r"integers \(N, T\) are token ids, which Linear would multiply .*x.astype\(numpy.float32\)",
    ),
    "targets of another length": (lambda: check(IDS, Y[:, 1:], **V), r"\(N, 10\), got torch.int64 of shape \(160, 9\)"),
    "padding as a word": (
        lambda: check(np.where(IDS == 3, 0, IDS), Y, **V), r"the id of padding, 0, stands behind the last"
    ),
    "padding in front": (lambda: check(IDS[:, ::-1], Y, **V), r"got it at place 1 .*put padding at the end"),
    "an empty sequence": (
        lambda: check(np.vstack([IDS, 0 * IDS[:1]]), np.vstack([Y, Y[:1]]), **V),
        r"a sequence has a token at least, got none but padding, 0, in example 160 of arrays: leave such",
    ),
    "a vocabulary larger than the head": (
        lambda: check(IDS, Y, num_classes=20), r"a logit for each token of the vocabulary, num_classes = 20, got 12 of"
    ),
    "a target outside the vocabulary": (lambda: check(IDS, Y, num_classes=9), r"are in 0..8, or -100 .* raise num_cl"),
    "an answer for each sequence": (
        lambda: check(IDS, Y, Once, **V), r"logits are those of a vocabulary for each target, .* got \[\d+, 12\]"
    ),
    "tokens of classes": (
        lambda: check(IDS, Y, Attending, fl.Classification(), **V),
        r"the task Classification learns one class, .* got a target for each of 10 places, .*--task next_token",
    ),
    "bytes that are taken for pixels": (
        lambda: check(IDS.astype(np.uint8), CLASSES), r"of sequences of tokens, got int64 .* for inputs"
    ),
    "numbers as targets": (
        lambda: check(IDS, np.random.default_rng(0).normal(size=160)), r"token ids \(integers\) .* got float64"
    ),
    "FedNTD": (lambda: check(IDS, Y, method=fl.FedNTD(), **V), r"FedNTD compares .* NextToken are tokens: take"),
    "DENSE": (lambda: check(IDS, Y, method=fl.DENSE(), **V), r"DENSE compares .* such as FedAvg"),
    "KT-pFL": (lambda: check(IDS, Y, method=fl.KTpFL(), **V), r"KTpFL compares .* such as FedAvg"),
    "normalised ids": (
        lambda: catalogue.normalise("0.5/0.5", fl.Dataset(federation().train, None)),
        r"token ids are given to a network as they are, and data.normalise = '0.5/0.5' would make numbers",
    ),
    "other padding in the test set": (
        lambda: fl.federate(
            federation().train, fl.iid(np.zeros(100, int), 4, seed=0),
            test=fl.from_arrays(IDS, Y, normalise=Tokens(None), **V),  # type: ignore[arg-type]
        ),
        r"test examples must be normalised as those that train, Tokens\(padding=0",
    ),
    "a mask of another shape": (
        lambda: check({"tokens": IDS, "mask": IDS[:, 1:] > 0}, CLASSES, **OTHER),
        r"a mask has the shape of the tokens .*mask \(N, 9\) beside tokens \(N, 10\)",
    ),
    "inputs that a forward does not take": (
        lambda: check({"tokens": IDS, "lengths": (IDS > 0).sum(1)}, CLASSES, Named, fl.Classification()),
        r"takes the inputs that examples have, tokens, lengths, .* got Named with \(tokens\): name them",
    ),
    "a partition by class": (lambda: fl.dirichlet(Y, 4, 0.5, seed=0), r"which are no classes: divide sequences by iid"),
    "flipped labels": (
        lambda: fl.Job(algorithm=fl.FedAvg(), federation=federation(), model=Attending, task=fl.NextToken(),
                       settings=fl.RunSettings(cohort_size=2), attack=fl.FlippedLabels(share=0.4)),
        r"labels that are flipped are classes, and these targets are not",
    ),
    "ids that drift": (
        lambda: federation(drift=fl.data.OffsetDrift(1.0)).at(1), r"token ids are names and do not move, and Offset"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_with_rule_value_and_remedy(name: str) -> None:
    mistake, message = MISTAKES[name]
    with pytest.raises((fl.SettingError, ValueError), match=message):
        mistake()
