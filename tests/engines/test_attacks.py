"""Clients that lie: what they upload, that every engine has the same lies, and who is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm  # type: ignore[import-untyped]

from fedloom import (
    SGD,
    Backdoor,
    Constant,
    FlippedLabels,
    InnerProduct,
    LittleIsEnough,
    Local,
    Model,
    Noise,
    RunSettings,
    Scale,
    StandStill,
    Weights,
    fashion_mnist_small,
    run,
    shards,
    tree,
)
from fedloom.algorithms import Centralised, FedAvg, FedNova, KTpFL, Scaffold
from fedloom.core.errors import NonFiniteError, SettingError
from fedloom.core.types import Weighted
from fedloom.data import LabelDrift, federate, iid
from fedloom.engines.attacks import Attack, poisoned
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.testing import Subject
from fedloom.testing.compare import close, differ, same
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from fedloom.testing.subject import record_run
from tiny import LOCAL, examples, federation, linear, population

LIARS = (2, 5)
ATTACKS: dict[str, Attack] = {
    "sign_flip": Scale(-1.0, clients=LIARS),
    "scale": Scale(10.0, clients=LIARS),
    "noise": Noise(0.5, clients=LIARS, seed=3),
    "labels": FlippedLabels(clients=LIARS),
    "alie": LittleIsEnough(1.5, clients=LIARS),
    "stand_still": StandStill(clients=LIARS),
    "constant": Constant(0.05, clients=LIARS),
    "inner_product": InnerProduct(2.0, clients=LIARS),
}


def uploads(algorithm: Any, attack: Attack | None, kind: Any = Loop, subject: Subject | None = None) -> dict[int, Any]:
    """The uploads of a round's first exchange, by client, and what was sent."""
    people = population(dtype=torch.float64) if subject is None else subject.population()
    engine, seen = kind(people, algorithm, Options(attack=attack)), dict[int, Any]()

    def watch(exchange: Exchange) -> None:
        if not exchange.number:
            seen[exchange.client] = exchange.upload

    engine.watch = watch
    server = engine.init()
    engine.round(server, range(6), 0)
    return {**seen, -1: next(iter(server.values()))}


def flat(value: Any) -> Any:
    return torch.cat([t.double().flatten() for t in tree.leaves(value)]).numpy()


@pytest.mark.parametrize("kind", [Loop, Stacked])
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "labels"])
def test_an_upload_is_the_lie_that_it_should_be(name: str, kind: Any) -> None:
    honest, lies = (uploads(FedAvg(local=LOCAL), attack, kind) for attack in (None, ATTACKS[name]))
    w = flat(lies[-1])
    for k in range(6):
        assert torch.equal(honest[k].weight, lies[k].weight)
        if k not in LIARS:
            same(honest[k], lies[k], "an honest upload")
    true, found = ({k: flat(up[k].value) for k in LIARS} for up in (honest, lies))
    of_both = np.stack([true[k] for k in LIARS])
    for k in LIARS:
        if name == "sign_flip":
            np.testing.assert_allclose(found[k], w - (true[k] - w), rtol=1e-12)
        elif name == "scale":
            np.testing.assert_allclose(found[k], w + 10 * (true[k] - w), rtol=1e-12)
        elif name == "alie":
            np.testing.assert_allclose(found[k], of_both.mean(0) - 1.5 * of_both.std(0), rtol=1e-12)
        elif name == "stand_still":
            np.testing.assert_array_equal(found[k], w)
        elif name == "constant":
            assert set(found[k].tolist()) == {0.05}
        elif name == "inner_product":
            np.testing.assert_allclose(found[k], w - 2 * (of_both.mean(0) - w), rtol=1e-12)
    if name == "noise":
        noise = np.stack([found[k] - true[k] for k in LIARS])
        assert 0.3 < noise.std() < 0.7
        assert abs(np.corrcoef(noise)[0, 1]) < 0.6
        assert len(set(noise.ravel().tolist())) == noise.size


