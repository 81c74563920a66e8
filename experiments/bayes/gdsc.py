"""Drug sensitivity of cancer cell lines by private linear regression (Honkela 2017).

``python -m experiments run bayes_gdsc``: under a minute on two CPU cores in the quick profile.
The data may not be redistributed: put the files of GDSC, release 17, into ``DPJAX_DATA_DIR``.

Sufficient statistics with Gaussian noise, and two baselines: output and objective perturbation of
ridge regression. The baselines restrict coefficients to a ball, where the gradient of a record's
loss (y - x^T b)^2 / 2 has norm at most G = R (B + R radius), for features of norm R and targets of
size B. Neighbours replace one record.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtri

from dpjax._checks import as_key, check, check_delta, check_positive
from dpjax.accounting import gdp
from dpjax.bayes.regression import (
    AssumedModel,
    PerturbedStatistics,
    RegressionBounds,
    RegressionStatistics,
    known_noise_posterior,
    largest_noise_eigenvalue,
    repair,
    sufficient_statistics,
)
from dpjax.mechanisms import Composition, Gaussian
from dpjax.sensitivity import Sensitivity
from experiments.data import DrugResponses, load_data
from experiments.lib.figures import SOURCE, new_figure
from experiments.lib.plots import draw_series, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.verdicts import Comparison

# Rank correlation does not depend on the scale of the records.
UNIT = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
_ONE = Sensitivity(1.0, "l2", "replace_one")
# Public assumption, in units of the bounds, for which the budget split is optimised.
_GUESS = AssumedModel(coefficient_norm=0.5, noise_std=0.7, noise_known=True)
_RADIUS, _HALVINGS = 1.0, 40
_UNIT_OF_PRIVACY = "one cell line's features and response to one drug"


@dataclass(frozen=True)
class BallRidge:
    """Ridge regression constrained to a ball: summed losses plus ``ridge`` / 2 ||b||^2.

    Raises:
      ValueError: ``ridge`` or ``radius`` is not above zero.
    """

    bounds: RegressionBounds  # public clipping bounds
    ridge: float
    radius: float  # of the ball

    def __post_init__(self) -> None:
        check_positive("ridge", self.ridge)
        check_positive("radius", self.radius)

    @property
    def gradient_bound(self) -> float:
        """G, the largest norm of a record's gradient within the ball."""
        bounds = self.bounds
        return bounds.x_norm_bound * (bounds.y_bound + bounds.x_norm_bound * self.radius)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the minimum under replace-one: 2 G / ridge.

        The objective is ``ridge``-strongly convex, and replacing a record changes its gradient by
        at most 2 G within the ball, where both minima are (Chaudhuri, Monteleoni and Sarwate 2011,
        Lemma 7).
        """
        return 2 * self.gradient_bound / self.ridge

    @property
    def log_determinant(self) -> float:
        """Sensitivity of the log-determinant of the Hessian to one record."""
        return math.log1p(self.bounds.x_norm_bound**2 / self.ridge)

    def solve(self, statistics: RegressionStatistics) -> jax.Array:
        """Returns the exact coefficients ``(d,)``, which are not private.

        On the boundary of the ball they are those of a larger ridge, found by bisection.
        """
        values, vectors = jnp.linalg.eigh(statistics.xtx)
        rotated = vectors.T @ statistics.xty
        curvature = jnp.maximum(values, 0.0) + self.ridge

        def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            middle = (ends[0] + ends[1]) / 2
            outside = jnp.linalg.norm(rotated / (curvature + middle)) > self.radius
            low, high = jnp.where(outside, middle, ends[0]), jnp.where(outside, ends[1], middle)
            return low, high

        most = jnp.linalg.norm(rotated) / self.radius
        _, more = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(most), most))
        inside = jnp.linalg.norm(rotated / curvature) <= self.radius
        return vectors @ (rotated / (curvature + jnp.where(inside, 0.0, more)))


def output_perturbation(
    ridge: BallRidge, num_features: int, mu: float, unit: str = "one record"
) -> Gaussian:
    """Returns the mu-GDP Gaussian mechanism of the minimum ``(num_features,)``."""
    moves = Sensitivity(ridge.sensitivity, "l2", "replace_one", shape=(num_features,))
    return Gaussian(moves, moves.value / mu, unit)


@dataclass(frozen=True)
class ObjectivePerturbation:
    """Objective perturbation: the minimum of the objective plus N(0, scale^2 I)^T b.

    Privacy:
      The release is ``(epsilon(delta), delta)``-DP under replacement. First extend the losses
      beyond the ball with slope at most G, so that b is unconstrained. A release b then determines
      the noise, minus the objective's gradient at b. Between neighbours

      - the Jacobians' determinants differ by a factor of at most 1 + R^2 / ridge, for the Hessians
        share all records but one and that one's has rank one;
      - the noise differs by two records' gradients, each of a fixed direction and a length of at
        most G. Along either, the noise is beyond t scale, with t = Phi^-1(1 - delta / 4), with
        probability delta / 2. Else the densities differ by a factor of at most
        exp(2 G t / scale + (2 G)^2 / (2 scale^2)).

      So epsilon = log(1 + R^2 / ridge) + 2 G t / scale + 2 G^2 / scale^2. The constraint to the
      ball is the limit of increasing penalties outside it, which do not depend on the data, and
      limits of private mechanisms are private.

    Source: Kifer, Smith and Thakurta (2012), Theorems 2 and 4, with the constants of a rank-one
    Hessian and of replacement.
    """

    model: BallRidge
    scale: float  # standard deviation of each entry of the noise

    @classmethod
    def from_epsilon(cls, model: BallRidge, epsilon: float, delta: float) -> Self:
        """Returns the mechanism with the least noise at (epsilon, delta).

        Raises:
          ValueError: ``epsilon`` is at most the log-determinant term; use a larger ridge.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        left, quantile = epsilon - model.log_determinant, -float(ndtri(delta / 4))
        check(left > 0, "epsilon", epsilon, f"above {model.log_determinant:.4g}")
        root = 2 * left / (quantile + math.sqrt(quantile**2 + 2 * left))
        return cls(model, 2 * model.gradient_bound / root)

    def epsilon(self, delta: float) -> float:
        """Returns the certified epsilon at ``delta``."""
        check_delta(delta)
        ratio, quantile = 2 * self.model.gradient_bound / self.scale, -float(ndtri(delta / 4))
        return self.model.log_determinant + quantile * ratio + ratio**2 / 2

    def with_privacy_factor(self, factor: Any) -> Self:
        """Returns the mechanism with ``scale`` times ``factor``."""
        return replace(self, scale=self.scale * factor)

    def release(self, key: jax.Array, statistics: RegressionStatistics) -> jax.Array:
        """Releases private coefficients ``(d,)``; works under jit and vmap."""
        xty = jnp.asarray(statistics.xty)
        noise = self.scale * jax.random.normal(as_key(key), xty.shape, xty.dtype)
        return self.model.solve(statistics._replace(xty=xty + noise))


