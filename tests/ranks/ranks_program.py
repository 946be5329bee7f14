"""What every rank of a test runs: rank 0 compares with the loop, the others compute.

python ranks_program.py TRANSPORT [ALGORITHM ...]     launched with 3 ranks; without names: every algorithm
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch

import fedloom as fl
from fedloom.algorithms import Scaffold
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATION
from fedloom.engines.stacked import Stacked
from fedloom.ranks.launched import communication
from fedloom.ranks.rank_engine import MPI, Gloo, Ranks
from fedloom.testing.compare import same
from fedloom.testing.small_networks import MLP, Convolutional, Normalised
from fedloom.testing.subject import Subject, record_run
from tampering import tampering_engine
from test_battery import ALGORITHMS, VARIANTS

FULL = Local(epochs=1, batch_size=32, optimiser=SGD(lr=0.05))
KEPT = Local(epochs=2, batch_size=4, optimiser=Adam(lr=0.01), keep_optimiser=True)
MODELS = {"conv": Model(Convolutional, name="conv"), "mlp": Model(MLP, name="mlp")}
FROZEN = {"hidden": Model(Normalised, name="hidden", frozen="hidden"), "norm": Model(MLP, name="norm", frozen="head")}


@dataclasses.dataclass(frozen=True)
class Halves(fl.Encoder):
    """Uploads in float16; what rounding loses waits for the next one."""

    def init(self, params: fl.Params) -> fl.Params:
        return 0.0 * params

    def encode(self, client: Any, values: fl.Params, kept: fl.Params) -> tuple[fl.Params, fl.Params]:
        whole = values + kept
        sent = fl.Params({name: t.half() for name, t in whole.items()})
        return sent, whole - self.decode(sent, whole)

    def decode(self, sent: Any, like: fl.Params) -> fl.Params:
        return fl.Params({name: t.to(like[name].dtype) for name, t in sent.items()})


def compare(kind: type[Ranks], subject: Subject, **settings: Any) -> None:
    """A run over ranks has the bits of the loop, or of a stack: server, states, personal models, numbers, bytes."""
    engine = kind(subject.population(), subject.algorithm, Options(**settings))
    if communication(kind.transport).rank:
        engine.serve()
        return
    engine.open()
    loop = (Stacked if "chunk" in settings else Loop)(subject.population(), subject.algorithm, Options(**settings))
    got, want = (record_run(each, each.init(), subject.cohorts) for each in (engine, loop))
    what = f"{subject.name} over {engine.name}"
    assert want.right == got.right, what
    engine.close()
    same((want.servers, want.states, want.personal), (got.servers, got.states, got.personal), what)
    same(want.engine.traffic.after, got.engine.traffic.after, what)
    moved = [dataclasses.replace(trail.engine.traffic, to_judge={}, after={}) for trail in (want, got)]
    assert moved[0] == moved[1], what


def other_jobs(kind: type[Ranks]) -> None:
    """Ranks of different seeds find out before anybody trains."""
    subject = Subject.of(ALGORITHMS["fedavg"])
    rank = communication(kind.transport).rank
    engine = kind(subject.population(seed=rank), subject.algorithm)
    with pytest.raises(SettingError, match="all ranks must run the same job"), contextlib.closing(engine):
        engine.serve() if rank else engine.open()


def other_backbones(kind: type[Ranks]) -> None:
    """One rank has another frozen tensor, which is in no message: all find out before anybody trains."""
    rank = communication(kind.transport).rank
    torch.manual_seed(0)
    network = MLP()
    network.hidden.requires_grad_(False)
    network.hidden.bias.data[0] += rank == 2
    subject = Subject(Scaffold(local=FULL), {"mlp": Model(network, name="mlp")})
    engine = kind(subject.population(), subject.algorithm)
    if rank == 1:  # whose backbone is that of rank 0
        engine.serve()
        return
    with (
        pytest.raises(SettingError, match=r"differ in .* networks, initial weights, encoders, gradients or bound"),
        contextlib.closing(engine),
    ):
        engine.serve() if rank else engine.open()


class Slow(Convolutional):
    """Client 3, the one with 11 examples, takes its time in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and communication(TRANSPORT).rank and x.shape[0] == 11:
            time.sleep(1.5)
        return super().forward(x)


