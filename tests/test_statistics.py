"""Statistics of tables: estimates, sensitivities, budget, refusals."""

import itertools
from fractions import Fraction

import jax
import numpy as np
import pandas as pd
import pytest

import dpjax
from dpjax import statistics
from dpjax.mechanisms import PermuteAndFlip
from dpjax.statistics import counts, quantiles
from dpjax.statistics.quantiles import rank_distances

KEY = jax.random.key(3)
BOUNDS = (0.0, 100.0)
ADJACENCIES = ["add_remove", "zero_out", "replace_one"]


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "age": rng.normal(45.0, 12.0, 400).round(1),
            "smoker": rng.random(400) < 0.25,
            "city": rng.choice(["a", "b", "c"], 400),
        }
    )


def queries():
    return [
        statistics.mean("age", bounds=BOUNDS),
        statistics.variance("age", bounds=BOUNDS),
        statistics.quantile("age", 0.25, bounds=BOUNDS, num_candidates=1001),
        statistics.histogram("age", edges=[0, 30, 45, 100]),
        statistics.histogram("city", categories=["a", "b", "c"]),
        statistics.count("smoker", equal_to=True),
    ]


def plan(asked, **changes):
    arguments = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace_one"} | changes
    return statistics.plan(asked, **arguments)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_release_estimates_with_little_noise_are_those_of_pandas(adjacency, people):
    released = plan(queries(), epsilon=2e3, adjacency=adjacency).release(KEY, people)
    age = people["age"]
    assert released["mean of age"].estimate == pytest.approx(age.mean(), abs=0.1)
    assert released["variance of age"].estimate == pytest.approx(age.var(), abs=3)
    assert released["0.25-quantile of age"].estimate == pytest.approx(age.quantile(0.25), abs=0.2)
    bins = [each.estimate for each in released["histogram of age"]]
    assert bins == pytest.approx(np.histogram(age, [0, 30, 45, 100])[0], abs=1)
    cities = [each.estimate for each in released["histogram of city"]]
    assert cities == pytest.approx([(people["city"] == each).sum() for each in "abc"], abs=1)
    smokers = released["count of smoker = True"].estimate
    assert smokers == pytest.approx(people["smoker"].sum(), abs=1)


def test_release_rows_follow_the_queries_and_are_shown(people):
    released = plan(queries()).release(KEY, people, level=0.8)
    assert [each.statistic for each in released.estimates] == [
        "mean of age",
        "variance of age",
        "0.25-quantile of age",
        *["histogram of age"] * 3,
        *["histogram of city"] * 3,
        "count of smoker = True",
    ]
    assert all(each.low <= each.high for each in released.estimates)
    assert [each.entry for each in released["histogram of age"]][-1] == "[45, 100]"
    text, page, table = str(released), released._repr_html_(), released.to_pandas()
    assert "80 % interval" in text
    assert "80 % interval" in page
    assert table.loc[("mean of age", ""), "estimate"] == released["mean of age"].estimate
    with pytest.raises(ValueError, match="statistic must be one of"):
        released["mean of height"]


def test_plan_spends_the_whole_budget_on_one_certificate(people):
    made = plan(queries(), unit="one person")
    certificate = made.certificate(1e-6)
    assert 0.99 < certificate.epsilon <= 1.0
    assert certificate.guarantee.unit == "one person"
    assert "age in [0, 100]" in str(certificate)
    released = made.release(KEY, people)
    assert released.certificate(1e-6).epsilon == certificate.epsilon
    assert "its key was derived from a seed" in str(released.certificate(1e-6))


def test_plan_is_the_composition_of_its_mechanisms():
    made = plan(queries())
    flat = tuple(itertools.chain.from_iterable(made.mechanisms))
    assert dpjax.Composition(flat).certificate(1e-6).epsilon == made.certificate(1e-6).epsilon
    halved = made.with_privacy_factor(2.0)
    assert halved.mechanisms[0][0].scale == 2 * made.mechanisms[0][0].scale


def test_plan_weights_divide_the_noise():
    heavy = statistics.mean("age", bounds=BOUNDS, weight=4.0)
    light = statistics.mean("height", bounds=BOUNDS)
    (one,), (other,) = plan([heavy, light]).mechanisms
    assert 2.5 < other.scale / one.scale < 4.5


