"""Do what clients do with a request: a function of (request, states, data) that keeps nothing of any client."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.client import Client, NotPlanned
from fedloom.core.errors import ClientError, FedloomError, StackingError, quiet_vmap
from fedloom.core.fold.execution import Compilation, Execution, Programs, current, executing
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.naming import by_python_name
from fedloom.core.network_makers import own_defaults
from fedloom.core.random import derive
from fedloom.core.task_measures import Score, added, measures_of, scores_of, sums_of
from fedloom.core.types import Weights, replace
from fedloom.engines.links import Encoder
from fedloom.engines.message import EVALUATING, EVALUATION, GIVEN, NOTES, Answer, Request, Rows
from fedloom.engines.personal import Predictions, given, models_in, personal
from fedloom.engines.population import Population
from fedloom.storage import codec

if TYPE_CHECKING:
    from fedloom.engines.encoding import Encoders
    from fedloom.engines.kept_optimisers import KeptOptimisers

STACKED = (
    "Clients run stacked: instead of a Python branch or .item() write torch.where, instead of torch.randn "
    "fedloom.core.random.normal(client.key, ...), instead of F.one_hot(y) torch.eye(C)[y]; or run with "
    "engine = 'loop' (docs/algorithms.md#write-your-own)"
)


class Runtime:
    """The clients of a population under one algorithm.

    `stacked`: whether K clients are one computation under `vmap`; if not, a request asks one client. What it keeps
    between requests, traced steps and initial weights, depends on no client. `between`: called before each training
    step, to end an answer by what it raises. `encoders`: what clients do to their uploads, and to which a part of their
    states belongs. `gradients`: another rule by which they make gradients of their examples.
    """

    def __init__(
        self,
        population: Population,
        algorithm: Algorithm[Any, Any],
        *,
        stacked: bool = False,
        compilation: Compilation = "none",
        bf16: bool = False,
        programs: Programs | None = None,
        between: Callable[[], None] | None = None,
        encoders: Sequence[Encoder] = (),
        gradients: Any = None,
    ) -> None:
        self.population, self.algorithm, self.stacked = population, algorithm, stacked
        self.encoders: Encoders | None = None
        if encoders:
            from fedloom.engines.encoding import Encoders  # most runs have none

            self.encoders = Encoders(encoders, algorithm)
        self.optimisers: KeptOptimisers | None = None
        self._trained = self._computed
        if algorithm.local.keep_optimiser:
            from fedloom.engines.kept_optimisers import KeptOptimisers

            self.optimisers = KeptOptimisers(algorithm)
            self._trained = functools.partial(self.optimisers.computed, self._computed)
        self._works: dict[str, Callable[..., Any]] = {}
        self.compilation, self.bf16, self.between = compilation, bf16, between
        self.gradients = None if gradients is None else gradients.of(algorithm.training)
        self.programs = Programs() if programs is None else programs
        self._initial: dict[str, Weights] = {}
        self._zeros: dict[Model, dict[str, Tensor]] = {}

    def answer(self, request: Request, states: Any, *, watched: bool = False) -> tuple[Any, Answer]:
        """Return (new states, answer), both stacked. `states`: the states from which the clients start, stacked.

        Raises:
            ClientError: the code of a client failed; names client, round and batch.
        """
        works = bool(request.call.works)
        execution = Execution(self.compilation, self.bf16, watching=watched or works, programs=self.programs)
        execution.between, execution.gradients = self.between, self.gradients
        leaves = tree.leaves((states, request.call.broadcast, request.scatter))
        given = [t for t in leaves if isinstance(t, Tensor)]  # a number may be sent too
        versions = [t._version for t in given]
        with executing(execution):
            try:
                compute = self._together if self.stacked else self._alone
                new, upload, notes = compute(request, self.clients(request, states))
            except (FedloomError, KeyboardInterrupt):
                raise
            except Exception as error:
                raise _failure(request, execution.step, error, self.stacked) from error
        if versions != [t._version for t in given]:  # what one client is sent is what all are sent, and the server has
            raise _failed(
                request,
                f"{type(self.algorithm).__name__}.{request.call.method} changes in place what the client was sent or "
                "keeps: compute new tensors, p * 0.5 and not p.mul_(0.5), or clone first",
            )
        answer = _answer(self._scored(upload), execution, len(request.clients))
        after = {NOTES: notes} if notes else {}
        if works and not watched and execution.trained is not None:
            after |= self._after(request, states, execution.trained)
        return new, dataclasses.replace(answer, after=after) if after else answer

    @own_defaults()
    def fresh(self, client: int) -> Any:
        """Return the state of a client at its first contact."""
        p = self.population
        name, key = p.assignment[client], derive(p.seed, "client", p.first + client)
        own = self.algorithm.init_client(self.initial(name), p.models[name], key)
        fits = all(t.device == p.device and t.dtype in (p.dtype, torch.int64, torch.bool) for t in tree.leaves(own))
        own = own if fits else tree.cast(own, device=p.device, dtype=p.dtype)  # among a million, most are new
        for beside in (self.optimisers, self.encoders):
            own = own if beside is None else beside.first(own, self.initial(name).params)
        return own

    def own(self, state: Any) -> Any:
        """Return of a client's state what its algorithm keeps."""
        for beside in (self.encoders, self.optimisers):
            state = state if beside is None else state.own
        return state

    @own_defaults()
    def initial(self, architecture: str) -> Weights:
        """Return the weights with which a network begins, the same on server and clients."""
        if architecture not in self._initial:
            p = self.population
            made = p.models[architecture].init(derive(p.seed, "init"))
            self._initial[architecture] = tree.cast(made, device=p.device, dtype=p.dtype)
        return self._initial[architecture]

    def digest(self, architecture: str) -> str:
        """Return a digest of the tensors with which a network begins, the frozen ones too."""
        initial, frozen = self.initial(architecture), self.population.models[architecture].frozen
        return codec.digest((initial, frozen) if frozen else initial)

    def clients(self, request: Request, states: Any) -> Client[Any]:
        """Return K clients as one stacked `Client`; shared leaves are not stacked (see `client_axes`)."""
        p, call, ids = self.population, request.call, request.clients
        sizes = p.at(call.round).partition.sizes
        plan: Local | None = self.algorithm.training
        if call.exchange == EVALUATING:
            plan = self.algorithm.evaluation_training if call.method == "personal" else None
        return Client(
            state=states,
            train=NotPlanned(type(self.algorithm).__name__) if plan is None else p.train_batches(request, plan),  # type: ignore[arg-type]
            val=p.held_out_batches(ids, "val", call.round),
            public=p.public,
            num_examples=torch.as_tensor(sizes[list(ids)], device=p.device),
            round=torch.tensor(call.round, device=p.device),
            lr=torch.tensor(call.rate, dtype=torch.float64, device=p.device),
            key=torch.tensor([key for _, key in request.keys], device=p.device),
            model=p.models[p.assignment[ids[0]]],
            task=p.task,
        )

    def method(self, name: str) -> Callable[..., Any]:
        """Return the algorithm's method of this name, if it is one that clients run."""
        algorithm = self.algorithm
        if name == "personal":
            return algorithm.personal
        if name == GIVEN:
            return given
        found: Any = getattr(algorithm, name, None)
        if not getattr(found, "on_client", False):
            raise StackingError(
                f"{name[:80]!r} is no method of {type(algorithm).__name__} that clients run: mark it @on_client"
            )
        return found  # type: ignore[no-any-return]

    def work(self, name: str) -> None:
        """Find the function of a work on trained models.

        Raises:
            SettingError: there is none, or it is code that may not be imported here.
        """
        if name != EVALUATION and name not in self._works:
            self._works[name] = by_python_name(name, "a work on trained models")

    def _noting(self, method: str, client: Client[Any], *sent: Any) -> tuple[Any, Any, dict[str, Tensor]]:
        """Return (new state, what travels, what was noted) of one client."""
        run = current()
        run.notes = {}  # of a stack these belong to its `vmap`, and must leave with what it returns
        state, upload = self._one(method, client, *sent)
        notes, run.notes = run.notes, {}
        return state, upload, notes

    def _one(self, method: str, client: Client[Any], *sent: Any) -> tuple[Any, Any]:
        """Return (new state, what travels) of one client; one that is evaluated keeps its state."""
        if self.encoders is None:
            return self._trained(method, client, *sent)
        state = client.state
        client = replace(client, state=state.own)
        own, upload = self._trained(method, client, *sent)
        if method not in self.encoders.sets:
            return state, upload
        upload, kept = self.encoders.encode(method, client, sent, upload, state.kept)
        return replace(state, own=own, kept=kept), upload

    def _computed(self, method: str, client: Client[Any], *sent: Any) -> tuple[Any, Any]:
        """Return (new state, upload) of one client, as the method says."""
        if method in ("personal", GIVEN):
            zero = self._zero_sums(client.model) if len(sent) > 1 else {}
            return client.state, personal(self.algorithm, self.method(method), zero, self._scores, client, *sent)
        if method in self._works:
            weights, *rows = sent
            found = self._works[method](client, weights, *(replace(r, x=client.val.x, y=client.val.y) for r in rows))
            if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
                raise StackingError(
                    f"{method} must return numbers by name, a dict of tensors, got {type(found).__name__}: return "
                    "{'name': tensor}"
                )
            return client.state, found
        out, name = self.method(method)(client, *sent), f"{type(self.algorithm).__name__}.{method}"
        if not (isinstance(out, tuple) and len(out) == 2):
            raise StackingError(f"{name} must return (new state, upload), got {type(out).__name__}")
        if other := [leaf for leaf in tree.leaves(out) if not isinstance(leaf, Tensor)]:
            raise StackingError(f"{name} must return tensors, as (new state, upload), got {type(other[0]).__name__}")
        if not tree.same_structure(out[0], client.state):
            remedy = "keep structure, shapes and types" if tree.leaves(client.state) else "write init_client"
            raise StackingError(
                f"{name} must return a new state like the one that init_client makes, got "
                f"{tree.unlike(out[0], client.state)}: {remedy}"
            )
        return out

    def _arguments(self, request: Request) -> tuple[Any, ...]:
        """Return what is scattered, and the rows to evaluate on, where that is asked."""
        split = request.call.split
        if split is None:
            return request.scatter
        p, ids = self.population, request.clients
        self._zero_sums(p.models[p.assignment[ids[0]]])  # before the clients are one computation
        kinds: tuple[Rows, ...] = ("test", "train") if split == "all" else (split,)
        return *request.scatter, *(_evaluation_rows(p, request, kind) for kind in kinds)

    def _after(self, request: Request, states: Any, trained: tuple[int, Any]) -> dict[str, Any]:
        """Return what works find of what each client has trained; nothing where that does not hold just one model."""
        lead, carry = trained
        models = models_in(carry, self.population.models[self.population.assignment[request.clients[0]]], lead)
        if len(models) != 1:
            return {}
        weights = tree.map_tree(lambda t: t if lead else t.expand(len(request.clients), *t.shape), models[0])
        return {name: self.look(name, request, states, weights) for name in request.call.works}

    def look(self, work: str, request: Request, states: Any, weights: Weights) -> Any:
        """Return what a work finds of stacked models, one of each client.

        A function is called as `work(client, weights, held_out, train)`, with the client's rows as two passes in stored
        order, and returns numbers by name. `client.train` is not there.
        """
        self.work(work)
        method = GIVEN if work == EVALUATION else work
        call = dataclasses.replace(
            request.call, method=method, broadcast=(), exchange=EVALUATING, split="all", works=()
        )
        look = dataclasses.replace(request, call=call, scatter=(weights,))
        with executing(Execution(self.compilation, self.bf16, programs=self.programs)):
            compute = self._together if self.stacked else self._alone
            return self._scored(compute(look, self.clients(look, states))[1])

    @functools.cached_property
    def _scores(self) -> tuple[str, ...]:
        """The names of the measures that are scores."""
        known = measures_of(self.population.task)
        return tuple(name for name in self.population.measures if isinstance(known[name], Score))

    def _zero_sums(self, model: Model) -> dict[str, Tensor]:
        """Return sums over no example of the measures that are sums, by name; their shapes may depend on the logits."""
        if model not in self._zeros:
            p = self.population
            name = next(name for name, one in p.models.items() if one is model)
            x, y = p.example(name)
            rows = sums_of(p.task, p.measures, model(self.initial(name), x), y)
            self._zeros[model] = {name: torch.zeros_like(added(each)) for name, each in rows.items()}
        return self._zeros[model]

    def _scored(self, upload: Any) -> Any:
        """Return an upload with scores in the place of the predictions of K clients, if it holds these."""
        if not isinstance(upload, Predictions):
            return upload
        task = self.population.task
        return replace(upload.result, scores=scores_of(task, upload.outputs, upload.y, upload.mask))

    def _alone(self, request: Request, stacked: Client[Any]) -> tuple[Any, Any, dict[str, Tensor]]:
        if len(request.clients) > 1:
            raise StackingError(f"clients {list(request.clients)} were asked at once where each is computed alone")
        call, mine = request.call, tree.take(self._arguments(request), 0)
        out = self._noting(call.method, _only(stacked), *call.broadcast, *mine)
        state, upload, notes = tree.map_tree(lambda t: t[None], out)
        return state, upload, notes

    def _together(self, request: Request, client: Client[Any]) -> tuple[Any, Any, dict[str, Tensor]]:
        """Compute under `vmap`.

        It takes and gives flat lists of tensors: [K, ...] where they belong to one client.
        """
        call, each = request.call, self._arguments(request)
        flat, spec = tree.flatten((client, call.broadcast, each))
        axes = tree.leaves(
            (client_axes(client), tree.map_tree(lambda _: None, call.broadcast), tree.map_tree(lambda _: 0, each))
        )
        structure: list[Any] = []

        def one(*leaves: Tensor) -> list[Tensor]:
            client, broadcast, mine = tree.unflatten(list(leaves), spec)
            answer, out = tree.flatten(self._noting(call.method, client, *broadcast, *mine))
            structure.append(out)
            return answer

        with quiet_vmap():
            answer = vmap(one, in_dims=tuple(axes), randomness="error")(*flat)
        state, upload, notes = tree.unflatten(list(answer), structure[-1])
        return state, upload, notes