@dataclass(frozen=True)
class Settings:
    """Settings of one method; epsilon and delta are those of one drug's model."""

    method: str  # a key of METHODS, or "none" for no noise
    num_genes: int = 5  # number of gene features
    num_tissues: int = 5  # number of tissue features
    x_norm: float | None = 1.0  # bound on the features; None for the data's maximum
    y_size: float | None = 1.5  # bound on centred responses; None for the data's maximum
    y_range: tuple[float, float] = (-7.0, 7.0)  # of responses, in ln micromoles
    mean_share: float = 0.1  # share of the budget (mu^2 or epsilon) for the mean
    ridge: float = 10.0  # added to X^T X, in units of the bounds
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    sizes: tuple[int, ...] = (100, 200, 400, 600, 800)  # numbers of training lines
    delta: float = 1e-5
    num_repeats: int = 10  # number of random splits
    seed: int = 0


class Guarantee(NamedTuple):
    """Certified (ε, δ) of one drug's model, and of those of all drugs together."""

    one: float  # epsilon of one drug, at the settings' delta
    every: float  # epsilon of all drugs
    delta: float  # at which every holds
    certificate: str  # text for one drug


@dataclass(frozen=True)
class Method:
    """A private regression on records within unit bounds, and a private mean."""

    mean: Gaussian  # releases the sum of responses over their range
    fit: Any  # the mechanism behind the coefficients
    # from key, fit and exact statistics to coefficients (d,)
    solve: Callable[[jax.Array, Any, RegressionStatistics], jax.Array]

    @property
    def scales(self) -> tuple[float, float]:
        """Noise scales of the mean and of the coefficients."""
        of_statistics = isinstance(self.fit, PerturbedStatistics)
        return self.mean.scale, self.fit.scales.xty if of_statistics else self.fit.scale

    def guarantee(self, delta: float, num_drugs: int) -> Guarantee:
        """Returns the guarantee for public bounds and range.

        Gaussian mechanisms compose exactly; objective perturbation by summed epsilon and delta.
        """
        if isinstance(self.fit, ObjectivePerturbation):
            one = gdp.epsilon(self.mean.mu, delta / 2) + self.fit.epsilon(delta / 2)
            words = f"(ε, δ) = ({one:.4g}, {delta:g}), by the derivation in the code"
            return Guarantee(one, num_drugs * one, num_drugs * delta, words)
        both = Composition((self.mean, self.fit))
        mu = math.sqrt(num_drugs) * gdp.mu_of_event(both.event, "replace_one")
        certificate = both.certificate(delta)
        return Guarantee(certificate.epsilon, gdp.epsilon(mu, delta), delta, str(certificate))


