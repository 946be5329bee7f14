"""KT-pFL: knowledge that travels as predictions; its protocol, its claims, and who learns from whom.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
"""

from fedloom.analyses import by_name
from fedloom.papers import Study
from fedloom.papers.ktpfl import architectures, coefficients, distillation, traffic, verdicts
from fedloom.papers.ktpfl.recipes import ABOUT, recipes
from fedloom.papers.reproduction.evidence import place

STUDY = Study(
    tables=ABOUT,
    recipes=recipes,
    analyses=by_name(coefficients, architectures, distillation, traffic),
    remarks=verdicts.remarks,
    evidence=("federation.json", place(distillation.TABLE)),
)
