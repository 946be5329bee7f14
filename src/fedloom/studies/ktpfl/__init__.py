"""KT-pFL: knowledge that travels as predictions; its protocol, its claims, and who learns from whom.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
"""

from fedloom.reproduction.evidence import place
from fedloom.studies import Study
from fedloom.studies.ktpfl import architectures, coefficients, distillation, traffic, verdicts
from fedloom.studies.ktpfl.recipes import ABOUT, recipes

STUDY = Study(
    tables=ABOUT,
    recipes=recipes,
    analyses={
        "coefficients": coefficients.measure,
        "architectures": architectures.measure,
        "distillation": distillation.measure,
        "traffic": traffic.measure,
    },
    remarks=verdicts.remarks,
    evidence=("federation.json", place(distillation.TABLE)),
)
