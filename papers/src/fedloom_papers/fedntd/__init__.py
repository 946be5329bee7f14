"""FedNTD: its published tables, the settings behind them, and the analyses that only this paper needs.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097.
"""

from fedloom_papers import Study
from fedloom_papers.fedntd import (
    beta_and_tau,
    claims,
    class_preferences,
    fedalign_curves,
    forgetting_over_skew,
    learning_curves,
)
from fedloom_papers.fedntd.published import ABOUT
from fedloom_papers.fedntd.recipes import recipes

STUDY = Study(
    title="FedNTD (Lee et al., NeurIPS 2022)",
    tables=ABOUT,
    recipes=recipes,
    evidence=claims.EVIDENCE,
    claims=claims.claims,
    figures={
        "fedntd-forgetting": forgetting_over_skew.forgetting_over_skew,
        learning_curves.TABLE: learning_curves.learning_curves,
        fedalign_curves.FIGURE: fedalign_curves.fedalign_curves,
        "fedntd-beta-tau": beta_and_tau.beta_and_tau,
        class_preferences.FIGURE: class_preferences.class_preferences,
    },
)
