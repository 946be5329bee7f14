"""Settings that are known to give something: published numbers, runs that should give them, and what they gave.

`recipe`: a published number and its run. `running`: runs of recipes, each in a folder of its own. `results`: what they
gave beside what was published. `results_page`: the same as CSV, as a page and as sentences. `copies`: runs without
their weights, small enough to be committed. `demonstration`: the runs of `fedloom demo` and what they should give.
"""

from fedloom_papers.reproduction.copies import export
from fedloom_papers.reproduction.recipe import Recipe, select
from fedloom_papers.reproduction.results import Result, Run, read
from fedloom_papers.reproduction.results_page import write
from fedloom_papers.reproduction.running import Outcome, reproduce, standing

__all__ = ["Outcome", "Recipe", "Result", "Run", "export", "read", "reproduce", "select", "standing", "write"]
