"""What a person looks at."""

from fedloom.report.table import algorithm_table, comparison_table, progress, table

__all__ = ["algorithm_table", "comparison_table", "progress", "table"]
