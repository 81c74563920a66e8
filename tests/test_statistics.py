"""Statistics of tables: estimates, sensitivities, budget, refusals."""

import itertools
from fractions import Fraction

import jax
import numpy as np
import pandas as pd
import pytest

import dpjax
from dpjax import statistics

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
    exponents = np.array(query.exponents)
    one, other = (
        np.zeros(len(exponents)) if y is None else weights * (y**exponents).prod(axis=-1)
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
def test_sensitivity_of_two_columns_bounds_all_neighbours(adjacency):
    """The worst neighbours attain 83 % of the squared sensitivity where a record is replaced."""
    query = statistics.covariance(("x", "y"), bounds=(BOUNDS, BOUNDS))
    weights, length = query.weights_and_sensitivity(adjacency)
    steps = np.linspace(-1, 1, 9)
    records = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    rows = weights * (records[:, None, :] ** np.array(query.exponents)).prod(axis=-1)
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


def test_rank_distances_have_no_rounding_error():
    """In units of 2^-24 they are integers, equal to those of exact fractions."""
    probability, shift = statistics._round_rank(0.1), statistics._round_rank(-1234.56789)
    values, grid = np.sort(np.random.default_rng(4).random(9_973)), np.linspace(0, 1, 101)
    distances = statistics._rank_distances(values, grid, probability, shift)
    target = Fraction(probability) * len(values) + Fraction(shift)
    for candidate, distance in zip(grid, distances, strict=True):
        below, up_to = (int(np.searchsorted(values, candidate, side)) for side in ("left", "right"))
        assert Fraction(distance) == max(below - target, target - up_to, 0)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_sensitivity_of_rank_distances_bounds_all_neighbours(probability, adjacency):
    query = statistics.quantile("x", probability, bounds=(0, 4), num_candidates=9)
    probability = query.probability
    stated = plan([query], adjacency=adjacency).mechanisms[-1][0].sensitivity.value
    grid, values = np.linspace(0, 4, 9), np.array([0.0, 1.0, 1.0, 2.2, 3.0, 4.0])
    largest = 0.0
    for shift in map(statistics._round_rank, (-1.3, 0.0, 2.0)):
        before = statistics._rank_distances(values, grid, probability, shift)
        for value in np.linspace(0, 4, 17):
            removed = values[1:]
            after = np.sort(np.append(removed, value))
            neighbour = after if adjacency == "replace_one" else removed
            base = (
                before
                if adjacency == "replace_one"
                else statistics._rank_distances(after, grid, probability, shift)
            )
            moved = statistics._rank_distances(neighbour, grid, probability, shift)
            largest = max(largest, float(np.abs(moved - base).max()))
    assert 0.85 * stated <= largest <= stated


def test_rank_margin_is_the_quantile_of_normal_plus_laplace():
    rng = np.random.default_rng(0)
    draws = rng.normal(0, 5, 200_000) + rng.laplace(0, 8, 200_000)
    assert statistics._rank_margin(5.0, 8.0, 0.9) == pytest.approx(
        np.quantile(draws, 0.95), rel=0.02
    )


def test_score_interval_without_noise_is_wilsons():
    from scipy.stats import binomtest

    low, high = statistics._score_interval(12.0, 80.0, 0.0, 0.9)
    wilson = binomtest(12, 80).proportion_ci(0.9, method="wilson")
    assert (low / 80, high / 80) == pytest.approx((wilson.low, wilson.high))


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
    "no queries": (lambda: plan([]), "queries"),
    "no query": (lambda: plan(["mean"]), "queries"),
    "equal queries": (lambda: plan(queries()[:1] * 2), "queries"),
    "public number": (lambda: plan([statistics.count()]), "queries"),
    "one column twice": (
        lambda: statistics.covariance(("x", "x"), bounds=(BOUNDS, BOUNDS)),
        "columns",
    ),
    "bounds of one column": (lambda: statistics.covariance(("x", "y"), bounds=BOUNDS), "bounds"),
    "weight zero": (lambda: statistics.count(weight=0.0), "weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_query_refuses(case):
    call, name = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=name):
        call()


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
