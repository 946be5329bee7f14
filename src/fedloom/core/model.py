"""A neural network seen as a pure function of its weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from fedloom.core.batches import Batch, padded_batch
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.naming import by_python_name
from fedloom.core.random import uniform
from fedloom.core.types import Params, Weights
from fedloom.models import build


@contextlib.contextmanager
def own_defaults() -> Iterator[None]:
    """In here a tensor whose dtype nobody names is float32, whatever the program's default: results must not differ."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Model:
    """An `nn.Module` as a pure function of `Weights`. Static and hashable; carries no trained tensors.

    `build`: a function that makes the module (its weights then depend on the seed given to `init`), or a module
    (whose weights are the initial ones, whatever the seed). `name`: the architecture's name in messages and results.

    >>> model = Model(lambda: nn.Linear(3, 2), name="linear")
    >>> model(model.init(0), torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(self, build: nn.Module | Callable[[], nn.Module], name: str | None = None) -> None:
        self.seeded = not isinstance(build, nn.Module)  # whether the initial weights depend on the seed
        if isinstance(build, nn.Module):
            module = copy.deepcopy(build)
            self._build: Callable[[], nn.Module] = lambda: module
        else:
            self._build, module = build, _seeded(build, 0)
            if away := next((str(p.device) for p in module.parameters() if p.device.type != "cpu"), None):
                raise SettingError(
                    f"a function that makes a network makes it on the CPU, where the run's seed governs its weights, "
                    f"got {away}: leave the device to RunSettings(device=...)"
                )
        if not any(p.requires_grad for p in module.parameters()):
            raise ValueError(f"a model needs parameters to train, {type(module).__name__} has none")
        self.name = name or type(module).__name__
        self.num_params = sum(p.numel() for p in module.parameters())
        self.has_convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
        self._drawing = next((type(m).__name__ for m in module.modules() if _draws(m)), None)
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.by_batch = any(m.running_mean is None for m in norms)  # statistics of the batch in evaluation too
        self._training, self._frozen = _skeleton(module).train(), _skeleton(module).eval()
        self._called_training = _Called(self._training)
        self._tapped_training, self._tapped_frozen = _Tapped(self._training), _Tapped(self._frozen)

    @staticmethod
    @functools.cache
    def by_name(text: str, **settings: Any) -> Model:
        """A network that is named among settings, such as a generator: `module:name`, or a name of `fedloom.models`.

        `settings` go to what is named, a class or a function that returns a module; they must be hashable. The same
        name with the same settings is the same model.

        >>> Model.by_name("torch.nn:Linear", in_features=3, out_features=2).num_params
        8

        Raises:
            SettingError: there is no such network, or it does not take these settings.
        """
        make = by_python_name(text, "network") if ":" in text else functools.partial(build, text)
        try:
            module = make(**settings)
        except (TypeError, ValueError) as error:
            raise SettingError(f"network {text!r} does not take the settings {settings}: {error}") from error
        if not isinstance(module, nn.Module):
            raise SettingError(f"network {text!r} must name what makes a torch.nn.Module, got {type(module).__name__}")
        return Model(lambda: make(**settings), name=text)

    def __repr__(self) -> str:
        return f"Model({self.name}, {self.num_params:,} parameters)"

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Weights:
        """Fresh weights; no global random state is moved."""
        module = _seeded(self._build, seed)
        cast: Callable[[Tensor], Tensor] = lambda t: t.detach().clone().to(dtype if t.is_floating_point() else t.dtype)  # noqa: E731
        return Weights(
            params={n: cast(p) for n, p in module.named_parameters()},
            buffers={n: cast(b) for n, b in module.named_buffers()},
        )

    def fits(self, weights: Weights) -> bool:
        """Whether these are all tensors of this network, by names and shapes."""
        mine = {n: t.shape for n, t in (*self._frozen.named_parameters(), *self._frozen.named_buffers())}
        return mine == {n: t.shape for n, t in _tensors(weights).items()}

    def arrange(self, weights: Weights) -> Weights:
        """The same tensors in the order in which the network has them."""
        return Weights(
            params={n: weights.params[n] for n, _ in self._frozen.named_parameters()},
            buffers={n: weights.buffers[n] for n, _ in self._frozen.named_buffers()},
        )

    def evaluation_batch(self, many: int) -> int:
        """How many examples to evaluate at a time: `many`, but 50 (as in the FedNTD authors' code) where an answer
        depends on the rest of the batch.
        """
        return 50 if self.by_batch else many

    def skeleton(self) -> nn.Module:
        """A copy of the module in evaluation mode; its tensors have names and shapes but no storage."""
        return copy.deepcopy(self._frozen)

    def __call__(self, weights: Weights, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [B, C] in evaluation mode (running statistics, no dropout).

        BatchNorm that keeps no running statistics uses those of the rows of x that `mask` [B] calls real. None: all of
        them; inside a fold, `batch.x` has the mask of its batch, and any other input beside padding needs one.
        """
        with self.evaluation(self._real_rows(x, mask)):
            return functional_call(self._frozen, _tensors(weights), (x,))  # type: ignore[no-any-return]

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the network's layers, those within layers included: `body.0`."""
        return tuple(name for name in self._tapped_frozen.layers if name)

    def offers(self, name: str) -> bool:
        """Whether the network has a layer or a method of this name, so that `features` can give what it returns."""
        return name in self.layers or callable(getattr(self._frozen, name, None))

    def features(self, weights: Weights, x: Tensor, name: str = "features", mask: Tensor | None = None) -> Tensor:
        """What the network's method or layer `name` returns in a pass in evaluation mode, flattened to [B, D].

        `mask`: as in a call.
        """
        tensors = {f"module.{n}": t for n, t in _tensors(weights).items()}
        with self.evaluation(self._real_rows(x, mask)):
            return functional_call(self._tapped_frozen, tensors, (x, name))[1]  # type: ignore[no-any-return]

    def evaluation(self, mask: Tensor | None = None) -> contextlib.AbstractContextManager[Any]:
        """While this is open, the network itself (`skeleton`) computes as the model does in evaluation mode."""
        return _BatchStatistics(mask) if self.by_batch else contextlib.nullcontext()

    def _real_rows(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask of x: the one given, or that of the batch at hand if x are its inputs; None where all rows count."""
        at_hand = padded_batch.get() if self.by_batch else None
        if mask is not None or at_hand is None:
            return mask
        if x is not at_hand[0]:
            raise StackingError(
                f"{self.name} normalises by the batch, and this input is not batch.x, whose padding is known: say "
                "which rows are real, model(weights, x, mask=batch.mask) or mask=torch.ones(len(x), dtype=torch.bool)"
            )
        return at_hand[1]

    def check_randomness(self, weights: Weights, x: Tensor) -> None:
        """Raise SettingError if a pass over x draws random numbers that no seed of a client governs, however deep."""
        key, real = torch.zeros((), dtype=torch.int64), torch.ones(len(x), dtype=torch.bool)
        with torch.random.fork_rng(devices=[]):
            before = _generators()
            self.train(weights, Batch(x=x, y=real.long(), mask=real, key=key, full=True))
            self(weights, x)
            if _generators() != before:
                raise SettingError(_UNGOVERNED.format(f"The forward of {self.name}"))

    def train(self, weights: Weights, batch: Batch) -> tuple[Tensor, Params]:
        """Logits [B, C] in training mode, and the buffers after this batch.

        Batch normalisation uses the real rows only, dropout bits come from `batch.key`: so neither padding a batch
        nor stacking clients changes any real row. Rows of padding have arbitrary finite logits.
        """
        return self._train(self._training, "", weights, batch)

    def train_features(
        self, weights: Weights, batch: Batch, name: str = "features"
    ) -> tuple[tuple[Tensor, Tensor], Params]:
        """As `train`, but for (logits, features): what the method or layer `name` returned in the same pass, [B, D]."""
        return self._train(self._tapped_training, "module.", weights, batch, name)

    def train_calling(
        self, weights: Weights, batch: Batch, call: Callable[[nn.Module, Tensor], Any]
    ) -> tuple[Any, Params]:
        """As `train`, but for what `call(network, batch.x)` returns, which may use any of the network's methods."""
        return self._train(self._called_training, "module.", weights, batch, call)

    def _train(self, module: nn.Module, prefix: str, weights: Weights, batch: Batch, *args: Any) -> tuple[Any, Params]:
        if self._drawing is not None:
            raise SettingError(_UNGOVERNED.format(self._drawing))
        buffers = {n: b.clone() for n, b in weights.buffers.items()}
        tensors = {f"{prefix}{n}": t for n, t in {**weights.params, **buffers}.items()}
        with _TrainingCall(batch) as call:
            out = functional_call(module, tensors, (batch.x, *args))
        return out, Params({n: call.moved.get(id(b), b) for n, b in buffers.items()})

    def moments(self, weights: Weights, x: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Logits in evaluation mode, and for each BatchNorm layer the mean and biased variance of its input, [C] each.

        What DENSE's L_BN (eq. 3) and DeepInversion compare with the layer's running statistics. Differentiable in x.
        """
        tensors = _tensors(weights)
        names = {id(t): n.removesuffix("running_mean").rstrip(".") for n, t in tensors.items()}
        with _RecordMoments(names) as call:
            logits = functional_call(self._frozen, tensors, (x,))
        return logits, call.moments


@own_defaults()
def _seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What `build` makes with the CPU's generator at a seed; the generator is then where it was, others never moved."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would move those of every GPU
        return build()


def _generators() -> tuple[Any, ...]:
    """Where the global generators stand that a network may draw from."""
    legacy: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist(), legacy[2:]


def _tensors(weights: Weights) -> dict[str, Tensor]:
    return {**weights.params, **weights.buffers}


@dataclass(frozen=True)
class Features:
    """A model's features as a function (weights, x) -> [B, D], as `Batches.annotate` wants it: equal ones are equal."""

    model: Model
    name: str = "features"

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        return self.model.features(weights, x, self.name)

    @property
    def by_batch(self) -> bool:
        return self.model.by_batch


class _Called(nn.Module):
    """Reaches a module's other methods through `functional_call`, which calls `forward` alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, call: Callable[[nn.Module, Tensor], Any]) -> Any:
        return call(self.module, x)


class _Tapped(nn.Module):
    """A module whose `forward` also returns what its method or layer `name` has returned on the way."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.layers = dict(module.named_modules())

    def forward(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        with contextlib.ExitStack() as stack:
            if name in self.layers:
                hook = self.layers[name].register_forward_hook(lambda layer, args, out: seen.append(out))
                stack.callback(hook.remove)
            else:
                self._tap_method(name, seen)
                stack.callback(delattr, self.module, name)
            logits = self.module(x)
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or seen[0].ndim < 2:
            raise TypeError(
                f"features come from one call of {name!r} in a pass, which returns a tensor [B, ...]; "
                f"{type(self.module).__name__} calls it {len(seen)} times: name another layer or method"
            )
        return logits, seen[0].flatten(1)

    def _tap_method(self, name: str, seen: list[Tensor]) -> None:
        method = getattr(self.module, name, None)
        if not callable(method):
            raise TypeError(
                f"{type(self.module).__name__} has no method {name}(x) and no layer {name!r}: "
                "define it to return the input of the last layer"
            )

        def tapped(*args: Tensor) -> Tensor:
            seen.append(method(*args))
            return seen[-1]

        setattr(self.module, name, tapped)


def _skeleton(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have shapes but no storage."""
    memo: dict[int, Any] = {}
    for p in module.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
    for b in module.buffers():
        memo[id(b)] = torch.empty_like(b, device="meta")
    return copy.deepcopy(module, memo)


class _TrainingCall(TorchFunctionMode):
    """Makes a module's training pass a pure function of (weights, batch): see `Model.train`."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self.sites = 0  # dropout calls so far; the same sequence on every engine
        self.moved: dict[int, Tensor] = {}  # id of a running statistic -> its value after this batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func is F.dropout:
            return self._dropout(False, *args, **kwargs)
        if func in _CHANNEL_DROPOUTS:
            return self._dropout(True, *args, **kwargs)
        if func in _DRAWS or (func is F.scaled_dot_product_attention and _dropout_of(args, kwargs) > 0):
            raise SettingError(_UNGOVERNED.format(getattr(func, "__name__", func)))
        return func(*args, **kwargs)

    def _dropout(
        self, channels: bool, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return x
        shape = torch.Size((*x.shape[:2], *[1] * (x.ndim - 2))) if channels else x.shape
        keep = uniform(self.batch.key, self.sites, shape) >= p
        self.sites += 1
        return torch.where(keep, x / (1.0 - p), 0.0) if p < 1.0 else torch.zeros_like(x)

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        whole = self.batch.full and x.numel() > x.shape[1]
        y, mean, var, count = _normalised(x, None if whole else self.batch.mask, weight, bias, eps)
        if running_mean is not None and running_var is not None:
            unbiased = var.detach() * (count / (count - 1).clamp(min=1))
            for old, new in ((running_mean, mean.detach()), (running_var, unbiased)):
                self.moved[id(old)] = torch.lerp(self.moved.get(id(old), old), new, momentum)
        return y


class _BatchStatistics(TorchFunctionMode):
    """Evaluation of BatchNorm without running statistics: those of the real rows, also of a single value."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.mask = mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and args[1] is None:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self, x: Tensor, _mean: None, _var: None, weight: Tensor | None = None, bias: Tensor | None = None,
        training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        return _normalised(x, self.mask, weight, bias, eps)[0]


class _RecordMoments(TorchFunctionMode):
    """Notes the batch moments of the input of every BatchNorm layer."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and args[1] is not None:
            self.moments[self.names[id(args[1])]] = _moments(args[0])
        return func(*args, **(kwargs or {}))


def _normalised(
    x: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x normalised by its real rows (`mask` None: all), and their mean, biased variance and number of values."""
    given, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))  # statistics of bf16 inputs in float32
    per_channel = [1, -1] + [1] * (x.ndim - 2)
    spatial = x[0, 0].numel()
    if mask is None:
        mean, var = _moments(x)
        count: Tensor = torch.full((), float(x.shape[0] * spatial), dtype=x.dtype, device=x.device)
    else:
        if len(mask) != len(x):
            raise StackingError(
                f"BatchNorm in a batch with padding needs one row for each of its {len(mask)} examples, got {len(x)}: "
                "keep an example's parts in a dimension of their own"
            )
        dims = [0, *range(2, x.ndim)]
        real = mask.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
        count = real.sum() * spatial
        mean = (x * real).sum(dims) / count
        var = ((x - mean.view(per_channel)).square() * real).sum(dims) / count
    y = (x - mean.view(per_channel)) * torch.rsqrt(var + eps).view(per_channel)
    if weight is not None:
        y = y * weight.view(per_channel)
    return (y if bias is None else y + bias.view(per_channel)).to(given), mean, var, count


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, dim=[0, *range(2, x.ndim)], correction=0)
    return mean, var


def _dropout_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))


def _draws(module: nn.Module) -> bool:
    """Whether a module draws where a `TorchFunctionMode` cannot see it: inside one call."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


_UNGOVERNED = (
    "{} draws random numbers inside the model, which no seed of a client governs. "
    "Use nn.Dropout, nn.Dropout1d/2d/3d, or set that layer's dropout to 0"
)
_CHANNEL_DROPOUTS = {F.dropout1d, F.dropout2d, F.dropout3d}
_DRAWS = {
    F.alpha_dropout,
    F.feature_alpha_dropout,
    F.gumbel_softmax,
    torch.bernoulli,
    torch.rand,
    torch.rand_like,
    torch.randn,
    torch.randn_like,
    torch.randint,
    torch.randperm,
    Tensor.bernoulli_,
    Tensor.normal_,
    Tensor.uniform_,
}
