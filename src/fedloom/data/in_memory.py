"""Examples of arrays and tensors in memory: their types, axes and labels, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.examples import INTEGERS, Examples
from fedloom.data.inputs import IGNORED, Inputs, Tokens, pack
from fedloom.data.normalise import Normalise

_FEW = 0.05  # share of labels beyond a gap, up to which they may be damaged ones


def from_arrays(
    x: npt.NDArray[np.generic] | Tensor | Mapping[str, npt.NDArray[np.generic] | Tensor],
    y: npt.NDArray[np.generic] | Tensor,
    *,
    num_classes: int | None = None,
    normalise: Normalise | Tokens | Inputs | None = None,
    name: str = "arrays",
    classes: Sequence[str] = (),
    ignored: int | None = 255,
) -> Examples:
    """Make `Examples` of NumPy arrays or tensors, sharing their memory where no conversion is needed.

    Any array of three axes is taken for grey images (N, H, W) and becomes (N, 1, H, W). A uint8 array (N, H, W, C)
    with 1 or 3 channels becomes (N, C, H, W), unless its second axis could be the channels too. Integers (N, T) other
    than uint8 are token ids, which a network is given as they are; uint8 ids need `normalise=Tokens()`.

    Args:
        x: values (N, ...), uint8 or floating point; token ids (N, T); or several inputs of a network by name,
            (N, ...) each.
        y: integer class labels (N,), or floating point targets, or a target for each token, (N, T), or masks, the
            class of each pixel, (N, H, W) or (N, 1, H, W).
        num_classes: without it, the largest label + 1, or the number of outputs of floating point targets. Say it where
            a class has no example here.
        normalise: without it, uint8 values are divided by 255 and floating point values are left alone. `Tokens` says
            that integers are token ids, and which id is padding; of several inputs too.
        name: what reports call these examples.
        classes: what they call the classes, in their order; says `num_classes` too.
        ignored: which value of masks is no class and counts nowhere, such as that of borders; None: none.

    Returns:
        The examples: x as (N, ...), images as (N, C, H, W); y as int64 labels (N,), targets of the type given, or masks
        in as few bytes as hold their classes, -100 where a pixel counts nowhere.

    Raises:
        ValueError: what `Examples` refuses, arrays that hold no numbers, or `num_classes` is missing and there is no
            label to count from, a class below the largest label has no example, floating point targets are class
            numbers or one-hot rows, or `ignored` is a class or would leave masks with one class.
    """
    y = _tensor(y)
    if isinstance(x, Mapping):
        x, normalise = _packed(x, normalise)
    else:
        x = _tensor(x)
    if normalise is None and x.dtype in INTEGERS[1:] and x.dim() == 2:
        normalise = Tokens()
    if isinstance(normalise, Tokens | Inputs):
        pass
    elif x.dim() == 3:
        x = x.unsqueeze(1)
    elif x.dim() == 4 and x.dtype == torch.uint8 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.permute(0, 3, 1, 2).contiguous()
    if y.dtype.is_floating_point and y.dim() == 1 and (whole := whole_numbers(y)) is not None:
        y = whole
    if not y.is_floating_point() and x.dim() > 3 and y.dim() > 2 and not isinstance(normalise, Tokens | Inputs):
        y, num_classes = _masks(y, x, num_classes or len(classes), ignored)
    elif not y.is_floating_point():
        y = y.long()
    elif (remedy := _integer_remedy(y)) is not None:
        raise ValueError(
            f"class labels must be integers (N,), got {y.dtype} of shape {tuple(y.shape)} that hold them: give "
            f"from_arrays {remedy} [FL-DATA-026]"
        )
    if num_classes is None and classes:
        num_classes = len(classes)
    elif num_classes is None:
        if y.is_floating_point():
            num_classes = y.shape[1] if y.dim() > 1 else 1
        elif y.numel():
            num_classes = int(y.max()) + 1
            if y.dim() == 1 and int(y.min()) >= 0 and (gap := missing_classes(y.cpu().numpy())):
                raise ValueError(
                    f"labels without num_classes must be 0..C-1, each with an example, got {gap}: give num_classes if "
                    "the others are meant, mend a label that is wrong, or renumber the labels with "
                    "numpy.unique(y, return_inverse=True)[1] [FL-DATA-006]"
                )
        else:
            raise ValueError("num_classes is needed when there are no labels to count, got none: give num_classes")
    if normalise is None:
        normalise = Normalise(scale=1 / 255) if x.dtype == torch.uint8 else Normalise()
    return Examples(x, y, num_classes, normalise, name, classes=tuple(classes))


def _masks(y: Tensor, x: Tensor, num_classes: int, ignored: int | None) -> tuple[Tensor, int]:
    """Return masks in as few bytes as hold them, and the number of classes; 0: it is counted."""
    y = y[:, 0] if y.dim() == x.dim() and y.shape[1] == 1 else y
    y = y if y.dtype == torch.int64 else y.int()  # which hold every value that may be ignored
    if ignored is not None and 0 <= ignored < num_classes:
        raise ValueError(
            f"the value of masks that counts nowhere is none of the {num_classes} classes, got ignored={ignored}: give "
            "another, or ignored=None where there is none"
        )
    kept = y if ignored is None else y[y != ignored]
    kept = kept[kept != IGNORED]
    highest = int(kept.max()) if kept.numel() else 0
    if highest == 0 and len(kept) < y.numel() and num_classes < 3:
        raise ValueError(
            f"masks must have two classes or more, got 0 alone beside the value {ignored}, which counts nowhere: if "
            f"that is a class, give masks // {ignored} and ignored=None, else num_classes"
        )
    num_classes = num_classes or highest + 1
    kind = next(kind for kind in (torch.int8, torch.int16, torch.int64) if num_classes <= torch.iinfo(kind).max)
    if kept.numel() and not 0 <= int(kept.min()) <= highest < num_classes:
        return y, num_classes  # whose values are refused as they are
    return (y if ignored is None else y.masked_fill(y == ignored, IGNORED)).to(kind), num_classes


def _packed(
    x: Mapping[str, npt.NDArray[np.generic] | Tensor], how: Normalise | Tokens | Inputs | None
) -> tuple[Tensor, Inputs]:
    if isinstance(how, Normalise):
        raise ValueError(f"several inputs by name are given as they are, got normalise={how}: scale the numbers given")
    given = {str(name): _tensor(values) for name, values in x.items()}
    return pack(given, how.padding, how.cut) if how else pack(given)


def whole_numbers(y: Tensor) -> Tensor | None:
    """Return floating point labels that are class numbers as integers; None where they are not, or may be targets.

    Files and programs often store class 3 as 3.0. Zeros alone may be targets as well.
    """
    if not y.numel() or not bool(((y == y.round()) & (y >= 0)).all()) or not bool(y.any()):
        return None
    return y.long()


def missing_classes(y: npt.NDArray[np.integer], place: Callable[[int], str] = "example {}".format) -> str:
    """Return which labels of 0..C-1 have no example, in words, C - 1 being the largest label; "" where all have one.

    Readers of files that do not say how many classes there are count over all examples, of training and test. Where a
    few labels alone lie beyond the gap, the words say where the first one is: it may be damaged.

    Args:
        y: the labels, from 0.
        place: says where an example is, by its number from 0.
    """
    there = np.unique(y)
    if len(there) == there[-1] + 1:
        return ""
    first = next(c for c in range(len(there) + 1) if c == len(there) or there[c] != c)
    beyond, where = np.flatnonzero(y > first), ""
    if len(beyond) <= max(1, _FEW * len(y)):
        more = f" and {len(beyond) - 1} more beyond it" if len(beyond) > 1 else ""
        where = f" ({y[beyond[0]]} in {place(int(beyond[0]))}{more})"
    return f"{len(there)} different ones up to {there[-1]}, without {first}{where}"


def _integer_remedy(y: Tensor) -> str | None:
    """Return how to make integers of floating point targets that are class numbers or one-hot rows; None for others."""
    if whole_numbers(y) is None:
        return None
    if y.shape[1:].numel() == 1:
        return "y.astype(int).ravel()"
    return "y.argmax(1)" if y.dim() == 2 and bool(((y.amax(1) == 1) & (y.sum(1) == 1)).all()) else None


def _tensor(values: npt.NDArray[np.generic] | Tensor) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    if not isinstance(values, np.ndarray):
        remedy = {"DataFrame": "use fedloom.from_frame", "list": "numpy.array(values, numpy.float32) makes one"}
        raise ValueError(
            f"x and y must be NumPy arrays or tensors, got {(kind := type(values).__name__)}: "
            f"{remedy.get(kind, 'convert it, or use fedloom.from_torch for a data set of PyTorch')} [FL-DATA-004]"
        )
    if values.dtype.kind in "US":
        raise ValueError(
            f"arrays must hold real numbers of at most 64 bits, got text such as {str(values.flat[0])!r}: convert with "
            "astype; labels by names, y = numpy.unique(y, return_inverse=True), and classes=names [FL-DATA-005]"
        )
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise ValueError(f"arrays must hold real numbers of at most 64 bits, got {values.dtype}: convert with astype")
    if isinstance(values, np.ma.MaskedArray) and (hidden := int(np.ma.getmaskarray(values).sum())):
        raise ValueError(
            f"arrays must have a value in every place, got {hidden} that are masked: fill them with values.filled(...) "
            "or leave their examples out"
        )
    # PyTorch reads neither foreign byte orders nor negative strides, and warns of read-only memory.
    # Of unsigned integers it computes with 8 bits alone.
    wider = {"u2": np.int32, "u4": np.int64, "u8": np.int64}.get(values.dtype.str[1:])
    native = np.ascontiguousarray(values, dtype=wider or values.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable else native.copy())
