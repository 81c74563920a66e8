"""The plan: its guarantee against the exact delta of the noise, sensitivity, range, adversaries."""

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.federated_cases import (
    RECORDS,
    count_release,
    histogram_release,
    moments_release,
    plan_of,
    regression_release,
)
from scipy.stats import norm

from dpjax.accounting import calibrate, gdp
from dpjax.bayes.conjugate import SufficientStatisticsMechanism
from dpjax.federated import (
    FederatedSum,
    NodeState,
    Parties,
    ProtocolError,
    holder_messages,
    receive,
)
from dpjax.federated.sharing import AdditiveSharing, ShamirSharing
from dpjax.mechanisms import ClippedSum, DiscreteLaplace, Gaussian, Laplace
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity

DELTA = 1e-5
# Holders, drop-outs, colluders, whether the observer is a holder.
PARTIES = [
    (2, 0, 0, True),
    (5, 0, 0, False),
    (5, 1, 1, True),
    (10, 0, 0, True),
    (10, 2, 3, True),
    (100, 30, 0, False),
]


def parties_of(num_holders, num_dropouts, num_colluders, observer_is_holder):
    return {
        "num_holders": num_holders,
        "num_dropouts": num_dropouts,
        "num_colluders": num_colluders,
        "observer_is_holder": observer_is_holder,
    }


