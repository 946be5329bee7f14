"""A transformer trained on 60 roles of Shakespeare, federated over 60 others: all of it, adapters, the last layer.

    python benchmarks/text_adapters.py FOLDER START.safetensors --seeds 0 1

FOLDER: as of the source `shakespeare`. START: the exported global model of a run on `shakespeare:FOLDER?roles=60&
characters=4000`, whose roles are the even ones of 120. Prints a line of CSV for each: what is trained, seed,
parameters, bytes up of a client in a round, accuracy before and after, seconds of computation.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from peft import LoraConfig, get_peft_model
from torch import nn

import fedloom as fl
from fedloom.data import Federation, natural
from fedloom.models import Reads, build

ROUNDS = 10


def others(folder: Path) -> Federation:
    """The roles that START has not seen."""
    data = fl.data.load("shakespeare", folder, roles=120, characters=4000)
    assert data.owners is not None
    chosen = data.select(np.flatnonzero(data.owners % 2))
    assert chosen.owners is not None
    test = chosen.train.select(np.flatnonzero(chosen.held_out))
    train = replace(chosen.train, owners=())
    return fl.federate(train, natural(chosen.owners), test=test, held_out=chosen.held_out)


def network(start: Path, rank: int) -> nn.Module:
    """The network with the weights of START, with low-rank adapters beside its linear layers if `rank`."""
    plain = fl.Model(partial(build, "transformer", (80,), 82, Reads(82, True)), name="transformer")
    module = fl.module(plain, fl.load_weights(start, plain))
    if not rank:
        return module
    lora = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["inputs", "outputs", "first", "second"],
        modules_to_save=["classifier"],
    )  # fmt: skip
    return get_peft_model(module, lora)  # type: ignore[arg-type]


def main() -> None:
    said = argparse.ArgumentParser()
    said.add_argument("folder", type=Path)
    said.add_argument("start", type=Path)
    said.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = said.parse_args()
    federation = others(args.folder)
    print("trained,seed,parameters,bytes_up,before,after,seconds", flush=True)
    for seed in args.seeds:
        for name, rank, frozen in (("all", 0, ""), ("lora", 8, ""), ("last layer", 0, "* !last:1")):
            model = fl.Model(network(args.start, rank), name=name.replace(" ", "_"), frozen=frozen)
            local = fl.Local(epochs=2, batch_size=10, optimiser=fl.Adam(lr=0.001 if not rank and not frozen else 0.003))
            settings = fl.RunSettings(rounds=ROUNDS, cohort_size=10, seed=seed, engine="auto", eval_every=ROUNDS)
            began = time.process_time()
            found = fl.run(fl.FedAvg(local=local), federation, model, settings, task=fl.NextToken()).metrics
            reached = [found[i]["global_token_accuracy"] for i in (0, -1)]
            sent = found[1]["bytes_up"] // 10
            seconds = time.process_time() - began
            print(
                f"{name},{seed},{model.num_params},{sent},{reached[0]:.4f},{reached[1]:.4f},{seconds:.0f}", flush=True
            )


if __name__ == "__main__":
    main()
