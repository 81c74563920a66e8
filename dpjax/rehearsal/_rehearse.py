"""``rehearse``: choose the settings of a private run on simulated records."""

import dataclasses
import inspect
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from numpyro import handlers
from tqdm import tqdm

from dpjax._checks import (
    as_count,
    as_key,
    check,
    check_count,
    check_delta,
    check_positive,
    check_type,
)
from dpjax._typing import PRNGKey, PyTree
from dpjax.adjacency import Adjacency
from dpjax.guarantee import Tuning
from dpjax.rehearsal.calibration import NUM_DRAWS, Calibration
from dpjax.rehearsal.methods import Inference, Training
from dpjax.rehearsal.release import Release, ReleaseRuns
from dpjax.rehearsal.report import Curve, Rehearsal, relative_regrets
from dpjax.rehearsal.stepped_runs import Setting, SteppedRuns, Trace
from dpjax.rehearsal.steps import InferenceSteps, TrainingSteps, steps_of
from dpjax.rehearsal.worlds import (
    PublicRecords,
    Simulator,
    World,
    check_closure,
    check_length,
    check_world,
)

Array = npt.NDArray[np.float64]

# Factors of epsilon at which the error is simulated.
_EPSILON_FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
# Learning rates that are tried without noise and clipping, in half decades.
_FIRST_RATES = tuple(10 ** (exponent / 2) for exponent in range(-12, 4))
# Of the best of them, for private runs; clip bounds between these multiples of mean norms.
_RATE_FACTORS, _NUM_CLIPS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0), 6
_LEAST_CLIP, _LARGEST_CLIP = 1 / 8, 3.0
# Of the chosen rate, at other epsilons.
_CURVE_RATE_FACTORS = (1 / 16, 1 / 4, 1.0, 4.0)
# A search keeps this share of the settings after each of these numbers of worlds.
_KEPT_SHARE, _CUTS = 1 / 3, (1, 3, 6)
# Of the time allowed: when the search, and when the curve over epsilon, must end.
_SEARCH_END, _CURVE_END = 0.5, 0.7
_MOST_EXTENSIONS = 3


class Runs(Protocol):
    """Simulated runs of any private method."""

    def run(
        self, settings: Sequence[Any], epsilons: Sequence[float], key: PRNGKey
    ) -> tuple[Array, float, Trace | None]:
        """Runs settings in the world of a key, each at an epsilon, infinite for no privacy.

        Returns errors, the error of a constant result, and a `Trace` where there are steps.
        """

    def noise(self, setting: Any, epsilon: float) -> float | None:
        """Returns the noise multiplier of a setting."""

    def ranks(self, setting: Any, epsilon: float, key: PRNGKey) -> dict[str, Array]:
        """Makes the run as it will be made, and returns ranks of the truth among posterior draws.

        By latent variable; none where there is no posterior.
        """


