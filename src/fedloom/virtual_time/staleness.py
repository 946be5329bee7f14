"""Weights of what was learnt from an older version of the model, by its age.

Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", OPT 2020, arXiv:1903.03934, section 5.2; the polynomial with
0.5 is that of Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022,
arXiv:2106.06639, too.
"""

from __future__ import annotations

from collections.abc import Callable

from fedloom.core.grammar import Named, by_name, make_named

Weight = Callable[[int], float]  # of an age, in versions of the model


def constant() -> Weight:
    """Return 1 for each age."""
    return lambda age: 1.0


def polynomial(a: float) -> Weight:
    """Return (age + 1)^-a."""
    if not a > 0:
        raise ValueError(f"the exponent is above 0, got {a:g}: write constant, or polynomial:0.5")
    return lambda age: float((age + 1) ** -a)


def hinge(a: float, b: float) -> Weight:
    """Return 1 up to the age b, and 1 / (a (age - b) + 1) beyond it."""
    if not (a > 0 and b >= 0):
        raise ValueError(f"the slope is above 0 and the age 0 or more, got {a:g} and {b:g}: write hinge:10:4")
    return lambda age: 1.0 if age <= b else 1.0 / (a * (age - b) + 1.0)


KINDS = by_name(
    (Named(("constant",), constant), Named(("polynomial:A",), polynomial, (float,)),
     Named(("hinge:A:B",), hinge, (float, float)))
)  # fmt: skip


def weight(text: str) -> Weight:
    """Return the weight that a text names.

    Raises:
        SettingError: there is none of this name, or its numbers are missing or out of range.
    """
    made: Weight = make_named("staleness", text, KINDS)
    return made