def exact_delta(variance, shift, eps):
    """Delta of discrete Gaussian noise moved by an integer: the sum over all outcomes."""
    reach = math.ceil(9 * math.sqrt(variance)) + shift
    k = np.arange(-reach, reach + 1.0)
    p = np.exp(-((k - shift) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
    log_ratio = (2 * k * shift - shift**2) / (2 * variance)
    return float(np.sum(p * np.maximum(-np.expm1(eps - log_ratio), 0.0)))


def exact_delta_of(plan, num_shares, eps, scales=None):
    """Of a plan with one entry: ``num_shares`` shares of noise, and the sums of two neighbours.

    Rounded to the grid, these are whole numbers up to one more than the sensitivity apart.
    """
    (exponent,), (scale,) = plan.grid.exponents, plan.grid.scales if scales is None else scales
    (part,) = plan.mechanism.sum_parts
    sensitivity = part.mechanism.sensitivity.value * (1 + SUM_ROUNDING)
    shift = math.floor(sensitivity * 2.0 ** -int(exponent) + 1)
    return exact_delta(num_shares * int(scale) ** 2, shift, eps)


@pytest.mark.parametrize("grid_bits", [4, 10])
@pytest.mark.parametrize("parties", PARTIES)
def test_certificate_covers_the_exact_delta_of_the_noise(parties, grid_bits):
    plan = plan_of(
        count_release(scale=1.5, adjacency="replace_one"),
        grid_bits=grid_bits,
        **parties_of(*parties),
    )
    certified = plan.certificate(DELTA).epsilon
    shares = plan.parties.num_noise_shares
    assert exact_delta_of(plan, shares, certified) <= DELTA
    # Everyone who sees less noise or more has the epsilon of that noise.
    for one in plan.adversaries(DELTA):
        assert exact_delta_of(plan, one.num_noise_shares, one.epsilon) <= DELTA
    if grid_bits == 10:  # and the certificate is near it
        assert exact_delta_of(plan, shares, certified * 0.98) > DELTA


def test_grid_of_few_bits_stays_within_the_gaussian_curve():
    """Where the noise, in units of the grid, needs no rounding up: its smoothing alone is left.

    Power: noise of the needed variance itself is above the curve, as it is on whole numbers.
    """

    def plan_with(scale):
        return plan_of(count_release(scale=scale, adjacency="replace_one"), grid_bits=4, **parties)

    parties, epsilons = {"num_holders": 2}, np.linspace(0.03, 4.0, 60)
    (exponent,), shares = plan_with(1.5).grid.exponents, 1
    enlarged = 1 + SUM_ROUNDING + 2.0 ** int(exponent)  # the sensitivity is one
    whole = math.ceil(1.5 * enlarged * 2.0 ** -int(exponent))
    scale = whole * 2.0 ** int(exponent) / enlarged * (1 - 1e-12)
    plan = plan_with(scale)
    assert plan.grid.exponents == [exponent]
    assert plan.parties.num_noise_shares == shares
    gaussian = np.array([gdp.delta(1 / scale, eps) for eps in epsilons])
    ours = [exact_delta_of(plan, shares, eps) for eps in epsilons]
    assert np.all(ours <= gaussian)
    assert np.any([exact_delta_of(plan, shares, eps, [whole]) for eps in epsilons] > gaussian)


@pytest.mark.parametrize("parties", PARTIES)
def test_power_certificate_with_one_noise_share_too_many_is_seen(parties):
    """The noise divided among one holder more than counts: one who drops out, or the observer."""
    plan = plan_of(
        count_release(scale=1.5, adjacency="replace_one"), grid_bits=12, **parties_of(*parties)
    )
    shares = plan.parties.num_noise_shares
    small = np.floor(plan.grid.scales * math.sqrt(shares / (shares + 1)))
    certified = plan.certificate(DELTA).epsilon
    assert exact_delta_of(plan, shares, certified, small) > DELTA


def test_event_is_that_of_the_trusted_aggregator():
    for make in (count_release, histogram_release, moments_release, regression_release):
        trusted = make(adjacency="add_remove")
        plan = plan_of(trusted)
        assert plan.event == trusted.event
        assert plan.guarantee.adjacency == trusted.guarantee.adjacency
        assert plan.guarantee.unit == trusted.guarantee.unit
        assert plan.num_releases == trusted.num_releases
        assert plan.certificate(DELTA).epsilon == trusted.certificate(DELTA).epsilon


@pytest.mark.parametrize("grid_bits", [4, 16])
@pytest.mark.parametrize("name", RECORDS)
def test_grid_noise_of_the_shares_covers_each_parts_noise(name, grid_bits):
    """In every entry H shares less 4 units have the trusted variance, enlarged for the rounding.

    Rounding moves every entry of a part by up to one unit more.
    """
    plan = plan_of(RECORDS[name][0](), num_dropouts=1, grid_bits=grid_bits)
    variance = plan.parties.num_noise_shares * plan.grid.scales**2.0 - 4
    first = 0
    for part in plan.mechanism.sum_parts:
        entries = slice(first, first := first + part.weights.size)
        units = np.ldexp(1.0, plan.grid.exponents[entries]) * part.weights
        ratio = np.sqrt(variance[entries]) * units / part.mechanism.scale
        rounding = SUM_ROUNDING + np.linalg.norm(units) / part.mechanism.sensitivity.value
        assert np.all(ratio > (1 + rounding) * (1 - 1e-12))
        assert np.all(ratio < (1 + 1e-3 if grid_bits == 16 else 1.5))


def neighbours(name, adjacency, rng):
    """Yields pairs of a holder's records that differ in one record, of extreme or random values."""
    if name == "regression":
        rows = [
            *(
                (np.array([[a, 0.0, 0.0]]), np.array([b]))
                for a in (1e30, -2.0)
                for b in (9.0, -9.0)
            ),
            (np.full((1, 3), np.nan), np.array([np.nan])),
            (np.array([[np.inf, 1.0, -1.0]]), np.array([-np.inf])),
            (np.zeros((1, 3)), np.zeros(1)),
            (rng.normal(size=(1, 3)), rng.normal(size=1)),
        ]
        rest = (rng.normal(size=(4, 3)), rng.normal(size=4))
    else:
        rows = [
            (np.array([v], np.float32),)
            for v in (-np.inf, np.inf, np.nan, -4.0, 6.0, 0.0, 0.3, 1e30, 4.0)
        ]
        rest = (rng.normal(size=4).astype(np.float32),)

    def with_row(row):
        return tuple(np.concatenate([a, b]) for a, b in zip(rest, row, strict=True))

    for row in rows:
        if adjacency == "replace_one":
            yield from ((with_row(row), with_row(other)) for other in rows)
        else:
            yield rest, with_row(row)
            yield tuple(part[:0] for part in rest), row  # a holder without records


@pytest.mark.parametrize("grid_bits", [4, 16])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("name", RECORDS)
def test_to_units_moves_neighbours_within_the_sensitivity(name, adjacency, grid_bits):
    """The weighted distance over the noise of H shares is within mu of each part.

    Asymmetric bounds, extreme values, NaN, a holder without records and one with a single record.
    """
    plan = plan_of(RECORDS[name][0](adjacency=adjacency), grid_bits=grid_bits)
    variance = plan.parties.num_noise_shares * plan.grid.scales**2.0 - 4
    sizes = [part.weights.size for part in plan.mechanism.sum_parts]
    found = 0.0
    for pair in neighbours(name, adjacency, np.random.default_rng(1)):
        first, second = (plan.to_units(plan.mechanism.sum_records(*records)) for records in pair)
        squares = np.square((first - second).astype(np.float64)) / variance
        parts = zip(
            plan.mechanism.sum_parts,
            np.split(squares, np.cumsum(sizes)[:-1]),
            strict=True,
        )
        for part, entries in parts:
            mu = part.mechanism.mu
            assert math.sqrt(entries.sum()) <= mu
            found = max(found, math.sqrt(entries.sum()) / mu)
    assert found > (0.98 if grid_bits == 16 else 0.7)


def test_to_units_cuts_off_sums_beyond_the_range():
    plan = plan_of(count_release())
    huge = np.array([1e300, -1e300])
    units = plan.to_units(huge)
    assert np.all(np.abs(units) <= plan.largest_holder_sum)
    most = plan.parties.num_holders * plan.largest_holder_sum
    assert most <= plan.parties.sharing.half_range // 2
    assert plan.to_units([np.nan, np.inf]).tolist() == [0, 0]


def test_to_units_does_not_round_whole_numbers():
    plan = plan_of(histogram_release(scale=0.3))
    counts = np.array([1.0, 0.0, 2**40, 77.0, 5.0])
    np.testing.assert_array_equal(plan.from_units(plan.to_units(counts)), counts)


def test_largest_holder_sum_holds_many_records():
    plan = plan_of(regression_release(), num_holders=100, node_threshold=2)
    for part, exponent in zip(plan.mechanism.sum_parts, plan._part_exponents, strict=True):
        record = part.mechanism.sensitivity.value
        assert plan.largest_holder_sum * 2.0**exponent > 2**20 * record
    assert plan.wrap_probability < 1e-100


def test_wrap_probability_is_that_of_all_holders_noise():
    """Above the normal tail, and within the factor by which the bound exceeds it."""
    plan = plan_of(count_release(scale=2.0**37), num_holders=1024, node_threshold=2)
    deviation = float(plan.grid.scales[0]) * math.sqrt(1024)
    reach = plan.parties.sharing.half_range / 2 / deviation
    assert 16 < reach < 37
    exact = 2 * plan.size * norm.sf(reach)
    assert exact < plan.wrap_probability < 3 * reach * exact


def test_adversaries_have_the_epsilon_of_their_noise():
    plan = plan_of(
        count_release(scale=2.0), num_holders=12, num_dropouts=2, num_colluders=3, num_nodes=4
    )
    analyst, nodes, observer, all_nodes = plan.adversaries(DELTA)
    assert [one.num_noise_shares for one in plan.adversaries(DELTA)] == [7, 7, 6, 1]
    assert plan.parties.num_noise_shares == 6
    for one in plan.adversaries(DELTA):
        mu = math.sqrt(6 / one.num_noise_shares) / 2
        assert one.epsilon == pytest.approx(gdp.epsilon(mu, DELTA), rel=2e-3)
    assert analyst.epsilon == nodes.epsilon < observer.epsilon < all_nodes.epsilon
    assert observer.epsilon == plan.certificate(DELTA).epsilon
    words = plan.certificate(DELTA).paragraph() + str(plan.certificate(DELTA))
    for heading in ("an analyst or outsider", "any 3 of the nodes", "4 or more of the nodes"):
        assert heading in " ".join(words.split())


def names_of_adversaries(**parties):
    plan = plan_of(count_release(), num_holders=6, **parties)
    return [one.name for one in plan.adversaries(DELTA)]


def test_adversaries_count_nodes_that_collude_with_the_analyst():
    """2 t - M - 1 of them, without the analyst t - 1; all the same where one set can be opened."""
    additive = names_of_adversaries(num_dropouts=1)
    assert additive[1:] == [
        "any 2 of the nodes",
        "an observing holder with 0 other holders and 2 of the nodes",
        "3 or more of the nodes together",
    ]
    assert names_of_adversaries(num_dropouts=1, node_threshold=3) == additive
    assert names_of_adversaries(num_dropouts=0, node_threshold=2)[1:] == [
        "any 1 of the nodes",
        "an observing holder with 0 other holders and 1 of the nodes",
        "2 or more of the nodes together",
    ]
    assert names_of_adversaries(num_dropouts=1, node_threshold=2)[1:] == [
        "any 1 of the nodes without the analyst",
        "an observing holder with 0 other holders and 0 of the nodes",
        "1 or more of the nodes together with the analyst",
    ]
    assert names_of_adversaries(num_dropouts=1, node_threshold=4, num_nodes=5)[1:] == [
        "any 2 of the nodes",
        "any 3 of the nodes without the analyst",
        "an observing holder with 0 other holders and 2 of the nodes",
        "3 or more of the nodes together with the analyst",
    ]


def test_certificate_rounds_epsilons_of_adversaries_up():
    """Of eight plans, some of whose epsilons would be rounded down to the nearest number."""
    nearest = []
    for scale in np.linspace(1.0, 2.0, 8):
        plan = plan_of(count_release(scale=scale))
        words = plan.certificate(DELTA).guarantee.description
        for number, one in enumerate(plan.adversaries(DELTA), start=1):
            stated = float(words[f"adversary {number}"].split()[1])
            assert one.epsilon <= stated < 1.002 * one.epsilon
            nearest.append(float(f"{one.epsilon:.4g}") < one.epsilon)
    assert 0 < sum(nearest) < len(nearest)


def test_parties_count_what_the_observer_can_subtract():
    parties = Parties(num_holders=10, num_nodes=3, num_dropouts=2, num_colluders=1)
    assert parties.num_noise_shares == 6
    assert parties.least_holders == 8
    outside = dataclasses.replace(parties, observer_is_holder=False)
    assert outside.num_noise_shares == 7
    assert parties.sharing == AdditiveSharing(3)
    assert dataclasses.replace(parties, node_threshold=2).sharing == ShamirSharing(3, threshold=2)


def parties_with(**changes):
    return Parties(**{"num_holders": 5, "num_nodes": 3, **changes})


def noise_of_count(noise):
    family = count_release().family
    l1 = family.sensitivity(norm="l1", adjacency="add_remove")
    return plan_of(SufficientStatisticsMechanism(family, noise(l1, 3.0)))


SCALAR = Gaussian(Sensitivity(1.0, "l2", "add_remove"), 1.0)
REFUSED = [
    (lambda: plan_of(count_release(), grid_bits=45), "grid_bits must be so few that"),
    (lambda: plan_of(count_release(), grid_bits=60), "grid_bits must be so few that"),
    (lambda: plan_of(count_release(scale=1e-9)), "records of a holder are not cut off"),
    (lambda: noise_of_count(Laplace), "must be Gaussian"),
    (lambda: noise_of_count(DiscreteLaplace), "must be Gaussian"),
    (lambda: FederatedSum(SCALAR, None), "a RecordSum"),
    (
        lambda: parties_with(num_holders=4, num_dropouts=1, num_colluders=2),
        "num_holders must be at least",
    ),
    (lambda: parties_with(num_holders=1), "num_holders must be at least 2"),
    (lambda: parties_with(num_nodes=1), "num_nodes must be a whole number >= 2"),
    (lambda: parties_with(num_nodes=2**16), "num_nodes must be at most 65,535"),
    (lambda: parties_with(num_dropouts=-1), "num_dropouts"),
    (lambda: parties_with(node_threshold=1), "node_threshold"),
    (lambda: parties_with(num_nodes=4, node_threshold=2), "more than half of num_nodes = 4"),
    (lambda: parties_with(node_threshold=4), "node_threshold"),
    (lambda: plan_of(count_release()).to_units(np.zeros(3)), "statistic must be of shape"),
    (
        lambda: plan_of(count_release(), num_dropouts=3).mechanism_for(1),
        "num_contributing must be a whole number, 2 to 5",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_plan_refuses_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_calibrate_scales_the_noise_of_the_holders():
    plan = plan_of(regression_release(epsilon=3.0))
    found = calibrate(plan, epsilon=0.5, delta=DELTA)
    assert 0.495 <= found.certificate(DELTA).epsilon <= 0.5
    # Units of the grid grow with the noise.
    before, after = (one.grid.scales * np.ldexp(1.0, one.grid.exponents) for one in (plan, found))
    assert np.all(after > 3 * before)


def test_mechanism_for_has_the_noise_of_those_who_contributed():
    plan = plan_of(count_release(scale=2.0), num_holders=9, num_dropouts=3)
    assert plan.parties.num_noise_shares == 5
    for contributing in (6, 9):
        noise = plan.mechanism_for(contributing).mechanism.scale
        assert noise == pytest.approx(2.0 * math.sqrt(contributing / 5))


def test_sum_parts_have_the_weights_of_their_entries():
    root = math.sqrt(2)
    np.testing.assert_allclose(
        regression_release().sum_parts[0].weights, [1, root, root, 1, root, 1]
    )


def bounded_plan(high):
    bounds = (np.zeros(high.size), high)
    return plan_of(ClippedSum(bounds, scale=1e4, adjacency="add_remove"))


def other_bounds():
    """Arrays that are abbreviated where they are printed, with one norm; the first two are equal.

    The others differ in the order of two entries, the sign of a zero, or the dtype.
    """
    high = np.linspace(0.5, 1.0, 3000, dtype=np.float32).astype(np.float64)
    high[1000] = 0.0
    exchanged, signed = high.copy(), high.copy()
    exchanged[[1500, 1501]] = high[[1501, 1500]]
    signed[1000] = -0.0
    return [high, high.copy(), exchanged, signed, high.astype(np.float32)]


def test_fingerprint_differs_with_one_entry_of_an_array():
    first, equal, *others = plans = [bounded_plan(high) for high in other_bounds()]
    assert first == equal
    assert hash(first) == hash(equal)
    assert all(first != other for other in others)
    fingerprints = {plan.message_format.fingerprint for plan in plans}
    assert len(fingerprints) == 1 + len(others)
    data = holder_messages(others[0], 0, np.zeros(3000))[0]
    with pytest.raises(ProtocolError, match=r"^plan$"):
        receive(first, NodeState(0), data, holder=0)
    receive(others[0], NodeState(0), data, holder=0)  # power
    assert first != first.mechanism


@pytest.mark.slow
def test_fingerprint_does_not_depend_on_the_process():
    program = (
        "from test_plan import bounded_plan, other_bounds\n"
        "for high in other_bounds(): print(bounded_plan(high).message_format.fingerprint.hex())"
    )
    own = [bounded_plan(high).message_format.fingerprint.hex() for high in other_bounds()]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
        found = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        assert found.stdout.split() == own
