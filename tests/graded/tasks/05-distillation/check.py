"""Self-distillation, with clients that are asked for the first time in different rounds."""

from __future__ import annotations

import plain

import fedloom as fl

ROUNDS = ((0, 1), (0, 2), (0, 1, 3), (0, 1, 2, 3))


def check() -> None:
    kind = plain.imported("recall", "Recall")
    made = kind()
    plain.need((made.lam, made.T) == (1.0, 2.0), f"lam and T are {made.lam} and {made.T} unless given, not 1.0 and 2.0")
    algorithm = kind(lam=0.8, T=1.5, local=plain.LOCAL)
    w, kept = plain.start(), dict[int, plain.Plain]()
    for clients in ROUNDS:
        trained = []
        for k in clients:
            teacher = plain.logits(kept[k], plain.X[k]) if k in kept else None

            def loss(v: plain.Plain, k: int = k, teacher: plain.Tensor | None = teacher) -> plain.Tensor:
                found = plain.cross_entropy(v, k)
                if teacher is None:
                    return found
                p = (teacher / 1.5).softmax(1)
                apart = (p * (p.log() - (plain.logits(v, plain.X[k]) / 1.5).log_softmax(1))).sum(1)
                return found + 0.8 * 1.5**2 * apart.mean()

            kept[k] = plain.descend(w, loss)
            trained.append(kept[k])
        w = plain.mean(trained, [plain.SIZES[k] for k in clients])
    history = plain.run(algorithm, rounds=4, sampler=fl.FixedList(ROUNDS))
    plain.close(plain.global_model(algorithm, history), w, "the global model after four rounds")
    plain.keeps_promises(kind(), neutral=True)
