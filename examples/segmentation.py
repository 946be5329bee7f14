"""Masks of garments at six sites that differ by contrast: personal models against the global one.

python segmentation.py           some minutes on one core
python segmentation.py --short   seconds, to see that it runs

Images are those of Fashion-MNIST inside the package, half as large, 14 x 14. Their masks are made of them: what is
brighter than 25 is the garment, whose class is its kind, and all else is background. Each site then sees its images in
its own way: paler, or with dark garments on a bright ground.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import fedloom as fl

KINDS = ("background", "clothes", "shoe", "bag")
KIND_OF_CLASS = np.array([1, 1, 1, 1, 1, 2, 1, 2, 3, 2])  # of T-shirt, trouser, pullover, dress, coat, sandal, ...
SITES = {  # what was black, and what was white, from 0 to 255
    "as it was": (0, 255), "pale": (0, 90), "bright ground": (110, 255), "inverted": (255, 0),
    "inverted, pale": (150, 60), "inverted, dark": (90, 0),
}  # fmt: skip
BY_CLASS = tuple(f"iou_{k}" for k in range(len(KINDS)))
METHODS: dict[str, type[fl.Algorithm[Any, Any]]] = {
    "FedAvg, the global model": fl.FedAvg,
    "each site alone": fl.LocalOnly,
    "FedAvg, then fine-tuned": fl.FedAvgFT,
    "FedBN": fl.FedBN,
    "Ditto": fl.Ditto,
}


def federation(images: int, seed: int) -> fl.Federation:
    """Return six clients with so many images each, a quarter of them held out."""
    train, _ = fl.fashion_mnist_small()
    rows = np.random.default_rng(seed).permutation(len(train))[: images * len(SITES)]
    grey = train.x.numpy()[rows].reshape(-1, 14, 2, 14, 2).mean((2, 4))
    masks = np.where(grey > 25, KIND_OF_CLASS[train.y.numpy()[rows]][:, None, None], 0)
    owners = np.repeat(np.arange(len(SITES)), images)
    black, white = np.array([*SITES.values()])[owners].T[..., None, None]
    seen = np.round(black + (white - black) * grey / 255).astype(np.uint8)
    examples = fl.from_arrays(seen, masks, classes=KINDS, name="garments")
    return fl.federate(examples, fl.data.natural(owners), test_fraction=0.25, seed=seed)


def reached(name: str, seed: int, images: int = 96, rounds: int = 12) -> list[float]:
    """Return mean IoU over what each site holds out, as mean over sites, at the worst site, and by class."""
    local = fl.Local(optimiser=fl.SGD(lr=0.2, momentum=0.9), batch_size=16, epochs=2)
    settings = fl.RunSettings(
        rounds=rounds, cohort_size=len(SITES), seed=seed, eval_every=rounds, measures=BY_CLASS, engine="loop"
    )
    model = lambda: fl.models.UNet(1, len(KINDS), width=8)  # noqa: E731
    task = fl.Segmentation(by_class=len(KINDS))
    run = fl.run(METHODS[name](local=local), federation(images, seed), model, settings, task=task)
    worst = min(run.metrics[-1]["personal_by_client"].values())
    return [run.last("personal_mean_iou"), worst, *(run.last(f"personal_{one}") for one in BY_CLASS)]


def row(name: str, found: list[list[float]]) -> str:
    """Return a line of the table: the first two numbers by seed, those of classes as means over seeds."""
    each = np.array(found) * 100
    by_seed = (" / ".join(f"{value:.1f}" for value in column) for column in each.T[:2])
    return f"{name:26}" + "".join(f"{cell:>14}" for cell in (*by_seed, *(f"{v:.1f}" for v in each.mean(0)[2:])))


if __name__ == "__main__":
    short = "--short" in sys.argv
    print(f"{'':26}" + "".join(f"{head:>14}" for head in ("mean IoU", "worst site", *KINDS)))
    for name in METHODS:
        sizes = {"images": 16, "rounds": 1} if short else {}
        print(row(name, [reached(name, seed, **sizes) for seed in (0, 1)]), flush=True)
