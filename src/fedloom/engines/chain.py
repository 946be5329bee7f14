"""The links of a run's options, in their written order."""

from __future__ import annotations

from fedloom.engines.attacks import Lies
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import Lost
from fedloom.engines.finite import Finite
from fedloom.engines.links import Chain, Link
from fedloom.engines.norms import Bounded, bound
from fedloom.engines.rules import Rule
from fedloom.engines.states_counted import StatesCounted


def chain_of(options: Options) -> Chain:
    """Return the way of uploads to their mean.

    Clients are lost, liars lie, states are counted, norms are bounded, what is not finite is refused, the run's rule
    makes the mean; then the links of parts. What a liar uploads is bounded; what is clipped was finite; what a part
    adds to the mean is added to what the rule has made.
    """
    limit = bound(options.bound)
    links: list[Link | None] = [
        None if options.faults is None else Lost(options.faults),
        None if options.attack is None else Lies(options.attack),
        StatesCounted() if options.counts_states else None,
        None if limit is None else Bounded(limit),
        Finite(stop=options.on_nonfinite == "stop"),
        None if options.aggregator == "mean" else Rule(options.aggregator),
        *options.links,
    ]
    return Chain([link for link in links if link is not None])
