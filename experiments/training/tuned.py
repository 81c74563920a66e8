"""Tuning inside epsilon: what a search costs, and searches on images.

``python -m experiments run training_tuned``: on two CPU cores a minute (``quick``) or half an hour
(``paper``: figure 7 on MNIST, with more candidates, and scattering features).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from matplotlib.figure import Figure

import dpjax
from dpjax import sensitivity
from dpjax.accounting import epsilon, epsilon_bounds
from dpjax.accounting.accountants import compute_rdp
from dpjax.accounting.events import decompose
from dpjax.sampling import PoissonRepetitions, Repetitions, TruncatedNegativeBinomial
from dpjax.tuning import Study
from experiments.data import Dataset, load_data
from experiments.gdp.classifiers import summarize
from experiments.lib.figures import PALETTE, new_figure
from experiments.lib.models import accuracy_percent, cross_entropy
from experiments.lib.plots import draw_nonempty, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.verdicts import format_upper_bound, group_by
from experiments.scattering import linear

if TYPE_CHECKING:
    from dp_accounting import DpEvent

UNIT: Final = "one image"
ADJACENCY: Final = "zero_out"
# Of the cost of a search between runs that are 0.5-Gaussian private.
_NOISE, _DELTA = 2.0, 1e-5
_SHAPES = {"logarithmic": 0.0, "η = 0.5": 0.5, "geometric": 1.0, "Poisson": math.inf}
EPSILON, LOWER, RENYI = "ε", "ε, lower bound", "ε by Rényi divergences"
# Of the search: the rates that a careful user might try, and the mean number of candidates.
_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_MEAN, _BUDGET, _BUDGET_DELTA = 8, 3.0, 1e-4
ACCURACY, RATE = "test accuracy %", "learning rates"
# Of figure 7: the run of the source, and the values of gamma, of which columns have one.
SOURCE_RUN = SelfComposedDpEvent(PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(1.1)), 14_063)
_GAMMAS = {
    "quick": (3.5e-3, 0.1, 0.5),
    "paper": (1e-7, 8e-6, 1e-4, 2.4e-4, 1.5e-3, 3.5e-3, 0.025, 0.05, 0.1, 0.2, 0.5),
}
_LEAST_GAMMA = {"logarithmic": 1e-7, "η = 0.5": 1e-4, "geometric": 1e-4, "Poisson": 0.025}
_GAMMA = 0.1
LEAST_RENYI, BEST = "least Rényi divergence", "best candidate %"
SOURCE_LEAST = f"{LEAST_RENYI}, source's run"
POINTS = "γ, least Rényi divergence, ε, its lower bound, accuracy %"
SOURCE_EPSILON, SOURCE_LOWER = "ε, source's run", "ε, source's run, lower bound"
_FIGURE: dict[str, Values] = {
    "quick": {"data": "digits", "batch_size": 256, "num_steps": 100, "pool": 32},
    "paper": {"data": "mnist", "batch_size": 1024, "num_steps": 293, "pool": 400},
}
_RANGE = (0.02, 20.0)


@dataclasses.dataclass(frozen=True)
class SeparateRuns(TruncatedNegativeBinomial):
    """A fixed number of runs, all of which are counted as if they were all released."""

    def quantile(self, level: float) -> int:
        del level
        return round(self.expected)

    def select(self, masses: np.ndarray) -> np.ndarray:
        return np.diff(np.append(0.0, np.cumsum(masses)) ** round(self.expected))

    def event(self, run: "DpEvent") -> "DpEvent":
        return SelfComposedDpEvent(run, round(self.expected))


def repetitions_of(distribution: str, mean: float) -> Repetitions:
    """Returns the distribution of the number of candidates of a row."""
    if distribution == "fixed":
        return SeparateRuns(mean)
    shape = _SHAPES[distribution]
    if math.isinf(shape):
        return PoissonRepetitions(mean)
    return TruncatedNegativeBinomial(mean, shape=shape)


def mean_number(distribution: str, gamma: float) -> float:
    """Returns the mean number of candidates at a point of figure 7."""
    shape = _SHAPES[distribution]
    if math.isinf(shape):
        return 100 * gamma
    if shape == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return shape * (1 - gamma) / (gamma * (1 - gamma**shape))


def logits(params: Any, x: jax.Array) -> jax.Array:
    return x @ params["weights"] + params["offsets"]


def loss(params: Any, example: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, example[0]), example[1])


@jax.jit
def accuracy(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(jnp.argmax(logits(params, x), -1) == labels)


class Pool(NamedTuple):
    """Trained candidates, and one that is not trained.

    Attributes:
      scores: share of images that a candidate classifies rightly in the half that scores,
        ``(candidates,)``.
      accuracies: of the other half, in %.
      untrained: accuracy in % of the first parameters, the result of a search without candidates.
    """

    scores: np.ndarray
    accuracies: np.ndarray
    untrained: float

    def chances(self, repetitions: Repetitions) -> np.ndarray:
        """Returns the probability that each candidate is selected, if candidates are drawn from it.

        Candidates of equal scores have equal chances, whatever their accuracy.
        """
        _, place, number = np.unique(self.scores, return_inverse=True, return_counts=True)
        return (repetitions.select(number / number.sum()) / number)[place]

    def mean_accuracy(self, repetitions: Repetitions) -> float:
        """Returns the mean accuracy in % of the result of a search."""
        without = repetitions.probability_of_zero * self.untrained
        return float(self.chances(repetitions) @ self.accuracies) + without

    def accuracy_quantile(self, repetitions: Repetitions, level: float) -> float:
        """Returns the accuracy in % that a search falls below with probability ``level``."""
        chances = np.append(repetitions.probability_of_zero, self.chances(repetitions))
        accuracies = np.append(self.untrained, self.accuracies)
        order = np.argsort(accuracies)
        place = np.searchsorted(np.cumsum(chances[order]), level)
        return float(accuracies[order][place])


def train_pool(
    run: dpjax.SubsampledGaussian,
    images: Dataset,
    optimizer: Any,
    candidates: Any,
    *,
    size: int,
    seed: int,
) -> Pool:
    """Trains linear classifiers of pixels with random settings.

    Args:
      run: the mechanism of each.
      images: the data set. Every second test image scores.
      optimizer: of settings, as for `dpjax.tune`.
      candidates: as for `dpjax.tune`.
      size: number of candidates.
      seed: of the key.
    """
    private, (x, labels) = (
        (jnp.asarray(part.x.reshape(len(part.y), -1)), jnp.asarray(part.y))
        for part in (images.train, images.test)
    )
    first = {"weights": jnp.zeros((x.shape[1], 10)), "offsets": jnp.zeros(10)}
    pairs: list[tuple[float, float]] = []

    def score(params: Any) -> float:
        halves = (accuracy(params, x[place::2], labels[place::2]) for place in (0, 1))
        scored, tested = map(float, halves)
        pairs.append((scored, 100 * tested))
        return scored

    dpjax.tune(
        jax.random.key(seed),
        loss,
        first,
        private,
        optimizer,
        candidates=candidates,
        score=score,
        mechanism=dpjax.RepeatedSelection(run, repetitions=SeparateRuns(float(size))),
    )
    # The first parameters are scored before any candidate.
    scores, accuracies = np.transpose(pairs[1:])
    return Pool(scores, accuracies, pairs[0][1])


@functools.cache
def search_mechanism(distribution: str, mean: int, num_steps: int) -> dpjax.RepeatedSelection:
    """Returns the mechanism of a search on the digits, with the least noise for the budget."""
    run = dpjax.dpsgd(
        num_examples=len(dpjax.datasets.load_digits().train.y),
        batch_size=256,
        num_steps=num_steps,
        noise_multiplier=1.0,
        adjacency=ADJACENCY,
        unit=UNIT,
    )
    repetitions = repetitions_of(distribution, float(mean))
    mechanism = dpjax.RepeatedSelection(run, repetitions=repetitions)
    return dpjax.calibrate(mechanism, epsilon=_BUDGET, delta=_BUDGET_DELTA)


def rows(profile: str) -> list[Row]:
    # What a search costs.
    costs = [
        Row(
            f"cost: {name}, mean {mean}",
            {
                "part": "cost",
                "distribution": name,
                "mean": mean,
                "noise_multiplier": _NOISE,
                "delta": _DELTA,
            },
            {},
        )
        for name in ("logarithmic", "geometric", "Poisson")
        for mean in (10, 100)
    ]

    # Searches on the digits with one budget.
    searches = {
        "search: one candidate": ("geometric", 1),
        f"search: {_MEAN} separate runs": ("fixed", _MEAN),
        **{
            f"search: {name}, mean {_MEAN}": (name, _MEAN)
            for name in ("logarithmic", "geometric", "Poisson")
        },
    }
    common = {
        "part": "search",
        "rates": _RATES,
        "epsilon": _BUDGET,
        "delta": _BUDGET_DELTA,
        "num_steps": 100,
        "pool": 32,
        "seed": 0,
    }
    found = [
        Row(name, {"distribution": kind, "mean": mean, **common}, {})
        for name, (kind, mean) in searches.items()
    ]

    # Figure 7 of Papernot & Steinke.
    curves = [
        Row(
            f"figure 7: {name}",
            {
                "part": "figure",
                "distribution": name,
                "gammas": [gamma for gamma in _GAMMAS[profile] if gamma >= least],
                "rates": _RANGE,
                "delta": _DELTA,
                "seed": 0,
                **_FIGURE[profile],
            },
            {},
        )
        for name, least in _LEAST_GAMMA.items()
    ]
    if profile == "paper":  # of costs and searches nothing is shortened
        return [*curves, _scattering_row()]
    return [*costs, *found, *curves]


def _scattering_row() -> Row:
    training = linear.Settings(
        "MNIST",
        linear.GROUPS,
        epsilon=3.0,
        learning_rate=8.0,
        sampling_rate=4096 / 60_000,
        noise_multiplier=3.04,
        epochs=20,
        num_train=60_000,
        num_test=10_000,
    )
    settings = {
        "part": "scattering",
        "distribution": "logarithmic",
        "mean": 4,
        "rates": (2.0, 4.0, 8.0, 16.0),
        "score_scale": 50.0,
        "training": dataclasses.asdict(training),
    }
    return Row("ScatterNet: MNIST, logarithmic, mean 4", settings, {})


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    if settings["part"] == "cost":
        return _cost(settings)
    if settings["part"] == "search":
        return _search(settings)
    if settings["part"] == "figure":
        return _figure(settings)
    return _scattering(settings, context)


def _cost(settings: Values) -> Result:
    """Upper and lower bounds on ε of a search."""
    repetitions = repetitions_of(settings["distribution"], float(settings["mean"]))
    event = repetitions.event(GaussianDpEvent(settings["noise_multiplier"]))
    lower, upper = epsilon_bounds(event, settings["delta"], adjacency=ADJACENCY)
    renyi = epsilon(event, settings["delta"], adjacency=ADJACENCY, method="rdp")
    return Result(
        measured={RENYI: renyi},
        certified={EPSILON: upper, LOWER: lower},
        note="Each candidate is a Gaussian release of noise multiplier 2, ε = 1.99 at δ = 1e-5.",
    )


def _search(settings: Values) -> Result:
    """Trains a pool of candidates, of which searches draw theirs."""
    mechanism = search_mechanism(settings["distribution"], settings["mean"], settings["num_steps"])
    pool = train_pool(
        mechanism.run,
        load_data("digits"),
        lambda chosen: optax.sgd(chosen["learning_rate"], momentum=0.9),
        {"learning_rate": settings["rates"]},
        size=settings["pool"],
        seed=settings["seed"],
    )
    certificate = mechanism.certificate(settings["delta"])
    assert isinstance(mechanism.run.noise_multiplier, float)
    assert certificate.epsilon_lower is not None
    return Result(
        measured={
            ACCURACY: pool.mean_accuracy(mechanism.repetitions),
            "accuracy of the worst tenth %": pool.accuracy_quantile(mechanism.repetitions, 0.1),
            "noise multiplier": mechanism.run.noise_multiplier,
        },
        certified={EPSILON: certificate.epsilon, LOWER: certificate.epsilon_lower},
        note="One half of the test images scores candidates, as public records; accuracies are of"
        " the other half. Means and quantiles over searches among 32 trained candidates.",
    )


@functools.cache
def figure_pool(
    data: str, batch_size: int, num_steps: int, rates: tuple[float, float], size: int, seed: int
) -> tuple[dpjax.SubsampledGaussian, Pool, str]:
    """Returns the mechanism of a run of figure 7, a pool of candidates, and a note on the images.

    Learning rates are log-uniform. The noise is the least at which ε is that of the source's run.
    """
    images = load_data(data, stand_in=True)
    run = dpjax.dpsgd(
        num_examples=len(images.train.y),
        batch_size=batch_size,
        num_steps=num_steps,
        epsilon=epsilon(SOURCE_RUN, _DELTA, adjacency=ADJACENCY),
        delta=_DELTA,
        adjacency=ADJACENCY,
        unit=UNIT,
    )

    def candidates(key: jax.Array) -> Mapping[str, jax.Array]:
        low, high = map(math.log, rates)
        return {"learning_rate": jnp.exp(jax.random.uniform(key, (), minval=low, maxval=high))}

    pool = train_pool(
        run,
        images,
        lambda chosen: optax.sgd(chosen["learning_rate"]),
        candidates,
        size=size,
        seed=seed,
    )
    return run, pool, images.note


def _figure(settings: Values) -> Result:
    """Accuracy of the selected candidate at each γ, the figure's abscissa and the true ε."""
    run, pool, note = figure_pool(
        settings["data"],
        settings["batch_size"],
        settings["num_steps"],
        tuple(settings["rates"]),
        settings["pool"],
        settings["seed"],
    )

    def account(event: "DpEvent", gamma: float) -> tuple[float, float, float]:
        repetitions = repetitions_of(name, mean_number(name, gamma))
        search = repetitions.event(event)
        least = float(compute_rdp(decompose(search, ADJACENCY)).min())
        lower, upper = epsilon_bounds(search, settings["delta"], adjacency=ADJACENCY)
        return least, upper, lower

    name, points = settings["distribution"], {}
    for gamma in settings["gammas"]:
        mean = pool.mean_accuracy(repetitions_of(name, mean_number(name, gamma)))
        points[gamma] = *account(run.guarantee.event, gamma), mean

    # Columns have one of the points, and its account for the source's run.
    least, upper, lower, mean = points[_GAMMA]
    source_least, source_upper, source_lower = account(SOURCE_RUN, _GAMMA)
    return Result(
        measured={
            ACCURACY: mean,
            BEST: float(pool.accuracies.max()),
            LEAST_RENYI: least,
            SOURCE_LEAST: source_least,
        },
        certified={
            EPSILON: upper,
            LOWER: lower,
            SOURCE_EPSILON: source_upper,
            SOURCE_LOWER: source_lower,
        },
        note=f"{note} Columns of figure 7 are at γ = {_GAMMA}. One half of the test images scores,"
        f" as public records; accuracies are of the other half. {settings['pool']} candidates.",
        series={POINTS: [(gamma, *values) for gamma, values in points.items()]},
    )