def ridge_solution(statistics: RegressionStatistics, ridge: float) -> jax.Array:
    """Returns the posterior mean of the coefficients, ``(d,)``."""
    posterior = known_noise_posterior(statistics, prior_precision=ridge, noise_precision=1.0)
    return posterior.mean


def _by_statistics(settings: Settings, dim: int, epsilon: float) -> Method:
    mean, mu = _mean_and_rest(settings, epsilon)
    fit = PerturbedStatistics.from_epsilon(
        UNIT,
        epsilon=gdp.epsilon(mu, settings.delta),
        delta=settings.delta,
        adjacency="replace_one",
        num_features=dim,
        split=_GUESS,
        unit=_UNIT_OF_PRIVACY,
    )

    def solve(key: jax.Array, fit: PerturbedStatistics, exact: RegressionStatistics) -> jax.Array:
        floor = largest_noise_eigenvalue(fit.noise_scales.xtx)
        return ridge_solution(repair(fit.release(key, exact), floor), settings.ridge)

    return Method(mean, fit, solve)


def _by_output(settings: Settings, dim: int, epsilon: float) -> Method:
    mean, mu = _mean_and_rest(settings, epsilon)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)
    fit = output_perturbation(ridge, dim, mu, _UNIT_OF_PRIVACY)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, ridge.solve(exact)))


def _by_objective(settings: Settings, dim: int, epsilon: float) -> Method:
    share, delta = settings.mean_share, settings.delta / 2
    mean = Gaussian.from_epsilon(_ONE, epsilon=share * epsilon, delta=delta, unit=_UNIT_OF_PRIVACY)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)
    fit = ObjectivePerturbation.from_epsilon(ridge, (1 - share) * epsilon, delta)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, exact))


def _mean_and_rest(settings: Settings, epsilon: float) -> tuple[Gaussian, float]:
    """Returns the mechanism of the mean, and mu of the regression."""
    mu = Gaussian.from_epsilon(_ONE, epsilon=epsilon, delta=settings.delta).mu
    mean = Gaussian(_ONE, 1 / (mu * math.sqrt(settings.mean_share)), _UNIT_OF_PRIVACY)
    return mean, mu * math.sqrt(1 - settings.mean_share)


