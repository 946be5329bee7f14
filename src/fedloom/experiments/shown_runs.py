"""Runs on a terminal: what they are of, and their progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedloom.coordinator import History, Job, RunSettings
from fedloom.coordinator.job import showing
from fedloom.coordinator.rounds import OnHistory
from fedloom.core.model import Model
from fedloom.data import Examples, Federation, Inputs
from fedloom.display.progress import RunSequence, progress
from fedloom.display.terminal import Terminal
from fedloom.experiments.trackers import track, tracker
from fedloom.mirror.fetch import fetched


def train(
    name: str,
    job: Job,
    console: Terminal,
    directory: Path | None = None,
    *,
    resume: bool = False,
    at: int | None = None,
    trackers: Sequence[str] = (),
    on_round: OnHistory | None = None,
    sequence: RunSequence | None = None,
) -> History:
    """Run a job with a progress bar; print its engine, refused server states and an early end."""

    def announce(history: History) -> None:
        which = f"{sequence.position}, " if sequence is not None and sequence.position else ""
        text = f"{which}{name}: {history.engine} engine ({history.engine_reason})"
        if resume and history.metrics:
            text += f", from round {history.metrics[-1]['round']}"
        console.print(text)
        for network, said in history.manifest.get("front", {}).items():
            console.print(f"frozen front of {network}: {said}")

    if (address := job.settings.mirror) is not None and directory is not None:
        said = fetched(address, directory, resume=resume)
        console.print(f"{name}: mirror {address}" + f", {said}" * bool(said), highlight=False)
    with ExitStack() as stack:
        watchers = [showing(stack.enter_context(progress(console, name, job.settings.rounds, sequence=sequence)))]
        watchers += [] if on_round is None else [on_round]
        for text in trackers:
            watchers.append(stack.enter_context(track(tracker(tracker_for_run(text, name)), dict(job.described or {}))))

        def watch(history: History) -> None:
            for watcher in watchers:
                watcher(history)

        history = job.run(directory, resume=resume, at=at, on_start=announce, on_round=watch)
    if rounds := [str(m["round"]) for m in history.metrics if "server_refused" in m]:
        text = f"{name}: the server's new state was not finite and was refused in round {', '.join(rounds)}"
        console.print(text)
    if history.stopped is not None:
        console.print(f"{name}: stopped after round {history.metrics[-1]['round']}: {history.stopped}")
    if job.settings.keep_best and (best := history.validated_round) is not None:
        record, main = next(m for m in history.metrics if m["round"] == best), history.headline.name
        title = history.headline.title
        test = [f"{kind} {v:.4f}" for kind in ("global", "personal") if (v := record.get(f"{kind}_{main}")) is not None]
        console.print(
            f"{name}: best on validation data after round {best} of {history.metrics[-1]['round']}: validation "
            f"{title} {record[f'val_{main}']:.4f}" + f"; on test data {', '.join(test)}" * bool(test),
        )
    return history


def print_setup(federation: Federation, models: Mapping[str, Model], settings: RunSettings, console: Terminal) -> None:
    """Print data, clients and models of a run."""
    train, test, sizes = federation.train, federation.test, federation.partition.sizes
    held_out = sum(int(part.sizes.sum()) for part in (federation.local_test, federation.local_val) if part is not None)
    span = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    lines = (
        f"data: {train.name.removesuffix(' train')}, {sizes.sum():,} training and {len(test or ()):,} test examples "
        f"of {describe_shape(train)}, {describe_outputs(train)}"
        + f"; clients hold out {held_out:,} more"
        * (held_out > 0),
        f"clients: {federation.num_clients}, {federation.partition.name}, {span} examples each to train on; "
        f"{settings.cohort_size} a round for {settings.rounds} round{'s' * (settings.rounds > 1)}",
        *(f"{what}: {rule}" for what, rule in (("arrival", federation.arrives), ("drift", federation.drift)) if rule),
        "model: " + ", ".join(f"{name} ({model.counted})" for name, model in models.items()),
    )
    for line in lines:
        console.print(line)


def describe_outputs(examples: Examples) -> str:
    """Describe what is to be said of an example: "10 classes", "target los_days", "3 targets"."""
    if not examples.y.is_floating_point():
        return f"{examples.num_classes} classes"
    if len(examples.targets) == 1:
        return f"target {examples.targets[0]}"
    return f"{examples.num_classes} target" + "s" * (examples.num_classes > 1)


def describe_shape(examples: Examples) -> str:
    """Describe one example: "3 x 32 x 32", "54 features", "24 tokens", "tokens 24, prices 3"."""
    if isinstance(examples.normalise, Inputs):
        return ", ".join(f"{p.name} {' x '.join(map(str, p.shape or (1,)))}" for p in examples.normalise.parts)
    what = " tokens" if examples.has_tokens else " features"
    return " x ".join(map(str, examples.shape)) + what * (len(examples.shape) == 1)


def tracker_for_run(text: str, name: str) -> str:
    """Return the tracker of a run: TensorBoard separates runs by folder, so it gets one for each."""
    return f"{text}/{name}" if text.startswith("tensorboard:") else text
