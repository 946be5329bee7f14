"""FedJAX: its federated averaging, over as many devices as there are cores (`pmap`) or on one (`jit`)."""

from __future__ import annotations

import os
import sys

FORM = sys.argv[3] if len(sys.argv) > 3 else "jit"
if FORM == "pmap":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={len(os.sched_getaffinity(0))}"

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402
from peer_work import Case, Clock, called, layers  # noqa: E402


def forward(case: Case):
    """Images (N, H, W, C), which XLA takes best."""
    widths = [shape[0] for shape in layers(case.network, case.shape)[::2]]
    filters = [shape[0] for shape in layers(case.network, case.shape)[::2] if len(shape) == 4]

    def apply(batch):
        x = batch["x"]
        for channels in filters:
            x = hk.Conv2D(channels, 5, padding="VALID")(x)
            x = jax.nn.relu(hk.MaxPool((2, 2, 1), (2, 2, 1), padding="VALID")(x))
        return hk.nets.MLP(widths[len(filters) :])(x.reshape(len(x), -1))

    return hk.without_apply_rng(hk.transform(apply))


def sides(case: Case) -> tuple[int, int]:
    """(channels, side) of what the first dense layer reads."""
    shapes = layers(case.network, case.shape)
    filters = [shape[0] for shape in shapes if len(shape) == 4]
    side = case.shape[1]
    for _ in filters:
        side = (side - 4) // 2
    return (filters[-1] if filters else case.shape[0]), side


def into(case: Case, arrays, tree):
    """Return parameters as Haiku has them: (H, W, I, O) and (I, O), the first dense layer reading (H, W, C)."""
    out, names, first = {}, list(tree), True
    for name, weight, bias in zip(names, arrays[::2], arrays[1::2], strict=True):
        if weight.ndim == 4:
            weight = weight.transpose(2, 3, 1, 0)
        else:
            if first:
                channels, side = sides(case)
                weight = weight.reshape(-1, channels, side, side).transpose(0, 2, 3, 1).reshape(len(weight), -1)
            weight, first = weight.T, False
        out[name] = {"w": jnp.asarray(weight), "b": jnp.asarray(bias)}
    return out


def out_of(case: Case, tree) -> list[np.ndarray]:
    out, first = [], True
    for leaf in tree.values():
        weight = np.asarray(leaf["w"])
        if weight.ndim == 4:
            weight = weight.transpose(3, 2, 0, 1)
        else:
            weight = weight.T
            if first:
                channels, side = sides(case)
                weight = weight.reshape(-1, side, side, channels).transpose(0, 3, 1, 2).reshape(len(weight), -1)
            first = False
        out += [np.ascontiguousarray(weight), np.asarray(leaf["b"])]
    return out


def main() -> None:
    work, rounds = called()
    case = work.case
    fedjax.set_for_each_client_backend(FORM)
    x, y = np.ascontiguousarray(work.x.transpose(0, 2, 3, 1)), work.y.astype(np.int32)
    model = forward(case)
    tree = model.init(jax.random.PRNGKey(0), {"x": x[:1]})
    names = sorted(tree, key=list(tree).index)
    params = into(case, work.start(), {name: tree[name] for name in names})

    def loss(params, batch, rng):
        logits = model.apply(params, batch)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1))

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(case.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=case.batch_size, num_epochs=case.epochs),
    )
    clients = [fedjax.ClientDataset({"x": x[work.rows(k)], "y": y[work.rows(k)]}) for k in range(case.clients)]
    clock = Clock()
    state = algorithm.init(params)
    for turn in range(rounds):
        keys = jax.random.split(jax.random.PRNGKey(turn), case.clients)
        cohort = [(b"%d" % k, client, keys[k]) for k, client in enumerate(clients)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        clock.mark()
    trained = {name: state.params[name] for name in names}
    how = "jit" if FORM == "jit" else f"pmap over {jax.local_device_count()} devices"
    work.answer(clock.seconds, out_of(case, trained), how, "fedjax", "jax", "dm-haiku")


if __name__ == "__main__":
    main()