METHODS: dict[str, Callable[[Settings, int, float], Method]] = {
    "statistics": _by_statistics,
    "output": _by_output,
    "objective": _by_objective,
}


# Epsilons in the table; the figure by size is at the second.
_SHOWN, _NUM_TEST = (1.0, 2.0), 100
_BY_EPSILON, _BY_SIZE = "Spearman by ε", "Spearman by number of lines, ε = 2"
_REPEATS = {"quick": 3, "paper": 50}
# The source's robust private regression at epsilon = 2: 100 to 800 private lines and 10 public.
_PUBLISHED = dict(
    zip(
        range(100, 900, 100),
        (0.0888, 0.1363, 0.1663, 0.1822, 0.1950, 0.2032, 0.2108, 0.2148),
        strict=True,
    )
)
_PUBLISHED_EPSILONS = {1.0: 0.1831, 1.5: 0.2044, 2.0: 0.2149, 2.5: 0.2207, 3.0: 0.2245}
_UNBOUNDED: dict[str, Any] = {"x_norm": None, "y_size": None}
_UNPROJECTED = ("no projection", "output perturbation", "objective perturbation")
_GENES = {"num_genes": 10, "num_tissues": 0}
# Settings, and published values at epsilon 1 and 2.
_ROWS: dict[str, tuple[Values, tuple[float, ...]]] = {
    "non-private": ({"method": "none", **_UNBOUNDED}, (0.2509, 0.2509)),
    "non-private, projected": ({"method": "none"}, (0.2352, 0.2352)),
    "projected": ({"method": "statistics"}, (0.1832, 0.2148)),
    "no projection": ({"method": "statistics", **_UNBOUNDED}, (0.0003, 0.0004)),
    "output perturbation": ({"method": "output", "ridge": 100.0}, (0.0529, 0.0730)),
    "objective perturbation": ({"method": "objective", "ridge": 50.0}, (0.0040, 0.0092)),
    "non-private, genes alone": ({"method": "none", **_UNBOUNDED, **_GENES}, ()),
    "projected, genes alone": ({"method": "statistics", **_GENES}, ()),
}


class Lines(NamedTuple):
    """Cell lines of one repeat, or of all repeats with a leading axis."""

    x: jax.Array  # features (n, d), centred
    y: jax.Array  # responses (n, drugs), zero if missing
    known: jax.Array  # 0 for missing responses, else 1


@functools.cache
def data_set() -> DrugResponses:
    return load_data("gdsc", stand_in=True)


def frequent_features(data: DrugResponses, num_genes: int, num_tissues: int) -> list[int]:
    """Returns the columns of the most frequently mutated genes and most frequent tissues.

    Frequencies over all lines are assumed public. For a stand-in without names, the first columns.
    """
    counts = np.concatenate([data.train.x, data.test.x]).sum(axis=0)
    by_count = sorted(range(len(data.feature_names)), key=lambda column: -counts[column])
    genes = [i for i in by_count if data.feature_names[i].endswith("_mut")][:num_genes]
    tissues = [i for i in by_count if data.feature_names[i].startswith("tissue_")][:num_tissues]
    return genes + tissues or list(range(min(num_genes + num_tissues, len(counts))))


def draw_splits(
    data: DrugResponses, columns: Sequence[int], number: int, seed: int
) -> tuple[Lines, Lines]:
    """Draws ``number`` random splits of all lines into training and 100 test lines.

    Features are centred at their frequencies among all lines, which are assumed public.
    """
    x = np.concatenate([data.train.x, data.test.x])[:, columns]
    y = np.concatenate([data.train.y, data.test.y])
    everyone = x - x.mean(axis=0), np.nan_to_num(y), np.isfinite(y).astype(np.float32)
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(len(x)) for _ in range(number)])
    train, test = (
        Lines(*(jnp.asarray(part[order]) for part in everyone))
        for order in (orders[:, _NUM_TEST:], orders[:, :_NUM_TEST])
    )
    return train, test


