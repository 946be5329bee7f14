"""Names of devices: sent at registration, checked, unique, and what people call clients by afterwards."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from commands import call, error
from fedloom.core.errors import RefusedError, SettingWarning
from fedloom.deploy.device import Membership
from fedloom.deploy.device.data_manager import default_name
from fedloom.deploy.registration import Registration, check_device_name, describe_targets
from fedloom.deploy.server.device_registry import Registry
from fedloom.testing.in_process import InProcess
from hospitals import SIZES
from site_devices import audit, members_of, serve, write_sites

WORDS: dict[str, Any] = {
    "algorithm": "pfedsd", "model": "logistic", "local.epochs": 1, "run.rounds": 1, "run.cohort_size": 5,
    "run.compilation": "none", "run.stateless": True,
}  # fmt: skip
ROLES = "label=readmitted&group=patient&drop=los_days,part&prepare=federated"
RUN = "f" * 32


def registered(*names: str) -> list[Registration]:
    made = Registration("0" * 32, (3, 2), (1, 0), (0, 0), (4,), "float32")
    return [replace(made, id=f"{k:08x}" + "0" * 24, name=name) for k, name in enumerate(names, 10)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of five hospitals, two of which are named otherwise than their files."""
    folder = tmp_path_factory.mktemp("named")
    write_sites(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a column that one hospital never measures
        devices = members_of(folder, [f"{folder}/sites/{site}.csv?{ROLES}" for site in SIZES])
        assert [device.name for device in devices] == [*SIZES]
        devices[0].name, devices[1].name = "", "St. Jürgen"
        serve(folder, WORDS, InProcess(devices), f"{folder}/test.csv?{ROLES}").run(folder / "out")
    own = devices[1].data.federation
    assert own.local_test is not None
    held_out = own.train.select(own.local_test.rows(0))
    np.savez(folder / "held.npz", x=held_out.x.numpy(), y=held_out.y.numpy())
    return folder


@pytest.mark.slow
def test_names_stand_beside_ids_in_the_audit_log_and_in_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {f"{k:032x}": name for k, name in enumerate(["", "St. Jürgen", *[*SIZES][2:]])}
    entries = audit(run)
    assert {entry["event"] for entry in entries} >= {"joined", "answered"}
    assert all(entry.get("name", "") == names[entry["device"]] for entry in entries)
    described = json.loads((run / "devices.json").read_text())["devices"]
    assert [device.get("name", "") for device in described] == [*names.values()]
    federation = json.loads((run / "out/federation.json").read_text())
    assert federation["client_names"] == ["0" * 32, *[*names.values()][1:]]
    assert federation["class_names"] == ["no", "yes"]
    status, _, _ = call(capsys, "report", str(run / "out"), "--out", str(run / "report"))
    assert status == 0
    (page,) = (run / "report").glob("*.html")
    assert "St. Jürgen" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_device_is_named_to_predict_with_its_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(run / "sites/Kiel.csv")
    by_name = fl.predict(run / "out", table, client="St. Jürgen")
    assert by_name.whose == "model of client St. Jürgen"
    assert by_name.probabilities is not None
    number = fl.predict(run / "out", table, client=1).probabilities
    other = fl.predict(run / "out", table, client=2).probabilities
    assert by_name.probabilities.tolist() == number.tolist() != other.tolist()  # type: ignore[union-attr]
    job = fl.Experiment.from_directory(run / "out").job()
    held_out, (model,) = np.load(run / "held.npz"), job.population.models.values()
    network = fl.module(model, job.restore(run / "out").personal_weights(1))
    with torch.no_grad():
        right = network(torch.from_numpy(held_out["x"])).argmax(1).numpy() == held_out["y"]
    last = json.loads((run / "out/metrics.jsonl").read_text().splitlines()[-1])
    assert right.mean() == last["personal_by_client"]["1"]  # as the device has said
    assert {*by_name.labels} <= {"no", "yes"}
    said = error(
        capsys, "predict", str(run / "out"), "--data", table, "--client", "Jürgen", "--out", str(run / "p.csv")
    )
    assert "'St. Jürgen'" in said


@pytest.mark.parametrize("said", ["", "?label=readmitted&group=patient", f"?{ROLES}"])
def test_new_rows_have_the_roles_of_the_servers_table(run: Path, said: str) -> None:
    found = fl.evaluate_run(run / "out", f"{run}/sites/Kiel.csv{said}", measures=["accuracy"], resamples=1)
    assert found.rows == SIZES["Kiel"]
    assert fl.predict(run / "out", f"{run}/sites/Kiel.csv{said}").names == ("no", "yes")
    with pytest.raises(ValueError, match="got 'prepare=standard'"):
        fl.predict(run / "out", f"{run}/sites/Kiel.csv?prepare=standard")


def test_a_shared_name_is_nobodys() -> None:
    with pytest.warns(SettingWarning) as caught:
        found = Registry.of(RUN, registered("data", "Kiel", "data", ""), ["net"])
    assert found.client_names == ("data-0000000a", "Kiel", "data-0000000c", "0000000d" + "0" * 24)
    (said,) = (str(w.message) for w in caught)
    assert said == (
        "a name is of one device, got 2 called 'data': they are data-0000000a, data-0000000c; give each its own "
        "(fedloom join --name)"
    )
    with pytest.warns(SettingWarning):  # one claims the name that another one is given
        names = Registry.of(RUN, registered("a" * 64, "a" * 64, "a" * 48 + "-0000000b"), ["net"]).client_names
    assert names == ("a" * 48 + "-0000000a", "0000000b" + "0" * 24, "0000000c" + "0" * 24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Registry.of(RUN, registered("", ""), ["net"]).client_names == ()


def test_who_returns_keeps_its_name() -> None:
    one, other = registered("Kiel", "Bremen")
    registry = Registry.of(RUN, [one, other], ["net"])
    assert registry.admit(replace(one, name="Bremen")).name == "Kiel"
    assert registry.admit(replace(one, train=(1, 1))) == replace(registry.devices[0], train=(1, 1))


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("shape", (5,), "shapes of an example were (4,) and are (5,)"),
        ("dtype", "float64", "types of values were 'float32' and are 'float64'"),
        ("columns", ("a", "b", "c", "d"), "columns were () and are ('a', 'b', 'c', 'd')"),
        ("classes", ("no", "yes"), "classes were () and are ('no', 'yes')"),
        ("inputs", {"kind": "tokens"}, "kinds of inputs were None and are {'kind': 'tokens'}"),
    ],
)
def test_who_returns_with_other_examples_hears_what_differs(entry: str, value: Any, words: str) -> None:
    one, other = registered("Kiel", "Bremen")
    registry = Registry.of(RUN, [one, other], ["net"])
    with pytest.raises(RefusedError) as caught:
        registry.admit(replace(one, **{entry: value}))
    assert str(caught.value) == (
        f"device {one.id} (Kiel) has registered with other examples when the run began: {words}; bring them back as "
        "they were, or begin a new run"
    )