def rehearse(
    key: PRNGKey,
    method: Training | Inference | Release,
    world: Simulator,
    *,
    num_examples: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    unit: str = "one record",
    batch_size: int | Sequence[int] | None = None,
    epochs: float | Sequence[float] | None = None,
    l2_clip: Sequence[float] | None = None,
    learning_rate: Sequence[float] | None = None,
    target: float | None = None,
    num_worlds: int = 8,
    num_calibration_worlds: int = 100,
    max_seconds: float = 120.0,
    progress: bool = True,
) -> Rehearsal:
    """Runs a private method on simulated records, chooses its settings and says what to expect.

    Candidates are compared on the same worlds, in rounds: after each the worst two thirds are
    dropped. The one with the least regret is taken, which is its error less that of the best in
    the same world, in units of what the best gains over a constant result. All that is reported of
    it is from worlds that took no part in the choice.

    Args:
      key: a JAX key.
      method: what will be run: `Training`, `Inference`, or any `Release`.
      world: ``key -> World``, a simulated data set: `prior_predictive` of a numpyro model,
        `PublicRecords`, or any function. A world unlike the real data gives settings that do not
        fit it: draw from a prior wide enough to contain it.
      num_examples: number of records n of the real data, public.
      epsilon, delta: the budget of the private run.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      unit: the unit of privacy.
      batch_size, epochs: candidates, all pairs of which are tried; by default batches of n / 64 and
        n / 8, and epochs of the method.
      l2_clip: candidates; by default six, around the norms of gradients in simulated runs.
      learning_rate: candidates; by default five, around the best of a run without noise, and more
        where the best of them is the least or largest. For an optimiser that follows the scale of
        gradients they grow as the clip bound falls.
      target: an error that makes the result useful; by default halfway from that of a constant
        result to that without privacy.
      num_worlds: for the choice, and as many others for what is reported.
      num_calibration_worlds: for ranks and coverage of intervals, of a method with a posterior; 0
        leaves them out.
      max_seconds: no further simulation is begun after this time; what was left out is reported.
      progress: show a progress bar.

    Returns:
      A `Rehearsal`, whose ``mechanism`` and ``optimizer`` go into `dpjax.train` or `DPSVI`.

    Privacy:
      Nothing is released: no record of the private data is read. An array as long as the records
      is refused in all arguments, also in the closures of functions. A sample or a summary of the
      private records must not be used either, which no check can tell.

    Raises:
      ValueError: numbers out of range, a world of another number of records, or an array as long as
        the records.

    Source: Talts, Betancourt, Simpson, Vehtari, Gelman (2018), "Validating Bayesian inference
    algorithms with simulation-based calibration", for ranks; Jamieson & Talwalkar (2016),
    "Non-stochastic best arm identification and hyperparameter optimization", for rounds.

    >>> import optax
    >>> from dpjax.rehearsal import Training, World
    >>> def world(key):
    ...     mean_key, record_key = jax.random.split(key)
    ...     records = jax.random.normal(mean_key) + jax.random.normal(record_key, (1100,))
    ...     return World(records[:1000], records[1000:])
    >>> method = Training(lambda w, x: (w - x) ** 2, jnp.zeros(()), optax.sgd)
    >>> rehearsal = rehearse(
    ...     jax.random.key(0), method, world, num_examples=1000, epsilon=1.0, delta=1e-5,
    ...     adjacency="zero_out", batch_size=100, epochs=3, l2_clip=[1.0],
    ...     learning_rate=[0.01, 0.1], num_worlds=2, progress=False)
    >>> rehearsal.setting.learning_rate, rehearsal.mechanism.num_steps
    (0.1, 30)
    """
    # Arguments, and what is simulated.
    key = as_key(key)
    check_type("method", method, Training | Inference | Release, "a Training, Inference or Release")
    num_examples = as_count("num_examples", num_examples)
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_count("num_worlds", num_worlds, minimum=2)
    check_count("num_calibration_worlds", num_calibration_worlds, minimum=0)
    check_positive("max_seconds", max_seconds)
    check(target is None or math.isfinite(target), "target", target, "a finite number or None")
    shapes = check_world(world, num_examples)
    _check_closures(method, shapes, num_examples)
    clock = _Clock(max_seconds, progress)
    pilot_key, scale_key, worlds_key, fresh_key, ranks_key = jax.random.split(key, 5)
    keys = list(jax.random.split(worlds_key, num_worlds))
    clips, rates = (
        None if values is None else [float(value) for value in np.ravel(values)]
        for values in (l2_clip, learning_rate)
    )

    # Runs, and the candidates where they are not given.
    rate_factor = None
    if isinstance(method, Release):
        given = batch_size, epochs, clips, rates
        names = "batch_size, epochs, l2_clip, learning_rate"
        check(all(values is None for values in given), names, given, "left out for a Release")
        runs: Runs = ReleaseRuns(method, world)
        settings: list[Any] = list(method.combinations)
    else:
        plans = _plans(method, num_examples, batch_size, epochs)
        steps = steps_of(method)
        runs = SteppedRuns(
            steps,
            world,
            plans,
            steps.scale(world, scale_key),
            num_examples=num_examples,
            delta=delta,
            adjacency=adjacency,
            unit=unit,
        )
        settings = _candidates(runs, method, plans, clips, rates, pilot_key, clock)
        rate_factor = 4.0 if rates is None else None

    # The choice, and what the chosen setting is worth in other worlds.
    search = _search(runs, settings, epsilon, keys, rate_factor, clock)
    chosen = search.settings[search.best]
    curve, trace = _curve(runs, chosen, epsilon, jax.random.split(fresh_key, num_worlds), clock)

    # The run as it will be made, in further worlds: what a step takes, and its intervals.
    calibration_keys = jax.random.split(ranks_key, num_calibration_worlds)
    calibration = _calibration(runs, chosen, epsilon, calibration_keys, clock)
    mechanism, step_cost = None, None
    if isinstance(runs, SteppedRuns):
        if clock.has_time():
            step_cost = runs.step_cost(chosen, epsilon)
        public = isinstance(world, PublicRecords)
        tuning: Tuning = "on public records" if public else "on simulated records"
        mechanism = dataclasses.replace(runs.mechanism(chosen, epsilon), tuning=tuning)
    clock.close()

    return Rehearsal(
        num_examples=num_examples,
        epsilon=float(epsilon),
        delta=float(delta),
        settings=tuple(search.settings),
        errors=search.errors,
        constants=search.constants,
        best=search.best,
        curve=curve,
        asked_target=target,
        trace=trace,
        calibration=calibration,
        step_cost=step_cost,
        seconds=clock.elapsed,
        is_complete=not clock.expired,
        mechanism=mechanism,
        optimizer=None if isinstance(method, Release) else method.optimizer(chosen.learning_rate),
    )