def spearman(predicted: jax.Array, actual: jax.Array, known: jax.Array) -> jax.Array:
    """Spearman's rank correlation over the known entries of ``(n,)``; zero for a constant.

    Equal values share the mean of their ranks, as in ``scipy.stats.spearmanr``.

    >>> known = jnp.array([1.0, 1.0, 1.0, 0.0])
    >>> spearman(jnp.array([1.0, 2.0, 3.0, 0.0]), jnp.array([1.0, 9.0, 4.0, 0.0]), known).item()
    0.5
    """

    def centred_ranks(values: jax.Array) -> jax.Array:
        """Ranks by comparison with the known entries; zero if unknown."""
        return known * (jnp.sign(values[:, None] - values[None, :]) @ known) / 2

    first, second = centred_ranks(predicted), centred_ranks(actual)
    scale = jnp.sqrt(jnp.sum(first**2) * jnp.sum(second**2))
    return jnp.where(scale > 0, jnp.sum(first * second) / jnp.where(scale > 0, scale, 1.0), 0.0)


def make_scorer(
    settings: Settings, train: Lines, test: Lines
) -> Callable[[float, int], tuple[float, float]]:
    """Returns a compiled function of epsilon and the number of training lines.

    It returns Spearman's correlation of predictions and responses on test lines, averaged over
    drugs and repeats, and its standard error over repeats.
    """
    make, dim = METHODS.get(settings.method), train.x.shape[-1]
    base = make(settings, dim, 1.0) if make else None

    @jax.jit
    def all_scores(factors: Any, size: jax.Array) -> jax.Array:
        """Returns scores ``(repeats, drugs)`` with the noise of ``base`` times ``factors``."""
        method = base and dataclasses.replace(
            base,
            mean=base.mean.with_privacy_factor(factors[0]),
            fit=base.fit.with_privacy_factor(factors[1]),
        )
        one_drug = functools.partial(_score, settings, method)
        drug: Any = Lines(None, 1, 1)  # type: ignore[arg-type]

        def repeat(given: tuple[jax.Array, Lines, Lines]) -> jax.Array:
            key, lines, held_out = given
            used = lines.known * (jnp.arange(len(lines.x)) < size)[:, None]
            keys = jax.random.split(key, used.shape[1])
            score = jax.vmap(one_drug, in_axes=(0, drug, drug))
            return score(keys, lines._replace(known=used), held_out)

        keys = jax.random.split(jax.random.key(settings.seed), len(train.x))
        return jax.lax.map(repeat, (keys, train, test))

    def score(epsilon: float, size: int) -> tuple[float, float]:
        factors: tuple[float, ...] = (1.0, 1.0)
        if make and base:
            pairs = zip(make(settings, dim, epsilon).scales, base.scales, strict=True)
            factors = tuple(scale / at_one for scale, at_one in pairs)
        means = np.asarray(all_scores(factors, size)).mean(axis=1)
        return float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))

    return score


def _score(
    settings: Settings, method: Method | None, key: jax.Array, train: Lines, test: Lines
) -> jax.Array:
    """Returns the score of one drug; its number of known responses is public."""
    mean_key, fit_key = jax.random.split(key)
    number = jnp.maximum(train.known.sum(), 1.0)
    if method is None:
        exact = unit_statistics(settings, train, jnp.sum(train.known * train.y) / number)
        return spearman(test.x @ ridge_solution(exact, settings.ridge), test.y, test.known)
    low, high = map(jnp.asarray, settings.y_range)
    if not settings.y_size:  # the extremes of the known responses, which are private
        low = jnp.min(jnp.where(train.known > 0, train.y, jnp.inf))
        high = jnp.max(jnp.where(train.known > 0, train.y, -jnp.inf))
    total = jnp.sum(train.known * (jnp.clip(train.y, low, high) - low)) / (high - low)
    mean = low + (high - low) * method.mean.release(mean_key, total) / number
    beta = method.solve(fit_key, method.fit, unit_statistics(settings, train, mean))
    return spearman(test.x @ beta, test.y, test.known)