def _failure(request: Request, batch: int | None, error: Exception, stacked: bool) -> ClientError:
    said = str(error)
    if stacked and "vmap" in said:  # PyTorch's own advice is for those who work on PyTorch
        said = f"{said.partition('. ')[0]}. {STACKED}"
    return _failed(request, f"{type(error).__name__}: {said}", batch)


def _failed(request: Request, what: str, batch: int | None = None) -> ClientError:
    ids = request.clients
    stack = "" if len(ids) == 1 else f" (in a stack of clients {list(ids)})"
    who = ids[0] if len(ids) == 1 else -1
    return ClientError(f"{what}{stack}", client=who, round=request.call.round + 1, batch=batch)


def _answer(upload: Any, execution: Execution, n: int) -> Answer:
    """Return an answer with losses by client.

    A stack may have computed them, or one client, or a stack whose clients all do the same.
    """
    losses = tuple(t.expand(n, -1) if t.ndim == 1 else t for t in execution.losses)
    steps = tuple(tuple(s * n if len(s) == 1 else s) for s in execution.steps)
    return Answer(upload, losses, steps, trained=execution.trained, planned=execution.planned)


def _evaluation_rows(population: Population, request: Request, rows: Rows) -> Batches:
    """Return the rows that K clients are evaluated on, stacked.

    They come without the arrays, which a client has in its other batches.
    """
    nothing: Any = ()
    return replace(population.held_out_batches(request.clients, rows, request.call.round), x=nothing, y=nothing)


