"""Report: a page of runs, and tables on a terminal."""

from fedloom.report.console import comparison_table, readings_table
from fedloom.report.heterogeneity import FederationTable, Heterogeneity, draw_federation, heterogeneity
from fedloom.report.several_seeds import Summary, summary
from fedloom.report.target_quantiles import TargetHeterogeneity, TargetTable, draw_targets, target_heterogeneity
from fedloom.report.write import write_report

__all__ = [
    "FederationTable",
    "Heterogeneity",
    "Summary",
    "TargetHeterogeneity",
    "TargetTable",
    "comparison_table",
    "draw_federation",
    "draw_targets",
    "heterogeneity",
    "readings_table",
    "summary",
    "target_heterogeneity",
    "write_report",
]