def unit_statistics(settings: Settings, train: Lines, mean: jax.Array) -> RegressionStatistics:
    """Returns the statistics of the known lines, clipped and in units of the bounds."""
    x_norm = settings.x_norm or jnp.max(jnp.linalg.norm(train.x, axis=1))
    y_size = settings.y_size or jnp.max(train.known * jnp.abs(train.y - mean))
    x, y = UNIT.clip(train.x / x_norm, (train.y - mean) / y_size)
    return sufficient_statistics(x * train.known[:, None], y * train.known)


def rows(profile: str) -> list[Row]:
    columns = [f"Spearman, ε = {epsilon:g}" for epsilon in _SHOWN]
    return [
        Row(
            name,
            dataclasses.asdict(Settings(**changes, num_repeats=_REPEATS[profile])),
            dict(zip(columns, source, strict=False)),
        )
        for name, (changes, source) in _ROWS.items()
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings, data = Settings(**row.settings), data_set()
    columns = frequent_features(data, settings.num_genes, settings.num_tissues)
    train, test = draw_splits(data, columns, settings.num_repeats, settings.seed)
    score, largest = make_scorer(settings, train, test), max(settings.sizes)
    by_epsilon = {epsilon: score(epsilon, largest) for epsilon in settings.epsilons}
    by_size = {size: score(_SHOWN[1], size) for size in settings.sizes}
    certified, certificate = {}, ""
    if settings.method == "none":
        note = "Not private: both columns are the same run."
    elif settings.y_size is None:
        note = "Bounds are computed from the data, so that nothing is certified."
    else:
        note = "Seeded keys: the noise is reproducible, so these runs are not private."
        method = METHODS[settings.method](settings, len(columns), _SHOWN[0])
        found = method.guarantee(settings.delta, len(data.drug_names))
        certificate = found.certificate
        certified = {
            f"ε, one drug ({_SHOWN[0]:g})": found.one,
            "ε, all drugs": found.every,
            "δ, all drugs": found.delta,
        }
    return Result(
        measured={f"Spearman, ε = {epsilon:g}": by_epsilon[epsilon][0] for epsilon in _SHOWN},
        certified=certified,
        note=f"{data.note} {note}",
        series={
            _BY_EPSILON: [(epsilon, *scores) for epsilon, scores in by_epsilon.items()],
            _BY_SIZE: [(size, *scores) for size, scores in by_size.items()],
        },
        certificate=certificate,
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    figure, (left, right) = new_figure(columns=2, width=10.4, height=4.2)
    shown = [record for record in records if "genes alone" not in record.row]
    is_real = any(record.data == "gdsc" for record in records)
    for axes, series, published in (
        (left, _BY_EPSILON, _PUBLISHED_EPSILONS),
        (right, _BY_SIZE, _PUBLISHED),
    ):
        draw_series(
            axes,
            shown,
            series,
            style=lambda record: {"linestyle": "--" if "non-private" in record.row else "-"},
        )
        if is_real:
            label = "source: projected, expression"
            axes.plot(*zip(*published.items(), strict=True), color=SOURCE, ls=":", label=label)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    set_log_ticks(left, (0.5, 1, 2, 4, 8), "ε of one drug's model, δ = 1e-5")
    left.set_ylabel("Spearman correlation")
    right.set(xlabel="training lines, at ε = 2")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return {"spearman": figure}


def finding(records: Sequence[Record]) -> Finding:
    pairs = [
        (record.measured[name], value)
        for record in records
        for name, value in record.source.items()
        if name in record.measured
    ]
    score = {record.row: record.measured["Spearman, ε = 1"] for record in records}
    others = [value for row, value in score.items() if row in _UNPROJECTED]
    clause = "with projection the score is not compared with the other methods'"
    if "projected" in score and others:
        verdict = "above" if score["projected"] > max(others) else "not above"
        clause = (
            f"at ε = 1 the score with projection, {score['projected']:.3f}, is {verdict} those of"
            f" the other private methods, at most {max(others):.3f}"
        )
    return Comparison("published rank correlations", tuple(pairs), 0.02).finding(clause)