def test_plan_joins_moments_of_one_column():
    pair = [statistics.mean("age", bounds=BOUNDS), statistics.variance("age", bounds=BOUNDS)]
    assert len(plan(pair).queries) == 1
    apart = [statistics.mean("age", bounds=BOUNDS), statistics.variance("age", bounds=(0, 90))]
    assert len(plan(apart).queries) == 2


def test_plan_under_add_remove_releases_the_number_of_records(people):
    made = plan(queries()[:1], adjacency="add_remove")
    assert [query.label for query in made.queries] == ["count", "mean of age"]
    assert [each.statistic for each in made.release(KEY, people).estimates] == ["mean of age"]
    asked = plan([statistics.count()], adjacency="add_remove").release(KEY, people)
    assert abs(asked["count"].estimate - 400) < 6 * asked["count"].noise_std


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_release_takes_frames_mappings_and_arrays(scale, people):
    asked = [statistics.mean("age", bounds=(0, 100 * scale))]
    values = scale * people["age"]
    of_frame, of_mapping = (
        plan(asked).release(KEY, records)
        for records in [pd.DataFrame({"age": values}), {"age": values.tolist()}]
    )
    of_array = plan([statistics.mean(0, bounds=(0, 100 * scale))]).release(KEY, values.to_numpy())
    numbers = {each.estimates[0].estimate for each in (of_frame, of_mapping, of_array)}
    assert len(numbers) == 1


def test_release_of_missing_values_is_finite():
    asked = [statistics.mean("x", bounds=(2, 4)), statistics.quantile("x", 0.5, bounds=(2, 4))]
    asked += [statistics.histogram("x", edges=[2, 3, 4]), statistics.count("x", equal_to=3)]
    lists = {"floats": [np.nan, 3.0, np.inf] * 100, "nullable": [None, 3, 9] * 100}
    for kind, values in lists.items():
        column = pd.Series(values, dtype="Int64" if kind == "nullable" else float)
        released = plan(asked, epsilon=500.0).release(KEY, {"x": column})
        assert released["mean of x"].estimate == pytest.approx(3.0, abs=0.05)
        assert [each.estimate for each in released["histogram of x"]] == pytest.approx(
            [0, 100], abs=2
        )
        assert released["count of x = 3"].estimate == pytest.approx(100, abs=2)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_release_of_an_empty_table_is_finite(adjacency):
    asked = [query for query in queries() if "city" not in query.label]
    empty = pd.DataFrame({"age": np.zeros(0), "smoker": np.zeros(0, bool)})
    for each in plan(asked, adjacency=adjacency).release(KEY, empty).estimates:
        assert np.isfinite([each.estimate, each.low, each.high]).all()


def squared_distance(query, weights, first, second):
    """Of the weighted monomials of two records, or of a record and nothing."""
    one, other = (
        np.zeros(len(weights)) if y is None else weights * query.sum(y[None])
        for y in (first, second)
    )
    return float(((one - other) ** 2).sum())


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", ["mean", "variance"])
def test_sensitivity_of_moments_bounds_all_neighbours(kind, adjacency):
    query = getattr(statistics, kind)("x", bounds=BOUNDS)
    weights, length = query.weights_and_sensitivity(adjacency)
    ends = np.linspace(-1, 1, 41)
    others = ends if adjacency == "replace_one" else [None]
    largest = max(
        squared_distance(query, weights, np.array([y]), None if z is None else np.array([z]))
        for y in ends
        for z in others
    )
    assert 0.9 * length**2 <= largest <= length**2 * (1 + 1e-12)
    (mechanism,) = plan([query], adjacency=adjacency).mechanisms[-1]
    assert mechanism.sensitivity.value == pytest.approx(length, rel=1e-4)
    assert mechanism.sensitivity.value > length


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("columns", ["xy", "xyz"])
def test_sensitivity_of_moments_of_several_columns_bounds_all_neighbours(columns, adjacency):
    bounds = dict.fromkeys(columns, (0.0, 1.0))
    query = (
        statistics.covariance(("x", "y"), bounds=((0.0, 1.0), (0.0, 1.0)))
        if columns == "xy"
        else statistics.regression("x", ["y", "z"], bounds=bounds)
    )
    weights, length = query.weights_and_sensitivity(adjacency)
    records = itertools.product(np.linspace(-1, 1, 5), repeat=len(columns))
    sums = np.stack([weights * query.sum(np.array([each])) for each in records])
    others = sums if adjacency == "replace_one" else np.zeros_like(sums[:1])
    largest = max(((sums - each) ** 2).sum(axis=1).max() for each in others)
    assert 0.8 * length**2 <= largest <= length**2 * (1 + 1e-12)


