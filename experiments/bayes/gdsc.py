"""Drug sensitivity of cancer cell lines by private linear regression (Honkela 2017).

``python -m experiments run bayes_gdsc``: under a minute on two CPU cores in the quick profile.
The data may not be passed on: put the files of GDSC, release 17, into ``DPJAX_DATA_DIR``.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.bayes.regression import RegressionStatistics, sufficient_statistics
from dpjax.datasets.gdsc import DrugResponses, load_gdsc
from experiments.bayes.gdsc_data import Lines, chosen_features, repeats, spearman
from experiments.bayes.gdsc_methods import METHODS, UNIT, Method, Settings, ridge_solution
from experiments.bayes.gdsc_report import BY_EPSILON, BY_SIZE, figures, remarks
from experiments.lib.registry import Experiment, Result, Row, RowContext

# The table's figures are those at the two epsilons; the picture by size is that at the second.
_SHOWN = (1.0, 2.0)
_Score = Callable[[float, int], tuple[float, float]]


@functools.cache
def _data() -> DrugResponses:
    return load_gdsc()


def scorer(settings: Settings, train: Lines, test: Lines) -> _Score:
    """Returns a function of epsilon and the number of training lines, compiled once.

    It returns Spearman's rank correlation of predictions and responses over test lines, mean over
    drugs and repeats, and its standard error over repeats.
    """
    make = METHODS.get(settings.method)
    dim = train.x.shape[-1]
    base = make(settings, dim, 1.0) if make else None
    run = jax.jit(functools.partial(_all_scores, settings, base, train, test))

    def score(epsilon: float, size: int) -> tuple[float, float]:
        factors = (1.0, 1.0)
        if make and base:
            pairs = zip(make(settings, dim, epsilon).scales, base.scales, strict=True)
            factors = tuple(scale / at_one for scale, at_one in pairs)  # type: ignore[assignment]
        means = np.asarray(run(factors, size)).mean(axis=1)
        return float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))

    return score


def _all_scores(
    settings: Settings,
    base: Method | None,
    train: Lines,
    test: Lines,
    factors: tuple[Any, Any],
    size: Any,
) -> jax.Array:
    """Returns scores ``(repeats, drugs)`` with the noise of ``base`` times ``factors``."""
    method = base and dataclasses.replace(
        base, mean=base.mean.scale_noise(factors[0]), fit=base.fit.scale_noise(factors[1])
    )
    one_drug = functools.partial(_score, settings, method)

    def repeat(given: tuple[jax.Array, Lines, Lines]) -> jax.Array:
        key, lines, held_out = given
        used = lines.known * (jnp.arange(len(lines.x)) < size)[:, None]
        drug = Lines(None, 1, 1)  # type: ignore[arg-type]
        keys = jax.random.split(key, used.shape[1])
        score = jax.vmap(one_drug, in_axes=(0, drug, drug))
        return score(keys, lines._replace(known=used), held_out)

    keys = jax.random.split(jax.random.key(settings.seed), len(train.x))
    return jax.lax.map(repeat, (keys, train, test))


def _score(
    settings: Settings, method: Method | None, key: jax.Array, train: Lines, test: Lines
) -> jax.Array:
    mean_key, fit_key = jax.random.split(key)
    exact = _statistics(settings, train, _mean(settings, method, mean_key, train))
    if method:
        beta = method.solve(fit_key, method.fit, exact)
    else:
        beta = ridge_solution(exact, settings.ridge)
    return spearman(test.x @ beta, test.y, test.known)


def _mean(settings: Settings, method: Method | None, key: jax.Array, train: Lines) -> jax.Array:
    """The mean of the known responses, whose number is public."""
    number = jnp.maximum(train.known.sum(), 1.0)
    if method is None:
        return jnp.sum(train.known * train.y) / number
    low, high = settings.y_range if settings.y_size else _extremes(train)
    total = jnp.sum(train.known * (jnp.clip(train.y, low, high) - low)) / (high - low)
    return low + (high - low) * method.mean.release(key, total) / number


def _extremes(train: Lines) -> tuple[jax.Array, jax.Array]:
    """Of the known responses: private, so that no guarantee is left."""
    low = jnp.min(jnp.where(train.known > 0, train.y, jnp.inf))
    return low, jnp.max(jnp.where(train.known > 0, train.y, -jnp.inf))


def _statistics(settings: Settings, train: Lines, mean: jax.Array) -> RegressionStatistics:
    """Of the known lines within the bounds, in units of these; all others count as zero."""
    x_norm = settings.x_norm or jnp.max(jnp.linalg.norm(train.x, axis=1))
    y_size = settings.y_size or jnp.max(train.known * jnp.abs(train.y - mean))
    x, y = UNIT.clip(train.x / x_norm, (train.y - mean) / y_size)
    return sufficient_statistics(x * train.known[:, None], y * train.known)


# method and settings, then the source's figures: without noise, or at epsilon 1 and 2.
_ROWS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "non-private": ({"method": "none", "x_norm": None, "y_size": None}, (0.2509,)),
    "non-private, projected": ({"method": "none"}, (0.2352,)),
    "projected": ({"method": "statistics"}, (0.1832, 0.2148)),
    "no projection": ({"method": "statistics", "x_norm": None, "y_size": None}, (0.0003, 0.0004)),
    "output perturbation": ({"method": "output", "ridge": 100.0}, (0.0529, 0.0730)),
    "objective perturbation": ({"method": "objective", "ridge": 50.0}, (0.0040, 0.0092)),
    "non-private, genes alone": (
        {"method": "none", "x_norm": None, "y_size": None, "num_genes": 10, "num_tissues": 0},
        (),
    ),
    "projected, genes alone": ({"method": "statistics", "num_genes": 10, "num_tissues": 0}, ()),
}


def _rows(profile: str) -> list[Row]:
    num_repeats = {"quick": 10, "paper": 50}[profile]
    return [_row(name, {**changes, "num_repeats": num_repeats}, source)
            for name, (changes, source) in _ROWS.items()]  # fmt: skip


def _row(name: str, changes: dict[str, Any], source: tuple[float, ...]) -> Row:
    settings = dataclasses.asdict(Settings(**changes))
    figures_of = source * len(_SHOWN) if len(source) == 1 else source
    columns = (f"Spearman, ε = {epsilon:g}" for epsilon in _SHOWN)
    return Row(name, settings, dict(zip(columns, figures_of, strict=False)))


def _run_row(row: Row, context: RowContext) -> Result:
    settings, data = Settings(**row.settings), _data()
    columns = chosen_features(data, settings.num_genes, settings.num_tissues)
    train, test = repeats(data, columns, settings.num_repeats, settings.seed)
    score, largest = scorer(settings, train, test), max(settings.sizes)
    by_epsilon = {epsilon: score(epsilon, largest) for epsilon in settings.epsilons}
    by_size = {size: score(_SHOWN[1], size) for size in settings.sizes}
    certified, note, certificate = _guarantee(settings, len(columns), len(data.drug_names))
    return Result(
        measured={f"Spearman, ε = {epsilon:g}": by_epsilon[epsilon][0] for epsilon in _SHOWN},
        certified=certified,
        note=f"{data.note} {note}",
        series={
            BY_EPSILON: [(epsilon, *scores) for epsilon, scores in by_epsilon.items()],
            BY_SIZE: [(size, *scores) for size, scores in by_size.items()],
        },
        certificate=certificate,
    )


def _guarantee(settings: Settings, dim: int, num_drugs: int) -> tuple[dict[str, float], str, str]:
    """Certified values at the first epsilon shown, a note, and the certificate."""
    if settings.method == "none":
        return {}, "Not private: the two columns are one run.", ""
    if settings.y_size is None:
        reason = "Bounds are read off the data, so that nothing is certified."
        return {}, reason, ""
    method = METHODS[settings.method](settings, dim, _SHOWN[0])
    found = method.guarantee(settings.delta, num_drugs)
    certified = {
        f"ε, one drug ({_SHOWN[0]:g})": found.one,
        "ε, all drugs": found.every,
        "δ, all drugs": found.delta,
    }
    note = "Seeded keys: the noise is reproducible, so these runs are not private."
    return certified, note, found.certificate


EXPERIMENT = Experiment(
    name="bayes_gdsc",
    title="Drug sensitivity of cancer cell lines",
    source="Honkela (2017), slides; Honkela et al. (2018)",
    description=(
        "For each drug a linear regression predicts how sensitive cancer cell lines are to it, from"
        " ten features of a line; the score is Spearman's rank correlation over 100 lines held out,"
        " mean over drugs and random splits. 800 lines are for training, of which a fifth has no"
        " response to a drug.\n\n"
        "The source's features, the expression of the ten genes most often mutated, cannot be had"
        " with the lines' identities. Ours are whether the five genes most often mutated are, and"
        " whether a line is of one of the five most frequent tissues (or the ten genes alone):"
        " other data, so the source's figures stand beside ours for the order of the methods, not"
        " for their values. Which genes and tissues are frequent, and how frequent, is taken as"
        " public.\n\n"
        "Projected: features are shortened to norm 1 and responses clipped at 1.5 around a private"
        " mean, then X^T X and X^T y are released with Gaussian noise. No projection: the same with"
        " bounds at the data's extremes. Output perturbation adds the noise to the ridge solution,"
        " objective perturbation (in the source, the functional mechanism) to the objective. All"
        " spend a tenth of the budget on the mean.\n\n"
        "ε and δ = 1e-5 are for one drug's model, as in the source; neighbours replace one line."
        " All drugs are fitted to the same lines, and for their models together the ε in the last"
        " columns holds, which is hardly any protection. Whether a line has a response to a drug is"
        " taken as public."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: _data().name,
    figures=figures,
    remarks=remarks,
)