def _check_closures(
    method: Training | Inference | Release, shapes: World, num_examples: int
) -> None:
    """Raises ValueError for an array as long as the records in what a method holds."""
    if isinstance(method, Training):
        steps = TrainingSteps(method)
        check_length("params", steps.trained, num_examples)
        example = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes.records
        )
        check_closure("loss_fn", steps.loss, num_examples, steps.trained, example)
        check_closure("score", steps.score_of, num_examples, steps.trained, shapes.fresh)
        constant_error = partial(steps.constant_error, scale=None)
        check_closure("constant_score", constant_error, num_examples, shapes)
    elif isinstance(method, Inference):
        check_length("model_kwargs", dict(method.model_kwargs), num_examples)
        check_closure("model", partial(_draw_sites, method), num_examples, shapes.records)
    else:
        check_length("settings", dict(method.settings), num_examples)
        for name in ("release", "score", "constant_score", "draws"):
            function = getattr(method, name)
            if inspect.isfunction(function):
                held = inspect.getclosurevars(function)
                values = [*held.nonlocals.values(), *held.globals.values()]
                check_length(f"{name} (what it closes over)", values, num_examples)


def _draw_sites(method: Inference, records: PyTree) -> list[jax.Array]:
    """The values of all sites of a model, drawn with a fixed key."""
    args, kwargs = InferenceSteps(method).model_args(records)
    trace = handlers.trace(handlers.seed(method.model, jax.random.key(0))).get_trace(
        *args, **kwargs
    )
    return [site["value"] for site in trace.values() if site["type"] == "sample"]


class _Clock:
    """The time that simulations may take, and a progress bar of them."""

    def __init__(self, max_seconds: float, progress: bool) -> None:
        self._start, self._max_seconds = time.monotonic(), max_seconds
        self._bar = tqdm(unit="run", disable=not progress)
        self._last = 0.0
        self.expired = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def has_time(self, share: float = 1.0) -> bool:
        """Whether a simulation as long as the last ends within a share of the time allowed."""
        ends = self.elapsed + self._last <= share * self._max_seconds
        self.expired |= not ends
        return ends

    @contextmanager
    def timed(self, what: str, count: int) -> Iterator[None]:
        """Times what is done within, ``count`` simulated runs."""
        self._bar.set_description(what)
        start = time.monotonic()
        yield
        self._last = time.monotonic() - start
        self._bar.update(count)

    def close(self) -> None:
        """Ends the progress bar."""
        self._bar.close()


