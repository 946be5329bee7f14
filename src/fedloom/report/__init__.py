"""What a person looks at: a report of runs, analyses of past rounds, tables and progress on a terminal."""

from fedloom.coordinator.progress import Whole, progress
from fedloom.report.analysed_run import AnalysedRun
from fedloom.report.analyses import ANALYSES, analyse, write_analysis
from fedloom.report.analyses.tsne import joint_tsne
from fedloom.report.console import comparison_table, readings_table
from fedloom.report.heterogeneity import FederationTable, Heterogeneity, draw_federation, heterogeneity
from fedloom.report.several_seeds import Summary, summary
from fedloom.report.write import write_report

__all__ = [
    "ANALYSES",
    "AnalysedRun",
    "FederationTable",
    "Heterogeneity",
    "Summary",
    "Whole",
    "analyse",
    "comparison_table",
    "draw_federation",
    "heterogeneity",
    "joint_tsne",
    "progress",
    "readings_table",
    "summary",
    "write_analysis",
    "write_report",
]
