"""Report: a page of runs, and tables on a terminal."""

from fedloom.report.console import comparison_table, readings_table
from fedloom.report.heterogeneity import FederationTable, Heterogeneity, draw_federation, heterogeneity
from fedloom.report.several_seeds import Summary, summary
from fedloom.report.write import write_report

__all__ = [
    "FederationTable",
    "Heterogeneity",
    "Summary",
    "comparison_table",
    "draw_federation",
    "heterogeneity",
    "readings_table",
    "summary",
    "write_report",
]
