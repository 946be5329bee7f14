"""What a person sees while and after something runs: tables on a terminal, a line of progress, a figure."""