def grouped(kind, **changes):
    arguments = {"bounds": BOUNDS, "by": "city", "categories": ["a", "b"]} | changes
    return getattr(statistics, kind)("age", **arguments)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", ["mean", "variance"])
def test_sensitivity_of_groups_is_that_of_the_worst_neighbours(kind, adjacency):
    """Of tables of one record; one of city "c" is in no group, as is one that is removed."""
    query = grouped(kind)
    weights, lengths = query.weights_and_sensitivity
    values = np.repeat(np.linspace(*BOUNDS, 41), 3)
    records = [{"age": values[i : i + 1], "city": np.array([c])} for i, c in enumerate("abc" * 41)]
    sums = np.stack([query._read(each) * weights for each in records])
    removed = np.zeros_like(sums[:1])
    others = sums if adjacency == "replace_one" else removed
    squares = ((sums[:, None] - others[None]) ** 2).sum(axis=(-1, -2))
    assert squares.max() == pytest.approx(lengths[adjacency] ** 2, rel=1e-12)
    (mechanism,) = plan([query], adjacency=adjacency).mechanisms[-1]
    assert lengths[adjacency] < mechanism.sensitivity.value < lengths[adjacency] * 1.0001
    if adjacency == "replace_one":  # power: a replaced record costs more than an added one
        assert squares.max() > 1.9 * lengths["add_remove"] ** 2


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_groups_with_little_noise_are_those_of_pandas(adjacency, people):
    made = plan([grouped("mean"), grouped("variance")], epsilon=3e3, adjacency=adjacency)
    assert len(made.queries) == 1  # one release, and none of the number of all records
    released, ages = made.release(KEY, people), people.groupby("city")["age"]
    means, variances = released["mean of age by city"], released["variance of age by city"]
    assert [each.entry for each in (*means, *variances)] == ["a", "b", "a", "b"]
    assert [each.estimate for each in means] == pytest.approx(ages.mean()[:2].tolist(), abs=0.3)
    assert [each.estimate for each in variances] == pytest.approx(ages.var()[:2].tolist(), abs=9)
    assert "mean of age by city" in str(released)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("cities", [[], ["a"], ["c", None], [np.nan]])
def test_groups_of_no_or_one_record_mostly_have_the_interval_of_the_bounds(adjacency, cities):
    """Where the noise says more than a few records it may be narrower: in 4 to 6 of 100 groups."""
    made = plan([grouped("mean")], adjacency=adjacency)
    table = {"age": np.full(len(cities), 70.0), "city": np.array(cities, object)}
    released = (made.release(jax.random.key(seed), table) for seed in range(30))
    found = [each for one in released for each in one["mean of age by city"]]
    assert np.mean([(each.low, each.high) == BOUNDS for each in found]) >= 0.9


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_sensitivity_of_two_columns_bounds_all_neighbours(adjacency):
    """The worst neighbours attain 83 % of the squared sensitivity where a record is replaced."""
    query = statistics.covariance(("x", "y"), bounds=(BOUNDS, BOUNDS))
    weights, length = query.weights_and_sensitivity(adjacency)
    steps = np.linspace(-1, 1, 9)
    records = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    rows = np.stack([weights * query.sum(record[None]) for record in records])
    others = rows if adjacency == "replace_one" else np.zeros((1, len(weights)))
    largest = max(float(((row - others) ** 2).sum(axis=-1).max()) for row in rows)
    assert 0.82 * length**2 <= largest <= length**2 * (1 + 1e-12)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_covariance_with_little_noise_is_numpys(adjacency):
    rng = np.random.default_rng(3)
    columns = rng.multivariate_normal([50, 40], [[90, 50], [50, 120]], size=2000)
    query = statistics.covariance((0, 1), bounds=(BOUNDS, (0, 90)))
    released = plan([query], epsilon=2e3, adjacency=adjacency).release(KEY, columns)
    limits = ([0, 0], [100, 90])
    exact = np.cov(np.clip(columns, *limits).T)[0, 1]
    assert released["covariance of 0 and 1"].estimate == pytest.approx(exact, rel=0.01)


