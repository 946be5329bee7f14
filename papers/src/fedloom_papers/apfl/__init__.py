"""APFL of Ni, Shen and Zhang: its comparison on four data sets, what it is sensitive to, and what EWC adds.

Ni, Shen, Zhang. *Adaptive Personalized Federated Learning by Parameter Decomposition and Continual Learning* (in
Chinese). Scientia Sinica Informationis 52, 2022. https://doi.org/10.1360/SSI-2021-0152
"""

from fedloom_papers import Study
from fedloom_papers.apfl import claims
from fedloom_papers.apfl.published_figures import figure_1, figure_2, figure_3
from fedloom_papers.apfl.recipes import ABOUT, recipes

STUDY = Study(
    title="APFL (Ni et al., Sci Sin Inform 2022)",
    tables=ABOUT,
    recipes=recipes,
    remarks=claims.remarks,
    claims=claims.claims,
    note=claims.NOTE,
    figures={"apfl-figure-1": figure_1, "apfl-figure-2": figure_2, "apfl-figure-3": figure_3},
)