@pytest.mark.parametrize("name", ["a" * 65, "a\x1b[31m", "a\nb", "a\u202eb", " a", "a ", "0" * 32, 3, None, ["a"]])
def test_hostile_names_are_refused(name: object) -> None:
    described = registered("Kiel")[0].described()
    assert Registration.of(described).name == "Kiel"
    with pytest.raises(RefusedError, match=r"name of a device has at most 64 printable characters.*--name"):
        Registration.of({**described, "name": name})


def test_a_device_is_called_as_its_file(tmp_path: Path) -> None:
    (tmp_path / "Kiel 2.csv").write_text("x,label\n1,0\n2,1\n")
    assert default_name(str(tmp_path / "Kiel 2.csv")) == default_name(f"{tmp_path}/Kiel 2.csv?label=y") == "Kiel 2"
    assert default_name(str(tmp_path)) == "Kiel 2"
    assert default_name("fashion_mnist_small") == ""
    (tmp_path / f"{'a' * 65}.csv").write_text("x,label\n1,0\n2,1\n")
    assert default_name(f"{tmp_path}/{'a' * 65}.csv") == ""
    source = str(tmp_path / "Kiel 2.csv")
    assert default_name(str(tmp_path)) == default_name(f"{tmp_path}/*.csv") == default_name("no/where.csv") == ""
    assert Membership(source, tmp_path / "state").name == ""
    assert Membership(source, tmp_path / "state", name="Kiel").name == check_device_name("Kiel")
    with pytest.raises(RefusedError, match="at most 64 printable"):
        Membership(source, tmp_path / "state", name="a\tb")


def test_personal_models_on_devices_are_refused(tmp_path: Path) -> None:
    write_sites(tmp_path)
    sources = [f"{tmp_path}/sites/{site}.csv?{ROLES}" for site in ("Bremen", "Hamburg")]
    words = WORDS | {"run.stateless": False, "run.cohort_size": 2}
    serve(tmp_path, words, InProcess(members_of(tmp_path, sources)), "").run(tmp_path / "out")
    assert fl.predict(tmp_path / "out", sources[0]).whose == "global model"
    with pytest.raises(fl.SettingError, match=r"PFedSD are made of states that devices keep: train with run.stateless"):
        fl.predict(tmp_path / "out", sources[0], client="Hamburg")


def test_targets_in_words() -> None:
    """A class for each example has no shape; masks and the tokens of a sequence have one."""
    assert describe_targets("int64", ()) == "class numbers"
    assert describe_targets("int64", (28, 28)) == "int64 of shape (N, 28, 28)"
    assert describe_targets("float32", ()) == "float32 of shape (N,)"