def regression_table(num_examples=2000):
    rng = np.random.default_rng(5)
    x = rng.multivariate_normal([50, 40], [[90, 50], [50, 120]], size=num_examples)
    y = 10 + 0.6 * x[:, 0] - 0.2 * x[:, 1] + rng.normal(0, 5, num_examples)
    return {"x": x[:, 0], "z": x[:, 1], "y": np.clip(y, 0, 80)}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_correlation_and_regression_with_little_noise_are_numpys(adjacency):
    table = regression_table()
    bounds = {"x": BOUNDS, "z": (-20, 120), "y": (0, 80)}
    asked = [
        statistics.correlation(("x", "y"), bounds=(bounds["x"], bounds["y"])),
        statistics.regression("y", ["x", "z"], bounds=bounds),
    ]
    released = plan(asked, epsilon=2e3, adjacency=adjacency).release(KEY, table)
    exact = np.corrcoef(table["x"], table["y"])[0, 1]
    assert released["correlation of x and y"].estimate == pytest.approx(exact, abs=0.01)
    design = np.stack([np.ones(2000), table["x"], table["z"]], axis=-1)
    beta = np.linalg.lstsq(design, table["y"])[0]
    estimates = released["regression of y"]
    assert [each.entry for each in estimates] == ["intercept", "x", "z"]
    assert [each.estimate for each in estimates] == pytest.approx(beta, rel=0.05)


@pytest.mark.parametrize("features", [["x"], ["x", "z"]])
def test_estimates_of_moments_do_not_depend_on_the_bounds(features):
    """Without noise they are functions of the columns alone."""
    table, found = regression_table(300), []
    for bounds in ((0, 100), (-50, 400)):
        query = statistics.regression("y", features, bounds=dict.fromkeys([*features, "y"], bounds))
        columns = query._read({name: table[name] for name in query.bounds})
        averages = np.array([1.0, *query.sum(columns) / 300])
        estimates = [
            query._estimate(each, averages, np.zeros(len(averages)), 300.0, 0.9)
            for each in query.statistics
        ]
        found.append([(e.estimate, e.low, e.high, e.standard_error) for e in estimates])
        assert all(each.noise_std == 0 for each in estimates)
    np.testing.assert_allclose(*found, rtol=1e-8)


def test_standard_errors_are_those_that_are_robust():
    """Of the sandwich estimator (White 1980), for residuals whose variance grows."""
    rng = np.random.default_rng(8)
    x = rng.uniform(0, 100, 500)
    y = np.clip(20 + 0.4 * x + rng.normal(0, 1, 500) * x / 10, 0, 100)
    query = statistics.regression("y", ["x"], bounds={"x": BOUNDS, "y": BOUNDS})
    averages = np.array([1.0, *query.sum(query._read({"x": x, "y": y})) / 500])
    found = [
        query._estimate(each, averages, np.zeros(len(averages)), 500.0, 0.9).standard_error
        for each in query.statistics
    ]
    design = np.stack([np.ones(500), x], axis=-1)
    beta = np.linalg.lstsq(design, y)[0]
    bread = np.linalg.inv(design.T @ design)
    scores = design * (y - design @ beta)[:, None]
    exact = np.sqrt(np.diag(bread @ scores.T @ scores @ bread) * 500 / 499)
    assert found == pytest.approx(exact, rel=1e-6)
    # power: those of one variance are others
    textbook = np.sqrt(np.diag(bread) * np.sum((y - design @ beta) ** 2) / 498)
    assert found != pytest.approx(textbook, rel=0.05)


def test_intervals_without_information_are_the_limits():
    """The noise exceeds the variances of ten records."""
    table = regression_table(10)
    bounds = dict.fromkeys("xy", BOUNDS)
    asked = [
        statistics.correlation(("x", "y"), bounds=(BOUNDS, BOUNDS)),
        statistics.regression("y", ["x"], bounds=bounds),
    ]
    made = plan(asked, epsilon=0.1)
    (query,) = made.queries
    assert len(query.monomials) == 14
    released = made.release(KEY, table)
    rows = [(each.low, each.high) for each in released.estimates]
    assert rows == [(-1.0, 1.0), *[(-np.inf, np.inf)] * 2]
    assert "inf" in str(released)


