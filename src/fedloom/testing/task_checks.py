"""Checks of tasks. Each raises AssertionError, in one sentence, where a task breaks what engines and records need."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

import torch
from torch import Tensor, nn

from fedloom.algorithms.fedavg import FedAvg
from fedloom.coordinator.record_entries import measures_for
from fedloom.core.errors import EngineWarning, SettingError
from fedloom.core.fold.execution import Compilation
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.task import TargetKind, check_padding, per_weight, targets_of, weight_of
from fedloom.core.task_measures import Score, Sum, TaskMeasure, measures_of
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import EvaluationResult
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.evaluate.accuracy import measured
from fedloom.testing.small_networks import FEATURES
from fedloom.testing.subject import COHORTS
from fedloom.testing.task_subject import OF_CLASSES, ROWS, Case, TaskSubject

_FITTED = 300  # steps in which logits are fitted to the targets of a case
_LARGE = 60.0  # a logit whose exponential float32 still holds, and 1 minus its sigmoid no longer
_WHOSE = ("global", "personal", "val")


def declarations_hold(subject: TaskSubject) -> None:
    """Check that a task can be hashed, says its targets, and gives measures names, directions and meanings."""
    task = subject.task
    try:
        hash(task)
    except TypeError as error:
        raise AssertionError(
            f"a task is a frozen object that can be hashed ({error}): make it a frozen dataclass"
        ) from (error)
    kinds = get_args(TargetKind)
    assert targets_of(task) in kinds, f"targets are {' or '.join(map(repr, kinds))}, got {targets_of(task)!r}"
    declared = getattr(task, "measures", None)
    if declared is None:
        assert targets_of(task) == "classes", (
            f"a task of {targets_of(task)} says its measures, got correct(logits, y) alone: declare measures"
        )
        return
    assert len(declared), "a task has at least one measure, its headline: declare it"
    wrong = [m for m in declared if not isinstance(m, Sum | Score)]
    assert not wrong, f"a measure is a Sum or a Score, got {wrong[:1]}"
    names = [m.name for m in declared]
    assert len(set(names)) == len(names), f"measures have different names, got {', '.join(names)}"
    for m in declared:
        assert m.better in ("high", "low"), f"measure {m.name!r} is better 'high' or 'low', got {m.better!r}"
        assert m.unit in ("%", ""), f"the unit of measure {m.name!r} is '%' (a share) or '', got {m.unit!r}"
    first = declared[0]
    taken = measures_for(dataclasses.replace(first, name="-"))
    for m in declared:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", m.name), (
            f"the name of a measure is of lower-case letters, digits and _, as records have it, got {m.name!r}"
        )
        clash = [f"{whose}_{m.name}" for whose in _WHOSE if f"{whose}_{m.name}" in taken]
        assert not clash, f"measure {m.name!r} would be {clash[0]} in records, which is another number: rename it"
        assert all(map(str.strip, (m.title, m.meaning))), f"measure {m.name!r} has a title and a meaning: write them"


def loss_is_a_mean(subject: TaskSubject) -> None:
    """Check that the loss of a batch is one finite number, a mean over its real rows in any order."""
    for seed in range(3):
        case = subject.case(seed)
        whole = case.loss()
        single = isinstance(whole, Tensor) and not whole.shape and whole.is_floating_point()
        assert single, (
            f"the loss of a batch is one floating point number, got {_described(whole)}: return batch.mean(...)"
        )
        assert whole.isfinite(), f"the loss is finite, got {float(whole)} of random logits"
        try:
            check_padding(case.task, case.logits, case.x, case.y)
        except SettingError as error:
            raise AssertionError(str(error)) from error
        turned = case.take(list(reversed(range(ROWS)))).loss()
        assert _close(whole, turned), f"the loss depends on the order of rows: {whole:.6g}, reversed {turned:.6g}"
        twice = case.take([*range(ROWS)] * 2).loss()
        assert _close(whole, twice), (
            f"the loss is a mean, not a sum: {whole:.6g}, and {twice:.6g} with each row twice; return batch.mean(...)"
        )
        rows, expected = _weighted_mean(case)
        found = case.take(rows).loss()
        assert torch.allclose(expected, found, rtol=1e-6, atol=1e-9), (
            f"the loss of a row depends on other rows: the mean of {len(rows)} of them should be {expected:.6g}, "
            f"and is {found:.6g}; compute a loss for each row, then batch.mean(...)"
        )
        parts = [case.take(rows) for rows in ([*range(ROWS // 3)], [*range(ROWS // 3, ROWS)])]
        weight = torch.stack([weight_of(case.task, part.batch) for part in parts])
        joined = per_weight(weight.dot(torch.stack([part.loss() for part in parts]).double()), weight.sum())
        assert torch.allclose(whole.double(), joined, rtol=1e-6, atol=1e-9), (
            f"the loss of {ROWS} rows is the mean of those of two batches of them by the weights of their rows, got "
            f"{float(whole):.6g} and {float(joined):.6g}: write example_weights(batch), the weight of each row, [B]"
        )
        large = (case.logits * (_LARGE / case.logits.abs().max())).float()
        assert case.loss(large).isfinite(), (
            f"the loss is finite in float32, got {float(case.loss(large))} of logits up to {_LARGE:g}: take functions "
            "of logits, such as F.log_softmax or F.logsigmoid, not the logarithm of a probability"
        )


def loss_trains(subject: TaskSubject) -> None:
    """Check that the loss has a finite gradient by the logits, and that a step against it makes the loss smaller."""
    for seed in range(3):
        case = subject.case(seed)
        logits = case.logits.clone().requires_grad_()
        value = case.loss(logits)
        assert value.requires_grad, (
            "no gradient flows from the loss to the logits: compute it of the logits themselves, without detach, "
            "argmax or NumPy"
        )
        (gradient,) = torch.autograd.grad(value, logits)
        assert gradient.isfinite().all(), "the gradient of the loss by the logits is not finite on random logits"
        size = float(gradient.norm())
        assert size > 0, "the gradient of the loss by the logits is 0 on random logits: nothing would be learnt"
        after = case.loss(case.logits - 1e-4 / size * gradient)
        assert after < value, f"a small step against the gradient makes the loss smaller, got {value:.9g}, {after:.9g}"


def other_targets_are_refused(subject: TaskSubject) -> None:
    """Check that targets of another width than the outputs are refused with a message, not broadcast."""
    if targets_of(subject.task) in OF_CLASSES:
        return
    case = subject.case(n=subject.outputs + 1)  # as many rows as columns: what would be broadcast without a word
    columns = case.y.reshape(len(case.y), -1)
    more = torch.cat([columns, columns[:, :1]], 1)
    wide = dataclasses.replace(case, y=more)
    for what, attempt in (
        ("loss", wide.loss),
        *((f"measure {name!r}", _measuring(wide, name)) for name in _sums(case)),
    ):
        message = _refusal(attempt)
        assert message is not None, (
            f"the {what} takes {more.shape[1]} targets for {subject.outputs} output{'s' * (subject.outputs > 1)}: "
            "compare shapes, and raise fedloom.SettingError where they differ"
        )
        assert message, f"the {what} refuses {more.shape[1]} targets of {subject.outputs} outputs without a message"


def nothing_is_overwritten(subject: TaskSubject) -> None:
    """Check that loss and measures change nothing that they are given: runs give copies, other callers may not."""
    for what, call in _calls(subject):
        case = subject.case()
        given = (case.logits, case.y, case.x, *case.notes.values())
        before = [t.clone() for t in given]
        call(case)
        changed = [t for t, old in zip(given, before, strict=True) if not torch.equal(t, old)]
        assert not changed, f"the {what} writes on what it is given: use operations that are not in place"


def engines_agree(subject: TaskSubject) -> None:
    """Check that loop, stack and a traced stack train and measure alike, to 1e-9 in float64."""
    method = FedAvg(local=Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.005, momentum=0.9)))
    model = Model(lambda: nn.Linear(FEATURES, subject.outputs), name="linear")
    found = []
    kinds: tuple[tuple[type[Engine], Compilation, str], ...] = (
        (Loop, "none", ""), (Stacked, "none", "stacked"), (Stacked, "trace", "traced"),
    )  # fmt: skip
    for kind, compilation, what in kinds:
        population = Population(
            federation=subject.federation, models={"linear": model}, task=subject.fitted, dtype=torch.float64,
            measures=tuple(measures_of(subject.task)),
        )  # fmt: skip
        engine = kind(population, method, Options(compilation=compilation))
        with warnings.catch_warnings():
            warnings.simplefilter("error", EngineWarning)
            try:
                server = engine.init()
                for round, cohort in enumerate(COHORTS):
                    server = engine.round(server, cohort, round)
                everyone = range(population.num_clients)
                results = engine.evaluate(server, everyone, len(COHORTS) - 1, "all")
            except Exception as error:
                raise AssertionError(f"a {what or 'plain'} run fails: {type(error).__name__}: {error}") from error
            finally:
                engine.close()
        found.append((server["linear"], results))
        (first, alone), (weights, evaluated) = found[0], found[-1]
        for name, tensor in first.params.items():
            assert _close(tensor, weights.params[name]), f"a {what} run trains otherwise than the loop, in {name}"
        for k in alone:
            for name, value in _numbers(alone[k]):
                other = dict(_numbers(evaluated[k]))[name]
                assert _close(value, other), f"a {what} run measures {name} of client {k} otherwise than the loop"


def sums_add_up(subject: TaskSubject) -> None:
    """Check that a Sum has a row of bools or floats for each example, which depends on no other: any split adds up."""
    for seed in range(3):
        case = subject.case(seed)
        for name in _sums(case):
            rows = case.results([name]).sums[name]
            assert rows.dtype == torch.bool or rows.is_floating_point(), (
                f"rows of measure {name!r} are bools, which are counted, or floating point numbers, got {rows.dtype}"
            )
            assert rows.shape[:1] == (ROWS,), (
                f"rows of measure {name!r} are one for each example, [{ROWS}, ...], got {list(rows.shape)}: do not "
                "add them up"
            )
            parts = [case.take([i]).results([name]).sums[name] for i in range(ROWS)]
            assert _close(rows, torch.cat(parts)), (
                f"what an example adds to measure {name!r} depends on the others of its batch: the sum would be "
                "another in another split"
            )


def scores_ignore_order_and_company(subject: TaskSubject) -> None:
    """Check that a Score is the same in any order of the rows, with padding behind them, and beside other sets."""
    for seed in range(3):
        case = subject.case(seed)
        for name, m in measures_of(case.task).items():
            if not isinstance(m, Score):
                continue
            outputs = case.results([name]).outputs[name]
            parts = [case.take([i]).results([name]).outputs[name] for i in range(ROWS)]
            assert _close(outputs, torch.cat(parts)), (
                f"outputs of measure {name!r} depend on the other rows of their batch: take each row's alone"
            )
            alone, turned = case.measure(name), case.take(list(reversed(range(ROWS)))).measure(name)
            assert _alike(alone, turned), (
                f"measure {name!r} depends on the order of rows: {alone:.6g}, reversed {turned:.6g}"
            )
            other = subject.case(seed + 10, n=2 * ROWS)
            both = measured([case.results([name]), other.results([name])], case.task)
            assert _alike(alone, both[0][name]), (
                f"measure {name!r} counts rows that are not real, or another set's: {alone:.6g} alone, "
                f"{both[0][name]:.6g} beside a longer set; use the mask `real`, and compute each of K sets apart"
            )


def measures_are_in_range(subject: TaskSubject) -> None:
    """Check that a measure is a number, a share where its unit is %, and gets better as the loss is minimised."""
    for seed in range(3):
        case = subject.case(seed)
        fitted = dataclasses.replace(case, logits=_fitted(case))
        for name, m in measures_of(case.task).items():
            before, after = case.measure(name), fitted.measure(name)
            for value in (before, after):
                _check_value(m, value)
                assert not math.isinf(value), f"measure {name!r} is finite or NaN, got {value}"
            up = 1 if m.better == "high" else -1
            assert not up * after < up * before - 1e-9, (
                f"measure {name!r} is better {m.better}, and gets worse where the loss is minimised: from {before:.6g} "
                f"to {after:.6g}; is its direction right?"
            )


def undefined_is_nan(subject: TaskSubject) -> None:
    """Check that a measure that is undefined, on one row or rows with one target, is NaN and raises no error."""
    case = subject.case()
    for what, few in (
        ("one row", case.take([0])),
        ("rows with one target", subject.case(y=case.y[:1].expand(ROWS, *case.y.shape[1:]).clone())),
        ("rows with another target", subject.case(y=case.y[1:2].expand(ROWS, *case.y.shape[1:]).clone())),
    ):
        for name, m in measures_of(case.task).items():
            try:
                value = few.measure(name)
            except Exception as error:
                raise AssertionError(
                    f"measure {name!r} fails on {what} ({type(error).__name__}: {error}): return NaN where it is "
                    "undefined"
                ) from error
            assert not math.isinf(value), f"measure {name!r} is {value} on {what}: return NaN where it is undefined"
            _check_value(m, value)
    silent = dataclasses.replace(case, logits=torch.cat([case.logits[:-1], case.logits[-1:] * math.nan]))
    for name, value in silent.results([*measures_of(case.task)]).measured(case.task).items():
        assert math.isnan(value), (
            f"measure {name!r} is {value:.6g} where a model answers one row with NaN: let `silent(logits, y)` name "
            "that row, or leave it out"
        )


TASK_CHECKS: Mapping[str, Callable[[TaskSubject], None]] = {
    test.__name__: test
    for test in (
        declarations_hold,
        loss_is_a_mean,
        loss_trains,
        other_targets_are_refused,
        nothing_is_overwritten,
        sums_add_up,
        scores_ignore_order_and_company,
        measures_are_in_range,
        undefined_is_nan,
        engines_agree,
    )
}


def _check_value(m: TaskMeasure, value: object) -> None:
    assert isinstance(value, float), f"measure {m.name!r} is a float, got {_described(value)}: return float(...)"
    inside = math.isnan(value) or m.unit != "%" or -1e-9 <= value <= 1 + 1e-9
    assert inside, f"measure {m.name!r} is a share, between 0 and 1, got {value:.6g}: give it unit='' or divide"


def _calls(subject: TaskSubject) -> Iterator[tuple[str, Callable[[Case], object]]]:
    """Yield each function of the task, called without copies."""
    yield "loss", lambda case: case.task.loss(case.logits, case.batch)
    for name, m in measures_of(subject.fitted).items():
        if isinstance(m, Sum):
            yield f"measure {name!r}", functools.partial(lambda m, case: m.rows(case.logits, case.y), m)
        elif isinstance(m, Score):
            yield f"measure {name!r}", functools.partial(lambda m, case: m.outputs(case.logits), m)


def _sums(case: Case) -> list[str]:
    return [name for name, m in measures_of(case.task).items() if isinstance(m, Sum)]


def _refusal(attempt: Callable[[], object]) -> str | None:
    """Return the message of the error that a call raises; None where it raises none."""
    try:
        attempt()
    except Exception as error:
        return str(error).strip()
    return None


def _measuring(case: Case, name: str) -> Callable[[], object]:
    return lambda: case.results([name])


def _fitted(case: Case) -> Tensor:
    """Return logits that have been fitted to the targets by the loss alone."""
    logits = case.logits.clone().requires_grad_()
    steps = torch.optim.Adam([logits], lr=0.05)
    for _ in range(_FITTED):
        steps.zero_grad()
        case.loss(logits).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return logits.detach()


def _weighted_mean(case: Case) -> tuple[list[int], Tensor]:
    """Return some rows, and the mean of their losses with the weights that their losses in pairs imply.

    Of losses a and b of rows with weights 1 and w, the mean is (a + w b) / (1 + w): so a pair says w, unless a = b.
    """
    alone = torch.stack([case.take([i]).loss() for i in range(ROWS)])
    rows, weights = [0], [torch.ones_like(alone[0])]
    for i in range(1, ROWS):
        if abs(alone[0] - alone[i]) > 1e-4:
            pair = case.take([0, i]).loss()
            rows.append(i)
            weights.append((alone[0] - pair) / (pair - alone[i]))
    weight = torch.stack(weights)
    return rows, (weight * alone[rows]).sum() / weight.sum()


def _numbers(result: EvaluationResult) -> list[tuple[str, Tensor]]:
    """Return what is measured of a client: sums, scores and losses."""
    tables = {**result.sums, **result.scores}
    return [*tables.items(), ("the loss", result.loss), ("the training loss", result.train_loss)]


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9, equal_nan=True)


def _alike(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def _described(value: object) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
