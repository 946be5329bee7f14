"""Tables of a report: numbers of methods beside each other, for the page and as CSV."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedloom.coordinator.chosen_rounds import newest
from fedloom.core.task_measures import TaskMeasure, sign
from fedloom.report.grouping import differences
from fedloom.report.methods import Floats, Method, Run, evaluation_seconds, is_local_only, own_columns, training_seconds
from fedloom.report.number_table import Column, Table, amount, format_of, percent, signed, whole, with_unit
from fedloom.report.over_seeds import of_methods
from fedloom.report.printable import class_names, client_names, part, printable

_MOST_NAMED = 40  # rows of clients in a table
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def headline(methods: Sequence[Method]) -> Table:
    """Return a row for each method: its last measures and its cost, mean over its finished runs."""
    main, others = methods[0].headline, methods[0].first.history.task_measures[1:]
    of_all, of_new = with_unit(main.title, main.unit, ", "), with_unit("new clients", main.unit, ", ")
    of_global, last_rounds = f"global_{main.name}", newest(min(run.rounds for m in methods for run in m.counted_runs))
    tail = _column(methods, of_global, of_all, f"last {last_rounds}")
    measured_columns = [
        *(_column(methods, n, of_all) for n in (of_global, f"personal_{main.name}", "personal_worst_tenth")),
        replace(tail, name=f"{of_global}_last_{last_rounds}"),
        *(column for other in others for column in _beside(methods, other)),
        Column("forgetting", "forgetting", percent, "low"),
        *(_column(methods, f"new_{way}_{main.name}", of_new) for way in ("global", "fine_tuned", "personalised")),
        _column(methods, "better_than_global", "clients better off, %"),
        *(_column([m for m in methods if name in m.measures], name, "") for name in own_columns(methods)),
    ]
    cells: list[list[Any]] = []
    for m in methods:
        row: list[Any] = [m.last(c.name) for c in measured_columns]
        row[3] = m.last(of_global, last_rounds)
        better = m.spread(lambda run: share_better_than_local_only(run, methods))
        moved = [m.spread(functools.partial(megabytes, way=way)) for way in ("bytes_down", "bytes_up")]
        cells.append([m.label, *row, better, *moved, m.spread(seconds), len(m.counted_runs)])
    columns = [
        Column("method", "method"),
        *measured_columns,
        Column("better_than_local_only", "than alone", percent, "high", "clients better off, %"),
        Column("mb_down_per_round", "MB down", amount, "low", "a round"),
        Column("mb_up_per_round", "MB up", amount, "low", "a round"),
        Column("seconds_per_round", "training, s", amount, "low", "a round"),
        Column("runs", "runs", whole),
    ]
    shown_columns = [
        i
        for i, c in enumerate(columns)
        if any(row[i] is not None for row in cells)
        and (last_rounds > 1 or c is not measured_columns[3])
        and (c.name != "runs" or len({len(m.counted_runs) for m in methods}) > 1)
    ]
    rows = [[row[i] for i in shown_columns] for row in cells]
    return Table("summary", [columns[i] for i in shown_columns], rows, *of_methods(methods))


def _column(methods: Sequence[Method], name: str, group: str, heading: str = "") -> Column:
    """Make the column of a measure below a heading that it shares with others."""
    of, chance = methods[0].measures[name], methods[0].chance(name)
    return Column(name, heading or of.label, format_of(of.unit), of.better, group, chance=chance)


def _beside(methods: Sequence[Method], measure: TaskMeasure) -> list[Column]:
    """Make the columns of a measure beside the headline, with the number of clients that it is undefined for."""
    group = with_unit(measure.title, measure.unit, ", ")
    columns = [_column(methods, f"{whose}_{measure.name}", group, whose) for whose in ("global", "personal")]
    return [*columns, Column(f"personal_{measure.name}_undefined", "clients without", whole, None, group)]


def local_only_values(run: Run, methods: Sequence[Method]) -> dict[str, float]:
    """Return the headline of each client in the local-only run beside `run`, by client; empty without one.

    That run has the same problem and seed, and the same clients. Also empty where `run` itself is local-only.
    """
    if is_local_only(run.history.algorithm):
        return {}
    problem = next((m.problem for m in methods if any(r is run for r in m.runs)), None)
    candidates = [
        r for m in methods if m.problem == problem for r in m.counted_runs if is_local_only(r.history.algorithm)
    ]
    return next((last_personal(r) for r in candidates if r.pairs_with(run)), {})


def gains(run: Run, methods: Sequence[Method]) -> list[float]:
    """Return how much better each client's model is than by local-only training, sorted; empty without such a run."""
    mine, theirs = last_personal(run), local_only_values(run, methods)
    up = sign(run.history.headline.better)
    return sorted(up * (mine[k] - theirs[k]) for k in mine.keys() & theirs.keys())


