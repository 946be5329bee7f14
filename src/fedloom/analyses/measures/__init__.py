"""Measure what happens inside federated training: measures of past rounds that serve any algorithm and any paper.

Plain functions of accuracies, counts, weights and examples. `fedloom analyse` applies them to the rounds of a run.
"""

from fedloom.analyses.measures.alignment import Alignment, alignment, class_activations, dead, preference
from fedloom.analyses.measures.classes import (
    LocalAccuracy,
    Personalised,
    complement,
    consistency,
    finite_mean,
    finite_std,
    local_accuracy,
    normalised_rows,
    personalised,
    pooled_accuracy,
    shares,
)
from fedloom.analyses.measures.divergence import (
    Correlation,
    Distance,
    correlation,
    distribution_distance,
    weight_divergence,
)
from fedloom.analyses.measures.features import balanced, balanced_rows, features, logits, tsne
from fedloom.analyses.measures.flat import gradient
from fedloom.analyses.measures.gradients import (
    class_gradients,
    cosines,
    gradient_diversity,
    gram,
)
from fedloom.analyses.measures.landscape import Eigen, Noise, hessian_eigen, hessian_product, perturbed, plane

__all__ = [
    "Alignment",
    "Correlation",
    "Distance",
    "Eigen",
    "LocalAccuracy",
    "Noise",
    "Personalised",
    "alignment",
    "balanced",
    "balanced_rows",
    "class_activations",
    "class_gradients",
    "complement",
    "consistency",
    "correlation",
    "cosines",
    "dead",
    "distribution_distance",
    "features",
    "finite_mean",
    "finite_std",
    "gradient",
    "gradient_diversity",
    "gram",
    "hessian_eigen",
    "hessian_product",
    "local_accuracy",
    "logits",
    "normalised_rows",
    "personalised",
    "perturbed",
    "plane",
    "pooled_accuracy",
    "preference",
    "shares",
    "tsne",
    "weight_divergence",
]