def test_noise_is_another_in_another_round_and_with_another_seed() -> None:
    people, start = population(dtype=torch.float64), None
    noise = set()
    for seed in (0, 1):
        for number in (0, 1):
            after = []
            for attack in (None, Noise(1.0, clients=(0,), seed=seed)):
                engine = Loop(people, FedAvg(local=LOCAL), Options(attack=attack))
                start = engine.init() if start is None else start
                after.append(flat(engine.round(start, [0], number)))
            noise.add(tuple(np.round(after[1] - after[0], 9)))
    assert len(noise) == 4


def test_the_quantile_of_a_little_is_enough_is_that_of_the_paper() -> None:
    def z(n: int, m: int) -> float:
        s = n // 2 + 1 - m
        return float(max(0.0, norm.ppf((n - m - s) / (n - m))))

    for n, m in ((50, 12), (20, 5), (20, 2), (7, 3)):
        x = torch.randn(m, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        draw: Any = dataclasses.make_dataclass("Draw", ["asked"])(n)
        found = LittleIsEnough(share=0.5).values(x, x[0], draw)
        assert found.shape == x.shape
        np.testing.assert_allclose(found[0].numpy(), x.numpy().mean(0) - z(n, m) * x.numpy().std(0), rtol=1e-9)
    assert z(50, 12) > 0.3
    assert z(20, 2) == 0


def test_buffers_and_differences() -> None:
    """FedNova uploads normalised gradients beside BatchNorm statistics and a number: flipped, as they are, flipped."""
    subject = Subject.of(FedNova).normalised
    honest, lies = (
        uploads(subject.algorithm, attack, subject=subject) for attack in (None, Scale(-1.0, clients=LIARS))
    )
    (true, steps), (found, others) = honest[2].value, lies[2].value
    same(true.buffers, found.buffers, "the buffers")
    same(-true.params, found.params, "the gradient")
    assert steps == -others
    assert float(steps)
    model = Subject.of(FedAvg).normalised
    honest, lies = (uploads(model.algorithm, attack, subject=model) for attack in (None, Scale(-1.0, clients=LIARS)))
    same(honest[2].value.buffers, lies[2].value.buffers, "the buffers of a model")
    close(2 * lies[-1].params - honest[2].value.params, lies[2].value.params, "a model", 1e-12)


def test_control_variates_beside_a_model_are_flipped_by_themselves() -> None:
    honest, lies = (uploads(Scaffold(local=LOCAL), attack) for attack in (None, Scale(-1.0, clients=LIARS)))
    (y, c), (y_lie, c_lie) = ((upload[0].value, upload[1].value) for upload in (honest[2], lies[2]))
    w: Weights = lies[-1].x
    close(2 * w.params - y.params, y_lie.params, "the model", 1e-12)
    same(-c, c_lie, "the control variate")


def test_uploads_without_weights_are_lied_about_too() -> None:
    subject = Subject.of(KTpFL)
    people = subject.population()
    assert isinstance(subject.algorithm, KTpFL)
    plain, lying = (
        Loop(people, subject.algorithm, Options(attack=attack)) for attack in (None, Scale(10.0, clients=LIARS))
    )
    a, b = (engine.round(engine.init(), range(6), 0) for engine in (plain, lying))
    assert differ(a, b)


def test_labels_are_flipped_where_attackers_train_and_nowhere_else() -> None:
    people = population(parts=federation())
    lying = poisoned(people, ATTACKS["labels"])
    before, after = people.federation.train.y, lying.federation.train.y
    f = people.federation
    rows = np.concatenate([f.partition.rows(k) for k in LIARS])
    others = np.setdiff1d(np.arange(len(before)), rows)
    assert torch.equal(after[rows], 2 - before[rows])
    assert torch.equal(after[others], before[others])
    assert torch.equal(before, federation().train.y)
    assert poisoned(people, ATTACKS["scale"]) is people


BACKDOOR = Backdoor(1, 3.0, 2, clients=(0, 2))


def pictures(**more: Any) -> Any:
    """Small images of four clients."""
    train, test = (examples(n, seed=n) for n in (48, 60))
    train, test = (
        dataclasses.replace(e, x=torch.rand((len(e), 1, 4, 4), generator=torch.Generator().manual_seed(len(e))))
        for e in (train, test)
    )
    return dataclasses.replace(federate(train, iid(train.y, 4, seed=0), test=test, test_fraction=0.0), **more)


def test_a_backdoor_is_in_every_other_image_of_attackers_and_nowhere_else() -> None:
    before = pictures()
    people = Population(before, {"net": Model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)))})
    after = poisoned(people, BACKDOOR).federation.train
    rows = np.concatenate([before.partition.rows(k) for k in (0, 2)])
    patched, others = rows[::2], np.setdiff1d(np.arange(len(after)), rows[::2])
    assert torch.equal(after.x[others], before.train.x[others])
    assert torch.equal(after.y[others], before.train.y[others])
    assert set(after.y[patched].tolist()) == {1}
    bright = before.train.x[rows][::2].max()
    assert bool((after.x[patched][..., 2:, 2:] == bright).all())
    assert torch.equal(after.x[patched][..., :2, :], before.train.x[patched][..., :2, :])
    assert torch.equal(after.x[patched][..., :, :2], before.train.x[patched][..., :, :2])
    x = torch.randn(2, 3, dtype=torch.float64)
    torch.testing.assert_close(BACKDOOR.values(x, torch.ones(3), None), 1 + 3 * (x - 1))  # type: ignore[arg-type]
    frozen = dataclasses.replace(people, behind={"net": before})
    with pytest.raises(
        SettingError, match=r"Backdoor changes what attackers train on, and frozen layers .* front = 'o"
    ):
        poisoned(frozen, BACKDOOR)


