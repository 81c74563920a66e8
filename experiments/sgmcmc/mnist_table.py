"""The slides' table of accuracies, its rows here, and what the published settings certify."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import dpjax
from dpjax.bayes.sgmcmc import PUBLISHED_TEMPERATURE
from experiments.lib.registry import Row
from experiments.sgmcmc.mnist_chains import (
    HAMILTONIAN,
    LANGEVIN,
    NOISY_SGD,
    NUM_EXAMPLES,
    PLAIN,
    QUOTED,
    Settings,
)

PUBLISHED_STEPS = 10_000
BATCHES = (100, 256, 1_000, 5_000)
ACCURACY = "test accuracy %"
LAST, NLL, NLL_LAST = "last state %", "NLL", "NLL, last state"
AUROC = "AUROC, no digit %"
AS_RUN, PUBLISHED = "ε, as run", "ε, published T"
FRONTIER = "frontier, "

_QUICK: dict[str, Any] = {"network": "MLP", "num_steps": 1_000, "num_kept": 10}
_PAPER: dict[str, Any] = {"network": "CNN", "num_steps": PUBLISHED_STEPS, "num_kept": 100}
_TARGETS = {"quick": (0.1, 0.3, 2.0), "paper": (0.1, 0.3, 1.0, 3.0)}
_SGHMC = {"method": HAMILTONIAN, "step_size": 0.01}

# By name: changes of settings, and the accuracy and epsilon that the slides print.
_MNIST: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "MNIST: non-private": ({"method": PLAIN}, (99.23,)),
    "MNIST: PATE(100)": ({"method": QUOTED}, (98.00, 2.04)),
    "MNIST: PATE(1000)": ({"method": QUOTED}, (98.10, 8.03)),
    "MNIST: DP-SGLD": ({"temperature": PUBLISHED_TEMPERATURE}, (99.12, 0.10)),
    "MNIST: DP-SGLD, temperature 1": ({}, ()),
    "MNIST: DP-SGHMC": ({**_SGHMC, "temperature": PUBLISHED_TEMPERATURE}, (99.28, 0.24)),
    "MNIST: DP-SGHMC, temperature 1": (_SGHMC, ()),
    "MNIST: DP-SGD": ({"method": NOISY_SGD}, ()),
    "MNIST: DP-SGD at ε = 0.1": (
        {"method": NOISY_SGD, "target": 0.1, "learning_rate": 0.25},
        (),
    ),
}
_SVHN: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "digits for SVHN: non-private": ({"method": PLAIN}, (92.80,)),
    "SVHN: PATE(100)": ({"method": QUOTED}, (82.76, 5.04)),
    "SVHN: PATE(1000)": ({"method": QUOTED}, (90.66, 8.19)),
    "digits for SVHN: DP-SGLD": ({"temperature": PUBLISHED_TEMPERATURE}, (92.14, 0.12)),
    "digits for SVHN: DP-SGHMC": ({**_SGHMC, "temperature": PUBLISHED_TEMPERATURE}, (92.84, 0.43)),
}


def rows(profile: str) -> list[Row]:
    """The table's rows, then private SGLD at given budgets."""
    size = _QUICK if profile == "quick" else _PAPER
    mnist = Settings(LANGEVIN, "mnist", delta=1e-5, **size)
    # A network of MNIST's size has nothing more to learn from 1,437 images in ten times the steps.
    small = {**size, "network": "MLP", "num_steps": _QUICK["num_steps"]}
    svhn = Settings(LANGEVIN, "digits", delta=1e-6, **small)
    return [
        *(_row(name, mnist, *line) for name, line in _MNIST.items()),
        *(_row(name, svhn, *line) for name, line in _SVHN.items()),
        *(_row(f"{FRONTIER}ε = {at:g}", mnist, {"target": at}) for at in _TARGETS[profile]),
    ]


def _row(
    name: str, settings: Settings, changes: Mapping[str, Any], printed: tuple[float, ...] = ()
) -> Row:
    changed = dataclasses.replace(settings, **changes)
    return Row(name, dataclasses.asdict(changed), dict(zip((ACCURACY, "ε"), printed, strict=False)))


@functools.cache
def published_epsilon(settings: Settings) -> float:
    """The certified epsilon of a chain at the slides' size: 50,000 images and 10,000 steps."""
    chain = settings.chain(NUM_EXAMPLES, PUBLISHED_STEPS)
    return dpjax.accounting.epsilon(
        chain.event, settings.delta, adjacency=chain.adjacency, method="pld"
    )


def epsilon_by_batch(temperature: float) -> dict[int, float]:
    """The same for DP-SGLD, by batch size, which the slides do not give.

    >>> {batch: round(epsilon, 2) for batch, epsilon in epsilon_by_batch(0.5).items()}
    {100: 36.18, 256: 3.51, 1000: 2.35, 5000: 2.29}
    """
    at = Settings(LANGEVIN, "mnist", "CNN", PUBLISHED_STEPS, 1e-5, temperature=temperature)
    return {
        batch: published_epsilon(dataclasses.replace(at, batch_size=batch)) for batch in BATCHES
    }
