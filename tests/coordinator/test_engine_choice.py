"""Which engine a run gets, and why it says so."""

from __future__ import annotations

import dataclasses
import multiprocessing
import re
import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom import (
    LDAM,
    SVM,
    Classification,
    Ditto,
    Examples,
    FedAvg,
    Federation,
    NextToken,
    RunSettings,
    from_arrays,
    models,
    run,
)  # fmt: skip
from fedloom.coordinator import Job, engine_choice as chooser
from fedloom.coordinator.engine_choice import check_used, choose, choose_compilation
from fedloom.coordinator.rounds import Coordinator
from fedloom.coordinator.trial_pass import try_model
from fedloom.core.batch import Batch
from fedloom.core.errors import EngineWarning, SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.data import Tokens, by_lists, next_tokens
from fedloom.engines.by_name import ENGINES, EngineName, engine_named, only_computes
from fedloom.engines.engine_options import best_chunk
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population, Stacking
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.models.registry import MODELS, Network
from tiny import CLASSES, LOCAL, examples, federation, linear, mlp, population
from tokens_made import Attending, federation as sequences


class Item(nn.Linear):
    """Reads a value out of a tensor."""

    def __init__(self) -> None:
        super().__init__(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if x.mean().item() > 0 else 0.5)


class Branch(nn.Linear):
    """Branches on data."""

    def __init__(self) -> None:
        super().__init__(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if out.sum() > 0 else 2.0 * out


def of_sizes(sizes: list[int]) -> Federation:
    ends = np.cumsum([0, *sizes])
    return Federation(examples(int(ends[-1])), by_lists([range(a, b) for a, b in pairwise(ends)]))


# ---- models that cannot be stacked


@pytest.mark.parametrize(("model", "words"), [(Item, r"\.item\(\)"), (Branch, "data-dependent control flow")])
def test_stacked_falls_back_to_the_loop_and_says_so(model: Any, words: str) -> None:
    settings = RunSettings(rounds=1, cohort_size=2, engine="stacked")
    with pytest.warns(EngineWarning, match=rf"model 'odd' cannot be stacked \(.*{words}.*using the loop engine"):
        history = run(FedAvg(local=LOCAL), federation(), {"odd": model}, settings)
    assert history.engine == "loop"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = run(FedAvg(local=LOCAL), federation(), {"odd": model}, dataclasses.replace(settings, engine="loop"))
    assert history.metrics == same.metrics


class Between(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(4, 5), nn.Linear(5, CLASSES), between
        self.register_buffer("kept", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self, torch.tanh(self.a(x))))  # type: ignore[no-any-return]


def written(self: Any, h: Tensor) -> Tensor:
    if self.training:
        self.kept.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h


def assigned(self: Any, h: Tensor) -> Tensor:
    if self.training:
        self.kept = torch.maximum(self.kept, h.detach().amax(0))
    return h


def counted(self: Any, h: Tensor) -> Tensor:
    if self.training:
        self.kept += len(h)
    return h


def by_hand(self: Any, h: Tensor) -> Tensor:
    """Batch normalisation, written by hand."""
    if not self.training:
        return h - self.kept
    mean, deviation = h.mean(0), h.std(0) + 1e-3
    self.kept = 0.9 * self.kept + 0.1 * mean.detach()
    return (h - mean) / deviation


ACROSS: dict[str, Any] = {
    "in place": written,
    "assigned": assigned,
    "counted": counted,
    "normalised by hand": by_hand,
    "softmax": lambda self, h: h * h.softmax(0),
    "scaled": lambda self, h: h / len(h) if self.training else h,
    "contrasted": lambda self, h: h + (F.normalize(h, dim=1) @ F.normalize(h, dim=1).T).softmax(1) @ h,
    "kernel": lambda self, h: h + torch.exp(-torch.cdist(h, h)).mean(1, keepdim=True),
    "neighbours": lambda self, h: h + h.roll(1, 0) if self.training else h,
    "in evaluation": lambda self, h: h if self.training else h - h.mean(0),
}


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", ACROSS)
def test_a_model_that_looks_across_its_batch_is_not_stacked(kind: str) -> None:
    where = "evaluation" if kind == "in evaluation" else "training"
    people = population(lambda: Between(ACROSS[kind]))
    found = choose("auto", people, LOCAL, 6)
    assert found == (Loop, f"model 'net' cannot be stacked (rows of padding change the answers in {where})")
    with pytest.raises(SettingError, match=rf"^engine = 'stacked' .* rows of padding .* in {where} of model 'net', .*"
                       "use engine = 'auto' or 'loop', where a batch has no padding"):  # fmt: skip
        choose("stacked", people, LOCAL, 6)
    assert choose("loop", people, LOCAL, 6)[0] is Loop
    assert choose_compilation(Loop, people, LOCAL, 6, 1000) == "trace"  # whole batches alone


def test_a_model_that_begins_with_zeros_is_not_taken_for_one_that_looks_at_each_row() -> None:
    def zeros() -> nn.Module:
        network = Between(lambda self, h: h - h.mean(0))
        nn.init.zeros_(network.b.weight)
        return network

    assert choose("auto", population(zeros), LOCAL, 6)[0] is Loop


HONEST: dict[str, Any] = {
    "each row": lambda self, h: h,
    "the first row": lambda self, h: h - 0 * h[:1],
    "batch norm": lambda self, h: F.batch_norm(h, None, None, training=True) if self.training else h,
    "a large constant": lambda self, h: (h + 1e5) - 1e5,  # rounds by 1e-3, in which rows agree with themselves
    "a count of batches": lambda self, h: setattr(self, "kept", self.kept + self.training) or h,
    "weights": lambda self, h: setattr(self, "kept", 0.9 * self.kept + self.a.weight.detach().sum(1)) or h,
}


@pytest.mark.parametrize("kind", HONEST)
def test_other_models_are_stacked(kind: str) -> None:
    people = population(lambda: Between(HONEST[kind]))
    assert choose("auto", people, LOCAL, 6) == (Stacked, "about 6 clients in parallel")
    assert people.tried[people.models["net"]].differs is None


def test_a_difference_that_rounding_makes_is_none() -> None:
    """Rows of one matrix product may be rounded otherwise beside others; here it is made sure that they are."""

    def rounded(self: Any, h: Tensor) -> Tensor:
        large = 1e5 * len(h)
        return (h + large) - large

    assert choose("auto", population(lambda: Between(rounded)), LOCAL, 6)[0] is Stacked
    single = lambda self, h: rounded(self, h.float()).to(self.a.weight.dtype)  # noqa: E731
    assert choose("auto", population(lambda: Between(single)), LOCAL, 6)[0] is Loop


def test_what_looks_at_its_neighbours_in_a_stack_is_told_from_padding() -> None:
    """Nothing that `vmap` takes does; a state outside of the network may."""

    def turns(self: Any, h: Tensor) -> Tensor:
        return h + torch._C._functorch.is_functorch_wrapped_tensor(h)

    people = population(lambda: Between(turns))
    found = choose("auto", people, LOCAL, 6)
    assert found == (Loop, "model 'net' cannot be stacked (another client beside it changes the answers in training)")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in place", "assigned", "normalised by hand"])
@pytest.mark.parametrize("compilation", ["none", "trace"])
def test_a_model_that_looks_across_its_batch_is_that_of_torch(kind: str, compilation: Any) -> None:
    """On the engine that it is given, with clients of different sizes and batches of which the last is short."""
    sizes, local = [13, 30, 25], Local(batch_size=10, epochs=2)
    settings = RunSettings(rounds=1, cohort_size=3, seed=0, compilation=compilation, threads=1)
    history = run(FedAvg(local=local), of_sizes(sizes), lambda: Between(ACROSS[kind]), settings)
    plain = run(
        FedAvg(local=local),
        of_sizes(sizes),
        lambda: Between(ACROSS[kind]),
        dataclasses.replace(settings, engine="loop"),
    )
    assert history.engine == "loop"
    (ours,), (theirs,) = history.server.values(), plain.server.values()
    assert torch.equal(ours.buffers["kept"], theirs.buffers["kept"])
    assert bool(ours.buffers["kept"].any())


class OneHot(Classification):
    """Asks the labels how many classes there are, which K stacked clients cannot answer."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean((logits - F.one_hot(batch.y, CLASSES)).square().mean(1))


def test_a_task_that_cannot_be_stacked_is_trained_on_the_loop() -> None:
    settings = RunSettings(rounds=1, cohort_size=6, engine="stacked")
    with pytest.warns(EngineWarning, match=r"cannot be stacked \(its task OneHot, RuntimeError: vmap"):
        history = run(FedAvg(local=LOCAL), federation(), linear, settings, task=OneHot())
    assert history.engine == "loop"
    for task in (SVM(), LDAM(drw=0.5)):  # one with an objective, one with notes
        model = (lambda: nn.Linear(4, 1)) if isinstance(task, SVM) else linear
        assert choose("stacked", population(model, task=task), LOCAL, 6)[0] is Stacked


@pytest.mark.slow
def test_a_model_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    whole = chooser._try_to_stack

    def noted(model: Model, people: Population) -> str | None:
        tried.append(model.name)
        return whole(model, people)

    monkeypatch.setattr(chooser, "_try_to_stack", noted)
    run(FedAvg(local=LOCAL), federation(), {"a": linear, "b": mlp}, RunSettings(rounds=20, cohort_size=6))
    assert tried == ["a", "b"]  # by the check of the job, and not again by the run or the choice of the compilation


@pytest.mark.parametrize(("model", "words"), [(Item, ".item()"), (Branch, "data-dependent control flow")])
def test_auto_records_why_a_model_cannot_be_stacked(model: Any, words: str) -> None:
    history = run(FedAvg(local=LOCAL), federation(), {"odd": model}, RunSettings(rounds=1, cohort_size=6))
    assert history.engine == "loop"
    assert history.engine_reason.startswith("model 'odd' cannot be stacked (RuntimeError: ")
    assert words in history.engine_reason


def test_a_reason_without_words_is_given_by_its_kind() -> None:
    class Silent(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError

    found, reason = choose("auto", population(lambda: Silent(4, CLASSES)), LOCAL, 6)
    assert (found, reason) == (Loop, "model 'net' cannot be stacked (NotImplementedError)")


def test_one_bad_model_of_several_is_named() -> None:
    found, reason = choose("auto", population({"good": linear, "bad": Branch}), LOCAL, 6)
    assert found is Loop
    assert reason.startswith("model 'bad' cannot be stacked")


# ---- the rule of "auto", line by line


def test_what_is_asked_for_is_used() -> None:
    assert choose("loop", population(), LOCAL, 6) == (Loop, "asked for")
    assert choose("stacked", population(), LOCAL, 6) == (Stacked, "asked for")
    images = population(lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten()))
    assert choose("stacked", images, LOCAL, 1) == (Stacked, "asked for")


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("WORLD_SIZE", "gloo"),
        ("OMPI_COMM_WORLD_SIZE", "mpi"),
        ("PMI_SIZE", "mpi"),
        ("SLURM_STEP_NUM_TASKS", "gloo"),
    ],
)
def test_one_of_several_ranks_does_not_compute_the_whole_run(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, "1")
    assert choose("auto", population(), LOCAL, 6)[0] in (Loop, Stacked)
    monkeypatch.setenv(name, "3")
    rule = rf"with {name} = 3 each of 3 ranks would compute the whole run: distribute it with --engine {engine} "
    with pytest.raises(SettingError, match=rule):
        choose("auto", population(), LOCAL, 6)
    with pytest.raises(SettingError, match=rule):
        only_computes("auto")
    with pytest.raises(SettingError, match=rule):
        run(FedAvg(local=LOCAL), federation(), linear, RunSettings(rounds=1, cohort_size=6), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert choose("loop", population(), LOCAL, 6) == (Loop, "asked for")  # runs that have nothing to do with each other
    assert not only_computes("loop")


def test_line_2_comes_before_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "stacking", lambda *_: Stacking("no"))
    found = choose("auto", population(device=torch.device("cuda")), LOCAL, 6)
    assert found == (Loop, "model 'net' cannot be stacked (no)")


def test_line_3_a_gpu_stacks_even_convolutions_of_few_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "stacking", lambda *_: Stacking(None))  # there may be no GPU to try it on
    on_gpu = population(lambda: nn.Conv1d(4, CLASSES, 1), device=torch.device("cuda"))
    assert choose("auto", on_gpu, LOCAL, 1) == (Stacked, "a GPU")


def images() -> Population:
    return population(
        {"flat": linear, "conv": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten())}
    )


def test_line_1_convolutions_on_a_cpu_get_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("auto", images(), LOCAL, 6) == (Workers, "convolutions on a CPU")
    assert choose("auto", images(), LOCAL, 4)[0] is Workers
    assert choose("auto", images(), LOCAL, 3)[0] is Workers
    assert choose("auto", images(), LOCAL, 1) == (Loop, "convolutions on a CPU, 1 in a cohort")
    with monkeypatch.context() as changed:  # a step that pays two threads
        changed.setattr(chooser, "step_flops", lambda *_: 2 * chooser.FLOPS_PER_THREAD)
        assert choose("auto", images(), LOCAL, 3) == (Loop, "convolutions on a CPU, 3 in a cohort")
        assert [choose("auto", images(), LOCAL, size)[0] for size in (2, 4)] == [Workers, Workers]
    monkeypatch.setattr("sys.platform", "darwin")
    why = "processes that compute cannot be forked safely on darwin"
    assert choose("auto", images(), LOCAL, 6) == (Loop, f"convolutions on a CPU, and {why}")
    with pytest.raises(SettingError, match=rf"engine = 'workers' forks processes, and {why}: use engine = 'auto'"):
        choose("workers", images(), LOCAL, 6)


def test_workers_are_refused_where_they_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("workers", population(), LOCAL, 6) == (Workers, "asked for")
    with pytest.raises(SettingError, match="the device is cuda, which processes cannot share"):
        choose("workers", population(device=torch.device("cuda")), LOCAL, 6)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert choose("auto", images(), LOCAL, 6)[0] is Loop
    with pytest.raises(SettingError, match="this process uses CUDA, which does not survive a fork"):
        choose("workers", population(), LOCAL, 6)
    monkeypatch.undo()
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    with pytest.raises(SettingError, match="this process is itself a daemon, which may have no children"):
        choose("workers", population(), LOCAL, 6)


@pytest.mark.parametrize(
    ("sizes", "cohort", "engine", "parallel"),
    [
        ([12] * 6, 6, Stacked, "about 6 clients in parallel"),
        ([12] * 6, 3, Stacked, "about 3 clients in parallel"),
        ([12] * 6, 2, Loop, "about 2.0 clients in parallel"),
        # 15 steps in all, 10 of them the largest client's: 1.5 of 6 are busy on average
        ([40, 4, 4, 4, 4, 4], 6, Loop, "about 1.5 clients in parallel"),
        ([40, 40, 4, 4, 4, 4], 6, Stacked, "about 2 clients in parallel"),  # 2.4
        ([40, 40, 40, 40, 4, 4], 6, Stacked, "about 4 clients in parallel"),
    ],
)
def test_lines_4_and_5_count_clients_in_parallel(sizes: list[int], cohort: int, engine: Any, parallel: str) -> None:
    assert choose("auto", population(parts=of_sizes(sizes)), LOCAL, cohort) == (engine, parallel)


def test_a_few_clients_of_larger_steps_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients in parallel; 1.5 leave a process idle, and small steps cost less than messages."""
    monkeypatch.setattr(chooser, "step_flops", lambda *_: chooser.MIN_FLOPS)
    pair = population(parts=of_sizes([12] * 6))
    assert choose("auto", pair, LOCAL, 2) == (Workers, "about 2.0 clients in parallel")
    assert choose("auto", population(parts=of_sizes([40, 4, 4, 4, 4, 4])), LOCAL, 6)[0] is Loop
    monkeypatch.setattr(chooser, "step_flops", lambda *_: chooser.MIN_FLOPS - 1)
    assert choose("auto", pair, LOCAL, 2)[0] is Loop


def test_wide_networks_are_computed_one_by_one_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have to hold: weights that leave the caches, and steps that keep all cores busy."""
    busy = chooser.FLOPS_PER_THREAD * torch.get_num_threads()
    wide = population(lambda: mlp(200_000))
    assert choose("auto", wide, LOCAL, 6)[0] is Stacked
    monkeypatch.setattr(chooser, "step_flops", lambda *_: busy)
    engine, why = choose("auto", wide, LOCAL, 6)
    assert engine is Loop
    assert why.startswith("1,600,003 parameters, whose steps of ")
    assert choose("auto", population(), LOCAL, 6)[0] is Stacked
    monkeypatch.setattr(chooser, "step_flops", lambda *_: busy - 1)
    assert choose("auto", wide, LOCAL, 6)[0] is Stacked


def test_given_steps_keep_all_clients_busy_whatever_their_sizes() -> None:
    local = dataclasses.replace(LOCAL, steps=5)
    unequal = population(parts=of_sizes([40, 4, 4, 4, 4, 4]))
    assert choose("auto", unequal, local, 6) == (Stacked, "about 6 clients in parallel")


def test_architectures_share_the_cohort() -> None:
    three = {"a": linear, "b": mlp, "c": lambda: mlp(7)}
    assert choose("auto", population(three), LOCAL, 6) == (Loop, "about 2.0 clients in parallel")


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.body, self.classifier = kind(2, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x.unflatten(1, (2, 2)))[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_line_1_recurrent_layers_on_a_cpu_get_workers(kind: Any) -> None:
    assert choose("auto", population(lambda: Recurrent(kind)), LOCAL, 6) == (Workers, "recurrent layers on a CPU")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "stacked"])
def test_no_warning_of_pytorch_about_recurrent_layers(engine: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = run(FedAvg(local=LOCAL), federation(), Recurrent, RunSettings(rounds=1, cohort_size=4, engine=engine))
    assert history.engine == ("workers" if engine == "auto" else "stacked")


# ---- what becomes of the training step


def form(kind: Any, rounds: int, people: Population | None = None, cohort: int = 6, **local: Any) -> str:
    local = {"epochs": 1, "batch_size": 4, **local}
    return choose_compilation(kind, people or population(parts=of_sizes([40] * 6)), Local(**local), cohort, rounds)


def test_a_short_run_is_not_traced() -> None:
    assert [form(Stacked, rounds) for rounds in (9, 10)] == ["none", "trace"]  # 10 lock-steps a round
    assert [form(Stacked, rounds, epochs=5) for rounds in (1, 2)] == ["none", "trace"]
    assert [form(Stacked, rounds, steps=25) for rounds in (3, 4)] == ["none", "trace"]
    assert [form(Loop, rounds) for rounds in (3, 4)] == ["none", "trace"]  # 60 steps a round, two graphs


@pytest.mark.parametrize(("algorithm", "traced"), [(FedAvg, "none"), (Ditto, "trace")])
def test_batches_of_a_second_training_count(algorithm: Any, traced: str) -> None:
    """Clients of 20 examples take 5 steps an epoch; in 8 rounds of 2 epochs 80 lock-steps, and of two models 160."""
    settings = RunSettings(rounds=8, cohort_size=5, engine="stacked")
    people, local = of_sizes([20] * 6), Local(epochs=2, batch_size=4)
    job = Job(algorithm=algorithm(local=local), federation=people, model=Model(mlp, name="mlp"), settings=settings)
    assert Coordinator(job).engine.options.compilation == traced


def test_unequal_clients_need_more_graphs() -> None:
    ragged = population(parts=of_sizes([40, 20, 40, 20, 40, 20]))
    assert [form(Stacked, rounds, ragged, cohort=3) for rounds in (29, 30)] == ["none", "trace"]  # 1, 2 and 3 clients
    assert [form(Stacked, rounds, ragged, cohort=5) for rounds in (39, 40)] == ["none", "trace"]  # 1, 2, 4 and 5


def test_a_long_run_of_a_small_stack_is_compiled_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(chooser, "has_compiler", lambda there=there: there)
        assert form(Stacked, 2499) == "trace"
        assert form(Stacked, 2500) == ("compile" if there else "trace")
        assert form(Loop, 10**6) == "trace"
        large = population(lambda: mlp(3000), parts=of_sizes([40] * 6))  # 24,003 parameters
        assert form(Stacked, 2500, large) == "trace"


def test_a_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser.shutil, "which", lambda name: "/bin/cxx" if name == "my-cxx" else None)
    assert not chooser.has_compiler()
    monkeypatch.setenv("CXX", "my-cxx")
    assert chooser.has_compiler()


def test_what_cannot_be_traced_is_not() -> None:
    assert form(Loop, 10**6, population(Branch)) == "none"
    assert form(Loop, 10**6, population(Recurrent)) == "none"
    assert form(Stacked, 10**6, population(device=torch.device("cuda"))) == "none"
    conv = population(lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten()))
    assert form(Loop, 10**6, conv) == form(Stacked, 10**6, conv) == "trace"


def test_looking_for_problems_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    choose("auto", population(lambda: nn.Sequential(nn.Dropout(0.5), linear())), LOCAL, 6)
    assert torch.equal(torch.get_rng_state(), before)


# ---- token ids


class Checking(Attending):
    """Looks at its mask before it computes, as models of Hugging Face do."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) if bool((tokens != 0).any()) else super().forward(tokens) * 2


@pytest.mark.parametrize(("cohort", "engine"), [(5, "workers"), (1, "loop")])
def test_sequences_that_cannot_be_stacked_are_shared_out(cohort: int, engine: str) -> None:
    settings = RunSettings(rounds=1, cohort_size=cohort)
    history = run(FedAvg(local=LOCAL), sequences(), Checking, settings, task=NextToken())
    assert history.engine == engine
    assert re.match("token ids on a CPU, and model 'Checking' cannot be stacked", history.engine_reason)


def test_each_length_is_a_graph() -> None:
    def compiled(cut: bool, rounds: int) -> str:
        p = Population(federation=sequences(64, cut=cut), models={"net": Model(Attending)}, task=NextToken())
        return choose_compilation(Loop, p, Local(epochs=1, batch_size=5), 5, rounds)

    assert [compiled(False, rounds) for rounds in (13, 14)] == ["none", "trace"]  # 15 steps a round, 2 graphs
    assert [compiled(True, rounds) for rounds in (26, 27)] == ["none", "trace"]  # of 8 and 12 places


@pytest.mark.parametrize(
    ("clients", "cohort", "steps", "width", "engine"),
    [
        (20, 16, 8, 10_000, "stacks"),  # 8 clients a stack, at least
        (20, 15, 8, 10_000, "stacked"),
        (20, 16, 7, 10_000, "stacked"),
        (300, 247, 8, 400, "stacked"),  # 124
        (300, 248, 8, 400, "stacks"),
    ],
)
def test_stacks_are_shared_out_where_there_are_two_and_work(
    clients: int, cohort: int, steps: int, width: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = Population(federation=of_sizes([4] * clients), models={"net": Model(lambda: mlp(width))})
    local = Local(epochs=steps, batch_size=4)
    assert choose("auto", people, local, cohort) == (engine_named(engine), f"about {cohort} clients in parallel")
    with monkeypatch.context() as changed:  # steps that pay a thread of their own
        changed.setattr(
            chooser, "step_flops", lambda *_: chooser.FLOPS_PER_THREAD / 2 / best_chunk(people.models["net"].num_params)
        )
        assert choose("auto", people, local, cohort)[0] is Stacked
    monkeypatch.setattr(chooser, "why_no_fork", lambda: "there is no fork here")
    assert choose("auto", people, local, cohort)[0] is Stacked
    with pytest.raises(SettingError, match="engine = 'stacks' forks processes, and there is no fork here"):
        choose("stacks", people, local, cohort)


def test_stacks_take_no_model_that_a_stack_does_not_take() -> None:
    with pytest.warns(EngineWarning, match="cannot be stacked"):
        assert choose("stacks", population(Item), LOCAL, 6)[0] is Loop
    with pytest.raises(SettingError, match="engine = 'stacks' computes clients side by side"):
        choose("stacks", population(lambda: Between(lambda self, h: h * h.softmax(0))), LOCAL, 6)


def test_unequal_sequences_are_not_stacked_on_a_cpu() -> None:
    whole = sequences(64)
    x = whole.train.x.clone()
    x[:20] = torch.randint(1, 9, (20, 64))  # one client has long ones

    def chosen(x: Tensor) -> tuple[Any, str]:
        train = dataclasses.replace(whole.train, x=x, y=next_tokens(x))
        f = Federation(train, by_lists(np.array_split(np.arange(100), 5)))
        return choose("auto", Population(federation=f, models={"net": Model(Attending)}, task=NextToken()), LOCAL, 5)

    assert chosen(whole.train.x)[0] is Stacked
    assert chosen(x) == (Workers, "sequences of unequal clients on a CPU, 2.9 times as many places in a stack")


class Fused(Attending):
    """Calls PyTorch's attention, which `vmap` computes client by client on a CPU."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        q, k, v = (layer(h)[:, None] for layer in (self.query, self.key, self.value))
        return self.head(self.norm(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]))  # type: ignore[no-any-return]


def test_line_4_attention_in_large_steps_is_not_stacked_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(kind: type[Attending], width: int, batch_size: int) -> tuple[Any, str]:
        net = Model(lambda: kind(width=width), name="net")
        people = Population(federation=sequences(64, cut=False), models={"net": net}, task=NextToken())
        engine, reason = choose("auto", people, Local(batch_size=batch_size), 5)
        # three times 2 * 64 places * (three layers of width^2, one of width * 12); attention, where it is counted
        assert people.tried[net].flops >= 6 * 64 * (3 * width**2 + 12 * width)
        return engine, reason

    reason = "scaled_dot_product_flash_attention on a CPU in steps of 3e+08 FLOPs"
    assert chosen(Fused, 160, 15) == (Workers, reason)  # as many examples as a client has at most
    assert chosen(Fused, 160, 100) == (Workers, reason)
    assert chosen(Fused, 160, 9)[0] is Stacked
    assert chosen(Fused, 80, 100)[0] is Stacked  # in a step of what a client has, 1e8 FLOPs
    assert chosen(Attending, 160, 15)[0] is Stacked  # of plain operations, for which there are rules
    monkeypatch.setattr(chooser, "why_no_fork", lambda: "it rains")
    assert chosen(Fused, 160, 15) == (Loop, f"{reason}, and it rains")


def test_a_trial_leaves_out_the_warning_of_attention_and_no_other() -> None:
    class Telling(Fused):
        def forward(self, tokens: Tensor) -> Tensor:
            if self.training:  # as in the trial of `vmap`
                warnings.warn("mine", UserWarning, stacklevel=1)
            return super().forward(tokens)

    people = Population(federation=sequences(), models={"net": Model(Telling, name="net")}, task=NextToken())
    with pytest.warns(UserWarning, match="mine") as said:
        choose("auto", people, LOCAL, 5)
    assert {str(w.message) for w in said} == {"mine"}


@pytest.mark.parametrize(
    ("engine", "setting", "user"),
    [("loop", "chunk", "stacked"), ("loop", "workers", "workers"), ("stacked", "workers", "workers")],
)
def test_settings_of_other_engines_are_not_ignored_in_silence(engine: Any, setting: str, user: str) -> None:
    settings = RunSettings(rounds=1, cohort_size=3, engine=engine, **{setting: 2})
    asked = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=mlp, settings=settings)
    with pytest.warns(EngineWarning, match=rf"{setting} = 2 is for the engine {user}, and has no effect with {engine}"):
        Coordinator(asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineWarning)
        Coordinator(dataclasses.replace(asked, settings=dataclasses.replace(asked.settings, engine="auto")))
        Coordinator(dataclasses.replace(asked, settings=dataclasses.replace(asked.settings, engine=user)))


def test_ranks_take_a_chunk_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineWarning)
        check_used("gloo", engine_named("gloo"), 4, None, None)
    with pytest.warns(EngineWarning, match="workers = 2 is for the engine workers, and has no effect with gloo"):
        check_used("gloo", engine_named("gloo"), 4, 2, None)


@pytest.mark.parametrize("name", ["loop", "stacked"])
def test_a_deadline_is_for_engines_of_other_processes(name: str) -> None:
    with pytest.raises(SettingError, match=f"deadline = 3 is for clients in other processes, .* has the engine {name}"):
        check_used("auto", engine_named(name), None, None, 3.0)
    for other in ("workers", "gloo", "devices"):
        check_used("auto", engine_named(other), None, None, 3.0)


def test_every_engine_has_a_name() -> None:
    assert get_args(EngineName) == ("auto", *ENGINES)
    for name in ENGINES:
        assert engine_named(name).name == name


def of_network(network: Network) -> tuple[Federation, Any]:
    """Examples such as a network of this name reads, and a task for its answers."""
    rng, reads, count = np.random.default_rng(0), network.reads, 24
    y = np.arange(count) % network.num_classes
    if reads.tokens:
        x = rng.integers(1, reads.tokens, (count, *network.shape))
        for row, length in zip(x, rng.integers(1, len(x[0]), count), strict=True):
            row[length:] = 0
        if reads.next_token:
            made = Examples(torch.from_numpy(x).int(), next_tokens(x), reads.tokens, Tokens())
            return Federation(made, by_lists([range(count)])), NextToken()
        return Federation(from_arrays(x.astype(np.int32), y), by_lists([range(count)])), Classification()
    values = rng.normal(size=(count, *network.shape)).astype(np.float32)
    for i, most in enumerate(reads.categories, -len(reads.categories)):
        values[:, i] = rng.integers(0, most, count)
    made = from_arrays(values, y % 2 if network.name == "svm" else y)
    return Federation(made, by_lists([range(count)])), SVM() if network.name == "svm" else Classification()


@pytest.mark.some(1)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "unet"])  # which answers for pixels
def test_networks_that_have_a_name_are_taken_without_a_word(name: str) -> None:
    network = MODELS[name]
    parts, task = of_network(network)
    more = [network.reads] if network.reads.tokens or network.reads.categories else []
    build = lambda: models.build(name, network.shape, network.num_classes, *more)  # noqa: E731
    job = Job(algorithm=FedAvg(local=LOCAL), federation=parts, model=build, task=task,
              settings=RunSettings(rounds=1, cohort_size=1))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = try_model(job.population.models[next(iter(job.population.models))], job)
    assert found.adding_up == []
    tried = chooser.stacking(next(iter(job.population.models.values())), job.population)
    assert tried.problem is None
    assert tried.differs is None


@pytest.mark.parametrize(
    ("known", "bf16", "warned"),
    [
        ({"cpu_name": "Old", "avx2": True, "avx512_bf16": False, "amx_bf16": False}, True, True),
        ({"cpu_name": "Old", "avx2": True, "avx512_bf16": False, "amx_bf16": False}, False, False),
        ({"cpu_name": "New", "avx512_bf16": False, "amx_bf16": True}, True, False),
        ({}, True, False),  # PyTorch does not tell
    ],
)
def test_a_cpu_without_bf16_arithmetic_is_warned_of(
    known: dict[str, Any], bf16: bool, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    settings = RunSettings(rounds=1, cohort_size=2, bf16=bf16)
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job.check()
    said = [str(w.message) for w in caught if "bf16" in str(w.message)]
    assert bool(said) == warned
    assert not said or "which this processor lacks: leave bf16 out, it is slower here" in said[0]