def test_how_well_a_backdoor_works_is_told_of_patched_images_of_other_classes() -> None:
    test = pictures().test
    seen: list[torch.Tensor] = []

    def by_corner(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return torch.eye(3)[torch.where((x[:, 0, 3, 3] == x.max()) & (x[:, 0, 0, 0] > 0.5), 1, 0)]

    rate = BACKDOOR.success(by_corner, test)
    others = test.x[test.y != 1]
    assert sum(map(len, seen)) == len(others) < len(test)
    assert rate == pytest.approx(float((others[:, 0, 0, 0] > 0.5).double().mean()))
    assert BACKDOOR.success(lambda x: torch.eye(3)[torch.ones(len(x), dtype=torch.int64)], test) == 1.0


@pytest.mark.slow
def test_no_rule_stops_a_backdoor_on_unlike_clients() -> None:
    """Three of 20 clients of two classes each; accuracy shows little. A bound or a rule lowers it, and none ends it."""
    train, test = fashion_mnist_small()
    train, test = train.select(np.arange(4000)), test.select(np.arange(1000))
    parts = federate(train, shards(train.y, num_clients=20, shards_per_client=2, seed=0), test=test, test_fraction=0.0)
    attack = Backdoor(0, clients=(3, 9, 14))
    model = Model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)), name="net")
    local = Local(epochs=1, batch_size=20, optimiser=SGD(lr=0.1))
    for rule in (
        {"bound": "clip:median:1"},
        *({"aggregator": a} for a in ("trimmed:0.25", "median", "geometric_median", "multi_krum")),
    ):
        settings = RunSettings(
            rounds=15, cohort_size=20, engine="stacked", compilation="none", threads=1, panel=1, **rule
        )
        history = run(FedAvg(local=local), parts, {"net": model}, settings, attack=attack)
        found = attack.success(lambda x, weights=history.server["net"]: model(weights, x), test)
        assert found > 0.15, rule


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_run_with_flipped_labels_is_that_on_data_with_flipped_labels(engine: Any) -> None:
    settings = RunSettings(rounds=2, cohort_size=6, engine=engine, compilation="none")
    lying = run(FedAvg(local=LOCAL), federation(), linear, settings, attack=ATTACKS["labels"])
    honest = run(FedAvg(local=LOCAL), federation(), linear, settings)
    f = federation()
    y = f.train.y.clone()
    for k in LIARS:
        y[f.partition.rows(k)] = 2 - y[f.partition.rows(k)]
    flipped = dataclasses.replace(f, train=dataclasses.replace(f.train, y=y))
    by_hand = run(FedAvg(local=LOCAL), flipped, linear, settings)
    same(lying.server, by_hand.server, "the server")
    assert differ(lying.server, honest.server)
    for found, other in zip(lying.metrics, by_hand.metrics, strict=True):  # what is held out is honest in both
        for name in ("global_accuracy", "global_loss", "personal_by_client", "train_loss"):
            assert found.get(name) == other.get(name)
    assert lying.manifest["attackers"] == [2, 5]


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("aggregator", ["mean", "median"])
def test_every_engine_has_the_lies_of_the_loop(name: str, aggregator: str) -> None:
    subject = Subject.of(Scaffold)
    people = poisoned(subject.population(), ATTACKS[name])
    options = Options(attack=ATTACKS[name], aggregator=aggregator)
    trails = {}
    for kind, more in ((Loop, {}), (Stacked, {"chunk": 2}), (Workers, {"workers": 2}), (Messages, {})):
        engine: Any = kind(people, subject.algorithm, dataclasses.replace(options, **more))  # type: ignore[arg-type]
        trails[kind] = record_run(engine, engine.init(), subject.cohorts)
        engine.close()
    loop = trails[Loop]
    for kind, tolerance in ((Stacked, 1e-9), (Workers, 0.0), (Messages, 0.0)):
        close(loop.servers, trails[kind].servers, f"the server of {kind.__name__}", tolerance)
        close(loop.states, trails[kind].states, f"the states of {kind.__name__}", tolerance)


