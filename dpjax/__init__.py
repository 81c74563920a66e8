"""dpjax: differentially private Bayesian and deep learning in JAX, with certified guarantees.

A `Mechanism` describes one private algorithm once: how records are sampled, how their gradients
are clipped and what noise is added. Sampler, optax transformation, privacy event and certificate
are derived from that description.

Public names are imported on first use (PEP 562), so ``import dpjax`` alone imports neither JAX nor
dp-accounting.
"""

from typing import TYPE_CHECKING

from dpjax._lazy_imports import exports_on_first_use

__version__ = "0.2.0"

# The public names by the module that defines them; `TYPE_CHECKING` below repeats them for mypy.
_EXPORTS = {
    "dpjax.accounting": ["calibrate"],
    "dpjax.bayes.sgmcmc": ["psgld", "sghmc", "sgld"],
    "dpjax.gradients": [
        "AutomaticClip",
        "PSACClip",
        "QuantileClip",
        "SlackClip",
        "clipped_grad",
        "explain",
        "l2_sensitivity",
        "total_l2_clip",
    ],
    "dpjax.keys": ["release_key"],
    "dpjax.mechanisms": [
        "Composition",
        "DiscreteGaussian",
        "DiscreteLaplace",
        "ExponentialMechanism",
        "Gaussian",
        "Laplace",
        "Mechanism",
        "NoisyMax",
        "PermuteAndFlip",
        "RandomizedResponse",
        "RepeatedSelection",
        "SubsampledGaussian",
        "dpsgd",
        "mechanism_of",
    ],
    "dpjax.rehearsal": ["rehearse"],
    "dpjax.sampling": [
        "AllocatedSampling",
        "CyclicPoissonSampling",
        "FixedSizeSampling",
        "PoissonRepetitions",
        "PoissonSampling",
        "ShuffledEpochs",
        "TruncatedNegativeBinomial",
        "TruncatedPoissonSampling",
    ],
    "dpjax.sensitivity": ["Sensitivity"],
    "dpjax.training": ["Budget", "MeshSharding", "private_step", "split_records", "train"],
    "dpjax.transforms": [
        "BLT",
        "BandedToeplitz",
        "Dense",
        "InverseSquareRoot",
        "LambdaCGD",
        "add_gaussian_noise",
        "clip_per_example",
        "differentially_private_aggregate",
        "noisy_adam",
        "noisy_sgd",
    ],
    "dpjax.tuning": ["tune"],
}
_SUBPACKAGES = (
    "accounting",
    "adjacency",
    "audit",
    "bayes",
    "bdp",
    "certificates",
    "datasets",
    "federated",
    "gradients",
    "mechanisms",
    "pate",
    "rehearsal",
    "sampling",
    "sensitivity",
    "statistics",
    "training",
    "transforms",
    "tuning",
)
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted([*_MODULE_OF, *_SUBPACKAGES])


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from dpjax import (
        accounting,
        adjacency,
        audit,
        bayes,
        bdp,
        certificates,
        datasets,
        federated,
        gradients,
        mechanisms,
        pate,
        rehearsal,
        sampling,
        sensitivity,
        statistics,
        training,
        transforms,
        tuning,
    )
    from dpjax.accounting import calibrate
    from dpjax.bayes.sgmcmc import psgld, sghmc, sgld
    from dpjax.gradients import (
        AutomaticClip,
        PSACClip,
        QuantileClip,
        SlackClip,
        clipped_grad,
        explain,
        l2_sensitivity,
        total_l2_clip,
    )
    from dpjax.keys import release_key
    from dpjax.mechanisms import (
        Composition,
        DiscreteGaussian,
        DiscreteLaplace,
        ExponentialMechanism,
        Gaussian,
        Laplace,
        Mechanism,
        NoisyMax,
        PermuteAndFlip,
        RandomizedResponse,
        RepeatedSelection,
        SubsampledGaussian,
        dpsgd,
        mechanism_of,
    )
    from dpjax.rehearsal import rehearse
    from dpjax.sampling import (
        AllocatedSampling,
        CyclicPoissonSampling,
        FixedSizeSampling,
        PoissonRepetitions,
        PoissonSampling,
        ShuffledEpochs,
        TruncatedNegativeBinomial,
        TruncatedPoissonSampling,
    )
    from dpjax.sensitivity import Sensitivity
    from dpjax.training import Budget, MeshSharding, private_step, split_records, train
    from dpjax.transforms import (
        BLT,
        BandedToeplitz,
        Dense,
        InverseSquareRoot,
        LambdaCGD,
        add_gaussian_noise,
        clip_per_example,
        differentially_private_aggregate,
        noisy_adam,
        noisy_sgd,
    )
    from dpjax.tuning import tune
else:  # hidden from mypy, for which a module with __getattr__ has every attribute
    __getattr__ = exports_on_first_use(__name__, _EXPORTS, _SUBPACKAGES)
