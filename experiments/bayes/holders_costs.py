"""Computation and bytes of sums over several holders: secret shares, and Paillier beside them.

``python -m experiments run bayes_holders_costs``: about half a minute, the same in both profiles.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.regression import PerturbedStatistics, RegressionBounds
from dpjax.federated import (
    ClippedGradientSum,
    FederatedSum,
    NodeState,
    Parties,
    combine,
    holder_messages,
    open_sum,
    receive,
    received_draws,
)
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from experiments.bayes.paillier import (
    decrypt_sum,
    encrypt_statistic,
    generate_paillier_keys,
    multiply_ciphertexts,
)
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.plots import draw_curve, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import make_rows

_STATISTICS, _GRADIENT, _KEY_BITS, _DELTA = 78, 10**6, 2048, 1e-4
_DIMENSIONS = (_STATISTICS, 1_000, 10_000, 100_000, _GRADIENT)
SENT, ALL_SENT = "a holder sends (bytes)", "all messages (bytes)"
HOLDER, NODE, ANALYST = "a holder (ms)", "a node (ms)", "the analyst (ms)"
PARALLEL, TOGETHER = "one after another (ms)", "all parties (ms)"


class Costs(NamedTuple):
    """CPU seconds and bytes sent, of each party in one round."""

    holders: list[float]
    nodes: list[float]
    analyst: float
    bytes_of_holder: int
    bytes_of_all: int


def make_mechanism(num_entries: int) -> PerturbedStatistics | ClippedGradientSum:
    """Returns the statistics of a regression on 11 features, else a clipped gradient."""
    if num_entries == _STATISTICS:
        bounds = RegressionBounds(x_norm_bound=2.0, y_bound=1.0)
        return PerturbedStatistics.from_epsilon(
            bounds, epsilon=1.0, delta=_DELTA, adjacency="add_remove", num_features=11
        )
    steps = SubsampledGaussian(
        PoissonSampling(2_000, 0.1, expected_batch_size=200.0),
        l2_clip=1.0,
        noise_multiplier=2.0,
        num_steps=100,
        adjacency="add_remove",
    )
    return ClippedGradientSum(steps, num_entries)


def measure_shares(plan: FederatedSum, sums: npt.NDArray[np.float64]) -> Costs:
    """Times the functions of each party in one round of secret sharing.

    Masks and noise come from the operating system's generator.
    """
    nodes = range(plan.parties.num_nodes)
    _ = plan.message_format  # computed once for a plan, before the round
    sent, holders = zip(
        *(_timed(holder_messages, plan, number, own) for number, own in enumerate(sums)),
        strict=True,
    )

    def run_node(node: int) -> bytes:
        state = NodeState(node)
        for holder, messages in enumerate(sent):
            state = receive(plan, state, messages[node], holder=holder)
        return open_sum(plan, state, received_draws(plan, state))[1]

    opened, of_nodes = zip(*(_timed(run_node, node) for node in nodes), strict=True)
    used = dict(list(enumerate(opened))[: plan.parties.sharing.threshold])
    _, analyst = _timed(combine, plan, used)
    own = sum(map(len, sent[0]))
    everything = sum(len(one) for messages in sent for one in messages) + sum(map(len, opened))
    return Costs(list(holders), list(of_nodes), analyst, own, everything)


def measure_paillier(plan: FederatedSum, sums: npt.NDArray[np.float64], num_bits: int) -> Costs:
    """Runs a round with ciphertexts for shares; the node multiplies, the analyst decrypts."""
    keys = generate_paillier_keys(num_bits)
    sent, holders = zip(
        *(_timed(encrypt_statistic, plan, keys.public, own) for own in sums), strict=True
    )
    products, node = _timed(multiply_ciphertexts, keys.public, sent)
    members = frozenset(range(len(sums)))
    _, analyst = _timed(decrypt_sum, plan, keys, products, members)
    of_one = len(sent[0]) * num_bits // 4  # a ciphertext is a residue modulo the square of n
    return Costs(list(holders), [node], analyst, of_one, of_one * (len(sums) + 1))


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - start


def rows(profile: str) -> list[Row]:
    common: dict[str, Any] = {
        "num_holders": 10,
        "num_nodes": 3,
        "num_entries": _STATISTICS,
        "threshold": None,
    }
    common |= {"method": "additive shares", "seed": 0, "rounds": 5}
    points: list[dict[str, Any]] = [
        *({"num_entries": entries} for entries in _DIMENSIONS),
        *({"num_holders": holders} for holders in (100, 1_000)),
        *({"num_nodes": nodes} for nodes in (2, 5, 10)),
        *(
            {"num_entries": entries, "threshold": 2, "method": "Shamir, 2 nodes open"}
            for entries in (_STATISTICS, _GRADIENT)
        ),
        {"num_nodes": 2, "method": f"Paillier, {_KEY_BITS:,} bits"},
    ]
    fewer = [
        {**point, "rounds": 2} if _is_large({**common, **point}) else point for point in points
    ]
    return make_rows(
        "{method}: N = {num_holders}, M = {num_nodes}, {num_entries:,} numbers", fewer, common
    )


def _is_large(settings: Values) -> bool:
    return (
        settings["num_holders"] * settings["num_entries"] > 10**6
        or "Paillier" in settings["method"]
    )


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    parties = Parties(
        num_holders=settings["num_holders"],
        num_nodes=settings["num_nodes"],
        node_threshold=settings["threshold"],
    )
    plan = FederatedSum(make_mechanism(settings["num_entries"]), parties)
    rng = np.random.default_rng(settings["seed"])
    sums = rng.standard_normal((parties.num_holders, plan.size)) / plan.size**0.5
    paillier = settings["method"].startswith("Paillier")
    rounds = [
        measure_paillier(plan, sums, _KEY_BITS) if paillier else measure_shares(plan, sums)
        for _ in range(settings["rounds"])
    ]
    found = min(rounds, key=lambda one: sum(one.holders) + sum(one.nodes) + one.analyst)
    holder, node = float(np.median(found.holders)), float(np.median(found.nodes))
    together = sum(found.holders) + sum(found.nodes) + found.analyst
    times = {
        HOLDER: holder,
        NODE: node,
        ANALYST: found.analyst,
        PARALLEL: max(found.holders) + max(found.nodes) + found.analyst,
        TOGETHER: together,
    }
    return Result(
        measured={
            SENT: found.bytes_of_holder,
            ALL_SENT: found.bytes_of_all,
            **{name: round(1000 * seconds, 3) for name, seconds in times.items()},
        },
        certified={"ε": certified_epsilon(plan.event, _DELTA, adjacency=plan.guarantee.adjacency)},
        certificate=str(plan.certificate(_DELTA)),
        note="CPU time of the functions of `dpjax.federated`, of the fastest of"
        f" {settings['rounds']} rounds; it depends on the machine, and the bytes do not."
        + (_note_on_paillier() if paillier else ""),
    )


def _note_on_paillier() -> str:
    if importlib.util.find_spec("gmpy2") is None:
        return " Paillier: phe without gmpy2, which makes it about ten times as fast."
    return " Paillier: phe with gmpy2."


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    lines = [record for record in records if _is_on_line(record)]
    if len(lines) < 2:
        return {}
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.0)
    sizes = [record.settings["num_entries"] for record in lines]
    for name, colour in ((HOLDER, MEASURED), (NODE, PALETTE[1]), (TOGETHER, CERTIFIED)):
        times = [record.measured[name] for record in lines]
        draw_curve(left, sizes, times, color=colour, label=name.removesuffix(" (ms)"))
    draw_curve(right, sizes, [r.measured[SENT] for r in lines], color=MEASURED, label="shares")
    for record in records:
        if record.settings["method"].startswith("Paillier"):
            place = record.settings["num_entries"]
            style: dict[str, Any] = {"marker": "s", "linestyle": ""}
            for name, colour in ((HOLDER, MEASURED), (TOGETHER, CERTIFIED)):
                label = f"{name.removesuffix(' (ms)')}, Paillier"
                left.plot(place, record.measured[name], color=colour, label=label, **style)
            right.plot(place, record.measured[SENT], color=PALETTE[1], label="Paillier", **style)
    for axes in (left, right):
        set_log_ticks(axes, sizes, "numbers in the sum")
    left.set(yscale="log", ylabel="CPU time (ms)")
    right.set(yscale="log", ylabel="bytes that a holder sends")
    left.legend()
    right.legend()
    return {"sizes": figure}


def _is_on_line(record: Record) -> bool:
    used = record.settings
    return (used["method"], used["num_holders"], used["num_nodes"]) == ("additive shares", 10, 3)


def finding(records: Sequence[Record]) -> Finding:
    by_size = {r.settings["num_entries"]: r.measured for r in records if _is_on_line(r)}
    if not {_STATISTICS, _GRADIENT} <= set(by_size):
        return Finding("not compared", "Only a part of the rounds was run.")
    small, large = by_size[_STATISTICS], by_size[_GRADIENT]
    return Finding(
        "not compared",
        f"A round of ten holders and three nodes takes {small[TOGETHER]:.1f} ms of computation for"
        f" {_STATISTICS} statistics, all parties together, and for a gradient of 10⁶ numbers"
        f" {large[PARALLEL] / 1000:.2f} s where the parties compute at the same time and"
        f" {large[TOGETHER] / 1000:.1f} s where one process plays all of them.",
    )