def all_gains(method: Method, methods: Sequence[Method]) -> Floats:
    """Return how much better each client's model is than by local-only training, of all counted runs together."""
    return np.array([gain for run in method.counted_runs for gain in gains(run, methods)], np.float64)


def gains_table(methods: Sequence[Method]) -> Table | None:
    """Return a row per method: the shares of clients above and below local-only training, and their gains.

    A method without a local-only run beside it has no row. None where no method has one.
    """
    rows: list[list[Any]] = []
    numbers = []
    for m in methods:
        values = all_gains(m, methods)
        if n := len(values):
            better, worse = float((values > 0).sum() / n), float((values < 0).sum() / n)
            rows.append([m.label, better, worse, float(np.median(values)), float(values.min()), float(values.max()), n])
            numbers.append(m.number)
    main = methods[0].headline
    show = functools.partial(signed, show=format_of(main.unit))
    gain = "gain, points" if main.unit == "%" else f"gain in {main.title}"
    columns = [
        Column("method", "method"),
        Column("better", "better off", percent, "high", "clients, %"),
        Column("worse", "worse off", percent, "low", "clients, %"),
        Column("median", "median", show, "high", gain),
        Column("least", "least", show, "high", gain),
        Column("most", "most", show, "high", gain),
        Column("clients", "clients", whole),
    ]
    return Table("gains", columns, rows, numbers, of_methods(methods)[1]) if rows else None


def share_better_than_local_only(run: Run, methods: Sequence[Method]) -> float | None:
    """Return the share of clients whose personal model beats local-only training; None without such a run."""
    found = gains(run, methods)
    return sum(gain > 0 for gain in found) / len(found) if found else None


def last_personal(run: Run) -> dict[str, float]:
    """Return the headline of each client's personal model when it was evaluated last, by client."""
    evaluations = [r["personal_by_client"] for r in run.history.metrics if r.get("personal_by_client")]
    return dict(evaluations[-1]) if evaluations else {}


def personal_by_name(run: Run) -> dict[str, float]:
    """Return `last_personal` of the clients that have names, by name."""
    values, federation = last_personal(run), run.history.federation
    names = zip(federation.get("shown", ()), federation.get("client_names") or (), strict=False)
    return {name: values[str(k)] for k, name in names if str(k) in values}


def megabytes(run: Run, way: str) -> float | None:
    """Return the MB of a round's `bytes_down` or `bytes_up` of all clients, mean over rounds; None before the first."""
    return sum(row.get(way) or 0 for row in run.rows) / run.rounds / 1e6 if run.rounds else None


def seconds(run: Run) -> float | None:
    """Return the seconds of a round's training; None where rounds were not timed."""
    return _none_if_nan(training_seconds(run.history))


def evaluation(run: Run) -> float | None:
    """Return the seconds of a round's evaluation; None where rounds were not timed."""
    return _none_if_nan(evaluation_seconds(run.history))


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def total_seconds(run: Run) -> float:
    """Return the timed seconds of a run, evaluations included."""
    return sum(sum(t["seconds"].values()) for t in run.history.timing)


