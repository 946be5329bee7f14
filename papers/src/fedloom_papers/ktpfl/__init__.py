"""KT-pFL: knowledge that travels as predictions; its protocol, its claims, and who learns from whom.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
"""

from fedloom_papers import Study
from fedloom_papers.ktpfl import claims, coefficients, distillation
from fedloom_papers.ktpfl.recipes import ABOUT, recipes
from fedloom_papers.reproduction.evidence import place

STUDY = Study(
    title="KT-pFL (Zhang et al., NeurIPS 2021)",
    tables=ABOUT,
    recipes=recipes,
    remarks=claims.remarks,
    evidence=("federation.json", place(distillation.TABLE)),
    claims=claims.claims,
    figures={"ktpfl-coefficients": coefficients.figure},
    reduced=dict.fromkeys(("ktpfl-small", "ktpfl-groups", "ktpfl-useful"), "20,000 images, small networks"),
)
