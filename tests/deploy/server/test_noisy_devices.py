"""Noise of devices under masks: epsilon as in a simulation, noise of each one's system, and sums of too few refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_devices
import torch
from test_masked_exchange import CLIENTS, Fleetwide, Wires, after, flat

import fedloom as fl
from fedloom.deploy.server.masked_exchange import MaskedExchange
from fedloom.engines.engine_options import Options
from fedloom.privacy.masked_terms import Terms
from fedloom.privacy.noisy_sums import InNoisyFixedPoint, NoisyAggregation
from fedloom.testing.in_process import DevicesInProcess
from tiny import LOCAL, federation, mlp, population

ASKED = {
    "cohort_size": 5, "on_nonfinite": "stop", "secure_aggregation": "range=8", "rounds": 2,
    "privacy": "distributed:noise=0.5,delta=1e-3,clip=0.5",
}  # fmt: skip
NOISY = NoisyAggregation(8.0, clip=0.5, noise=0.5, least=9)


def of_devices(folder: Path) -> Any:
    made = fl.FedAvg(local=LOCAL)
    return Fleetwide(folder.with_name(f"{folder.name} devices"), made, **ASKED).job().run(folder)


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [fl.FedAvg, fl.Scaffold])
def test_the_records_are_those_of_the_simulation_but_for_the_noise(algorithm: Any, tmp_path: Path) -> None:
    made, little = algorithm(local=LOCAL), "distributed:noise=0.0001,delta=1e-3,clip=0.5"
    found = Fleetwide(tmp_path / "devices", made, **(ASKED | {"privacy": little})).job().run(tmp_path / "run")
    want = test_devices.of_loop(made, **(ASKED | {"privacy": little}))
    assert found.series("epsilon").tolist() == want.series("epsilon").tolist()
    assert found.metrics[1]["sum_noise"] == want.metrics[1]["sum_noise"]
    torch.testing.assert_close(flat(found.server), flat(want.server), rtol=0, atol=1e-3)
    assert found.measures["epsilon"].title == "Epsilon"
    assert "with noise of their own by each device's entropy" in found.measures["epsilon"].meaning
    assert (tmp_path / "run/clients_asked.txt").read_text().splitlines() == [
        f"{t} {' '.join(map(str, found.metrics[t]['clients']))}" for t in (1, 2)
    ]


@pytest.mark.slow
def test_the_noise_is_of_no_seed(tmp_path: Path) -> None:
    one, other = (flat(of_devices(tmp_path / name).server) for name in ("one", "other"))
    assert 0.5 * 0.5 * 0.5 / 5 < float((one - other).std()) < 4 * 0.5 * 0.5 / 5


def computed(lose: Any) -> tuple[Any, Any, list[int]]:
    """(engine, server state after a round of ten, how many were in the sum)."""
    counted = list[int]()
    link = InNoisyFixedPoint(lambda: NOISY, lambda total, clients: counted.append(total.count))
    people = population(mlp, federation(clients=CLIENTS))
    engine = DevicesInProcess(people, fl.FedAvg(local=LOCAL), Options(links=(link,)))
    engine.fleet.manager = Wires(engine, lose)  # type: ignore[union-attr]
    return engine, engine.round(engine.init(), range(CLIENTS), 0), counted


@pytest.mark.parametrize("stage", ["advertise", "mask", "unmask"])
def test_one_may_be_lost_and_not_two(stage: str) -> None:
    for lost in (1, 2):
        gone = {*range(lost)}
        engine, found, counted = computed(
            lambda at, k, gone=gone: "lost" if k in gone and (at == stage or after(at, stage)) else None
        )
        in_sum = 10 if stage == "unmask" else 10 - lost
        is_sum = lost == 1
        assert torch.equal(flat(found), flat(engine.init())) is not is_sum
        assert counted == ([in_sum] if is_sum else [])


def test_devices_refuse_a_sum_of_fewer_than_their_noise_is_sized_for(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Terms.of

    def fewer(*args: Any, least: int = 0) -> Terms:
        return true(*args, least=least - 1)

    monkeypatch.setattr(Terms, "of", fewer)
    engine, found, counted = computed(lambda at, k: None)
    assert torch.equal(flat(found), flat(engine.init()))
    assert not counted
    assert "noise is sized for 9 devices or more, and this sum would be shown of 8" in engine.traffic.failed[0].reason


def test_the_server_asks_for_no_shares_of_too_few_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thresholds as among many, where each sees its neighbours alone."""
    true, asked = MaskedExchange._ask, list[str]()
    plain = Terms.of
    monkeypatch.setattr(Terms, "of", lambda *args, least=0: plain(*args))
    monkeypatch.setattr(NoisyAggregation, "check", lambda self, terms, clients: None)

    def watched(self: MaskedExchange, stage: str, *args: Any, **more: Any) -> Any:
        asked.append(stage)
        return true(self, stage, *args, **more)

    monkeypatch.setattr(MaskedExchange, "_ask", watched)
    engine, found, _ = computed(lambda at, k: "lost" if k < 2 and at != "advertise" else None)
    assert torch.equal(flat(found), flat(engine.init()))
    assert asked == ["advertise", "share"]
    assert "a sum is shown of 9 devices or more, and 8 have sent numbers" in engine.traffic.failed[-1].reason


def test_devices_cannot_look_for_noise(tmp_path: Path) -> None:
    privacy = "distributed:epsilon=4,delta=1e-3,clip=0.5"
    ours = Fleetwide(tmp_path, fl.FedAvg(local=LOCAL), **(ASKED | {"privacy": privacy}))
    with pytest.raises(fl.SettingError, match=r"devices know the noise by the settings of their run, got .*: write n"):
        ours.job().check()
