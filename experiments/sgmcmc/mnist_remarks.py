"""What the MNIST table shows, in sentences."""

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING

from dpjax.bayes.sgmcmc import POSTERIOR_TEMPERATURE, PUBLISHED_TEMPERATURE
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record
from experiments.sgmcmc.mnist_table import (
    ACCURACY,
    AS_RUN,
    FRONTIER,
    LAST,
    NLL,
    NLL_LAST,
    PUBLISHED,
    epsilon_by_batch,
)

_SGLD, _NOISY_SGD = "MNIST: DP-SGLD, temperature 1", "MNIST: DP-SGD"
_ONLY_LAST = (
    "Releasing only the last state would not lower the certified ε: the account composes all steps,"
    " whoever sees them, and the results by which hidden steps count less (privacy amplification by"
    " iteration) ask for more, as a rule convexity, than holds for a network's loss."
)


def remarks(records: Sequence[Record]) -> list[str]:
    """The report's sentences, of the rows that are there."""
    by_row = {record.row: record for record in records}
    claims = [
        record for record in records if "ε" in record.source and PUBLISHED in record.certified
    ]
    return [
        *map(_claim, claims),
        _by_batch(),
        *_of_rows(_last_state, by_row, _SGLD),
        *_of_rows(_beside_noisy_sgd, by_row, _SGLD, _NOISY_SGD),
        *_of_rows(_frontier, by_row, f"{FRONTIER}ε = 0.1", f"{_NOISY_SGD} at ε = 0.1"),
    ]


def _of_rows(say: Callable[..., str], by_row: Mapping[str, Record], *names: str) -> list[str]:
    return [say(*(by_row[name] for name in names))] if set(names) <= set(by_row) else []


def _claim(record: Record) -> str:
    claim, certified = record.source["ε"], record.certified[PUBLISHED]
    verdict = "promises too much" if claim < certified else "is on the safe side"
    return (
        f"{record.row}: the slides claim ε = {claim:g}; their N, T, L and printed noise, at step"
        f" size {record.settings['step_size']:g} and batches of {record.settings['batch_size']},"
        f" certify {_upwards(certified)}. The claim {verdict}."
    )


def _by_batch() -> str:
    printed, true = epsilon_by_batch(PUBLISHED_TEMPERATURE), epsilon_by_batch(POSTERIOR_TEMPERATURE)
    return (
        "The slides' DP-SGLD at ε = 0.1 by batch size, which they do not give: certified is"
        f" {_list(printed)} with the printed noise, and {_list(true)} with that of the true"
        " posterior. No batch size makes it 0.1."
    )


def _list(epsilons: Mapping[int, float]) -> str:
    return ", ".join(f"{_upwards(epsilon)} ({batch:,})" for batch, epsilon in epsilons.items())


def _last_state(record: Record) -> str:
    found = record.measured
    return (
        f"DP-SGLD at temperature 1: the average over the kept states is {found[ACCURACY]:.2f} %"
        f" accurate (NLL {found[NLL]:.3f}), the last state alone {found[LAST]:.2f} %"
        f" ({found[NLL_LAST]:.3f}), at one certified ε, that of all states, burn-in included."
        f" {_ONLY_LAST}"
    )


def _beside_noisy_sgd(chain: Record, point: Record) -> str:
    one, other = chain.measured, point.measured
    return (
        "Private SGLD is DP-SGD whose noise multiplier follows from the step size, with a prior and"
        " an average over its path. At the same certified ε ="
        f" {_upwards(chain.certified[AS_RUN])}: accuracy {one[ACCURACY]:.2f} against"
        f" {other[ACCURACY]:.2f} %, NLL {one[NLL]:.3f} against {other[NLL]:.3f}, ECE"
        f" {one['ECE %']:.1f} against {other['ECE %']:.1f} %. The chain's last state alone has NLL"
        f" {one[NLL_LAST]:.3f}: what lies between it and DP-SGD is not owed to averaging over a"
        " posterior, but to what else differs (clip bound 4 against 1, step sizes, the prior),"
        " which was not taken apart."
    )


def _frontier(chain: Record, point: Record) -> str:
    return (
        f"What ε = 0.1 really buys, in {chain.settings['num_steps']:,} steps of the"
        f" {chain.settings['network']}: private SGLD at a certified"
        f" {_upwards(chain.certified[AS_RUN])} needs a step size of"
        f" {chain.measured['step size']:.2g} and reaches {chain.measured[ACCURACY]:.1f} % (last"
        f" state {chain.measured[LAST]:.1f} %), where the slides print 99.12 %. DP-SGD, whose step"
        f" size the noise leaves free, reaches {point.measured[ACCURACY]:.1f} % by the same event."
        " More steps of SGLD would have to be smaller by as much: ε all but fixes their sum."
    )


def _upwards(epsilon: float) -> str:
    return format_value(epsilon, rounding=ROUND_CEILING)
