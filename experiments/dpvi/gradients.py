"""Plain and aligned gradients at equal epsilon: ``python -m experiments.dpvi.gradients``.

Mean-field logistic regression on Adult's 14 attributes and on Abalone, standardised, with an
intercept. Learning rate and clip bound of each kind of gradient are those with the best held-out
log-likelihood over two runs at each epsilon; five other runs with them are measured. Neither
standardising nor tuning is private: these are comparisons of methods.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
import optax
from numpyro.infer.autoguide import AutoNormal

import dpjax
from dpjax.accounting import calibrate
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.step import Gradient
from experiments.data import Split, load_data
from experiments.dpvi.inference import MakeInference, Point, fit
from experiments.dpvi.logistic import model

Array = npt.NDArray[np.float64]
Records = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

EPSILONS, DELTA, NUM_STEPS = (0.3, 1.0, 3.0), 1e-5, 1_500
LEARNING_RATES, L2_CLIPS = (0.01, 0.03, 0.1), (1.0, 3.0, 10.0)
SAMPLING_RATES = {"adult_attributes": 0.01, "abalone": 0.05}


class Task(NamedTuple):
    """Records with an intercept, and the scales of the mean-field normal posterior.

    Attributes:
      train: features (n, d) and labels (n,).
      test: held-out ones.
      scales: standard deviations of the best mean-field normal at the posterior mode, (d,).
      sampling_rate: of the batches.
    """

    train: Records
    test: Records
    scales: Array
    sampling_rate: float

    @property
    def mechanism(self) -> dpjax.SubsampledGaussian:
        """Noise multiplier and clip bound one."""
        return dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(len(self.train[1]), self.sampling_rate),
            num_steps=NUM_STEPS,
            l2_clip=1.0,
            noise_multiplier=1.0,
            adjacency="zero_out",
        )


def load_task(name: str) -> Task:
    """Returns a task by the name of its data set."""
    data = load_data(name)
    center, scale = data.train.x.mean(0), data.train.x.std(0)

    def standardise(split: Split) -> Records:
        features = (split.x - center) / scale
        x = np.column_stack([features, np.ones(len(features))])
        return x.astype(np.float32), split.y.astype(np.float32)

    train, test = standardise(data.train), standardise(data.test)

    # Newton steps to the mode; a normal's best mean-field scales are its conditional ones.
    (features, y), mode = train, np.zeros(train[0].shape[1])
    x = features.astype(float)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(len(mode))
        mode -= np.linalg.solve(hessian, x.T @ (p - y) + mode)
    return Task(train, test, np.diag(hessian) ** -0.5, SAMPLING_RATES[name])


class Scores(NamedTuple):
    """Of fitted guides, each (points, repeats).

    Attributes:
      log_likelihood: mean over held-out records, at the guide's means.
      accuracy: held-out, %.
      scale_factor: exponential of the root mean square of log(scale / posterior scale).
    """

    log_likelihood: Array
    accuracy: Array
    scale_factor: Array


def score(task: Task, params: Any) -> Scores:
    """Returns the scores of a guide's parameters, with leading axes (points, repeats)."""
    x, y = task.test
    logits = np.asarray(params["weights_auto_loc"], float) @ x.T
    log_ratio = np.log(np.asarray(params["weights_auto_scale"], float) / task.scales)
    return Scores(
        (y * logits - np.logaddexp(0, logits)).mean(-1),
        100 * ((logits > 0) == y).mean(-1),
        np.exp(np.sqrt((log_ratio**2).mean(-1))),
    )


@functools.cache
def inference(
    gradient: Gradient, learning_rate: float, mechanism: dpjax.SubsampledGaussian
) -> MakeInference:
    """Returns the maker of inferences by this gradient."""

    def make(point: Point, num_steps: int) -> DPSVI:
        at_point = dpjax.SubsampledGaussian(
            mechanism.sampling,
            num_steps=num_steps,
            l2_clip=point.l2_clip,
            noise_multiplier=2 * point.sigma,
            adjacency="zero_out",
        )
        optim = optax.adam(learning_rate)
        return DPSVI(model, AutoNormal(model), optim, mechanism=at_point, gradient=gradient)

    return make


def compare(name: str) -> None:
    """Tunes and measures both gradients on one data set, and prints rows of a table."""
    task = load_task(name)
    sigmas = {}
    for epsilon in EPSILONS:
        mechanism: Any = calibrate(task.mechanism, epsilon=epsilon, delta=DELTA)
        sigmas[epsilon] = mechanism.noise_multiplier / 2

    def run(
        gradient: Gradient, rate: float, points: list[Point], seed: int, repeats: int
    ) -> Scores:
        fits = fit(
            jax.random.key(seed),
            inference(gradient, rate, task.mechanism),
            points,
            task.train,
            num_steps=NUM_STEPS,
            repeats=repeats,
        )
        return score(task, fits.params)

    gradients: tuple[Gradient, ...] = ("plain", "aligned")
    for gradient in gradients:
        settings = list(itertools.product(EPSILONS, L2_CLIPS))
        points = [Point(sigmas[epsilon], l2_clip) for epsilon, l2_clip in settings]
        tuning = {
            (epsilon, l2_clip, rate): value
            for rate in LEARNING_RATES
            for (epsilon, l2_clip), value in zip(
                settings, run(gradient, rate, points, 0, 2).log_likelihood.mean(1), strict=True
            )
        }
        for epsilon in EPSILONS:
            _, l2_clip, rate = max((k for k in tuning if k[0] == epsilon), key=lambda k: tuning[k])
            scores = run(gradient, rate, [Point(sigmas[epsilon], l2_clip)], 1, 5)
            means = [f"{each.mean():.3f} ± {each.std() / 2:.3f}" for each in scores]
            cells = [name, f"{epsilon:g}", gradient, *means, f"{l2_clip:g}, {rate:g}"]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    print("| data | ε | gradient | log-likelihood | accuracy % | factor on scales | clip, rate |")
    print("|---|---|---|---|---|---|---|")
    for data_set in SAMPLING_RATES:
        compare(data_set)
