"""View of one run and of one client: the numbers that the page's script shows of those that are chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.task_measures import sign
from fedloom.report.comparison import last_personal, local_only_values
from fedloom.report.methods import Method, Run
from fedloom.report.printable import class_names, client_names, printable

MOST_CLIENTS = 200  # of a run
_MOST_NUMBERS = 60_000  # of all runs, rounds and clients; of more, rounds are left out evenly
_SHARES = ("%", "points")


def run_view(methods: Sequence[Method]) -> dict[str, Any]:
    """Return the settings, rounds and clients of every run of one problem, as the page holds them.

    `step`: one of how many rounds is there, beside the last. `clients`: whether a run has more than are there.
    """
    main, runs = methods[0].headline, [(m, run) for m in methods for run in m.runs]
    known = {name: measure for m in methods for name, measure in m.measures.items()}
    names = [n for n in (f"global_{main.name}", f"personal_{main.name}", "train_loss", "forgetting") if n in known]
    names = [n for n in names if any(row.get(n) is not None for _, run in runs for row in run.rows)]
    all_clients = [list(last_personal(run)) for _, run in runs]
    numbers = sum(
        len(run.rows) * (len(names) + min(len(own), MOST_CLIENTS))
        for (_, run), own in zip(runs, all_clients, strict=True)
    )
    step = max(1, -(-numbers // _MOST_NUMBERS))
    shared = {
        name: value for name, value in runs[0][1].facts.items() if all(run.facts.get(name) == value for _, run in runs)
    }
    federations: list[dict[str, list[Any]]] = []
    shown = []
    for method, run in runs:
        held = _examples(run.history.federation)
        if held not in federations:
            federations.append(held)
        shown.append(
            {
                "run": run.folder,
                "method": method.label,
                "number": method.number,
                "seed": run.seed,
                "settings": {name: value for name, value in run.facts.items() if name not in shared},
                "rounds": _rounds(run, names, {n: known[n].unit for n in names}, step),
                "clients": _clients(run, methods, step),
                "federation": federations.index(held),
            }
        )
    heads = ["round", *(_head(known[n].title, known[n].unit) for n in names)]
    return {
        "title": _head(main.title, main.unit),
        "gain": "gain, points" if main.unit == "%" else "gain",
        "heads": [*heads, "asked", "lost", "MB", "seconds"],
        "shared": shared,
        "federations": federations,
        "runs": shown,
        "step": step,
        "clients": max(map(len, all_clients)) > MOST_CLIENTS,
    }


def _head(title: str, unit: str) -> str:
    return f"{title}, {unit}" if unit in _SHARES else title


def as_json(view: Mapping[str, Any]) -> str:
    """Return a view as JSON that may stand in a script element: no text of a run ends it."""
    return json.dumps(view, separators=(",", ":")).replace("<", "\\u003c")


def _rounds(run: Run, names: Sequence[str], units: Mapping[str, str], step: int) -> list[list[Any]]:
    timed = {t["round"]: sum(t["seconds"].values()) for t in run.history.timing}
    rows = []
    for record, flat in zip(run.history.metrics, run.rows, strict=True):
        if _is_kept(record["round"], run, step):
            asked, sent = record.get("clients"), record.get("bytes_down", 0) + record.get("bytes_up", 0)
            row = [record["round"], *(_short(flat.get(n), units[n]) for n in names)]
            row += [None, None] if asked is None else [len(asked), len(record.get("failed", ()))]
            rows.append([*row, _short(sent / 1e6), _short(timed.get(record["round"]))])
    return rows


def _clients(run: Run, methods: Sequence[Method], step: int) -> dict[str, list[Any]]:
    """Return value, gain over training alone, times asked and lost, and values over rounds, by client."""
    main, alone, ends = run.history.headline, local_only_values(run, methods), last_personal(run)
    metrics = run.history.metrics
    kept = [r["personal_by_client"] for r in metrics if r.get("personal_by_client") and _is_kept(r["round"], run, step)]
    out = {}
    for client in list(ends)[:MOST_CLIENTS]:
        gain = sign(main.better) * (ends[client] - alone[client]) if client in alone else None
        asked = sum(client in map(str, r.get("clients", ())) for r in metrics)
        lost = sum(client in map(str, r.get("failed", ())) for r in metrics)
        curve = [_short(values.get(client), main.unit) for values in kept]
        out[printable(client)] = [_short(ends[client], main.unit), _short(gain, main.unit), asked, lost, curve]
    return out


def _is_kept(number: int, run: Run, step: int) -> bool:
    return number % step == 0 or number == run.rounds


def _examples(federation: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return name, number of training examples and the most frequent classes, by client."""
    if "targets" in federation:
        return {}
    classes, called = class_names(federation), client_names(federation)
    out = {}
    for k, row in list(zip(federation.get("shown", ()), federation.get("train") or (), strict=False))[:MOST_CLIENTS]:
        most = sorted((c for c in range(len(row)) if row[c]), key=lambda c: -row[c])
        held = ", ".join(f"{classes[c]} {row[c]}" for c in most[:5]) + ", …" * (len(most) > 5)
        out[str(k)] = [called.get(k, ""), sum(row), held]
    return out


def _short(value: float | None, unit: str = "") -> float | None:
    """Return a number as the view shows it: shares in per cent."""
    return None if value is None else round(100 * value, 1) if unit in _SHARES else float(f"{value:.4g}")