def test_moments_of_the_same_columns_share_a_release_in_any_order():
    bounds = {"x": (0, 10), "y": (0, 20)}
    asked = [
        statistics.covariance(("x", "y"), bounds=((0, 10), (0, 20))),
        statistics.correlation(("y", "x"), bounds=((0, 20), (0, 10))),
        statistics.regression("y", ["x"], bounds=bounds),
    ]
    made = plan(asked, epsilon=2e3)
    assert len(made.queries) == 1
    rng = np.random.default_rng(6)
    x = rng.uniform(0, 10, 1000)
    y = np.clip(3 + x + rng.normal(0, 2, 1000), 0, 20)
    released = made.release(KEY, {"y": y, "x": x})
    assert released["covariance of x and y"].estimate == pytest.approx(np.cov(x, y)[0, 1], rel=0.02)
    exact = np.corrcoef(x, y)[0, 1]
    assert released["correlation of y and x"].estimate == pytest.approx(exact, abs=0.01)
    assert released["regression of y"][1].estimate == pytest.approx(
        np.cov(x, y)[0, 1] / x.var(ddof=1), rel=0.02
    )


@pytest.mark.parametrize("num_examples", [0, 1, 300, 70_000])
def test_sums_of_monomials_are_those_of_records(num_examples):
    query = statistics.covariance(("x", "y"), bounds=(BOUNDS, BOUNDS))
    columns = np.random.default_rng(2).uniform(-1, 1, (num_examples, 2))
    exact = [np.prod(columns[:, list(each)], axis=1).sum() for each in query.monomials]
    np.testing.assert_allclose(query.sum(columns), exact, rtol=1e-9, atol=1e-12)


def test_rank_distances_have_no_rounding_error():
    """In units of 2^-24 they are integers, equal to those of exact fractions."""
    probability, shift = quantiles.round_rank(0.1), quantiles.round_rank(-1234.56789)
    values, grid = np.sort(np.random.default_rng(4).random(9_973)), np.linspace(0, 1, 101)
    distances = quantiles.rank_distances(values, grid, probability, shift)
    target = Fraction(probability) * len(values) + Fraction(shift)
    for candidate, distance in zip(grid, distances, strict=True):
        below, up_to = (int(np.searchsorted(values, candidate, side)) for side in ("left", "right"))
        assert Fraction(distance) == max(below - target, target - up_to, 0)


def test_released_utilities_are_multiples_of_the_unit_of_ranks(people, monkeypatch):
    """Also of the shifted ends, so that no rounding adds to how far neighbours move them."""
    seen, select = [], PermuteAndFlip.release

    def release(self, key, utilities):
        seen.append(np.asarray(utilities))
        return select(self, key, utilities)

    monkeypatch.setattr(PermuteAndFlip, "release", release)
    asked = [statistics.quantile("age", 0.3, bounds=BOUNDS, num_candidates=11)]
    plan(asked).release(KEY, people)
    assert len(seen) == 3
    units = np.concatenate(seen) / quantiles._RANK_UNIT
    assert (units[np.isfinite(units)] % 1 == 0).all()


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_sensitivity_of_rank_distances_bounds_all_neighbours(probability, adjacency):
    query = statistics.quantile("x", probability, bounds=(0, 4), num_candidates=9)
    probability = query.probability
    stated = plan([query], adjacency=adjacency).mechanisms[-1][0].sensitivity.value
    grid, values = np.linspace(0, 4, 9), np.array([0.0, 1.0, 1.0, 2.2, 3.0, 4.0])
    largest = 0.0
    for shift in map(quantiles.round_rank, (-1.3, 0.0, 2.0)):
        before = quantiles.rank_distances(values, grid, probability, shift)
        for value in np.linspace(0, 4, 17):
            removed = values[1:]
            after = np.sort(np.append(removed, value))
            neighbour = after if adjacency == "replace_one" else removed
            base = (
                before
                if adjacency == "replace_one"
                else quantiles.rank_distances(after, grid, probability, shift)
            )
            moved = quantiles.rank_distances(neighbour, grid, probability, shift)
            largest = max(largest, float(np.abs(moved - base).max()))
    assert 0.85 * stated <= largest <= stated


def test_rank_margins_are_quantiles_of_binomial_less_laplace():
    rng = np.random.default_rng(0)
    ranks = rng.binomial(60, 0.8, 200_000) - 48
    noise = [rng.laplace(0, scale, 200_000) for scale in (3.0, 5.0)]
    low, high = quantiles.rank_margins(60, 0.8, (3.0, 5.0), 0.9)
    assert low == pytest.approx(np.quantile(noise[0] - ranks, 0.95), rel=0.02)
    assert high == pytest.approx(np.quantile(noise[1] + ranks, 0.95), rel=0.02)


