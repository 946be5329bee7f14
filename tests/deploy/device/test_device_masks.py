"""Devices that hold masks: what they register, and what the server makes of it."""

from __future__ import annotations

from typing import Any

import pytest

import fedloom as fl
from fedloom.core.errors import RefusedError, SettingError
from fedloom.data import Normalise
from fedloom.deploy.device.data_manager import DataManager
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.device_registry import Registry
from fedloom.experiments.settings_sections import DataSettings
from masks_made import CLASSES, SIZE, Pixels, federation, images


def registered(name: str, more: int = 0, **changes: Any) -> Registration:
    x, y = images(20)
    examples = fl.from_arrays(x, y, num_classes=CLASSES + more, classes=[f"c{k}" for k in range(CLASSES + more)])
    data = DataManager(fl.Dataset(examples, None), DataSettings(), 0)
    return Registration.of({**data.registration(name * 32).described(), **changes})


def test_a_server_knows_the_shape_of_masks_and_no_pixel() -> None:
    made = Registry.of("c" * 32, [registered("a"), registered("b")], ["net"]).federation(federation().test)
    assert isinstance(made.train.normalise, Normalise)
    assert (made.num_classes, made.train.has_pixels, made.train.y.shape[1:]) == (CLASSES, True, (SIZE, SIZE))
    assert not made.train.y.any()
    job = fl.Job(
        algorithm=fl.FedAvg(), federation=made, model=Pixels, task=fl.Segmentation(),
        settings=fl.RunSettings(cohort_size=2),
    )  # fmt: skip
    job.check()


def test_chance_of_devices_is_of_what_is_known_here() -> None:
    """Of personal models it would be that of the zeros that stand for their masks."""
    from fedloom.coordinator.chance_level import of_federation

    made = Registry.of("c" * 32, [registered("a"), registered("b")], ["net"]).federation(federation().test)
    assert {*of_federation(made, fl.Segmentation().measures)} == {
        f"global_{name}" for name in ("mean_iou", "mean_dice", "pixel_accuracy")
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_shape": [SIZE, SIZE + 1]}, "one target, a row of them or one for each pixel, got"),
        ({"target_dtype": "float32"}, "one target, a row of them or one for each pixel, got"),
        ({"vocabulary": 0}, "one target, a row of them or one for each pixel, got"),
        ({"target_shape": [SIZE]}, "integers are token ids, which a device registers as such"),
        ({"dtype": "int64"}, "integers are token ids, which a device registers as such"),
    ],
)
def test_what_is_no_registration_of_masks_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        registered("a", **changes)


def test_devices_have_the_same_number_of_classes() -> None:
    with pytest.raises(SettingError, match=r"the same vocabulary, got 3 on a.* and 4 on b"):
        Registry.of("c" * 32, [registered("a"), registered("b", 1)], ["net"])
