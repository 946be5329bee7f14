"""The tensors of a neural network, apart from what it computes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from fedloom.core import patterns
from fedloom.core.batch import Padded
from fedloom.core.errors import SettingError
from fedloom.core.fronts import Front
from fedloom.core.frozen import Factors, frozen_tensors, whole_modules
from fedloom.core.network_copies import Called, Tapped, computed_tensors, copied, skeleton_of, tensors_of
from fedloom.core.network_inputs import Arguments, MaskForm, arguments_of, logits_alone, set_arguments, without_hooks
from fedloom.core.network_makers import called, check_seeded, missing_arguments, seeded
from fedloom.core.network_state import KeptState
from fedloom.core.passes import draws_unseen
from fedloom.core.types import Params, Weights
from fedloom.wording import some_of

_CPU = torch.device("cpu")


class NetworkTensors:
    """The tensors of a network: their names, initial values and kinds, and which of them stay as they are.

    `Model` computes with them, and says what its arguments are.
    """

    def __init__(
        self,
        build: nn.Module | Callable[[], nn.Module],
        name: str | None = None,
        *,
        frozen: str = "",
        factors: Factors = "second",
    ) -> None:
        self.seeded = not isinstance(build, nn.Module)  # whether the initial weights depend on the seed
        if isinstance(build, nn.Module):
            _check_made(build, name or type(build).__name__)
            module = copied(build, {id(b): b.detach().clone() for b in build.buffers() if b.grad_fn is not None})
            self._build: Callable[[], nn.Module] = lambda: module
        else:
            if missing := missing_arguments(build):
                raise SettingError(
                    f"a class or function as model must make it without arguments, got {called(build)}, which needs "
                    f"{', '.join(missing)}: pass lambda: {called(build)}(...), or name a function for it [FL-MODEL-001]"
                )
            self._build, module = build, seeded(build, 0)
            _check_made(module, name or type(module).__name__)
            if away := next((str(p.device) for p in module.parameters() if p.device.type != "cpu"), None):
                raise SettingError(
                    f"a function that makes a network makes it on the CPU, where the run's seed governs its weights, "
                    f"got {away}: leave the device to RunSettings(device=...)"
                )
            check_seeded(build, module, 0)
        self.name = name or type(module).__name__
        self._stays = stays = frozen_tensors(module, frozen, self.name, factors)
        self.params = tuple(n for n, _ in module.named_parameters() if n not in stays)
        self.buffers = tuple(n for n, _ in module.named_buffers() if n not in stays)
        self.tensors = (*self.params, *self.buffers)
        if not self.params:
            raise SettingError(
                f"a model needs parameters to train, {self.name} has none"
                + (": leave some of them out of what is frozen" if stays else "")
            )
        self.kinds = patterns.kinds_of(module)
        self.num_params = sum(p.numel() for n, p in module.named_parameters() if n not in stays)
        self.num_frozen = sum(p.numel() for n, p in module.named_parameters() if n in stays)
        self._bound: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self.inputs: object = None  # what its forward is called with, where that is not one tensor, see `reading`
        self.arguments: Arguments | None = None  # and how
        self.cut: Padded | None = None  # how, where batches are cut to their longest sequence
        self.front: Front | None = None  # what is not computed any more: its outputs are the inputs, see `behind`
        # Frozen parameters of a function's network depend on the seed; constants, as a rule, do not.
        self._frozen: Params | None = None
        if not self.seeded or not self.num_frozen:
            self._frozen = Params({n: _cast(t, torch.float32) for n, t in tensors_of(module) if n in stays})
            other = self._frozen_at(1, torch.float32, _CPU) if self.seeded else self._frozen
            if any(not torch.equal(t, other[name]) for name, t in self._frozen.items()):
                self._frozen = None
        self.is_recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules())
        self.has_convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
        self._drawing = next((type(m).__name__ for m in module.modules() if draws_unseen(m)), None)
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.by_batch = any(m.running_mean is None for m in norms)  # statistics of the batch in evaluation too
        self.has_statistics = any(m.running_mean is not None for m in norms)  # running ones, which `moments` are like
        self._tried: dict[torch.Size, bool] = {}  # see `_given`
        self._chosen: dict[str, tuple[str, ...]] = {}
        self._training, self._evaluating = skeleton_of(module).train(), skeleton_of(module).eval()
        for part in whole_modules(self._training, stays):
            part.eval()
        for network in (self._training, self._evaluating):
            network.register_forward_hook(logits_alone)
        self._wrap()
        self.computed = computed_tensors(module)

    def _wrap(self) -> None:
        self._called_training, self._called_evaluating = Called(self._training), Called(self._evaluating)
        self._tapped_training, self._tapped_evaluating = Tapped(self._training), Tapped(self._evaluating)
        training = (self._training, self._called_training, self._tapped_training)
        evaluating = (self._evaluating, self._called_evaluating, self._tapped_evaluating)
        self._kept = {wrapped: state for state, networks in ((KeptState(training[0]), training),
                      (KeptState(evaluating[0]), evaluating)) for wrapped in networks}  # fmt: skip

    def __repr__(self) -> str:
        return f"Model({self.name}, {self.counted})"

    @property
    def counted(self) -> str:
        """The numbers of parameters in words: "44,426 parameters", "2,147 trained of 55,139 parameters"."""
        whole = f"{self.num_params + self.num_frozen:,} parameters"
        return f"{self.num_params:,} trained of {whole}" if self.num_frozen else whole

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Weights:
        """Return fresh weights; no global random state is moved."""
        all = self.whole(seed, dtype)
        return Weights(params={n: all[n] for n in self.params}, buffers={n: all[n] for n in self.buffers})

    def whole(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Return fresh values of all tensors, the frozen ones too."""
        module = seeded(self._build, seed)
        return Params({n: _cast(t, dtype) for n, t in tensors_of(module)})

    def bind(self, seed: int, dtype: torch.dtype = torch.float32, device: torch.device = _CPU) -> Self:
        """Return this network with its frozen tensors as they are in a run; itself where nothing is frozen.

        Those of a function's network are those of `init` with the same seed, a module's are its own. One copy exists of
        each, for all who bind with the same arguments.
        """
        if not self._stays or self.front is not None:
            return self
        key = (seed if self.seeded else None, dtype, device)
        bound = self._bound.get(key)
        if bound is None:
            bound = copy.copy(self)
            bound._frozen, bound._tried = self._frozen_at(seed, dtype, device), {}
            self._bound[key] = bound
        return bound

    def with_frozen(self, values: Params) -> Self:
        """Return this network with other values of its frozen tensors.

        Args:
            values: all of them, by name.
        """
        found = copy.copy(self)
        found._frozen = values
        return found

    def reading(self, inputs: object) -> Self:
        """Return this network as it is called with what examples hold, `Examples.normalise`; often itself.

        One copy exists of each, for all who ask with the same inputs.

        Raises:
            SettingError: examples have several inputs, and its forward takes fewer.
        """
        how = arguments_of(self._evaluating, inputs, self.name)
        if how is None or self.inputs == inputs:
            return self
        found = self._bound.get(inputs)
        if found is None:
            found = self._bound[inputs] = self._called_by(how)
            found.inputs = inputs
        return found

    def masked(self, form: MaskForm) -> Self:
        """Return this network, which is given a mask, as it is given that in another form."""
        assert self.arguments is not None
        return self._called_by(replace(self.arguments, mask=form))

    def _called_by(self, how: Arguments) -> Self:
        found = copy.copy(self)
        found.arguments, found._bound = how, weakref.WeakValueDictionary()
        found._training, found._evaluating = (copied(n, {}) for n in (self._training, self._evaluating))
        for network in (found._training, found._evaluating):
            set_arguments(network, how)
        found._wrap()
        return found

    def _frozen_at(self, seed: int, dtype: torch.dtype, device: torch.device) -> Params:
        if not self._stays:
            return Params()
        return Params({n: t.to(device) for n, t in self.whole(seed, dtype).items() if n in self._stays})

    @property
    def frozen(self) -> Params:
        """The frozen tensors, by name.

        Raises:
            SettingError: they depend on a seed, and the network is bound to none.
        """
        if self._frozen is None:
            raise SettingError(
                f"the frozen tensors of {self.name} were drawn by a run, and this network is of none: take "
                "history.module() of that run, or load_network('RUN/initial-0.safetensors', model) in the place of it"
            )
        return self._frozen

    def fits(self, weights: Weights) -> bool:
        """Return whether these are all tensors of this network but the frozen ones, by names and shapes."""
        given = {**weights.params, **weights.buffers}
        own = {n: t.shape for n, t in tensors_of(self._evaluating) if n not in self._stays}
        return own == {n: t.shape for n, t in given.items()}

    def arrange(self, weights: Weights) -> Weights:
        """Return the same tensors in the order in which the network has them."""
        return Weights(
            params={n: weights.params[n] for n in self.params},
            buffers={n: weights.buffers[n] for n in self.buffers},
        )

    def chosen(self, pattern: str) -> tuple[str, ...]:
        """Return the names of the trained parameters that a pattern chooses, in the network's order.

        Raises:
            SettingError: a word of the pattern (`core/patterns.py`) chooses none.
        """
        if pattern not in self._chosen:
            found = patterns.select(pattern, self.params, self.params, self._evaluating, self.name)
            self._chosen[pattern] = tuple(name for name in self.params if name in found)
        return self._chosen[pattern]

    def evaluation_batch(self, many: int) -> int:
        """Return the number of examples to evaluate at a time: `many`, or 50 for some networks.

        It is 50 (as in the FedNTD authors' code) where an answer depends on the rest of the batch.
        """
        return 50 if self.by_batch else many

    def skeleton(self) -> nn.Module:
        """Return a copy of the module in evaluation mode; its tensors have names and shapes but no storage."""
        return without_hooks(copy.deepcopy(self._evaluating))

    def filled(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """Return the network as a plain `nn.Module` in evaluation mode on the CPU, with a copy of these tensors.

        What is not trained has `requires_grad=False`.

        Args:
            tensors: all of them, the frozen ones too.
        """
        network, trained = self.skeleton(), set(self.params)
        places = dict(tensors_of(network))
        copies = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
        names = {id(tensor): name for name, tensor in places.items()}
        made = {
            n: nn.Parameter(t, requires_grad=n in trained and t.is_floating_point())
            if isinstance(places[n], nn.Parameter)
            else t
            for n, t in copies.items()
        }
        for listed in (network.named_parameters, network.named_buffers):
            for name, tensor in list(listed(remove_duplicate=False)):
                owner, _, leaf = name.rpartition(".")
                setattr(network.get_submodule(owner), leaf, made[names[id(tensor)]])
        return network


def _check_made(module: nn.Module, name: str) -> None:
    """Raise SettingError where a network that was made cannot be a function of its weights."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if wrapped := next((type(part).__name__ for part in module.modules() if isinstance(part, wrappers)), None):
        raise SettingError(
            f"a run places a network on its device itself, and {name} is wrapped for several, by {wrapped}: give what "
            "is in it, net.module"
        )
    if lazy := [n for n, t in tensors_of(module) if nn.parameter.is_lazy(t)]:
        raise SettingError(
            f"a network has its shapes when it is made, and {name} has lazy layers, which wait for an example "
            f"({some_of(lazy, 3)}): write their sizes, nn.Linear(784, 10), or pass one in the function that makes it, "
            "net(torch.zeros(1, ...)) before return net"
        )
    if unreal := [n for n, p in module.named_parameters() if p.requires_grad and p.is_complex()]:
        raise SettingError(
            f"parameters that are trained are real numbers, got complex ones, {some_of(unreal, 3)} of {name}: keep "
            "both parts as one real parameter [..., 2], and let forward take torch.view_as_complex of it"
        )


def _cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.detach().clone().to(dtype if t.is_floating_point() else t.dtype)
