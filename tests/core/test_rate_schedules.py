"""Schedules of a learning rate against PyTorch's own, by steps and by rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as theirs

from fedloom.core.errors import SettingError
from fedloom.core.rate_schedules import by_rounds, factor_at, rate_schedule


def with_warmup(optimiser: Any, after: Any, steps: int) -> Any:
    start = theirs.LinearLR(optimiser, start_factor=1 / (steps + 1), total_iters=steps)
    return theirs.SequentialLR(optimiser, [start, after], milestones=[steps])


CASES: dict[str, Any] = {
    "constant": lambda o: theirs.ConstantLR(o, factor=1.0),
    "constant?warmup=7": lambda o: with_warmup(o, theirs.ConstantLR(o, factor=1.0), 7),
    "cosine:50": lambda o: theirs.CosineAnnealingLR(o, T_max=50),
    "cosine:50:0.2": lambda o: theirs.CosineAnnealingLR(o, T_max=50, eta_min=0.2 * 0.3),
    "cosine:45?warmup=5": lambda o: with_warmup(o, theirs.CosineAnnealingLR(o, T_max=45), 5),
    "step:9": lambda o: theirs.StepLR(o, step_size=9, gamma=0.1),
    "step:9:0.5?warmup=4": lambda o: with_warmup(o, theirs.StepLR(o, step_size=9, gamma=0.5), 4),
    "exponential:0.97": lambda o: theirs.ExponentialLR(o, gamma=0.97),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of its own SequentialLR
@pytest.mark.parametrize("text", CASES)
def test_factors_are_those_of_torch_over_fifty_steps(text: str) -> None:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule, want = CASES[text](optimiser), []
    for _ in range(50):
        want.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    got = [0.3 * factor_at(text, t) for t in range(50)]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    mark = "&" if "?" in text else "?"
    stepwise = rate_schedule(f"{text}{mark}by=step")
    times = torch.arange(50, dtype=torch.float64)  # of clients at times of their own
    np.testing.assert_allclose(0.3 * stepwise.factor(times), want, rtol=1e-9, atol=1e-12)
    assert factor_at(f"{text}{mark}by=step", 20) == 1.0


def test_a_cosine_stays_at_its_end() -> None:
    assert factor_at("cosine:10:0.25", 10) == factor_at("cosine:10:0.25", 99) == 0.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosine", r"this schedule is written cosine:OVER or cosine:OVER:END, got 'cosine'"),
        ("cosine:0", "OVER must be >= 1"),
        ("cosine:5:2", r"END in 0\.\.1"),
        ("step:0", "EVERY must be >= 1"),
        ("step:3:0", "FACTOR above 0 and at most 1"),
        ("exponential:1.5", "FACTOR must be above 0 and at most 1"),
        ("cosine:5?warm=3", r"of schedule one says, each once, some of .* got 'warm=3' \(did you mean 'warmup'\?\)"),
        ("cosine:5?by=epoch", "by of schedule is round or step, got 'by=epoch'"),
        ("cosine:5?warmup=-1", "warmup of schedule is a whole number, 0 or more, got 'warmup=-1'"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        rate_schedule(text)


def test_a_server_has_rounds_alone() -> None:
    with pytest.raises(SettingError, match=r"server_schedule is by rounds, got 'cosine:5\?by=step': leave by=step out"):
        by_rounds("server_schedule", "cosine:5?by=step")
