"""What happens inside federated training: the analyses of FedNTD (Lee et al., NeurIPS 2022), for any algorithm.

Plain functions of accuracies, counts, weights and examples. `fedloom analyse` applies them to the rounds of a run.
"""

from fedloom.analysis.alignment import Alignment, alignment, class_activations, dead, preference
from fedloom.analysis.classes import (
    LocalAccuracy,
    Personalised,
    complement,
    consistency,
    known_mean,
    known_std,
    local_accuracy,
    normalised_rows,
    personalised,
    pooled_accuracy,
    shares,
)
from fedloom.analysis.divergence import (
    Correlation,
    Distance,
    correlation,
    distribution_distance,
    weight_divergence,
)
from fedloom.analysis.features import angle_density, angles, balanced_rows, features, plane_density, to_circle, tsne
from fedloom.analysis.flat import gradient
from fedloom.analysis.gradients import (
    ClosedForm,
    class_gradients,
    closed_form,
    cosines,
    diversity_at,
    gradient_diversity,
    gram,
)
from fedloom.analysis.landscape import Eigen, Noise, hessian_eigen, hessian_product, perturbed, plane
from fedloom.analysis.propositions import (
    COUNTEREXAMPLE,
    Family,
    Parts,
    expected_distance,
    kl_parts,
    mean_optimum,
    relabelled,
    smooth_bound,
)

__all__ = [
    "COUNTEREXAMPLE",
    "Alignment",
    "ClosedForm",
    "Correlation",
    "Distance",
    "Eigen",
    "Family",
    "LocalAccuracy",
    "Noise",
    "Parts",
    "Personalised",
    "alignment",
    "angle_density",
    "angles",
    "balanced_rows",
    "class_activations",
    "class_gradients",
    "closed_form",
    "complement",
    "consistency",
    "correlation",
    "cosines",
    "dead",
    "distribution_distance",
    "diversity_at",
    "expected_distance",
    "features",
    "gradient",
    "gradient_diversity",
    "gram",
    "hessian_eigen",
    "hessian_product",
    "kl_parts",
    "known_mean",
    "known_std",
    "local_accuracy",
    "mean_optimum",
    "normalised_rows",
    "personalised",
    "perturbed",
    "plane",
    "plane_density",
    "pooled_accuracy",
    "preference",
    "relabelled",
    "shares",
    "smooth_bound",
    "to_circle",
    "tsne",
    "weight_divergence",
]