def settings(rounds: int, **more: Any) -> RunSettings:
    return RunSettings(
        rounds=rounds, cohort_size=5, engine="loop", compilation="none", aggregator="geometric_median", **more
    )


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["noise", "labels", "alie"])
def test_a_resumed_run_has_the_lies_of_one_that_nobody_stopped(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    whole = run(FedAvg(local=LOCAL), federation(), linear, settings(4), attack=attack)
    run(FedAvg(local=LOCAL), federation(), linear, settings(2), attack=attack, directory=tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["attack"]["clients"] == [2, 5]
    assert manifest["run"]["aggregator"] == "geometric_median"
    again = {"directory": tmp_path, "resume": True}
    for others, more in ((None, {}), (Scale(2.0, clients=LIARS), {}), (attack, {"seed": 5})):
        with pytest.raises(SettingError, match=r"attack|seed"):
            run(FedAvg(local=LOCAL), federation(), linear, settings(4, **more), attack=others, **again)
    changed = dataclasses.replace(settings(4), aggregator="median")
    with pytest.raises(SettingError, match="aggregator"):
        run(FedAvg(local=LOCAL), federation(), linear, changed, attack=attack, **again)
    resumed = run(FedAvg(local=LOCAL), federation(), linear, settings(4), attack=attack, **again)
    assert resumed.metrics == whole.metrics
    same(resumed.server, whole.server, "the server")


def test_a_run_without_attackers_says_nothing_of_them(tmp_path: Path) -> None:
    run(FedAvg(local=LOCAL), federation(), linear, settings(1), directory=tmp_path)
    assert not {"attack", "attackers"} & json.loads((tmp_path / "manifest.json").read_text()).keys()


def test_a_share_is_drawn_by_the_seed() -> None:
    for count, share, many in ((20, 0.25, 5), (10, 0.3, 3), (7, 0.3, 2), (5, 1.0, 5)):
        found = Scale(2.0, share=share, seed=4).attackers(count)
        assert len(found) == many
        assert found <= set(range(count))
        assert found == Noise(2.0, share=share, seed=4).attackers(count)
    assert len({Scale(2.0, share=0.25, seed=seed).attackers(20) for seed in range(8)}) > 4
    assert Scale(2.0, clients=(7, 1)).attackers(20) == {1, 7}


def test_the_pooled_reference_is_honest() -> None:
    reference = [
        run(Centralised(local=LOCAL), federation(), linear, settings(2), attack=attack).metrics
        for attack in (None, ATTACKS["labels"])
    ]
    assert reference[0] == reference[1]


def test_a_lie_that_is_not_finite_is_named() -> None:
    with pytest.raises(NonFiniteError, match="client 2"):
        run(FedAvg(local=LOCAL), federation(), linear, RunSettings(rounds=1, cohort_size=6, engine="loop"),
            attack=Scale(1e300, clients=(2,)))  # fmt: skip


def test_bounds_of_norms_see_the_lies() -> None:
    engine = Loop(population(), FedAvg(local=LOCAL), Options(attack=Scale(1e6, clients=(2,)), bound="refuse:sent:10"))
    engine.round(engine.init(), range(6), 0)
    assert [failure.client for failure in engine.traffic.failed] == [2]


def test_devices_and_sums_refuse_attackers() -> None:
    with pytest.raises(SettingError, match="attack = Scale is a simulation of clients that lie, and devices are what"):
        DevicesInProcess(population(), FedAvg(local=LOCAL), Options(attack=ATTACKS["scale"]))
    with pytest.raises(SettingError, match="attackers lie in their uploads, and partial_sums = 2 sends sums"):
        Options(attack=ATTACKS["scale"], partial_sums=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scale(2.0), "attackers are a share of the clients or a list of them, got share = None and clients ="),
        (lambda: Scale(2.0, share=0.1, clients=(1,)), "a share of the clients or a list"),
        (lambda: Scale(2.0, share=0.0), "the share of attackers is above 0 and at most 1, got 0"),
        (lambda: Scale(2.0, share=1.5), "at most 1, got 1.5"),
        (lambda: Scale(2.0, clients=(1, 1)), "attackers are distinct clients"),
        (lambda: Scale(float("nan"), share=0.1), "factor must be finite"),
        (lambda: Noise(0.0, share=0.1), "the standard deviation of noise is above 0, got 0"),
        (lambda: Scale(2.0, share=0.1).check(federation()), "Scale needs 1 attackers, got a share of 0.1 of 6 clients"),
        (lambda: LittleIsEnough(clients=(3,)).check(federation()), r"LittleIsEnough needs 2 attackers, got the list"),
        (lambda: Scale(2.0, clients=(6,)).check(federation()), r"attackers are among the clients 0..5, got \(6,\)"),
        (
            lambda: FlippedLabels(share=0.5).check(federation(drift=LabelDrift(5))),
            "labels that are flipped and data that drift would mix",
        ),
        (
            lambda: Backdoor(3, clients=(1,)).check(pictures()),
            r"wanted class, one of 0\.\.2 of a classification, got 3",
        ),
        (lambda: Backdoor(1, size=5, clients=(1,)).check(pictures()), r"patches 5 x 5 pixels .* of shape \(1, 4, 4\)"),
        (lambda: Backdoor(1, clients=(1,)).check(federation()), r"patches 4 x 4 pixels of images, got inputs of shape"),
        (
            lambda: Backdoor(1, clients=(1,)).check(pictures(drift=LabelDrift(5))),
            "examples that are patched and data that drift would mix",
        ),
    ],
)
def test_wrong_attackers_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


def test_a_run_checks_its_attackers_before_it_begins() -> None:
    with pytest.raises(SettingError, match=r"attack must be a fedloom\.Attack, got str 'labels'"):
        run(FedAvg(local=LOCAL), federation(), linear, settings(1), attack="labels")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="attackers are among the clients"):
        run(FedAvg(local=LOCAL), federation(), linear, settings(1), attack=Scale(2.0, clients=(9,)))
    numbers = dataclasses.replace(examples(90), y=torch.randn(90), num_classes=1)
    regression = federate(numbers, federation().partition)
    with pytest.raises(SettingError, match="labels that are flipped are classes"):
        FlippedLabels(clients=(1,)).check(regression)


def test_weighted_uploads_keep_their_weights_last() -> None:
    """Weights of a mean may come before or after other parts of an upload."""
    upload = (
        Weighted(value={"a": torch.ones(2, 3)}, weight=torch.tensor([5.0, 6.0])),
        torch.ones(2, 2),
        Weighted(value=torch.ones(2), weight=torch.tensor([7.0, 8.0])),
    )
    from fedloom.engines.attacks import _uploaded

    assert list(_uploaded(upload)) == [(0, 0), (1, 2), (2, 3)]