def targets(methods: Sequence[Method], metric: str) -> Table | None:
    """Return the rounds, MB and seconds that each method needs to reach some values of a measure.

    The targets are three values: the best that all methods reach, the best that any reaches, and one between. They are
    round numbers: multiples of 5 %, or of 1 % where methods lie closer. For one method they are its best and two before
    it. A method reaches a target if every counted run does; numbers are means over runs. None where no method improves.
    """
    measured = [m for m in methods if m.has(metric)]
    if not measured:
        return None
    measure = methods[0].measures[metric]
    up, share = sign(measure.better or "high"), measure.unit == "%"
    best = [min(float((up * run.history.series(metric)).max()) for run in m.counted_runs) for m in measured]
    start = max(float(up * run.history.series(metric)[0]) for m in measured for run in m.counted_runs)
    levels: list[float] = []
    if max(best) <= start:
        return None
    size = -1 if share else math.floor(math.log10(max(best) - start))  # of steps, as a power of ten
    for step in (0.5 * 10.0**size, 0.1 * 10.0**size):
        first, last = math.floor(start / step), math.ceil(max(best) / step)
        multiples = (round(n * step, 1 - size) for n in range(first, last + 1))
        grid = [level for level in multiples if start < level <= max(best)]
        low = max(0, sum(level <= min(best) for level in grid) - 1) if len(measured) > 1 else len(grid) // 2
        levels = [grid[n] for n in sorted({low, (low + len(grid) - 1) // 2, len(grid) - 1})] if grid else []
        if len(levels) > 1:
            break
    if not levels:
        return None
    columns = [Column("method", "method")]
    for level in levels:
        level = up * level
        tag = f"{round(100 * level)}" if share else f"{level:.6g}"
        at = with_unit(tag, measure.unit)
        columns += [
            Column(f"rounds_to_{tag}", "rounds", whole, "low", at),
            Column(f"mb_to_{tag}", "MB", amount, "low", at),
            Column(f"seconds_to_{tag}", "seconds", amount, "low", at),
        ]
    rows: list[list[Any]] = []
    for m in measured:
        row: list[Any] = [m.label]
        for level in levels:
            reached = [run.history.to_target(metric, up * level) for run in m.counted_runs]
            costs = [r for r in reached if r is not None]
            if len(costs) < len(reached):
                row += [None, None, None]
                continue
            spent = float(np.mean([r.seconds for r in costs]))
            row += [float(np.mean([r.rounds for r in costs])), float(np.mean([r.bytes for r in costs])) / 1e6]
            row.append(None if math.isnan(spent) else spent)
        rows.append(row)
    return Table(f"targets_{metric}", columns, rows, *of_methods(measured))


def settings(methods: Sequence[Method]) -> tuple[dict[str, str], Table | None]:
    """Return the settings that all methods share, and a table of the others by method; None for a single method."""
    shared, own_settings = differences(methods)
    differing = None
    if len(methods) > 1:
        rows = [
            [m.label, ", ".join(f"{k} = {v}" for k, v in d.items()) or "–"]
            for m, d in zip(methods, own_settings, strict=True)
        ]
        columns = [Column("method", "method"), Column("settings", "what differs")]
        differing = Table("settings_that_differ", columns, rows, [m.number for m in methods])
    return shared, differing


def all_settings(methods: Sequence[Method]) -> Table:
    """Return every setting of every run, for the CSV."""
    every = [
        [run.folder, m.problem.title, m.label, k, v] for m in methods for run in m.runs for k, v in run.facts.items()
    ]
    return Table("settings", [Column(name, name) for name in ("run", "problem", "method", "setting", "value")], every)


def failures(methods: Sequence[Method]) -> Table | None:
    """Count the selected clients without a response, by method and reason; None where there are none.

    Reasons that differ in their numbers alone are one row: "the loss is nan at batch …".
    """
    rows: list[list[Any]] = []
    numbers = []
    for m in methods:
        by_reason: dict[str, list[tuple[str, str]]] = {}  # (reason, client), by the reason without its numbers
        selected = sum(len(r.get("clients", ())) for run in m.runs for r in run.history.metrics)
        for run in m.runs:
            for record in run.history.metrics:
                for client, reason in record.get("failed", {}).items():
                    by_reason.setdefault(_NUMBER.sub("…", reason), []).append((reason, client))
        for pattern, losses in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
            reasons, clients = map(set, zip(*losses, strict=True))
            reason, share = (
                reasons.pop() if len(reasons) == 1 else pattern,
                len(losses) / selected if selected else None,
            )
            rows.append([m.label, printable(reason), len(losses), share, len(clients)])
            numbers.append(m.number)
    columns = [
        Column("method", "method"),
        Column("reason", "reason"),
        Column("times", "times", whole),
        Column("share", "share, %", percent),
        Column("clients", "clients", whole),
    ]
    return Table("failures", columns, rows, numbers) if rows else None


def facts(methods: Sequence[Method]) -> tuple[Table, str]:
    """Return how each run was computed: engine and its reason, rounds, total seconds, memory; and the versions.

    If all runs have the same versions, these are returned beside the table. Otherwise they are one of its columns.
    """
    rows: list[list[Any]] = []
    several = len({m.problem.title for m in methods}) > 1
    for m in methods:
        for run in m.runs:
            h = run.history
            peaks = [t["peak_rss_mib"] for t in h.timing if t.get("peak_rss_mib") is not None]
            used = part(h.manifest, "versions") or part(h.settings, "versions")
            versions_used = ", ".join(f"{k} {v}" for k, v in used.items()) if isinstance(used, dict) else ""
            total = "" if run.planned_rounds is None else f" of {run.planned_rounds}"
            rows.append(
                [
                    run.folder,
                    *[m.problem.title] * several,
                    m.label,
                    run.seed,
                    f"{run.rounds}{total}",
                    total_seconds(run) if h.timing else None,
                    evaluation(run),
                    max(peaks) if peaks else None,
                    printable(f"{h.engine}: {h.engine_reason}") if h.engine else None,
                    printable(versions_used) or None,
                ]
            )
    columns = [
        Column("run", "run"),
        *[Column("problem", "problem")] * several,
        Column("method", "method"),
        Column("seed", "seed"),
        Column("rounds", "rounds"),
        Column("seconds", "seconds", amount),
        Column("evaluation_seconds_per_round", "evaluation, s", amount),
        Column("peak_rss_mib", "memory, MiB", whole),
        Column("engine", "engine"),
        Column("versions", "versions"),
    ]
    versions = {row[-1] for row in rows}
    common = (versions.pop() or "") if len(versions) == 1 else ""
    if common:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table("runs", columns, rows, [m.number for m in methods for _ in m.runs]), common


def rounds(methods: Sequence[Method]) -> Table:
    """Return every measured number of every round of every run."""
    flat = [([m.problem.title, m.label], run, row) for m in methods for run in m.runs for row in run.rows]
    names = sorted(
        dict.fromkeys(k for *_, row in flat for k in row), key=lambda n: n.startswith(("class_", "seconds_"))
    )
    columns = [Column(name, name) for name in ("problem", "method", "run", "seed", *map(printable, names))]
    return Table("rounds", columns, [[*of, r.folder, r.seed, *map(row.get, names)] for of, r, row in flat])


def personal(methods: Sequence[Method]) -> Table | None:
    """Return the headline of every evaluated client at its run's last evaluation; None where there is none."""
    rows: list[list[Any]] = []
    for m in methods:
        for run in m.runs:
            evaluations = [r for r in run.history.metrics if r.get("personal_by_client")]
            without, called = local_only_values(run, methods), client_names(run.history.federation)
            for client, value in evaluations[-1]["personal_by_client"].items() if evaluations else ():
                name = called.get(int(client)) if client.isdecimal() else None
                of = [m.label, run.folder, run.seed, evaluations[-1]["round"], printable(client), name]
                rows.append([*of, value, without.get(client)])
    names = ("method", "run", "seed", "round", "client", "name", methods[0].headline.name, "local_only")
    return Table("personal", [Column(name, name) for name in names], rows) if rows else None


def named_clients(methods: Sequence[Method]) -> Table | None:
    """Return the headline of each client that has a name, by method.

    None where no client has a name, or where too many have one for the table to be read. Clients are told apart by
    name: where seeds draw the examples, a client's number differs from run to run.
    """

    def value_of(name: str) -> Callable[[Run], float | None]:
        return lambda run: personal_by_name(run).get(name)

    runs = [run for m in methods for run in m.counted_runs]
    names = list(dict.fromkeys(name for run in runs for name in personal_by_name(run)))
    if not 0 < len(names) <= _MOST_NAMED:
        return None
    main = methods[0].headline
    show, group = format_of(main.unit), with_unit(main.title, main.unit, ", ")
    columns = [Column("client", "client")]
    columns += [Column(f"personal_{main.name}_{m.label}", m.label, show, group=group) for m in methods]
    rows = [[printable(name, 20), *(m.spread(value_of(name)) for m in methods)] for name in names]
    return Table("clients", columns, rows)


def targets_of_clients(federation: dict[str, Any]) -> Table:
    """Return the quartiles of each target at the first clients, from a federation.json whose targets are no classes."""
    names, called = federation["targets"]["names"], client_names(federation)
    rows: list[list[Any]] = [
        [called.get(k, str(k)), names[d] if d < len(names) else str(d), *quartiles]
        for k, own in zip(federation["shown"], federation["targets"]["train"], strict=True)
        for d, quartiles in enumerate(own or ())
    ]
    ends = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
    columns = [Column("client", "client"), Column("target", "target")]
    return Table("targets", [*columns, *(Column(end.replace(" ", "_"), end, amount) for end in ends)], rows)


def examples(name: str, federation: dict[str, Any]) -> Table:
    """Return the training examples by client and class, from a federation.json."""
    client_labels = client_names(federation)
    names = ("client", *(f"class_{c}" for c in class_names(federation)))
    rows = [[client_labels.get(k, k), *row] for k, row in zip(federation["shown"], federation["train"], strict=True)]
    return Table(name, [Column(n, n) for n in names], rows)
