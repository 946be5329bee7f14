"""A client-step of sequences beside a plain PyTorch loop: an LSTM and transformers, with padding and without.

All forms are timed in turn in one run, and ratios to the plain loop are printed: that trains client after client on
batches of whole, padded sequences, as most code does. Lengths of sequences are 8 to `--length`, most of them short.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from fedloom.coordinator.engine_choice import choose, choose_compilation
from fedloom.data import Inputs, Tokens, next_tokens
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.models.sequences import CausalTransformer

VOCABULARY = 90


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(VOCABULARY, 8), nn.LSTM(8, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.back(F.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(512, width)
        self.blocks, self.norm = nn.ModuleList(Block(width) for _ in range(2)), nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Beside(Transformer):
    """Three inputs: tokens, their mask, and numbers of the whole text."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.numbers = nn.Linear(3, VOCABULARY)

    def forward(self, tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        return super().forward(tokens) * mask.unsqueeze(2) + self.numbers(numbers).unsqueeze(1)


def plain(network: nn.Module, federation: fl.Federation, local: fl.Local, cut: bool) -> Callable[[], None]:
    """One round of FedAvg, client after client; `cut`: each batch to its longest sequence."""
    how, y = federation.train.normalise, federation.train.y
    given = how.unpack(federation.train.x) if isinstance(how, Inputs) else {"tokens": federation.train.x.long()}
    x = given["tokens"]
    start = copy.deepcopy(network.state_dict())

    def round_() -> None:
        for k in range(federation.num_clients):
            network.load_state_dict(start)
            step = torch.optim.SGD(network.parameters(), lr=local.optimiser.lr)
            rows = torch.from_numpy(federation.partition.rows(k).copy())
            for some in rows[torch.randperm(len(rows))].split(local.batch_size):
                T = int((x[some] != 0).sum(1).max()) if cut else x.shape[1]
                step.zero_grad(set_to_none=True)
                logits = network(*(t[some] if n == "numbers" else t[some, :T] for n, t in given.items()))
                F.cross_entropy(logits.flatten(0, 1), y[some, :T].flatten()).backward()
                step.step()

    return round_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=80)
    parser.add_argument("--width", type=int, default=64, help="of the transformers, half of the LSTM's")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    count = args.clients * args.sequences
    x = rng.integers(1, VOCABULARY, (count, args.length)).astype(np.int16)
    if args.length > 8:  # a client's sequences are alike in length; half of the clients have short ones
        typical = np.repeat(np.where(np.arange(args.clients) % 2, args.length, args.length // 4), args.sequences)
        lengths = rng.integers(np.maximum(1, typical // 2), typical + 1)
        x[np.arange(args.length) >= lengths[:, None]] = 0
    print(
        f"{args.clients} clients of {args.sequences} sequences of {args.length} places, {np.mean(x == 0):.0%} padding"
    )
    steps = args.clients * -(-args.sequences // args.batch)
    several = {"tokens": x, "mask": (x != 0).astype(np.int8), "numbers": rng.normal(size=(count, 3)).astype(np.float32)}
    built_in = partial(CausalTransformer, VOCABULARY, VOCABULARY, length=args.length, next_token=True)
    networks: tuple[tuple[str, Callable[..., nn.Module]], ...] = (
        *(("LSTM", Recurrent), ("transformer", Transformer), ("3 inputs", Beside)),
        ("fedloom's", lambda width: built_in(width=width)),
    )
    for name, kind in networks:
        network = partial(kind, args.width)
        forms: dict[str, Callable[[], None]] = {}
        method = fl.FedAvg(local=fl.Local(epochs=1, batch_size=args.batch, optimiser=fl.SGD(lr=0.1)))
        parts = fl.data.by_lists(np.array_split(np.arange(count), args.clients))
        for cut in (False, True):
            given = several if kind is Beside else x
            examples = fl.from_arrays(given, next_tokens(x), num_classes=VOCABULARY, normalise=Tokens(cut=cut))
            federation = fl.Federation(examples, parts)
            population = Population(federation=federation, models={"network": fl.Model(network)}, task=fl.NextToken())
            if cut and population.models["network"].cut is None:
                raise SystemExit(f"{name} is not cut")
            torch.manual_seed(0)
            forms[f"plain{', cut' * cut}"] = plain(network(), federation, method.local, cut)
            engines_of = {"loop": Loop, "stacked": Stacked, "workers": Workers}
            engines = {label: (engine, "none") for label, engine in engines_of.items()}
            if name != "LSTM":
                engines |= {f"{label}, traced": (engine, "trace") for label, engine in engines_of.items()}
            picked, why = choose("auto", population, method.local, args.clients)
            compilation = choose_compilation(picked, population, method.local, args.clients, 100)
            print(f"{name}{', cut' * cut}: auto takes {picked.__name__} ({why}), {compilation}")
            for label, (engine, compilation) in engines.items():
                made = engine(population, method, Options(compilation=compilation))
                server = made.init()

                def round_(made=made, server=server) -> None:
                    made.round(server, list(range(args.clients)), 0)

                forms[f"{label}{', cut' * cut}"] = round_
        times: dict[str, list[float]] = {form: [] for form in forms}
        for repeat in range(args.repeat + 1):
            for form, run in forms.items():
                start = time.perf_counter()
                run()
                if repeat:
                    times[form].append(time.perf_counter() - start)
        for form, seen in times.items():
            ratio = statistics.median(p / t for p, t in zip(times["plain"], seen, strict=True))
            ms = statistics.median(seen) / steps * 1e3
            print(f"{name:12s} {form:22s} {ms:7.2f} ms a step   {ratio:5.2f} times as fast as the plain loop")


if __name__ == "__main__":
    main()
