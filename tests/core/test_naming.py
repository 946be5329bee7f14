"""Networks and other things by the names that people write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.naming import by_python_name
from fedloom.wording import did_you_mean, some_of


def test_what_was_meant() -> None:
    assert did_you_mean("fedavgg", ["fedavg", "moon"]) == " (did you mean 'fedavg'?)"
    assert did_you_mean("zzz", ["fedavg", "moon"]) == ""


def test_a_long_list_ends_with_how_many_there_are_besides() -> None:
    assert some_of([], 2) == ""
    assert some_of("ab", 2) == "a, b"
    assert some_of(iter("abcde"), 2) == "a, b and 3 more"
    assert some_of("abcde", 4, "; ") == "a; b; c; d; and 1 more"


def test_things_by_their_python_names() -> None:
    assert by_python_name("torch.nn:Linear", "network") is torch.nn.Linear
    with pytest.raises(
        SettingError, match=r"network 'torch.nn:Liner': torch.nn has no 'Liner' \(did you mean 'Linear'"
    ):
        by_python_name("torch.nn:Liner", "network")
    with pytest.raises(SettingError, match=r"task 'no.such:Thing': cannot import 'no.such'.*in the current folder"):
        by_python_name("no.such:Thing", "task")


def test_a_module_of_another_folder_is_not_taken_for_that_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twice.py").write_text(f"def where(): return {folder!r}\n")
    monkeypatch.chdir(tmp_path / "first")
    for _ in range(2):  # the same file again is no other
        assert by_python_name("twice:where", "network")() == "first"
    monkeypatch.chdir(tmp_path / "second")
    with pytest.raises(SettingError, match=r"imported 'twice' from .*first/twice.py, and the current folder has anot"):
        by_python_name("twice:where", "network")
    del sys.modules["twice"]
    assert by_python_name("twice:where", "network")() == "second"


def test_networks_by_name() -> None:
    found = Model.by_name("torch.nn:Linear", in_features=3, out_features=2)
    assert (found.name, found.num_params, found.seeded) == ("torch.nn:Linear", 8, True)
    assert found is Model.by_name("torch.nn:Linear", in_features=3, out_features=2)
    assert Model.by_name("mlp", shape=(4,), num_classes=3).init(0).params
    for text, settings, words in (
        ("torch.nn:Linear", {"width": 3}, r"does not take the settings \{'width': 3\}"),
        ("torch:zeros", {"size": (2,)}, r"must name what makes a torch.nn.Module, got Tensor"),
        (
            "nothing",
            {"shape": (4,), "num_classes": 3},
            r"network 'nothing' does not take .*model must be one of logistic",
        ),
    ):
        with pytest.raises(SettingError, match=words):
            Model.by_name(text, **settings)


def test_things_are_put_into_words_as_far_as_they_are_shown() -> None:
    asked: list[int] = []

    def say(n: int) -> str:
        asked.append(n)
        return f"<{n}>"

    assert some_of(range(1000), 2, say=say) == "<0>, <1> and 998 more"
    assert asked == [0, 1]
