"""Secure aggregation in a run: the same bits under masks and in the clear, and what needs single uploads is refused."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.types import Weighted
from fedloom.engines.attack_kinds import Scale
from fedloom.engines.links import Link
from fedloom.privacy import masked_in_process
from fedloom.privacy.masked_terms import bytes_beside
from fedloom.privacy.secure_sums import MaskedMean, SecureAggregation
from tiny import LOCAL, federation, linear, mlp

SETTINGS = fl.RunSettings(rounds=2, cohort_size=5, engine="loop", threads=1, secure_aggregation="range=8")


def run(text: str, algorithm: Any = None, model: Any = linear, faults: Any = None, **more: Any) -> Any:
    settings = dataclasses.replace(SETTINGS, secure_aggregation=text, **more)
    return fl.run(algorithm or fl.FedAvg(local=LOCAL), federation(), model, settings, faults=faults)


def flat(history: Any) -> Any:
    return torch.cat([t.double().flatten() for t in tree.leaves(history.server)])


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [fl.FedAvg, fl.Scaffold, fl.FedNova, fl.PFedSD])
def test_masks_change_no_bit_and_fixed_point_little(algorithm: Any) -> None:
    made = algorithm(local=LOCAL)
    plain, clear, masked = (run(t, made) for t in ("none", "range=16", "range=16,masks=true"))
    assert torch.equal(flat(clear), flat(masked))
    assert not torch.equal(flat(clear), flat(plain))
    torch.testing.assert_close(flat(clear), flat(plain), rtol=0, atol=1e-5)
    assert clear.metrics[1] == masked.metrics[1]


@pytest.mark.slow
def test_engines_agree() -> None:
    loop, workers, stacked = (
        flat(run("range=8,masks=true", engine=engine, **more))
        for engine, more in (("loop", {}), ("workers", {"workers": 2}), ("stacked", {}))
    )
    assert torch.equal(loop, workers)
    torch.testing.assert_close(stacked, loop, rtol=0, atol=1e-6)


def test_words_of_32_and_64_bits() -> None:
    short, long = flat(run("range=8,bits=32")), flat(run("range=8,bits=64"))
    assert torch.equal(short, flat(run("range=8")))
    assert not torch.equal(short, long)
    torch.testing.assert_close(short, long, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("lost", "means"), [(1, True), (2, False)])
@pytest.mark.parametrize("text", ["range=8", "range=8,masks=true"])
def test_more_than_half_of_each_ones_neighbours_must_answer(text: str, lost: int, means: bool) -> None:
    """Of five, each has four neighbours, of whom three must stay; under masks and as if."""
    chosen = federation(clients=5)
    settings = dataclasses.replace(SETTINGS, rounds=1, secure_aggregation=text)
    found = fl.run(
        fl.FedAvg(local=LOCAL), chosen, linear, settings, faults=lambda t, e, k: "lost" if k < lost else None
    )
    nobody = fl.run(fl.FedAvg(local=LOCAL), chosen, linear, settings, faults=lambda t, e, k: "lost")
    assert torch.equal(flat(found), flat(nobody)) is not means


def test_a_sum_that_fails_at_the_last_message_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on devices: all are lost, no client's state is new, and the model is the one before."""
    nobody = run("range=8", fl.PFedSD(local=LOCAL), faults=lambda t, e, k: "lost", rounds=1)
    silent = partial(masked_in_process.masked_sum, watch=lambda at, k, sent: None if at == "up unmask" else sent)
    monkeypatch.setattr(masked_in_process, "masked_sum", silent)
    history = run("range=8,masks=true", fl.PFedSD(local=LOCAL), rounds=1)
    assert torch.equal(flat(history), flat(nobody))
    assert not history.clients
    assert len(history.metrics[1]["failed"]) == 5
    assert all(
        why.startswith("lost: there is no sum: a masked sum needs") for why in history.metrics[1]["failed"].values()
    )


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("algorithm", [fl.FedAvg, fl.Scaffold])
def test_bytes_are_those_of_words_and_of_the_protocol(algorithm: Any, bits: int) -> None:
    """An upload of SCAFFOLD is a model of 15 numbers and as many of its control variate, each with its weight."""
    plain, masked = (run(text, algorithm(local=LOCAL)).metrics[1] for text in ("none", f"range=8,bits={bits}"))
    up, down = bytes_beside(5)
    parts = 2 if algorithm is fl.Scaffold else 1
    assert masked["bytes_up"] == 5 * (bits // 8 * 16 * parts + up)
    assert masked["bytes_up_model"] == 5 * bits // 8 * 15
    assert masked["bytes_down"] == plain["bytes_down"] + 5 * down


def test_clients_beyond_the_range_are_left_out_and_named() -> None:
    """After one batch all are within it, and after an epoch not."""
    history = run("range=0.7", fl.FedAvg(local=dataclasses.replace(LOCAL, epochs=20)), rounds=1)
    reasons = history.metrics[1]["failed"].values()
    assert reasons
    assert all("and secure_aggregation has range=0.7: raise the range if it is sound" in why for why in reasons)


def test_weights_beyond_what_all_know_are_left_out() -> None:
    total = MaskedMean(SecureAggregation(8.0), [4.0, 4.0, 4.0])
    upload = Weighted(value=torch.tensor([[1.0], [1.0], [9.0]]), weight=torch.tensor([5.0, 4.0, 4.0]))
    assert total.beyond(upload, [7, 8, 9], [4.0, 4.0, 4.0]) == {
        7: "its upload weighs 5, and secure_aggregation takes at most 4: weigh clients by examples, or alike",
        9: "its upload has a number of 9, and secure_aggregation has range=8: raise the range if it is sound",
    }
    nobody = Weighted(value=torch.zeros(3, 1), weight=torch.zeros(3))
    total.add(nobody)
    with pytest.raises(ValueError, match="the mean of uploads whose weights are all zero"):
        total.result()


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = mlp(), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.body(self.norm(x))


def test_counters_stay_outside_and_are_named() -> None:
    with pytest.raises(
        fl.SettingError, match=r"the mean of norm\.num_batches_tracked would be a maximum, which no sum"
    ):
        run("range=8", model=Normalised)
    run("range=8", fl.FedAvg(local=LOCAL, buffers="local"), Normalised, rounds=1)


class Looking(fl.Part):
    def __init__(self) -> None:
        self.links = (Link(),)


@pytest.mark.parametrize(
    ("settings", "more", "why"),
    [
        (
            {"aggregator": "median"},
            {},
            "shows the server no single upload, got aggregator = 'median': leave one of them",
        ),
        ({"bound": "refuse:sent:5"}, {}, "shows the server no single upload, got bound = 'refuse:sent:5': leave one"),
        (
            {"on_nonfinite": "refuse"},
            {},
            "shows the server no single upload, got on_nonfinite = 'refuse': leave one of",
        ),
        (
            {"privacy": "central:noise=1,delta=1e-5,clip=1"},
            {},
            "leaves nobody but clients to clip and add noise .distributed:...., got",
        ),
        ({"partial_sums": 2}, {}, "adds up all at once, got partial_sums = 2: leave one of them out"),
        ({"stateless": True}, {}, "shows the server no client's state, got stateless = true: leave one of them out"),
        (
            {},
            {"attack": Scale(-10.0, clients=(0,))},
            "lets nobody change a single upload, got attack = Scale: leave one of",
        ),
        ({}, {"parts": [Looking()]}, "shows links no single upload, got the link Link: leave one of them out"),
        ({"cohort_size": 2}, {}, "adds up 3 clients or more, and a round asks 2: raise cohort_size"),
        (
            {"secure_aggregation": "range=0"},
            {},
            "has a range above 0, and words of 32 or 64 bits, got 'range=0': write",
        ),
        (
            {"secure_aggregation": "bits=32"},
            {},
            "has a range above 0, and words of 32 or 64 bits, got 'bits=32': write",
        ),
        ({"secure_aggregation": "range=8,bits=16"}, {}, "words of 32 or 64 bits, got 'range=8,bits=16': write range=8"),
        ({"secure_aggregation": "rang=8"}, {}, "of secure_aggregation one says, each once, some of range=8,bits=32"),
        (
            {"secure_aggregation": "range=0.01"},
            {},
            r"refuses client \d: its upload has a number of .*range=0.01: raise",
        ),
        ({"secure_aggregation": "range=1e30,bits=32"}, {}, "does not fit 32 bits: declare a smaller range"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], more: dict[str, Any], why: str) -> None:
    begun: list[Any] = []
    with pytest.raises(fl.SettingError, match=why):
        fl.run(
            fl.FedAvg(local=LOCAL), federation(), linear, dataclasses.replace(SETTINGS, **settings),
            on_start=begun.append, **more,
        )  # fmt: skip
    assert not begun


def test_methods_that_need_single_uploads_are_refused_before_the_run() -> None:
    begun: list[Any] = []
    for algorithm, why in (
        (
            fl.IFCA(local=LOCAL),
            "secure_aggregation is for uploads of which only the mean is used, and IFCA needs each: ",
        ),
        (
            fl.QFedAvg(local=LOCAL),
            r"refuses client \d: its upload weighs .*, and secure_aggregation takes at most 1: weigh clients by",
        ),
        (fl.LocalOnly(local=LOCAL), "only the mean is used, and LocalOnly needs each: leave secure_aggregation out"),
        (fl.FedBE(local=LOCAL), ": some have no small round, got FedBE, whose server trains: leave one of them out"),
    ):
        with pytest.raises(fl.SettingError, match=why):
            fl.run(algorithm, federation(public=federation().test), linear, SETTINGS, on_start=begun.append)
    assert not begun