def _plans(
    method: Training | Inference,
    num_examples: int,
    batch_size: int | Sequence[int] | None,
    epochs: float | Sequence[float] | None,
) -> list[tuple[int, float]]:
    """Returns the pairs of batch size and epochs that are tried, the fastest first."""
    if batch_size is None and epochs is None:
        chosen = [
            (max(16, num_examples // share), length) for share, length in method.default_plans
        ]
    else:
        sizes = [num_examples // share for share, _ in method.default_plans]
        lengths = [length for _, length in method.default_plans]
        if batch_size is not None:
            sizes = [as_count("batch_size", size) for size in np.ravel(batch_size)]
        if epochs is not None:
            lengths = [float(length) for length in np.ravel(epochs)]
        chosen = [(max(1, size), length) for size in sizes for length in lengths]
    for _, length in chosen:
        check_positive("epochs", length)
    plans = {(min(size, num_examples), float(length)): None for size, length in chosen}
    return sorted(plans, key=lambda plan: (plan[1], -plan[0]))


def _candidates(
    runs: SteppedRuns,
    method: Training | Inference,
    plans: Sequence[tuple[int, float]],
    clips: Sequence[float] | None,
    rates: Sequence[float] | None,
    key: PRNGKey,
    clock: _Clock,
) -> list[Setting]:
    """Returns candidates: clip bounds around norms, rates around that of a run without noise."""
    # Runs without noise and clipping at rates over many orders of magnitude.
    if rates is None or clips is None:
        first = [Setting(*plans[0], 1.0, rate) for rate in rates or _FIRST_RATES]
        with clock.timed("without noise", len(first)):
            errors, _, traces = runs.run(first, [math.inf] * len(first), key)
        check(
            bool(np.isfinite(errors).any()),
            "the error of runs without noise",
            errors.tolist(),
            "finite at some learning rate",
        )
        best = int(np.nanargmin(np.where(np.isfinite(errors), errors, np.nan)))
        norms = traces.mean_norm[:, best]
        early, late = float(np.nanmax(norms)), float(np.nanmin(norms))
        if clips is None:
            clips = np.geomspace(_LEAST_CLIP * late, _LARGEST_CLIP * early, _NUM_CLIPS).tolist()

    # Where updates follow the scale of gradients, a smaller bound needs a larger rate.
    settings = []
    for size, epochs in plans:
        for clip in clips:
            check_positive("l2_clip", clip)
            if rates is not None:
                settings += [Setting(size, epochs, float(clip), float(rate)) for rate in rates]
                continue
            shrunk = 1.0 if _is_scale_free(method) else max(1.0, early / clip)
            settings += [
                Setting(size, epochs, float(clip), first[best].learning_rate * shrunk * factor)
                for factor in _RATE_FACTORS
            ]
    return settings


def _is_scale_free(method: Training | Inference) -> bool:
    """Whether the optimiser's first updates are the same for gradients of any scale."""
    optimizer, params = method.optimizer(1.0), jnp.ones(3)
    state, gradient = optimizer.init(params), jnp.array([1.0, -2.0, 3.0])
    once, thrice = (optimizer.update(scale * gradient, state, params)[0] for scale in (1.0, 3.0))
    return bool(optax.tree.norm(once - thrice) < 1e-2 * optax.tree.norm(once))


class _SearchResult(NamedTuple):
    """All candidates, errors ``(settings, worlds)``, those of a constant result, and the best."""

    settings: list[Any]
    errors: Array
    constants: Array
    best: int


def _search(
    runs: Runs,
    settings: list[Any],
    epsilon: float,
    keys: Sequence[PRNGKey] | PRNGKey,
    rate_factor: float | None,
    clock: _Clock,
) -> _SearchResult:
    """Successive halving over worlds, and further rates where the best is at an end of its row."""
    num_worlds = len(keys)
    errors, constants = np.full((len(settings), num_worlds), np.nan), np.full(num_worlds, np.nan)

    def run(members: Sequence[int], world: int) -> None:
        # Settings of one batch size and number of epochs at a time, the fastest first.
        groups: dict[Any, list[int]] = {}
        for number in members:
            group = settings[number][:2] if isinstance(settings[number], Setting) else None
            groups.setdefault(group, []).append(number)
        for numbers in groups.values():
            if not (np.isnan(errors).all() or clock.has_time(_SEARCH_END)):
                return
            group = [settings[number] for number in numbers]
            with clock.timed(f"world {world + 1}", len(group)):
                found, constants[world], _ = runs.run(group, [epsilon] * len(group), keys[world])
            errors[numbers, world] = np.where(np.isfinite(found), found, np.inf)

    # All settings in the first world, the best third of them in the next two, and so on.
    members = list(range(len(settings)))
    for world in range(num_worlds):
        if world in _CUTS and len(members) > 1:
            regrets = _mean_regrets(errors, constants)
            num_kept = max(2, math.ceil(_KEPT_SHARE * len(members)))
            members = sorted(sorted(members, key=lambda i: regrets[i])[:num_kept])
        run(members, world)

    # Rates beyond those of the candidates, while the best is the least or the largest.
    for _ in range(_MOST_EXTENSIONS if rate_factor else 0):
        assert rate_factor is not None
        best = settings[int(np.argmin(_mean_regrets(errors, constants)))]
        rates = [each.learning_rate for each in settings if each[:3] == best[:3]]
        beyond = {min(rates): 1 / rate_factor, max(rates): rate_factor}.get(best.learning_rate)
        if beyond is None or not clock.has_time(_SEARCH_END):
            break
        settings.append(best._replace(learning_rate=best.learning_rate * beyond))
        errors = np.vstack([errors, np.full(num_worlds, np.nan)])
        for world in range(num_worlds):
            run([len(settings) - 1], world)

    best = int(np.argmin(_mean_regrets(errors, constants)))
    return _SearchResult(settings, errors, constants, best)


def _mean_regrets(errors: Array, constants: Array) -> Array:
    """Mean regret of each setting over worlds; infinite where it ran in fewer than others."""
    regrets = relative_regrets(errors, constants)
    counts = (~np.isnan(regrets)).sum(1)
    means = np.nansum(regrets, 1) / np.maximum(counts, 1)
    return np.where(counts == counts.max(), means, np.inf)


def _curve(
    runs: Runs, chosen: Any, epsilon: float, keys: Sequence[PRNGKey] | PRNGKey, clock: _Clock
) -> tuple[Curve, Trace | None]:
    """Returns the error by epsilon, in worlds that took no part in the choice.

    At other epsilons than the asked one the learning rate is the best of a few.
    """
    # The chosen setting first, then at other budgets, and without privacy where there are steps.
    budgets = [factor * epsilon for factor in _EPSILON_FACTORS if factor != 1]
    settings, epsilons = [chosen], [epsilon]
    if isinstance(chosen, Setting):
        for budget in (*budgets, math.inf):
            for factor in _CURVE_RATE_FACTORS:
                rate = chosen.learning_rate * factor
                settings.append(chosen._replace(learning_rate=rate))
                epsilons.append(budget)
    else:
        settings += [chosen] * len(budgets)
        epsilons += budgets

    # All in one world after another.
    rows: list[Array] = []
    constants, traces = [], []
    for own_key in keys:
        if rows and not clock.has_time(_CURVE_END):
            break
        with clock.timed("error by epsilon", len(settings)):
            found, constant, trace = runs.run(settings, epsilons, own_key)
        rows.append(np.where(np.isfinite(found), found, np.inf))
        constants.append(constant)
        traces.append(trace)

    # Of each epsilon the rate with the least mean error.
    table = np.stack(rows)
    ordered = sorted(set(epsilons))
    errors = []
    for budget in ordered:
        columns = [i for i, each in enumerate(epsilons) if each == budget]
        best = columns[int(np.argmin(table[:, columns].mean(0)))]
        errors.append(tuple(table[:, best].tolist()))
    noises = tuple(runs.noise(chosen, each) for each in ordered)
    mean_trace = None
    if traces[0] is not None:
        mean_trace = jax.tree.map(lambda *parts: np.mean(parts, 0)[:, 0], *traces)
    return Curve(tuple(ordered), tuple(errors), tuple(constants), noises), mean_trace


def _calibration(
    runs: Runs,
    chosen: Any,
    epsilon: float,
    keys: Sequence[PRNGKey] | PRNGKey,
    clock: _Clock,
) -> Calibration | None:
    """Makes the run that is rehearsed in worlds of a prior: ranks of the truth."""
    ranks: list[dict[str, Array]] = []
    warned: list[str] = []
    shown: dict[Any, int] = {}  # of the warnings that are passed on, each once
    for own_key in keys:
        if ranks and not clock.has_time():
            break
        with clock.timed("intervals", 1), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            found = runs.ranks(chosen, epsilon, own_key)

        # The report has the posteriors' warnings in one sentence; others are passed on.
        warned += [str(each.message) for each in caught if each.category is UserWarning][:1]
        for each in caught:
            if each.category is not UserWarning:
                warnings.warn_explicit(
                    str(each.message), each.category, each.filename, each.lineno, registry=shown
                )
        if not found:
            return None
        ranks.append(found)
    return Calibration.of(ranks, NUM_DRAWS, warned) if ranks else None
