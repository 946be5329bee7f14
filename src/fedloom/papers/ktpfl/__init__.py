"""KT-pFL: knowledge that travels as predictions; its protocol, its claims, and who learns from whom.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
"""

from fedloom.analyses import by_name
from fedloom.papers import Study
from fedloom.papers.ktpfl import architectures, claims, coefficients, distillation, traffic
from fedloom.papers.ktpfl.recipes import ABOUT, recipes
from fedloom.papers.reproduction.evidence import place

STUDY = Study(
    title="KT-pFL (Zhang et al., NeurIPS 2021)",
    tables=ABOUT,
    recipes=recipes,
    analyses=by_name(coefficients, architectures, distillation, traffic),
    remarks=claims.remarks,
    evidence=("federation.json", place(distillation.TABLE)),
    claims=claims.claims,
    figures={"ktpfl-coefficients": coefficients.figure},
    reduced=dict.fromkeys(("ktpfl-small", "ktpfl-groups", "ktpfl-useful"), "20,000 images, small networks"),
)
