"""What a person looks at."""

from fedloom.report.federation import FederationTable, Heterogeneity, draw_federation, heterogeneity
from fedloom.report.table import algorithm_table, comparison_table, progress, table
from fedloom.report.write import write_report

__all__ = [
    "FederationTable",
    "Heterogeneity",
    "algorithm_table",
    "comparison_table",
    "draw_federation",
    "heterogeneity",
    "progress",
    "table",
    "write_report",
]