def test_count_interval_without_noise_is_wilsons():
    from scipy.stats import binomtest

    for number, n in ((30, 80), (50, 80), (12, 80)):
        low, high = counts.count_interval(float(number), float(n), 0.0, 0.9)
        wilson = binomtest(number, n).proportion_ci(0.9, method="wilson")
        assert (low / n, high / n) == pytest.approx((wilson.low, wilson.high), rel=1e-6)


# Feldman & Cousins (1998), Table X: 90 % intervals of a mean that is not negative, measured with
# normal noise of variance one.
FELDMAN_COUSINS = {
    -3.0: (0, 0.26),
    -1.0: (0, 0.81),
    0.0: (0, 1.64),
    1.0: (0, 2.64),
    3.0: (1.37, 4.64),
}


@pytest.mark.parametrize("measured", FELDMAN_COUSINS)
def test_count_interval_of_normal_noise_is_that_of_feldman_and_cousins(measured):
    """The binomial variance vanishes beside noise of 10,000 in as many records as it needs."""
    found = counts.count_interval(1e4 * measured, 1e12, 1e4, 0.9)
    assert [end / 1e4 for end in found] == pytest.approx(FELDMAN_COUSINS[measured], abs=0.02)


@pytest.mark.parametrize("number", [-40.0, 0.0, 3.0, 50.0, 99.0, 100.0, 160.0])
def test_count_interval_is_within_the_records_and_mirrored(number):
    low, high = counts.count_interval(number, 100.0, 6.0, 0.9)
    assert 0 <= low <= min(max(number, 0), 100) <= high <= 100
    mirrored = counts.count_interval(100.0 - number, 100.0, 6.0, 0.9)
    assert (100 - mirrored[1], 100 - mirrored[0]) == pytest.approx((low, high), abs=1e-6)


def released_by_city(people, *queries):
    return statistics.release(
        KEY, people, queries, epsilon=1.0, delta=1e-6, adjacency="add_remove", unit="one person"
    )


def test_difference_is_that_of_the_groups_with_the_distances_to_the_ends_as_squares(people):
    released = released_by_city(people, grouped("mean"), grouped("variance"))
    for label in ("mean of age by city", "variance of age by city"):
        a, b = released[label]
        found = released.difference(label, minuend="a", subtrahend="b")
        assert found.estimate == a.estimate - b.estimate
        below = np.hypot(a.estimate - a.low, b.high - b.estimate)
        above = np.hypot(a.high - a.estimate, b.estimate - b.low)
        assert (found.low, found.high) == (found.estimate - below, found.estimate + above)
        assert found.noise_std == np.hypot(a.noise_std, b.noise_std)
        # The other way round it is the negative one.
        other = released.difference(label, minuend="b", subtrahend="a")
        assert (other.low, other.high) == pytest.approx((-found.high, -found.low))


def test_difference_refuses_estimates_that_are_not_independent(people):
    """Bins of a histogram have records in common: more in one are fewer in the others."""
    bins = statistics.histogram("city", categories=["a", "b"])
    released = released_by_city(people, grouped("mean"), bins)
    with pytest.raises(ValueError, match=r"statistic must be one of .*'mean of age by city'"):
        released.difference("histogram of city", minuend="a", subtrahend="b")
    with pytest.raises(ValueError, match=r"subtrahend must be one of .*, got 'c'"):
        released.difference("mean of age by city", minuend="a", subtrahend="c")
    with pytest.raises(ValueError, match="subtrahend must be another category"):
        released.difference("mean of age by city", minuend="a", subtrahend="a")


