"""FedNTD: the published tables and the settings behind them.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097.
"""

from fedloom.studies import Study
from fedloom.studies.fedntd.published import ABOUT
from fedloom.studies.fedntd.recipes import recipes

STUDY = Study(tables=ABOUT, recipes=recipes)
