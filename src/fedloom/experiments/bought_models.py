"""Models that were trained elsewhere, as the clients of a run that have nothing but these: files of weights.

The data of such a run are `trained-elsewhere:{...}`, JSON that says which files there are, of which networks and with
which digests, and what an example is like. Nobody's examples are there. Each client has one blank example of each
class, because nobody knows how many a model was trained on, so that all models count equally.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le, Len
from torch import Tensor

from fedloom.algorithms import FedDF
from fedloom.algorithms.shared.one_shot import OneShot
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import CodecError, SettingError
from fedloom.core.json_types import TEXT, JsonType, listed, matching, whole
from fedloom.core.model import Model
from fedloom.core.types import Weights
from fedloom.data import Dataset, Examples, Federation, Partition
from fedloom.data.examples import MAX_CLASSES
from fedloom.engines.links import Ask, Asked, Link, Question
from fedloom.engines.message import Request
from fedloom.engines.runtime import Runtime
from fedloom.experiments import catalogue
from fedloom.experiments.weights_file import load_weights
from fedloom.storage.files import path_of
from fedloom.storage.strict_json import SETTINGS, parse

WORD = "trained-elsewhere"  # before the JSON; no module is called so
PARTITION = "models trained elsewhere, a blank example of each class"
_PER_TENSOR, _BESIDE = 4 << 10, 4 << 20  # bytes of a file beside values: of each tensor, in all
_NOISE = 16  # inputs on which a model is tried
_WRITTEN = re.compile(r"(.+?\.(?:pt|pth|safetensors)):(.+)")


@dataclass(frozen=True)
class BoughtModel:
    """A model that was trained elsewhere.

    Attributes:
        file: where it is.
        network: the name of its architecture among those of the run.
        sha256: of the file, as `sha256sum` says it; "" before it was read.
    """

    file: str
    network: str
    sha256: str = ""

    @classmethod
    def written(cls, text: str) -> BoughtModel:
        """Return the model that a person names, FILE:NETWORK.

        Raises:
            SettingError: it is not written so.
        """
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise SettingError(
                f"a model is written FILE:NETWORK, where FILE ends in .pt, .pth or .safetensors, got {text!r}: write "
                "as in shop.pt:lenet, or shop.pt:module:name of a network of your own"
            )
        return cls(str(path_of(found[1]).absolute()), found[2])

    def read(self, model: Model) -> Weights:
        """Return the weights in the file, which must be the bytes of `sha256` if it has one; nothing is executed.

        Args:
            model: its network.

        Raises:
            SettingError: it is no regular file, too large for the network, or another file than before.
            CodecError: it is damaged, holds something else than the tensors of the network, or some are not finite.
        """
        path = Path(self.file)
        _check_place(path, model)
        if self.sha256 and (now := digest_of(path)) != self.sha256:
            raise SettingError(
                f"{path} is the file with which the run began, of SHA-256 {self.sha256:.12}..., got {now:.12}...: "
                "bring that back, or begin another run"
            )
        try:
            return load_weights(path, model)
        except CodecError as error:
            said = str(error).partition(": take the other tensors")[0]  # which is a remedy of a start alone
            raise CodecError(
                f"{said}; a file has the tensors of the network behind it, here {self.network}: name another of both"
            ) from error

    def tried(self, model: Model, shape: Sequence[int], num_classes: int) -> BoughtModel:
        """Return the model with its digest, once it was read and has answered to noise.

        Args:
            model: its network.
            shape: of an example.
            num_classes: how many numbers it must answer.

        Raises:
            SettingError: as of `read`, or it answers with other numbers.
            CodecError: as of `read`.
        """
        weights = self.read(model)
        noise = torch.randn((_NOISE, *shape), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            answers = model(weights, noise)
        if answers.shape != (_NOISE, num_classes):
            raise SettingError(
                f"a model answers with a number for each of {num_classes} classes, got {[*answers.shape[1:]]} from "
                f"{self.network} with the weights of {self.file}: name another network, or other --classes"
            )
        if not bool(answers.isfinite().all()):
            raise SettingError(
                f"a model answers with finite numbers, got NaN or infinity on noise from {self.network} with the "
                f"weights of {self.file}: leave it out (a variance below 0 in a BatchNorm layer does this)"
            )
        return BoughtModel(self.file, self.network, digest_of(Path(self.file)))


def _check_place(path: Path, model: Model) -> None:
    """Refuse what is no regular file, or larger than one that has the tensors of a network alone."""
    try:
        found = path.lstat()
    except OSError as error:
        raise SettingError(f"a model is a file that can be read, got {path} ({error.strerror}): name another") from None
    if stat.S_ISLNK(found.st_mode):
        raise SettingError(
            f"a model is a file itself, because a symbolic link may point elsewhere tomorrow, got the link {path}: "
            "name the file to which it points"
        )
    if not stat.S_ISREG(found.st_mode):
        kind = "directory" if stat.S_ISDIR(found.st_mode) else "device or pipe"
        raise SettingError(f"a model is a regular file, got the {kind} {path}: name a .pt, .pth or .safetensors file")
    tensors = model.skeleton().state_dict().values()
    most = sum(8 * tensor.numel() + _PER_TENSOR for tensor in tensors) + _BESIDE
    if found.st_size > most:
        raise SettingError(
            f"a file with the tensors of {model.name} has at most {most:,} bytes, got {found.st_size:,} in {path}: "
            "save these alone, torch.save(module.state_dict(), ...), or name its network"
        )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Raises:
        SettingError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SettingError(f"a model is a file that can be read, got {path} ({error.strerror}): name another") from None


# ---- the data of such a run


_TYPES = {
    "shape": JsonType(Annotated[listed(Annotated[int, Ge(1), Le(1 << 20)]), Len(1, 3)], "1 to 3 whole numbers"),
    "classes": whole(2, MAX_CLASSES, f"a whole number from 2 to {MAX_CLASSES:,}"),
    "normalise": TEXT,
    "test": TEXT,
    "models": JsonType(Annotated[list[dict[str, str]], Len(1, 10_000)], "a list of 1 to 10,000 models"),
}
_SHA256 = JsonType(matching("[0-9a-f]{64}"), "64 hexadecimal digits")


@dataclass(frozen=True)
class BoughtModels:
    """The models of a run, and what an example is like; a source of data whose examples are nowhere.

    Attributes:
        models: the i-th is client i.
        shape: of an example.
        num_classes: of all models.
        normalise: what they were trained on, means and deviations as of `data.normalise`.
        test: source of test examples, by which models are compared; "" for none.
    """

    models: tuple[BoughtModel, ...]
    shape: tuple[int, ...]
    num_classes: int
    normalise: str
    test: str = ""

    class_names = ()  # those of the test examples

    @classmethod
    def of(cls, text: str) -> BoughtModels:
        """Return what the JSON behind the word says.

        Raises:
            SettingError: it is not what `source` writes.
        """
        try:
            said = parse(text.encode(), SETTINGS)
            for name, kind in _TYPES.items():
                if not kind.fits(value := said.get(name)):
                    raise ValueError(f"{name} is {kind.words}, got {value!r:.80}")
            models = tuple(BoughtModel(**each) for each in said["models"])
            if wrong := [model for model in models if not _SHA256.fits(model.sha256)]:
                raise ValueError(f"sha256 is {_SHA256.words}, got {wrong[0].sha256!r:.80}")
        except (ValueError, TypeError) as error:
            raise SettingError(
                f"models that were trained elsewhere are named by fedloom distil, got {text[:80]!r} behind {WORD}: "
                f"{error}"
            ) from None
        return cls(models, tuple(said["shape"]), said["classes"], said["normalise"], said["test"])

    @property
    def source(self) -> str:
        """Text by which `data.source` names them."""
        said = {"shape": self.shape, "classes": self.num_classes, "normalise": self.normalise, "test": self.test}
        text = json.dumps({**said, "models": [asdict(model) for model in self.models]})
        return f"{WORD}:{text}".replace("?", "\\u003f")  # behind which other sources have arguments

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients: the file's name, where several have it the whole place."""
        stems = [Path(model.file).stem for model in self.models]
        shared = Counter(stems)
        return tuple(stem if shared[stem] == 1 else model.file for stem, model in zip(stems, self.models, strict=True))

    @property
    def assignment(self) -> tuple[str, ...]:
        """The architecture of each client."""
        return tuple(model.network for model in self.models)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The part that uploads the files."""
        return (FilesUploaded(self.models),)

    def blank(self, like: torch.dtype = torch.uint8) -> Examples:
        """Return one blank example of each class for each client, as the models take examples.

        Args:
            like: type of stored values, uint8 of images.

        Raises:
            SettingError: `normalise` does not fit the shape.
        """
        count, classes = len(self.models), self.num_classes
        x = torch.zeros((), dtype=like).expand(count * classes, *self.shape)
        found = Examples(x, torch.arange(classes).repeat(count), classes, name="no examples")
        return catalogue.normalise(self.normalise, Dataset(found, None)).train

    def federation(self, test: Examples | None = None) -> Federation:
        """Return the federation of the models, a client each.

        Args:
            test: examples by which models are compared.

        Raises:
            SettingError: the test examples are of another shape, or of other classes.
        """
        if test is not None and (test.shape, test.num_classes) != (self.shape, self.num_classes):
            raise SettingError(
                f"test examples are those of the models, {_by(self.shape)} of {self.num_classes} classes, got "
                f"{_by(test.shape)} of {test.num_classes} from {self.test}: name another source, --shape or --classes"
            )
        train = self.blank() if test is None else self.blank(test.x.dtype)
        rows = torch.arange(len(train)).numpy()
        starts = rows[:: self.num_classes].tolist()
        part = Partition(torch.tensor([*starts, len(rows)]).numpy(), rows, PARTITION, clients=self.names)
        return Federation(train, part, test)

    def prepared(self, test: Examples) -> Examples:
        """Return test examples as they are."""
        return test


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


# ---- the part of such a run


@dataclass
class FilesUploaded(Part):
    """Each client uploads the weights in a file and trains nothing.

    Attributes:
        models: the i-th is that of client i.
    """

    models: tuple[BoughtModel, ...]

    def __post_init__(self) -> None:
        self.links = (_InsteadOfTraining(self.models),)

    def check(self, job: Brief) -> None:
        check_method(type(job.algorithm))

    def begin(self, run: Running) -> None:
        gone = [] if run.done else files_gone(self.models)  # what was uploaded stands in the checkpoint
        for found in (*gone, *files_changed(self.models)):
            raise SettingError(f"{found}: bring back the file, or begin another run")


def check_method(kind: type[Algorithm[Any, Any]]) -> None:
    """Raise SettingError for an algorithm whose clients do not just train a whole model and upload it.

    Args:
        kind: class of the algorithm.
    """
    if not issubclass(kind, OneShot | FedDF):
        raise SettingError(
            "models that were trained elsewhere are distilled by dense, fed_dafl, fed_adi or feddf, got "
            f"{kind.__name__}: name one of these, or train"
        )


def files_changed(models: Sequence[BoughtModel]) -> list[str]:
    """Return which files are others than those with which a run began, in words.

    Args:
        models: as they were.
    """
    there = [model for model in models if Path(model.file).is_file()]
    found = [(model, digest_of(Path(model.file))) for model in there]
    return [
        f"{model.file} is no longer the file that the run uploads, of SHA-256 {model.sha256}, but {now}"
        for model, now in found
        if now != model.sha256
    ]


def files_gone(models: Sequence[BoughtModel]) -> list[str]:
    """Return which files are no longer there, in words.

    Args:
        models: as they were.
    """
    return [f"{m.file}, a model that it uploads, is not here" for m in models if not Path(m.file).is_file()]


def models_of(manifest: Mapping[str, Any]) -> tuple[BoughtModel, ...]:
    """Return the models that the manifest of a run names; none of any other run."""
    parts = [part for part in manifest.get("parts", []) if isinstance(part, Mapping)]  # others stand there as text
    found = [model for part in parts if part.get("kind") == FilesUploaded.__name__ for model in part["models"]]
    return tuple(BoughtModel(model["file"], model["network"], model["sha256"]) for model in found)


class _InsteadOfTraining(Link):
    """Answer for clients with what is in their files: their method runs, and its training returns these weights."""

    def __init__(self, models: Sequence[BoughtModel]) -> None:
        self.models = models

    def ask(self, question: Question, ask: Ask, clients: Sequence[int]) -> Iterator[Asked]:
        engine = question.engine
        people = engine.population
        for k in clients:
            model = people.models[people.assignment[k]]
            weights = tree.cast(self.models[k].read(model), device=people.device, dtype=people.dtype)
            runtime = Runtime(people, uploading(engine.algorithm, weights), encoders=engine.options.encoders)
            request = Request.to(question.call, [k], people.seed, engine.states.accepted)
            states, answer = runtime.answer(request, engine.stack([k]))
            yield request, states, replace(answer, down=[Counter()])  # nothing was sent to anybody
            if question.call.round == 0:  # FedDF has no round of uploads alone, in which it would ask for this
                alone = engine.to_judge.setdefault("upload", {})
                alone[k] = partial(model, weights)
                engine.to_judge["ensemble"] = partial(_mean_answer, alone)


def _mean_answer(each: Mapping[int, Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """Return the mean of the answers of several models to inputs x, [B, C]."""
    return torch.stack([predict(x) for predict in each.values()]).mean(0)


def uploading(algorithm: Algorithm[Any, Any], weights: Weights) -> Algorithm[Any, Any]:
    """Return an algorithm whose clients train nothing: what they would have trained is these weights.

    Args:
        algorithm: one that `check_method` lets pass.
        weights: of a client's network.
    """
    return algorithm.with_context(train=lambda client, start, *context, **how: weights)