REFUSED = {
    "bounds are a column": (lambda: statistics.mean("x", bounds=(0, np.ones(5))), "bounds"),
    "bounds are one number": (lambda: statistics.mean("x", bounds=3), "bounds"),
    "bounds out of order": (lambda: statistics.quantile("x", 0.5, bounds=(1, 0)), "bounds"),
    "infinite bounds": (lambda: statistics.variance("x", bounds=(0, np.inf)), "bounds"),
    "several probabilities": (
        lambda: statistics.quantile("x", [0.5], bounds=(0, 1)),
        "probability",
    ),
    "probability one": (lambda: statistics.quantile("x", 1.0, bounds=(0, 1)), "probability"),
    "value is a column": (lambda: statistics.count("x", equal_to=np.ones(5)), "equal_to"),
    "column without value": (lambda: statistics.count("x"), "equal_to"),
    "column is the data": (lambda: statistics.mean(np.ones(5), bounds=(0, 1)), "column"),
    "edges decrease": (lambda: statistics.histogram("x", edges=[0, 2, 1]), "edges"),
    "edges and categories": (
        lambda: statistics.histogram("x", edges=[0, 1, 2], categories=[1, 2]),
        "edges",
    ),
    "equal categories": (lambda: statistics.histogram("x", categories=[1, 1]), "categories"),
    "by without categories": (lambda: grouped("mean", categories=None), "categories"),
    "categories without by": (lambda: grouped("mean", by=None), "categories"),
    "equal groups": (lambda: grouped("variance", categories=["a", "a"]), "categories"),
    "groups are a word": (lambda: grouped("mean", categories="ab"), "categories"),
    "by is its own column": (lambda: grouped("mean", by="age"), "by"),
    "quantile by without categories": (
        lambda: statistics.quantile("age", 0.5, bounds=BOUNDS, by="arm"),
        "categories",
    ),
    "quantile by its own column": (
        lambda: statistics.quantile("age", 0.5, bounds=BOUNDS, by="age", categories=[1, 2]),
        "by must be another column",
    ),
    "no queries": (lambda: plan([]), "queries"),
    "no query": (lambda: plan(["mean"]), "queries"),
    "equal queries": (lambda: plan(queries()[:1] * 2), "queries"),
    "public number": (lambda: plan([statistics.count()]), "queries"),
    "one column twice": (
        lambda: statistics.covariance(("x", "x"), bounds=(BOUNDS, BOUNDS)),
        "columns",
    ),
    "bounds of one column": (lambda: statistics.covariance(("x", "y"), bounds=BOUNDS), "bounds"),
    "correlation with itself": (
        lambda: statistics.correlation(("x", "x"), bounds=(BOUNDS, BOUNDS)),
        "columns",
    ),
    "features are one name": (
        lambda: statistics.regression("y", "x", bounds={"x": BOUNDS, "y": BOUNDS}),
        "features",
    ),
    "target is a feature": (
        lambda: statistics.regression("y", ["x", "y"], bounds={"x": BOUNDS, "y": BOUNDS}),
        "features",
    ),
    "no features": (lambda: statistics.regression("y", [], bounds={"y": BOUNDS}), "features"),
    "no bounds of the target": (
        lambda: statistics.regression("y", ["x"], bounds={"x": BOUNDS}),
        "target must be among the columns of bounds",
    ),
    "no bounds of a feature, misspelt": (
        lambda: statistics.regression("y", ["x"], bounds={"X": BOUNDS, "y": BOUNDS}),
        r"features must be among the columns of bounds, got bounds of \['X', 'y'\]",
    ),
    "a mapping for one column": (
        lambda: statistics.mean("x", bounds={"x": BOUNDS, "y": BOUNDS}),
        r"bounds must be \(low, high\).* of a mapping, bounds\[column\], got",
    ),
    "bounds are a pair": (lambda: statistics.regression("y", ["x"], bounds=BOUNDS), "bounds"),
    "bounds of a feature are a column": (
        lambda: statistics.regression("y", ["x"], bounds={"x": (0, np.ones(5)), "y": BOUNDS}),
        "bounds",
    ),
    "weight zero": (lambda: statistics.count(weight=0.0), "weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_query_refuses(case):
    call, name = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=name):
        call()


@pytest.mark.parametrize(
    ("values", "asked", "allowed"),
    [
        (np.array([True, False]), "yes", False),
        (np.array([1, 2]), "1", False),
        (np.array(["a", "b"]), 1, False),
        (np.array([b"a", b"b"]), "a", False),
        (np.array([b"a", b"b"]), b"c", True),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), "2020-01-01", False),
        (np.array([True, False]), True, True),
        (np.array([1.5, 2.0]), 3, True),
        (np.array(["a", 1], object), "yes", True),  # of any kind
    ],
)
def test_values_of_another_kind_than_the_column_are_refused(values, asked, allowed):
    """By the column's dtype alone: no record has such a value, and the answer would be zero."""
    table = {"age": np.zeros(2), "group": values}
    by = {"by": "group", "categories": [asked, values[1]]}
    for query in (
        statistics.count("group", equal_to=asked),
        statistics.histogram("group", categories=[asked, values[1]]),
        statistics.mean("age", bounds=BOUNDS, **by),
        statistics.quantile("age", 0.5, bounds=BOUNDS, **by),
    ):
        if allowed and asked != values[1]:
            plan([query]).release(jax.random.key(0), table)
        elif not allowed:
            with pytest.raises(ValueError, match=r"must be of the kind of column 'group'"):
                plan([query]).release(jax.random.key(0), table)


