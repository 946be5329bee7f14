"""Trial of a method before a run with local privacy: what it uploads may depend on examples in named tensors alone.

Clients compute two rounds in which zeros travel in the place of these, and again with other examples. Whatever else
they upload must be the same bits.
"""

from __future__ import annotations

import warnings
from typing import Any

from fedloom.core.errors import FedloomError, SettingError, first_line
from fedloom.core.network_makers import own_defaults
from fedloom.engines.engine_options import Options
from fedloom.privacy.example_trial import same, seen_of, with_others
from fedloom.privacy.local_noise import LocalNoise, Releases
from fedloom.privacy.method_trial import a_few


@own_defaults()
def uploads_of(job: Any) -> int:
    """Return how many sets of named tensors a client uploads in a round.

    Raises:
        SettingError: what it uploads depends on its examples beside these.
    """
    name, kinds = type(job.algorithm).__name__, len(job.population.models)
    if job.algorithm.requires.one_place:
        raise SettingError(
            f"local privacy is against whoever sees uploads, and {name} has the examples of all clients in one place: "
            "leave privacy out"
        )
    few, release = a_few(job.federation, 3 * kinds), Releases(LocalNoise(clip=0.0, noise=0.0))
    asked = few.num_clients if job.algorithm.requires.everyone else 2 * kinds
    options = Options(encoders=(release.encoder,), links=(release,))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come with the run
            release.begin(range(asked))
            _, one = seen_of(job, few, options, asked)
            release.begin(range(asked))
            _, other = seen_of(job, with_others(few), options, asked)
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"a method is tried on a few examples before a run with local privacy, and {name} fails: {what}; take "
            "another method or network, or leave privacy out"
        ) from error
    if not same(one, other):
        raise SettingError(
            f"local privacy is that of named tensors with noise, and clients of {name} upload what depends on their "
            "examples beside these (losses, class counts, statistics of BatchNorm): take a method that uploads models "
            "alone, such as FedAvg, and nn.GroupNorm in the place of BatchNorm, or leave privacy out"
        )
    return release.most
