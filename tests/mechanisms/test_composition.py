"""Several mechanisms on the same records cost more than each of them."""

import dataclasses

import pytest
from dp_accounting.dp_event import ComposedDpEvent, RepeatAndSelectDpEvent, ZCDpEvent
from helpers.inputs import gaussian_mechanism

from dpjax.accounting.events import UnsupportedEventError
from dpjax.mechanisms import Composition, SubsampledGaussian
from dpjax.sampling import FixedSizeSampling, PoissonSampling, ShuffledEpochs

DELTA = 1e-5
FULL = gaussian_mechanism(PoissonSampling(100, 1.0), noise_multiplier=4.0, num_steps=2)
SAMPLED = gaussian_mechanism(
    PoissonSampling(100, 0.1), l2_clip=2.0, noise_multiplier=1.5, num_steps=30
)


class Selection(SubsampledGaussian):
    """The best of several releases, of which only Rényi divergences are known."""

    @property
    def guarantee(self):
        event = RepeatAndSelectDpEvent(ZCDpEvent(1 / 32), 10, 1)
        return dataclasses.replace(FULL.guarantee, event=event, adjacency=self.adjacency)


def test_composition_event_is_composed():
    both = Composition((FULL, SAMPLED))
    assert both.num_releases == 32
    assert both.event == ComposedDpEvent([FULL.event, SAMPLED.event])
    assert (both.guarantee.adjacency, both.guarantee.unit) == ("add_remove", "one record")


@pytest.mark.slow
def test_composition_epsilon_between_largest_and_sum():
    parts = [part.certificate(DELTA).epsilon for part in (FULL, SAMPLED)]
    both = Composition((FULL, SAMPLED)).certificate(DELTA)
    other_way = Composition((SAMPLED, FULL)).certificate(DELTA).epsilon
    assert max(parts) < both.epsilon
    # basic composition: the sum of the epsilons at half of delta each
    halves = [part.certificate(DELTA / 2).epsilon for part in (FULL, SAMPLED)]
    assert both.epsilon < sum(halves)
    assert both.epsilon == pytest.approx(other_way, rel=1e-6)


def test_composition_of_two_halves_is_the_whole():
    halves = Composition((SAMPLED.first_steps(15), SAMPLED.first_steps(15)))
    whole = SAMPLED.certificate(DELTA).epsilon
    assert halves.certificate(DELTA).epsilon == pytest.approx(whole, rel=1e-3)
    assert Composition((SAMPLED,)).event == SAMPLED.event


@pytest.mark.slow
def test_composition_of_different_samplers():
    fixed = gaussian_mechanism(
        FixedSizeSampling(100, 10), noise_multiplier=2.0, num_steps=3, adjacency="replace_one"
    )
    shuffled = gaussian_mechanism(
        ShuffledEpochs(100, 10), noise_multiplier=9.0, num_steps=3, adjacency="replace_one"
    )
    both = Composition((fixed, shuffled)).certificate(DELTA)
    assert both.accountant == "pld"
    assert both.epsilon > fixed.certificate(DELTA).epsilon


def test_certificate_refused_without_common_accountant():
    selection = Selection(
        PoissonSampling(100, 0.1),
        l2_clip=1.0,
        noise_multiplier=2.0,
        num_steps=3,
        adjacency="replace_one",
    )
    poisson = gaussian_mechanism(
        PoissonSampling(100, 0.1), noise_multiplier=2.0, num_steps=3, adjacency="replace_one"
    )
    with pytest.raises(UnsupportedEventError, match=r"has no guarantee: 'pld': .*; 'rdp': "):
        Composition((selection, poisson)).certificate(DELTA)


def test_composition_nests_and_scales():
    nested = Composition((Composition((FULL, SAMPLED)), FULL))
    assert nested.num_releases == 34
    louder = nested.with_privacy_factor(2.0)
    assert louder.mechanisms[0].mechanisms[1].noise_multiplier == 3.0
    assert louder.certificate(DELTA).epsilon < nested.certificate(DELTA).epsilon


def test_composition_of_a_list_is_that_of_the_tuple():
    assert Composition([FULL, SAMPLED]) == Composition((FULL, SAMPLED))
    assert hash(Composition([FULL])) == hash(Composition((FULL,)))


def test_composition_describes_every_mechanism():
    words = Composition((FULL, SAMPLED)).guarantee.description
    assert words["part 1, noise"] == FULL.guarantee.description["noise"]
    assert words["part 2, sampling"] == SAMPLED.guarantee.description["sampling"]


def test_composition_describes_equal_parts_once():
    words = Composition((FULL, FULL, FULL, SAMPLED, SAMPLED, FULL)).guarantee.description
    parts = dict.fromkeys(heading.rpartition(", ")[0] for heading in words)
    assert list(parts) == ["parts 1 to 3, each", "parts 4 and 5, each", "part 6"]
    assert words["parts 1 to 3, each, noise"] == words["part 6, noise"]


def test_mechanism_prints_what_it_does():
    lines = str(Composition((FULL, SAMPLED))).splitlines()
    assert lines[0] == "Composition"
    for heading, text in [*SAMPLED.guarantee.description.items(), ("releases", "32")]:
        assert any(heading in line and text[:20] in line for line in lines)


def other(**options):
    return gaussian_mechanism(
        PoissonSampling(100, 1.0), noise_multiplier=4.0, num_steps=2, **options
    )


@pytest.mark.parametrize(
    ("mechanisms", "message"),
    [
        ((FULL, other(adjacency="replace_one")), "mechanisms' adjacency must be the same for all"),
        ((FULL, other(unit="a person")), r"mechanisms' unit must be .* \['a person', 'one re"),
        ((), "mechanisms must be at least one mechanism"),
        (FULL, "mechanisms must be a tuple of mechanisms"),
        ((FULL, 1.0), "mechanisms must be a tuple of mechanisms"),
    ],
)
def test_composition_refuses(mechanisms, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Composition(mechanisms)
