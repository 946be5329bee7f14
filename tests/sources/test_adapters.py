"""Data sets of PyTorch and of Hugging Face, the latter without a network."""

from __future__ import annotations

import builtins
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedloom
from fedloom.data import Normalise, Tokens
from fedloom.sources import from_huggingface, from_torch, texts_of_huggingface
from fedloom.sources.adapters import HUGGINGFACE
from fedloom.sources.constants import NORMALISE

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]


# ---- PyTorch


def test_a_tensor_data_set() -> None:
    x, y = torch.rand(5, 3, 4, 4), torch.arange(5)
    examples = from_torch(TensorDataset(x, y))
    torch.testing.assert_close(examples.x, x)
    assert (examples.y.tolist(), examples.num_classes, examples.name) == ([0, 1, 2, 3, 4], 5, "TensorDataset")


class Flipped:
    """A random transform, as torchvision has it."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x = torch.arange(4.0)
        return (x.flip(0) if torch.rand(()) < 0.5 else x), i % 2


def test_random_transforms_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"items must be the same each time, got another item \d+ at .*augment=fedloom"
    ):
        from_torch(Flipped())


@pytest.mark.parametrize(
    ("items", "shape", "dtype"),
    [
        ([Image.fromarray(p) for p in PIXELS], (3, 4, 5), torch.uint8),
        ([Image.fromarray(p[:, :, 0]) for p in PIXELS], (1, 4, 5), torch.uint8),
        ([torch.from_numpy(p.transpose(2, 0, 1).copy()) for p in PIXELS], (3, 4, 5), torch.uint8),
        (list(PIXELS), (3, 4, 5), torch.uint8),
        (list(PIXELS[:, :, :, 0]), (1, 4, 5), torch.uint8),
        (list(PIXELS[:, 0, :, 0] / 255), (5,), torch.float64),
    ],
    ids=["rgb", "grey", "tensors", "arrays", "grey arrays", "features"],
)
def test_items_of_every_kind(items: list[Any], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    examples = from_torch(list(zip(items, LABELS, strict=True)), num_classes=4, name="mine")
    assert (examples.shape, examples.x.dtype, examples.num_classes, examples.name) == (shape, dtype, 4, "mine")
    if len(shape) == 3:
        np.testing.assert_array_equal(examples.x[4].numpy(), PIXELS[4].transpose(2, 0, 1)[: shape[0]])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "needs an item at least, got none"),
        (iter([(torch.ones(2), 0)]), "must be map-style, with __len__ and __getitem__, got list_iterator"),
        ([torch.ones(2)], "items must be pairs .x, label., got Tensor as item 0"),
        ([(torch.ones(2), 0, 1)], "items must be pairs"),
        ([(torch.ones(2), 0), (torch.ones(3), 0)], r"float32 of shape \(2,\), got float32 of shape \(3,\) as item 1"),
        ([(torch.ones(2), 0), (torch.ones(2).double(), 0)], "got float64"),
        ([(torch.ones(2), 0.5)], "labels must be integers, got 0.5 of item 0"),
        ([(torch.ones(2), "a")], "labels must be integers, got 'a' of item 0"),
        ([(torch.ones(2), 2**70)], "labels must be integers"),
        ([(torch.ones(2), torch.ones(2))], "labels must be integers"),
        ([(torch.ones(2), -1)], "num_classes must be at least 1, got 0"),
        ([(torch.ones(1, 2, 2, dtype=torch.int64), 0)], "x must be uint8 or floating point"),
        ([(Image.new("RGBA", (2, 2)), 0)], "got RGBA as item 0: convert them"),
    ],
)
def test_what_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(dataset)


# ---- Hugging Face


@pytest.fixture
def hf() -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


def images(hf: Any, **names: str) -> Any:
    """Six images with their labels and users, columns renamed as in `names`."""
    columns = {
        "image": [Image.fromarray(p) for p in PIXELS],
        "label": LABELS,
        "user": ["b", "b", "a", "a", "c", "b"],
    }
    features = {"image": hf.Image(), "label": hf.ClassLabel(names=list("pqrs")), "user": hf.Value("string")}
    return hf.Dataset.from_dict(
        {names.get(k, k): v for k, v in columns.items()},
        features=hf.Features({names.get(k, k): v for k, v in features.items()}),
    )


@pytest.mark.slow
def test_a_data_set_with_splits_and_clients(hf: Any) -> None:
    dataset = hf.DatasetDict(train=images(hf), test=images(hf).select([1, 2]))
    train, test, owners, held_out = from_huggingface(dataset, client="user")
    assert test is not None
    assert owners is not None
    np.testing.assert_array_equal(train.x.numpy(), PIXELS.transpose(0, 3, 1, 2))
    assert (train.y.tolist(), test.y.tolist(), train.num_classes, test.num_classes) == (LABELS, [1, 2], 4, 4)
    assert (owners.tolist(), held_out) == ([0, 0, 1, 1, 2, 0], None)


@pytest.mark.slow
def test_a_table_of_features(hf: Any) -> None:
    rows = hf.Dataset.from_dict({"values": [[1, 2], [3, 4.5]], "class": [0, 1]})
    train, test, owners, _ = from_huggingface(rows, x="values", label="class")
    assert (train.x.tolist(), train.x.dtype) == ([[1, 2], [3, 4.5]], torch.float32)
    assert (train.y.tolist(), train.num_classes, test, owners) == ([0, 1], 2, None, None)


def test_lists_of_integers_are_token_ids(hf: Any) -> None:
    """Ids that are made floating point are refused by an embedding later."""
    column = {"ids": [[5, 2, 0], [7, 5, 2]], "label": [0, 1]}
    rows = hf.Dataset.from_dict(column)
    train = from_huggingface(rows, x="ids").train
    assert (train.x.tolist(), train.x.dtype, train.normalise) == (column["ids"], torch.int64, Tokens())
    assert torch.equal(train.x, from_huggingface(rows.with_format("torch"), x="ids").train.x)
    kinds = hf.Features(ids=hf.List(hf.Value("uint8")), label=hf.Value("int64"))
    values = from_huggingface(rows.cast(kinds), x="ids").train
    assert (values.x.dtype, values.normalise) == (torch.uint8, Normalise(scale=1 / 255))


def test_a_column_of_texts_is_refused_with_what_reads_it(hf: Any) -> None:
    """The advice, followed as it is printed, reads the texts."""
    rows = hf.Dataset.from_dict({"review": ["good", "a bad film"], "kind": [0, 1]})
    with pytest.raises(ValueError, match="got texts in 'review' of huggingface: make token ids of them") as refused:
        from_huggingface(rows, x="review", label="kind")
    call = str(refused.value).rpartition("them, ")[2].replace("...", "rows")
    assert eval(call, {"fedloom": fedloom, "rows": rows}).train.x.shape == (2, 128)


@pytest.mark.slow
def test_a_folder_of_parquet_files(hf: Any, tmp_path: Path) -> None:
    for part in ("train", "test"):
        images(hf, image="img").to_parquet(tmp_path / "data" / f"{part}-0.parquet")
    train, test, _, _ = from_huggingface(str(tmp_path / "data"), cache=str(tmp_path / "cache"))
    assert test is not None
    np.testing.assert_array_equal(train.x.numpy(), PIXELS.transpose(0, 3, 1, 2))
    assert train.normalise.mean == (0.0,)


@pytest.mark.slow
def test_columns_of_known_names(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for name, known in HUGGINGFACE.items():
        names = {"image": known.x, "label": known.label, "user": known.client or "user"}

        def fetch(*args: Any, names: dict[str, str] = names, **options: Any) -> Any:
            asked.append(args)
            return hf.DatasetDict(train=images(hf, **names))

        monkeypatch.setattr(hf, "load_dataset", fetch)
        train, _, owners, _ = from_huggingface(name)
        assert (train.y.tolist(), train.name, train.num_classes) == (LABELS, name, 4)
        assert train.normalise == (Normalise(scale=1 / 255) if known.normalise is None else NORMALISE[known.normalise])
        assert (owners is not None) == (name == "flwrlabs/femnist")
    assert asked == [(name, known.config) for name, known in HUGGINGFACE.items()]
    assert asked[-1] == ("ufldl-stanford/svhn", "cropped_digits")


@pytest.mark.slow
def test_what_hugging_face_cannot_give(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must have a split 'train', got validation"):
        from_huggingface(hf.DatasetDict(validation=images(hf)))
    with pytest.raises(ValueError, match="must have the columns image, owner, got picture, label, user: name others"):
        from_huggingface(images(hf, image="picture"), client="owner")
    with pytest.raises(ValueError, match="labels must be integers, got 'b' of item 0"):
        from_huggingface(images(hf), label="user")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 15)
    with pytest.raises(ValueError, match=r"small enough for Pillow, .* decompression bomb"):
        from_huggingface(images(hf))


def test_a_third_split_is_not_read_in_silence(hf: Any) -> None:
    rows = hf.Dataset.from_dict({"x": [[1.0], [2.0]], "text": ["a", "b"], "label": [0, 1]})
    for more, told in (
        ({"validation": rows}, r"train and test are read, and validation \(2 rows\) not; without test there is no"),
        ({"test": rows, "unsupervised": rows, "valid": rows}, r"unsupervised \(2 rows\), valid \(2 rows\) not: name"),
    ):
        source = hf.DatasetDict(train=rows, **more)
        with pytest.warns(UserWarning, match=told):
            found = from_huggingface(source, x="x")
        assert (found.test is None) == ("test" not in more)
        with pytest.warns(UserWarning, match=told):
            texts_of_huggingface(source, text="text")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_huggingface(hf.DatasetDict(train=rows, test=rows), x="x").test is not None


@pytest.mark.parametrize("read", [from_huggingface, lambda source: texts_of_huggingface(source, text="text")])
def test_streams_and_other_things_are_told_as_what_they_are(hf: Any, read: Any) -> None:
    stream = hf.Dataset.from_dict({"image": [[1.0]], "text": ["a"], "label": [0]}).to_iterable_dataset()
    with pytest.raises(ValueError, match="got a stream, IterableDataset: load it without streaming=True, or collect"):
        read(stream)
    with pytest.raises(ValueError, match="got a stream, IterableDatasetDict: load"):
        read(hf.IterableDatasetDict(train=stream, test=stream))
    with pytest.raises(ValueError, match=r"source must be a name, .* got list: use fedloom.from_torch"):
        read([([1.0], 0)])
    with pytest.raises(ValueError, match="got dict with list as 'train': use"):
        read({"train": [1]})
    with pytest.raises(ValueError, match=r"must have a split 'train', got Train, test \(did you mean 'Train'\?\): ren"):
        read(hf.DatasetDict(Train=hf.Dataset.from_dict({"label": [0]}), test=hf.Dataset.from_dict({"label": [0]})))
    with pytest.raises(ValueError, match="must have a split 'train', got none: rename"):
        read(hf.DatasetDict())


def test_datasets_is_named_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ValueError, match=r"need datasets: pip install '<PATH>\[huggingface\]', where <PATH> is fedloom's"
    ):
        from_huggingface("ylecun/mnist")
