"""DENSE: one round, no data, any architecture; its published tables, and what its server imagines.

Zhang, Chen, Li, Lyu, Wu, Ding, Shen, Wu. *DENSE: Data-Free One-Shot Federated Learning.* NeurIPS 2022.
"""

from fedloom_papers import Study
from fedloom_papers.dense import claims, student_curves
from fedloom_papers.dense.published import ABOUT
from fedloom_papers.dense.recipes import recipes

STUDY = Study(
    title="DENSE (Zhang et al., NeurIPS 2022)",
    tables=ABOUT,
    recipes=recipes,
    remarks=claims.remarks,
    claims=claims.claims,
    reduced={"dense-lambda1": "10,000 images, E = 10 or 3, epochs of 64 or 32 images, a generator of width 16"},
    figures={"dense-curves": student_curves.curves},
)
