"""What a person looks at."""

from fedloom.report.analyses import ANALYSES, analyse
from fedloom.report.heterogeneity import FederationTable, Heterogeneity, draw_federation, heterogeneity
from fedloom.report.studied import Studied
from fedloom.report.table import comparison_table, progress, table
from fedloom.report.write import write_report

__all__ = [
    "ANALYSES",
    "FederationTable",
    "Heterogeneity",
    "Studied",
    "analyse",
    "comparison_table",
    "draw_federation",
    "heterogeneity",
    "progress",
    "table",
    "write_report",
]