def quantile_by_city(probability=0.9, num_candidates=10_001):
    return statistics.quantile(
        "age",
        probability,
        bounds=BOUNDS,
        num_candidates=num_candidates,
        by="city",
        categories=["a", "b", "d"],
    )


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_quantiles_by_group_with_little_noise_are_those_of_pandas(adjacency, people):
    made = plan([quantile_by_city(0.5)], adjacency=adjacency, epsilon=100.0)
    assert made.labels == ("0.5-quantile of age by city",)
    assert made.num_releases == 4  # and no number of all records
    *found, empty = made.release(KEY, people).estimates
    assert [each.entry for each in found] == ["a", "b"]
    for each in found:
        ages = people["age"][people["city"] == each.entry]
        assert ages.quantile(0.49) - 0.1 <= each.estimate <= ages.quantile(0.51) + 0.1
        assert each.low < ages.median() < each.high < each.low + 10
    assert (empty.low, empty.high) == BOUNDS


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_quantiles_by_group_meet_the_target(adjacency):
    made = plan([quantile_by_city()], adjacency=adjacency)
    assert 0.97 < made.certificate(1e-6).epsilon <= 1.0
    assert "3 groups by city: counts, and of each group" in str(made.guarantee.description)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_sensitivity_of_quantiles_by_group_is_attained(adjacency):
    """Of all groups' utilities together: each selection is private at twice its change over scale.

    The selections compose, so their changes add up. Power: a replaced record that changes groups
    moves both by more than the sensitivity of one group.
    """
    query, rng = quantile_by_city(num_candidates=21), np.random.default_rng(0)
    _, *selections = query._make_mechanisms(
        epsilon=1.0, delta=1e-6, adjacency=adjacency, unit="one person"
    )
    grid = np.linspace(*BOUNDS, 21)

    def utilities(ages, cities):
        groups = query._read({"age": np.array(ages), "city": np.array(cities, object)})
        return np.stack(
            [rank_distances(group, grid, query.quantile.probability, 0.0) for group in groups]
        )

    changes = []
    for _ in range(400):
        ages, cities = list(rng.choice(grid, 8)), list(rng.choice(["a", "b", "other"], 8))
        before = utilities(ages, cities)
        if adjacency == "replace_one":
            ages[0], cities[0] = rng.choice(grid), rng.choice(["a", "b", "other"])
        else:
            del ages[0], cities[0]
        changes.append(np.abs(utilities(ages, cities) - before).max(axis=1).sum())
    (value,) = {each.sensitivity.value for each in selections}
    assert value == pytest.approx(1.8 if adjacency == "replace_one" else 0.9, abs=1e-6)
    assert 0.9 * value < max(changes) <= value
    assert sum(each.pure_epsilon for each in selections) == pytest.approx(0.8)


def test_regression_reads_the_bounds_of_its_columns_alone(people):
    """One mapping serves a whole table; its other keys need not be columns."""
    own = {"smoker": (0, 1), "age": BOUNDS}
    exact, of_table = (
        statistics.regression("age", ["smoker"], bounds=bounds)
        for bounds in (own, {"height": (100, 250), **own, "city": None})
    )
    assert plan([of_table]) == plan([exact])
    found = [plan([each]).release(KEY, people).estimates for each in (exact, of_table)]
    assert found[0] == found[1]


RECORDS = {
    "no such column": ({"height": np.ones(5)}, "column"),
    "several numbers a record": ({"age": np.ones((5, 2))}, "age"),
    "a scalar": ({"age": np.float64(3.0)}, "age"),
    "strings": ({"age": np.array(["a", "b"])}, "age"),
    "unequal lengths": ({"age": np.ones(5), "city": np.ones(4)}, "records"),
    "masked": ({"age": np.ma.masked_array([1.0, 2.0], [True, False])}, "mask"),
    "two columns of one name": (pd.DataFrame(np.ones((3, 2)), columns=["age", "age"]), "age"),
    "three axes": (np.ones((2, 2, 2)), "records"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_release_refuses_records(case):
    records, name = RECORDS[case]
    made = plan([statistics.mean("age", bounds=BOUNDS)])
    with pytest.raises(ValueError, match=name):
        made.release(KEY, records)
