"""`fedloom demo`: four algorithms, checked against expected results."""

from __future__ import annotations

import argparse

from rich.text import Text

from fedloom.display.terminal import Terminal, table
from fedloom.experiments import demonstration
from fedloom.experiments.shown_runs import print_setup, train
from fedloom.report import comparison_table


def run(args: argparse.Namespace, console: Terminal) -> int:
    """Train, and compare with what is expected; the exit status is 1 where a number is off."""
    experiments = demonstration.experiments(args.seed)
    federation = next(iter(experiments.values())).federation()
    jobs = {name: experiment.job(federation) for name, experiment in experiments.items()}
    first = next(iter(jobs.values()))
    print_setup(federation, first.population.models, first.settings, console)
    histories = {name: train(name, job, console) for name, job in jobs.items()}
    console.print()
    console.print(comparison_table(list(histories.items())))
    verdicts = table("Expected over seeds and got, mean of the last rounds")
    for heading in ("algorithm", "metric", "expected", "got", "ok"):
        verdicts.add_column(heading, no_wrap=heading != "metric")
    failed = 0
    for e in demonstration.EXPECTED:
        got = histories[e.algorithm].last(e.metric, e.rounds)
        if e.minus is not None:
            got -= histories[e.minus].last(e.metric, e.rounds)
        ok = e.low <= got <= e.high
        failed += not ok
        verdict = Text("yes", "green") if ok else Text("NO", "red")
        verdicts.add_row(
            e.algorithm,
            f"{e.metric.replace('_', ' ')} ({e.rounds})",
            f"{e.low:.2f} to {e.high:.2f}",
            f"{got:.3f}",
            verdict,
        )
    console.print()
    console.print(verdicts)
    if failed:
        text = f"{failed} of {len(demonstration.EXPECTED)} numbers are out of their range"
        Terminal(stderr=True).print(Text(text, "red"))
    return 1 if failed else 0