def late(kind: type[Ranks]) -> None:
    """Who does not answer in time is left out, as one that is lost; the late answer is dropped."""
    subject = Subject(Scaffold(local=FULL), {"slow": Model(Slow, name="slow")})
    engine = kind(subject.population(), subject.algorithm, Options(deadline=0.75))
    if communication(kind.transport).rank:
        engine.serve()
        return
    engine.open()
    server = engine.round(engine.init(), (0, 1, 3), 0)
    assert [(f.client, f.reason) for f in engine.traffic.failed] == [(3, "no answer within 0.75 s")]
    loop = Loop(
        subject.population(), subject.algorithm, Options(faults=lambda t, e, k: "late" if (t, k) == (0, 3) else None)
    )
    want = loop.round(loop.init(), (0, 1, 3), 0)
    same(want, server, "the late client changed something")
    engine.options = dataclasses.replace(engine.options, deadline=None)
    same(loop.round(want, (0, 2, 5), 1), engine.round(server, (0, 2, 5), 1), "its answer came into the next round")
    same(dict(loop.states), dict(engine.states), "its state moved")
    engine.close()


def harmed(kind: type[Ranks]) -> None:
    """Answers that come twice, late, damaged or absurd: the bits of the loop that loses whom the record names."""
    harms = {(0, 0): "duplicated", (0, 3): "reordered", (0, 1): "corrupted", (1, 1): "malicious", (1, 3): "absurd"}
    plan = {**harms, (2, 0): "swapped"}
    kind = (
        kind if communication(kind.transport).rank else tampering_engine(kind, lambda t, e, k: plan.pop((t, k), None))
    )
    subject = Subject(Scaffold(local=FULL), {"mlp": MODELS["mlp"]})
    engine = kind(subject.population(), subject.algorithm, Options(bound="refuse:sent:100", on_nonfinite="refuse"))
    if communication(kind.transport).rank:
        engine.serve()
        return
    engine.open()
    server, lost, got = engine.init(), dict[tuple[int, int], str](), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(3):
            engine.options = dataclasses.replace(engine.options, deadline=5.0 if t == 2 else None)
            server = engine.round(server, (0, 1, 3, 5), t)
            lost.update({(t, f.client): f.reason for f in engine.traffic.failed})
            got.append(server)
    assert [str(w.message)[:23] for w in caught] == ["client 1 is asked again"], caught
    assert lost.keys() == {(1, 1), (1, 3), (2, 0)}, lost
    assert lost[2, 0] == "no answer within 5 s"
    loop = Loop(subject.population(), subject.algorithm, Options(faults=lambda t, e, k: lost.get((t, k))))
    want = loop.init()
    for t in range(3):
        want = loop.round(want, (0, 1, 3, 5), t)
        same(want, got[t], f"round {t} of harmed answers")
    engine.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    TRANSPORT: Any = sys.argv[1]
    kind: type[Ranks] = Gloo if TRANSPORT == "gloo" else MPI
    for name in sys.argv[2:] or [name for name in ALGORITHMS if name not in VARIANTS]:
        compare(kind, Subject.of(ALGORITHMS[name]))
    compare(kind, Subject.of(ALGORITHMS["kt_pfl"], MODELS))
    compare(kind, Subject.of(ALGORITHMS["fedntd"], MODELS), works=(EVALUATION,), counts_states=True)
    compare(kind, Subject.of(ALGORITHMS["scaffold"], MODELS), partial_sums=2, works=(EVALUATION,))
    compare(kind, Subject.of(ALGORITHMS["pfedsd"], {"mlp": MODELS["mlp"]}), chunk=2)
    compare(kind, Subject.of(ALGORITHMS["scaffold"], MODELS), encoders=(Halves(),))
    compare(kind, Subject.of(ALGORITHMS["ditto"], local=KEPT))
    compare(kind, Subject.of(ALGORITHMS["kt_pfl"], {"mlp": MODELS["mlp"], "conv": MODELS["conv"]}), chunk=3)
    compare(kind, Subject.of(ALGORITHMS["scaffold"], FROZEN), works=(EVALUATION,))
    late(kind)
    harmed(kind)
    other_backbones(kind)
    other_jobs(kind)
    print(f"rank {communication(kind.transport).rank} of {communication(kind.transport).size}: done", flush=True)
