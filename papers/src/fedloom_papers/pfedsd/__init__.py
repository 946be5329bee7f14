"""pFedSD: the protocol of its experiments, and analyses of what its paper claims.

Jin, Bai, Yao, Dai, Gu, Yu, Sun. *Personalized Edge Intelligence via Federated Self-Knowledge Distillation.* IEEE TPDS
34(2), 2023.
"""

import functools

from fedloom_papers import Study
from fedloom_papers.pfedsd import changing, claims, initialisation, scenarios, spread

STUDY = Study(
    title="pFedSD (Jin et al., IEEE TPDS 2023)",
    tables={**scenarios.ABOUT, **changing.ABOUT},
    recipes=lambda: {**scenarios.recipes(), changing.TABLE: list(changing.recipes())},
    remarks=claims.remarks,
    evidence=(claims.RECOVERY,),
    claims=claims.claims,
    figures={
        "pfedsd-figure-2": initialisation.figure_2,
        "pfedsd-a-drops": functools.partial(claims.drops, "pfedsd-a"),
        "pfedsd-a-spread": functools.partial(spread.spread, "pfedsd-a"),
        "pfedsd-b-spread": functools.partial(spread.spread, "pfedsd-b"),
    },
    reduced=dict.fromkeys(("pfedsd-a", "pfedsd-b", changing.TABLE), "clients and skews ours"),
)
