"""Norms by independent arithmetic, the round in which the run ends, and a resume between the two quiet rounds."""

from __future__ import annotations

import math
import shutil

import plain

import fedloom as fl


def check() -> None:
    kind = plain.imported("still", "Still")
    method = fl.FedAvg(local=plain.LOCAL)
    w, norms = plain.start(), []
    for _ in range(12):
        trained = [plain.descend(w, lambda v, k=k: plain.cross_entropy(v, k)) for k in range(plain.N)]
        new = plain.mean(trained, plain.SIZES)
        norms.append(math.sqrt(sum(float((new[n] - w[n]).square().sum()) for n in w)))
        w = new
    plain.need(sorted(norms, reverse=True) == norms, "the check is of no use: norms do not fall")
    least = (norms[4] + norms[5]) / 2  # first below it in round 6, twice in round 7
    history = plain.run(method, parts=[kind(least)], rounds=12)
    plain.need(history.metrics[-1]["round"] == 7, f"the run ends after round {history.metrics[-1]['round']}, not 7")
    plain.need("still" in (history.stopped or ""), f"the reason is {history.stopped!r}, without the word still")
    plain.need(history.metrics[0].get("moved") is None, "the record before training has a number")
    plain.close([r["moved"] for r in history.metrics[1:]], norms[:7], "moved")
    plain.run(method, parts=[kind(least)], rounds=6, directory="begun")
    resumed = plain.run(method, parts=[kind(least)], rounds=12, directory="begun", resume=True)
    plain.need(
        resumed.metrics[-1]["round"] == 7, f"a resumed run ends after round {resumed.metrics[-1]['round']}, not 7"
    )
    plain.need(
        [r["moved"] for r in resumed.metrics[1:]] == [r["moved"] for r in history.metrics[1:]], "it moves otherwise"
    )
    shutil.rmtree("begun")
    short = plain.run(method, parts=[kind(0.0)], rounds=2)
    plain.need(short.stopped is None, f"a run that moves is stopped: {short.stopped}")
