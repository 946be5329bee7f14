"""DENSE: one round, no data, any architecture; its published tables, and what its server imagines.

Zhang, Chen, Li, Lyu, Wu, Ding, Shen, Wu. *DENSE: Data-Free One-Shot Federated Learning.* NeurIPS 2022.
"""

from fedloom.studies import Study
from fedloom.studies.dense import orders, synthetic_images
from fedloom.studies.dense.published import ABOUT
from fedloom.studies.dense.recipes import recipes

STUDY = Study(
    tables=ABOUT,
    recipes=recipes,
    analyses={"synthetic-images": synthetic_images.measure},
    remarks=orders.remarks,
)
