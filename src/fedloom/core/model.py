"""A neural network seen as a pure function of its weights."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import _disable_current_modes

from fedloom.core.batch import Batch, padded_batch, probe
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.fronts import Front, Watch, chain_of, found, skip
from fedloom.core.layout import by_channels, by_pixels
from fedloom.core.network_copies import INPUT, copied, tensors_of
from fedloom.core.network_makers import named_maker
from fedloom.core.network_tensors import NetworkTensors
from fedloom.core.passes import UNGOVERNED, BatchStatistics, RecordMoments, TrainingCall
from fedloom.core.types import Params, Weights

_leaving: ContextVar[bool] = ContextVar("fedloom_leaving", default=False)  # see `Model.leaving`


class Model(NetworkTensors):
    """An `nn.Module` as a pure function of `Weights`. Static and hashable; carries no trained tensors.

    `build`: a function that makes the module (its weights then depend on the seed given to `init`), or a module
    (whose weights are the initial ones, whatever the seed). `name`: the architecture's name in messages and results.
    `frozen`: words that choose parameters that stay as they are (`core/patterns.py`), besides those with
    `requires_grad=False`. Frozen tensors belong to the network: they are in no `Weights`, state or message. A module
    all of whose parameters are frozen stays in evaluation mode, and its buffers are frozen too. `bind` gives a network
    its frozen tensors as they are in a run. `factors`: which of a low-rank adapter B A are trained, the "second" one, B
    (of an embedding A), or "both"; see `fixed_factors`.

    >>> model = Model(lambda: nn.Linear(3, 2), name="linear")
    >>> model(model.init(0), torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    @staticmethod
    @functools.cache
    def by_name(text: str, **settings: Any) -> Model:
        """Return a network that is named among settings, such as a generator.

        The name is `module:name`, or a name of `fedloom.models`. `settings` go to what is named, a class or a function
        that returns a module; they must be hashable. The same name with the same settings is the same model.

        >>> Model.by_name("torch.nn:Linear", in_features=3, out_features=2).num_params
        8

        Raises:
            SettingError: there is no such network, or it does not take these settings.
        """
        return Model(named_maker(text, settings), name=text)

    def __call__(self, weights: Weights, x: Tensor, mask: Tensor | None = None, *, fresh: bool = False) -> Tensor:
        """Return the logits [B, C] in evaluation mode (running statistics, no dropout).

        BatchNorm that keeps no running statistics uses those of the rows of x that `mask` [B] calls real. None: all of
        them; inside a fold, `batch.x` has the mask of its batch, and any other input beside padding needs one. `fresh`:
        nobody will read x again, so the network, which may write on its input, needs no copy.
        """
        real = self._real_rows(x, mask)
        tensors, x = self._given(self._tensors(weights), x, fresh)
        with self._evaluation(real):
            return self._pass(self._evaluating, tensors, x)  # type: ignore[no-any-return]

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the network's layers, those within layers included: `body.0`."""
        return tuple(name for name in self._tapped_evaluating.layers if name)

    def offers(self, name: str) -> bool:
        """Return whether the network has a layer or a method of this name, which `features` needs.

        Args:
            name: of a layer or method of the network.
        """
        return name.removeprefix(INPUT) in self.layers or callable(getattr(self._evaluating, name, None))

    def features(self, weights: Weights, x: Tensor, name: str = "features", mask: Tensor | None = None) -> Tensor:
        """Return the output of a method or layer of the network in evaluation mode, flattened to [B, D].

        Args:
            weights: the network's tensors.
            x: inputs, [B, ...].
            name: of a method or layer; `input:head` is the input of the layer `head`.
            mask: as in a call.
        """
        return self.with_features(weights, x, name, mask)[1]

    def with_features(
        self, weights: Weights, x: Tensor, name: str = "features", mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the logits [B, C] in evaluation mode, and what `features` returns, of the same pass.

        Args:
            weights: the network's tensors.
            x: inputs, [B, ...].
            name: of a method or layer; `input:head` is the input of the layer `head`.
            mask: as in a call.
        """
        real = self._real_rows(x, mask)
        tensors, x = self._given(self._tensors(weights, "module."), x)
        with self._evaluation(real):
            return self._pass(self._tapped_evaluating, tensors, x, name)  # type: ignore[no-any-return]

    def calling(self, weights: Weights, x: Tensor, call: Callable[[nn.Module, Tensor], Any]) -> Any:
        """Return `call(network, x)` in evaluation mode.

        Args:
            weights: the network's tensors.
            x: inputs, [B, ...].
            call: a function of the network and x, which may use any of the network's methods.
        """
        tensors, x = self._given(self._tensors(weights, "module."), x)
        with self._evaluation(None):
            return self._pass(self._called_evaluating, tensors, x, call)

    def _evaluation(self, mask: Tensor | None) -> contextlib.AbstractContextManager[Any]:
        """Return a context: in it, BatchNorm without running statistics uses those of the rows of `mask`."""
        return BatchStatistics(mask) if self.by_batch else contextlib.nullcontext()

    def _real_rows(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask of x: the one given, or that of the batch at hand if x are its inputs.

        It is None where all rows count.
        """
        at_hand = padded_batch.get() if self.by_batch else None
        if mask is not None or at_hand is None:
            return mask
        if x is not at_hand[0]:
            raise StackingError(
                f"{self.name} normalises by the batch, and this input is not batch.x, whose padding is known: say "
                "which rows are real, model(weights, x, mask=batch.mask) or mask=torch.ones(len(x), dtype=torch.bool)"
            )
        return at_hand[1]

    def _given(self, tensors: dict[str, Tensor], x: Tensor, fresh: bool = False) -> tuple[dict[str, Tensor], Tensor]:
        """Return the tensors, and inputs on which a forward may write, in the layout that it takes.

        Nobody else reads these inputs: others are views of stored data, or what a loss and other networks see next. On
        a CPU, folds and evaluation give them as channels_last, which is faster for convolutions. Nearly every layer
        takes that layout; `x.view(len(x), -1)` does not, of images or of what a convolution returns.
        """
        if x.ndim != 4 or x.device.type != "cpu" or self._takes_channels_last(x):
            return tensors, x if fresh else x.clone()
        return {n: by_channels(t) if t.ndim == 4 else t for n, t in tensors.items()}, by_channels(x)

    def _takes_channels_last(self, like: Tensor) -> bool:
        """Return whether the network takes channels_last inputs of this shape.

        It is tried once for each shape, on two empty images. What fails then, and why, shows with the other layout.
        """
        shape = like.shape[1:]
        if shape not in self._tried:
            self._tried[shape] = True  # in the pass that tries it
            with torch.no_grad(), _disable_current_modes():  # no part of a step that is being traced
                x = by_pixels(torch.zeros((2, *shape), dtype=like.dtype))
                mine = {n: t for n, t in tensors_of(self._evaluating) if n in self.tensors}
                weights = Weights(
                    params={n: by_pixels(torch.ones(mine[n].shape, dtype=like.dtype)) for n in self.params},
                    buffers={n: torch.ones(t.shape, dtype=t.dtype) for n, t in mine.items() if n not in self.params},
                )
                try:
                    self(weights, x, mask=probe(x).mask)
                    self.train(weights, probe(x))
                except Exception:
                    self._tried[shape] = False
        return self._tried[shape]

    def train(self, weights: Weights, batch: Batch) -> tuple[Tensor, Params]:
        """Return the logits [B, C] in training mode, and the buffers after this batch.

        Batch normalisation uses the real rows only, dropout bits come from `batch.key`: so neither padding a batch
        nor stacking clients changes any real row. Rows of padding have arbitrary finite logits.

        Args:
            weights: the network's tensors.
            batch: a batch of training examples.
        """
        return self._train(self._training, "", weights, batch)

    def train_features(
        self, weights: Weights, batch: Batch, name: str = "features"
    ) -> tuple[tuple[Tensor, Tensor], Params]:
        """Return (logits, features) in training mode, and the buffers after this batch, as `train`.

        Args:
            weights: the network's tensors.
            batch: a batch of training examples.
            name: of the method or layer whose output in the same pass, flattened to [B, D], the features are.
        """
        return self._train(self._tapped_training, "module.", weights, batch, name)

    def train_calling(
        self, weights: Weights, batch: Batch, call: Callable[[nn.Module, Tensor], Any]
    ) -> tuple[Any, Params]:
        """Return `call(network, batch.x)` in training mode, and the buffers after this batch, as `train`.

        Args:
            weights: the network's tensors.
            batch: a batch of training examples.
            call: a function of the network and inputs, which may use any of the network's methods.
        """
        return self._train(self._called_training, "module.", weights, batch, call)

    def _train(self, module: nn.Module, prefix: str, weights: Weights, batch: Batch, *args: Any) -> tuple[Any, Params]:
        if self._drawing is not None:
            raise SettingError(UNGOVERNED.format(self._drawing))
        tensors, x = self._given(self._tensors(weights, prefix), batch.x)
        given = dict(tensors)
        with TrainingCall(batch) as call:
            out = self._pass(module, tensors, x, *args)
        assigned = [n.removeprefix(prefix) for n, t in given.items() if tensors[n] is not t]
        for name in assigned:
            self._check_assigned(name, given[prefix + name], tensors[prefix + name], name in weights.buffers)
        buffers = call.buffers({n: tensors[prefix + n] for n in weights.buffers})
        return out, Params({n: b.detach() if n in assigned else b for n, b in buffers.items()})

    def assigned(self, name: str) -> str:
        """Return the message that a forward assigns a tensor which it must not.

        Args:
            name: of a parameter, or of a frozen tensor.
        """
        if name in self.params:
            remedy = "write on it in place (self.weight.clamp_(-1, 1) under torch.no_grad())"
        else:
            remedy = "register what it counts as a buffer of one number or of floats"
        return (
            f"a forward assigns no parameter and no frozen tensor, and that of {self.name} assigns {name!r}: let it "
            f"compute with a copy, or {remedy}"
        )

    def _check_assigned(self, name: str, before: Tensor, after: Tensor, moves: bool) -> None:
        """Raise SettingError where a forward assigns a tensor that must stay, or one of another form.

        `moves`: whether it is a buffer that is not frozen, which is kept as PyTorch keeps it.
        """
        if not moves:
            raise SettingError(self.assigned(name))
        if after.shape != before.shape or after.dtype != before.dtype:
            raise SettingError(
                f"a buffer keeps its shape and dtype, and {self.name} assigns {after.dtype} {list(after.shape)} to "
                f"{name!r}, which was made as {before.dtype} {list(before.shape)}: register it as what it will be"
            )

    def _tensors(self, weights: Weights, prefix: str = "") -> dict[str, Tensor]:
        """Return the tensors for a pass; buffers are copies, in which a forward may count."""
        buffers = {n: b.clone() for n, b in weights.buffers.items()}
        return {f"{prefix}{n}": t for n, t in {**weights.params, **buffers, **self.frozen}.items()}

    def _pass(self, network: nn.Module, tensors: dict[str, Tensor], *args: Any) -> Any:
        """Return what a network of ours returns with these tensors in it.

        What its forward has kept in attributes, or in lists and arrays there, is gone afterwards. It would hold a
        graph, or a tensor that `vmap` has ended, and the next pass, of another client, could read it.
        """
        if _leaving.get():
            return functional_call(network, tensors, args)
        state = self._kept[network]
        before = state.attributes()
        try:
            return functional_call(network, tensors, args)
        finally:
            state.put_back(before)

    @contextlib.contextmanager
    def leaving(self) -> Iterator[Callable[[Collection[str]], None]]:
        """Return a context in which passes leave the network as they make it, as in PyTorch; it is put back at the end.

        Training and evaluation have copies of the network. What is yielded gives that of evaluation the attributes of
        these names as training has left them.
        """
        trained, evaluated = self._kept[self._training], self._kept[self._evaluating]
        before = trained.attributes(), evaluated.attributes()
        token = _leaving.set(True)
        try:
            yield functools.partial(trained.give, evaluated)
        finally:
            _leaving.reset(token)
            trained.put_back(before[0])
            evaluated.put_back(before[1])

    @property
    def networks(self) -> tuple[nn.Module, nn.Module]:
        """The copies of the network that train and evaluate; their tensors have no storage but in a pass."""
        return self._training, self._evaluating

    def fronts(self, weights: Weights, x: Tensor) -> list[Front]:
        """Return the parts of this network that can be computed once for each example, the largest first.

        Args:
            weights: the network's tensors.
            x: some inputs, [B, ...].
        """
        with torch.no_grad():
            self(weights, x)  # which may try layouts first, on empty images
            with Watch(self._evaluating) as evaluated:
                self(weights, x)
            with Watch(self._training) as trained:
                self.train(weights, probe(x))
        return found(self._training, self._stays, (evaluated, trained))

    def through(self, front: Front) -> Callable[[Tensor], Tensor]:
        """Return the function of inputs that a front is, in evaluation mode.

        Args:
            front: one of `fronts`.
        """
        layers = chain_of(copied(self._evaluating, {}), front)
        names = [(f"{name}.", f"{i}.") for i, name in enumerate(front.layers)]
        tensors = {
            new + n.removeprefix(old): t for old, new in names for n, t in self.frozen.items() if n.startswith(old)
        }

        def compute(x: Tensor) -> Tensor:
            given, x = self._given(tensors, x)
            return functional_call(layers, given, (x,))  # type: ignore[no-any-return]

        return compute

    def behind(self, front: Front, x: Tensor, features: Tensor) -> Model:
        """Return this network behind a front: the same tensors, with the outputs of the front as inputs.

        Args:
            front: one of `fronts`.
            x: some inputs of this network, [B, ...].
            features: the outputs of the front, in the layout in which the other network gets them.
        """
        rest = copy.copy(self)
        rest._training, rest._evaluating = (
            skip(copied(network, {}), front) for network in (self._training, self._evaluating)
        )
        rest._wrap()
        rest.front = front
        rest._tried = {features.shape[1:]: self._takes_channels_last(x)} if x.ndim == 4 else {}
        return rest

    def moments(self, weights: Weights, x: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Return the logits in evaluation mode, and moments of the input of each BatchNorm layer.

        The moments are mean and biased variance, [C] each. DENSE's L_BN (eq. 3) and DeepInversion compare them with the
        layer's running statistics; a layer without these has none. Differentiable in x.

        Args:
            weights: the network's tensors.
            x: inputs, [B, ...].
        """
        tensors, x = self._given(self._tensors(weights), x)
        names = {id(t): n.removesuffix("running_mean").rstrip(".") for n, t in tensors.items()}
        with RecordMoments(names) as call:
            logits = self._pass(self._evaluating, tensors, x)
        return logits, call.moments
