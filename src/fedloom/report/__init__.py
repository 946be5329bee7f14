"""What a person looks at."""

from fedloom.report.analysed_run import AnalysedRun
from fedloom.report.analyses import ANALYSES, analyse
from fedloom.report.console import comparison_table, progress
from fedloom.report.heterogeneity import FederationTable, Heterogeneity, draw_federation, heterogeneity
from fedloom.report.write import write_report

__all__ = [
    "ANALYSES",
    "AnalysedRun",
    "FederationTable",
    "Heterogeneity",
    "analyse",
    "comparison_table",
    "draw_federation",
    "heterogeneity",
    "progress",
    "write_report",
]