def client_axes(client: Client[Any]) -> Client[Any]:
    """Return which leaves of a stacked `Client` have the client axis: 0, else None.

    Of K = 3 clients, `train.order` [3, S, B] has it; `train.x` [N, ...], everybody's examples, `lr` and `round` do not.
    """

    def batches(b: Batches, axis: int | None) -> Batches:
        axes: Batches = tree.map_tree(lambda _: axis, b)
        return axes if isinstance(b, NotPlanned) else replace(axes, x=None, y=None)

    return replace(
        tree.map_tree(lambda _: 0, client),
        train=batches(client.train, 0),
        val=batches(client.val, 0),
        public=replace(client.public, batches=batches(client.public.batches, None)),
        round=None,
        lr=None,
    )


def _only(stacked: Client[Any]) -> Client[Any]:
    """Return the only client of a stack.

    It takes the leaves that are stacked according to `client_axes`, without a walk over all of them.
    """

    def batches(b: Batches) -> Batches:
        if isinstance(b, NotPlanned):
            return b
        mine = {name: getattr(b, name)[0] for name in ("examples", "order", "mask", "num_steps", "num_examples", "key")}
        return replace(b, **mine, notes={name: table[0] for name, table in b.notes.items()})

    return replace(
        stacked,
        state=tree.take(stacked.state, 0),
        train=batches(stacked.train),
        val=batches(stacked.val),
        num_examples=stacked.num_examples[0],
        key=stacked.key[0],
    )
