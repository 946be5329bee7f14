"""Links from outside: a private mean is a file, over algorithms and engines that know nothing of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.random import generator
from fedloom.core.types import Weighted
from fedloom.engines.links import Asked, Link, Question
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1)


class Clip(Link):
    """Differences to what was sent of at most the norm `most`, each with the same weight."""

    def __init__(self, most: float) -> None:
        self.most = most

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Any:
        answer = asked[2]
        sent = [torch.zeros(()) if t is None else t for t in question.references(answer.upload)]
        nodes, spec = tree.flatten(answer.upload, is_leaf=lambda n: isinstance(n, Weighted))
        values = [leaf for n in nodes for leaf in tree.leaves(n.value if isinstance(n, Weighted) else n)]
        moved = [v.double() - s for v, s in zip(values, sent, strict=True)]
        norm = torch.stack([m.flatten(1).square().sum(1) for m in moved]).sum(0).sqrt()
        factor = (self.most / norm).clamp(max=1)
        short = [
            (s + factor.view(-1, *[1] * (m.ndim - 1)) * m).to(v.dtype)
            for s, m, v in zip(sent, moved, values, strict=True)
        ]
        rest = iter(short)
        made = [
            Weighted(tree.map_tree(lambda _: next(rest), n.value), torch.ones_like(n.weight))
            if isinstance(n, Weighted)
            else tree.map_tree(lambda _: next(rest), n)
            for n in nodes
        ]
        return dataclasses.replace(answer, upload=tree.unflatten(made, spec))


class Noisy:
    """A mean with Gaussian noise, of a total."""

    def __init__(self, total: Any, std: float, key: tuple[Any, ...]) -> None:
        self.total, self.std, self.key = total, std, key

    def add(self, uploads: Any) -> None:
        self.total.add(uploads)

    def __bool__(self) -> bool:
        return bool(self.total)

    def result(self) -> Any:
        draw = generator(*self.key)
        return tree.map_tree(
            lambda t: t + self.std * torch.from_numpy(draw.normal(size=t.shape)).to(t), self.total.result()
        )


class Noise(Link):
    def __init__(self, std: float) -> None:
        self.std = std

    def total(self, question: Question, total: Any) -> Any:
        seed = question.engine.population.seed
        return Noisy(total, self.std, (seed, "noise", question.call.round, question.call.exchange))


class CentralDP(fl.Part):
    """Clients' uploads are clipped, and their mean has noise; epsilon by Renyi divergence without amplification."""

    columns = (fl.Measure("epsilon", "Epsilon so far", "epsilon", "Privacy spent.", unit="", better="low"),)

    def __init__(self, most: float, noise: float, cohort: int, delta: float = 1e-5) -> None:
        self.noise, self.delta = noise, delta
        self.links = (Clip(most), Noise(noise * most / cohort))

    def after(self, run: fl.Running) -> dict[str, Any]:
        rho = run.done / (2 * self.noise**2)  # zero-concentrated (Bun and Steinke, 2016)
        return {"epsilon": rho + 2 * math.sqrt(rho * math.log(1 / self.delta))}


def job(*parts: fl.Part, algorithm: Any = None, **more: Any) -> fl.Job:
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL), federation=federation(), model=linear,
        settings=dataclasses.replace(SETTINGS, **more), parts=parts,
    )  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
@pytest.mark.parametrize("method", [fl.FedAvg, fl.FedProx, fl.Scaffold])
def test_noise_is_a_part_over_any_method_and_engine(method: Any, engine: Any) -> None:
    if (method, engine) == (fl.Scaffold, "workers"):
        pytest.skip("the same as on the loop, and a second longer")
    part = CentralDP(most=0.5, noise=1.0, cohort=3)
    history = job(part, algorithm=method(local=LOCAL), engine=engine, rounds=2).run()
    assert history.series("epsilon").tolist() == pytest.approx([0.0, 5.2985, 7.7861], abs=1e-3)

    class Clipped(fl.Part):
        links = (Clip(0.5),)

    clipped = job(Clipped(), algorithm=method(local=LOCAL), engine=engine, rounds=2).run()
    (noisy,), (clean,) = history.server.values(), clipped.server.values()
    assert not torch.equal(tree.leaves(noisy)[0], tree.leaves(clean)[0])


def test_without_noise_and_with_a_wide_bound_it_is_the_plain_run() -> None:
    """Of clients with as many examples each, whose weights are alike."""

    class Nothing(fl.Part):
        links = (Clip(1e9), Noise(0.0))

    found, plain = job(Nothing(), dtype="float64").run(), job(dtype="float64").run()
    for a, b in zip(tree.leaves(found.server), tree.leaves(plain.server), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


def test_what_is_clipped_is_as_long_as_the_bound() -> None:
    """One client alone moves the model by the bound."""

    class Short(fl.Part):
        links = (Clip(1e-3),)

    made = job(Short(), rounds=1, cohort_size=1)
    (after,) = made.run().server.values()
    (began,) = Coordinator(made).engine.init().values()
    squares = [(a - b).double().square().sum() for a, b in zip(tree.leaves(after), tree.leaves(began), strict=True)]
    assert float(torch.stack(squares).sum().sqrt()) == pytest.approx(1e-3, rel=1e-3)


def test_the_state_of_a_link_goes_on(tmp_path: Path) -> None:
    class Counts(Link):
        state = torch.zeros(())

        def end_round(self, clients: Any) -> None:
            self.state = self.state + len(clients)

    class Counted(fl.Part):
        columns = (fl.Measure("uploads", "Uploads", "uploads", "Clients that were asked so far.", unit=""),)

        def __init__(self) -> None:
            self.links = (Counts(),)

        def after(self, run: fl.Running) -> dict[str, Any]:
            return {"uploads": float(self.links[0].state)}

    job(Counted(), rounds=2).run(tmp_path / "run")
    again = job(Counted(), rounds=4).run(tmp_path / "run", resume=True)
    assert again.series("uploads").tolist() == [0, 3, 6, 9, 12]


def test_links_are_asked_in_their_written_order() -> None:
    seen = []

    class Sees(Link):
        def __init__(self, name: str) -> None:
            self.name = name

        def lost(self, question: Question) -> dict[int, str]:
            return {question.clients[0]: "unlucky"} if self.name == "first" and question.call.round == 0 else {}

        def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
            seen.append((self.name, "refuse", asked[0].clients))
            return {asked[0].clients[0]: self.name}

        def end_round(self, clients: Any) -> None:
            seen.append((self.name, "end", tuple(clients)))

    class Both(fl.Part):
        links = (Sees("first"), Sees("second"))

    history = job(Both(), rounds=1).run()
    failed = history.metrics[1]["failed"]
    clients = history.metrics[1]["clients"]
    assert [failed[str(k)] for k in sorted(clients)] == ["unlucky", "second", "second"]  # of two reasons the last
    assert seen[-2:] == [(name, "end", tuple(sorted(clients))) for name in ("first", "second")]
    assert history.metrics[1]["all_refused"] == 2


def test_what_looks_at_each_upload_cannot_be_with_sums() -> None:
    with pytest.raises(fl.SettingError, match="Clip looks at each upload, and partial_sums = 2 sends sums"):
        job(CentralDP(most=1.0, noise=1.0, cohort=3), partial_sums=2).check()
