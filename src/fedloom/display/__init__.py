"""Display: progress of runs, tables on a terminal, a figure."""