def scattering_mechanism(settings: Values, num_examples: int) -> dpjax.RepeatedSelection:
    """Returns the mechanism of a search on scattering features, with the least noise for its ε."""
    training = linear.Settings(**settings["training"])
    right = sensitivity.of_count(norm="l2", adjacency=ADJACENCY)
    mechanism = dpjax.RepeatedSelection(
        training.training(num_examples),
        repetitions=repetitions_of(settings["distribution"], float(settings["mean"])),
        score=dpjax.DiscreteGaussian(right, settings["score_scale"], linear.UNIT),
    )
    return dpjax.calibrate(mechanism, epsilon=training.epsilon, delta=training.delta)


def _scattering(settings: Values, context: RowContext) -> Result:
    """Searches for the learning rate of a linear model of scattering features."""
    training = linear.Settings(**settings["training"])
    features = linear.load_features(
        linear.load_images(training.data),
        training.num_train,
        training.num_test,
        context.folder.parent,
    )
    private, test = (
        (jax.device_put(linear.normalize_groups(part.x, training.num_groups)), part.y)
        for part in (features.train, features.test)
    )
    mechanism = scattering_mechanism(settings, len(private[1]))
    num_steps = mechanism.run.num_steps
    first = linear.MODEL.init(jax.random.key(0), private[0][:1])["params"]

    def optimizer(chosen: Mapping[str, Any]) -> optax.GradientTransformation:
        own = dataclasses.replace(training, learning_rate=chosen["learning_rate"])
        return own.optimizer(num_steps)

    def is_right(params: Any, example: Any) -> jax.Array:
        x, label = example
        return jnp.argmax(linear.MODEL.apply({"params": params}, x[None])[0]) == label

    # One search for each seed, scored by the noisy number of training images that are right.
    studies: list[Study] = [
        dpjax.tune(
            jax.random.key(seed),
            cross_entropy(linear.MODEL),
            first,
            private,
            optimizer,
            candidates={"learning_rate": settings["rates"]},
            score=is_right,
            mechanism=mechanism,
            candidates_per_program=1,
            checkpoint_dir=context.folder / str(seed),
        )
        for seed in training.seeds
    ]
    score = accuracy_percent(linear.MODEL)
    certificate = studies[0].certificate(training.delta)
    assert isinstance(mechanism.run.noise_multiplier, float)
    assert certificate.epsilon_lower is not None
    return Result(
        measured={
            **summarize([score(study.params, test) for study in studies]),
            RATE: [(study.best_params or {})["learning_rate"] for study in studies],
            "noise multiplier": mechanism.run.noise_multiplier,
        },
        certified={EPSILON: certificate.epsilon, LOWER: certificate.epsilon_lower},
        note=f"{features.note} ε is that of one search, its candidates, scores and selection"
        " included. Seeded keys: the noise is reproducible, so these runs are not private.",
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    curves = group_by(records, "part").get("figure", [])
    # The quick profile has too few points for curves.
    curves = [record for record in curves if record.profile == "paper"]
    return draw_nonempty(figure_7=(_draw_curves, curves))


def _draw_curves(records: Sequence[Record]) -> Figure:
    """Draws accuracy against the true ε and, dashed, against the abscissa of the source."""
    figure, (axes,) = new_figure(width=4.8, height=3.0)
    for record, colour in zip(records, PALETTE, strict=False):
        _, least, upper, lower, mean = np.transpose(record.series[POINTS])
        name = record.settings["distribution"]
        axes.plot(upper, mean, "o-", color=colour, markersize=3, label=name)
        axes.hlines(mean, lower, upper, color=colour, linewidth=1)
        axes.plot(least, mean, "--", color=colour, linewidth=1)
    best = max(record.measured[BEST] for record in records)
    axes.axhline(best, color="#9a9da3", linewidth=0.8)
    axes.set_ylabel("test accuracy (%)")
    set_log_ticks(axes, (1, 2, 3, 5, 8, 15), "ε at δ = 1e-5 (dashed: least Rényi divergence)")
    axes.legend(loc="lower right")
    return figure


def finding(records: Sequence[Record]) -> Finding:
    parts, clauses = group_by(records, "part"), []

    # Certified ε against Rényi divergences and the lower bound.
    if costs := parts.get("cost"):
        saved = [record.measured[RENYI] - record.certified[EPSILON] for record in costs]
        gaps = [1 - record.certified[LOWER] / record.certified[EPSILON] for record in costs]
        clauses.append(
            f"the certified ε is {max(min(saved), 0.0):.2f} to {max(saved):.2f} below that of Rényi"
            f" divergences, and the worst score order that was tried {min(gaps):.0%} to"
            f" {max(gaps):.0%} below it"
        )

    # Accuracies at one budget.
    if searches := parts.get("search"):
        accuracies = ", ".join(
            f"{record.measured[ACCURACY]:.1f} % ({record.row.removeprefix('search: ')})"
            for record in searches
        )
        clauses.append(f"at ε = {_BUDGET:g} for the whole search mean accuracies are {accuracies}")

    # The abscissa of figure 7 and the true ε, of the source's run.
    if curves := parts.get("figure"):
        listed = ", ".join(
            f"{record.measured[SOURCE_LEAST]:.2f} and"
            f" {format_upper_bound(record.certified[SOURCE_EPSILON])}"
            f" ({record.settings['distribution']})"
            for record in curves
        )
        clauses.append(
            f"figure 7 has the least Rényi divergence as its abscissa, which is no ε: at γ ="
            f" {_GAMMA} it is, beside the certified ε at δ = 1e-5, {listed}"
        )

    # The search on scattering features.
    clauses += [
        f"a search on scattering features of MNIST has {record.measured[ACCURACY]:.2f} % at a"
        f" certified ε of {format_upper_bound(record.certified[EPSILON])}"
        for record in parts.get("scattering", [])
    ]
    text = "; ".join(clauses)
    return Finding("not compared", f"{text[0].upper()}{text[1:]}.")
