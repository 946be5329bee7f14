"""APFL of Ni, Shen and Zhang: its comparison on four data sets, what it is sensitive to, and what EWC adds.

Ni, Shen, Zhang. *Adaptive Personalized Federated Learning by Parameter Decomposition and Continual Learning* (in
Chinese). Scientia Sinica Informationis 52, 2022. https://doi.org/10.1360/SSI-2021-0152
"""

from fedloom.papers import Study
from fedloom.papers.apfl.claims import claims, remarks
from fedloom.papers.apfl.recipes import ABOUT, recipes

STUDY = Study(
    title="APFL (Ni et al., Sci Sin Inform 2022)",
    tables=ABOUT,
    recipes=recipes,
    analyses={},
    remarks=remarks,
    claims=claims,
)
