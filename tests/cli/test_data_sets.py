"""`fedloom data`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from commands import call, error
from fedloom.cli.data_sets import _Bar, _targets
from fedloom.data import Examples
from fedloom.display.terminal import Terminal

pytestmark = pytest.mark.usefixtures("_eighty_columns")


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    lines = [f"{i},{('no', 'yes')[i % 2]}" for i in range(20)]
    (tmp_path / "own.csv").write_text("\n".join(["a,ill", *lines]), encoding="utf-8")
    return ["data", "show", "--data", f"{tmp_path / 'own.csv'}?label=ill", "--clients", "2"]


def test_classes_have_their_numbers_and_names(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, *data)
    assert status == 0
    assert "classes: 0 no, 1 yes\n" in out


def test_a_figure_is_of_a_kind_that_is_known_and_shows_somebody(
    data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error(capsys, *data, "--out", str(tmp_path / "f.jpg")).startswith("a figure is .png, .svg or .pdf, got")
    with pytest.raises(SystemExit):
        call(capsys, *data, "--shown", "0")
    assert "--shown: is a number of at least 1, got '0'" in capsys.readouterr().err


def test_targets_without_names_are_counted() -> None:
    numbers = Examples(torch.zeros(4, 2), torch.arange(8.0).reshape(4, 2), 2)
    assert [name for name, _ in _targets(numbers)] == ["target", "target 2"]
    np.testing.assert_array_equal(_targets(numbers)[1][1], [1, 3, 5, 7])


def test_the_list_says_what_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "data", "sources")[1].splitlines()
    for name, fetched in (("svhn", "yes"), ("leaf", "-"), ("fashion_mnist_small", "needs no files")):
        assert next(line for line in lines if line.split()[:1] == [name]).rstrip().endswith(fetched), name


def test_a_bar_of_a_file_of_unknown_size_has_no_end() -> None:
    with Progress(console=Terminal(), disable=True) as progress:
        bar = _Bar(progress, "f")
        bar.total = 0
        assert progress.tasks[0].total is None
        bar.total = 8
        bar.update(3)
        assert (bar.total, progress.tasks[0].completed) == (8, 3)
