"""The figure of a certificate: its curves, labels and marks."""

import numpy as np
import pytest
from helpers.accounting_cases import FakeMechanism, Noiseless, Selection
from matplotlib.collections import FillBetweenPolyCollection

from dpjax.accounting.tradeoff import ApproximateDP
from dpjax.certificates.render import round_up


def _lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


@pytest.fixture(scope="module")
def certificate():
    return FakeMechanism(noise_multiplier=1.0).certificate(1e-5)


@pytest.fixture(scope="module")
def drawn(certificate):
    figure = certificate.plot()
    figure.canvas.draw()
    return figure


def test_trade_off_function_and_that_of_epsilon_and_delta(certificate, drawn):
    lines = _lines(drawn.axes[0])
    x, y = lines["certified trade-off function"].get_data()
    np.testing.assert_array_equal(y, certificate.curve(x))
    x, y = lines["guessing"].get_data()
    np.testing.assert_allclose(x + y, 1.0)
    x, y = lines[f"({round_up(certificate.epsilon)}, 1e-05)-DP only"].get_data()
    np.testing.assert_array_equal(y, ApproximateDP(certificate.epsilon, slack=1e-5)(x))
    (least,) = (line for label, line in lines.items() if label.startswith("minimum sum"))
    assert 2 * least.get_xdata()[0] == pytest.approx(certificate.risks[-1].lower)


def test_roc_curve(certificate, drawn):
    axes = drawn.axes[1]
    lines = _lines(axes)
    x, y = lines["certified upper bound"].get_data()
    np.testing.assert_array_equal(y, certificate.curve.true_positive_rate(x))
    x, y = lines["upper bound on TPR at given FPR"].get_data()
    found = [one.upper for one in certificate.risks if one.name.startswith("TPR")]
    np.testing.assert_array_equal(y, found)
    assert {text.get_text() for text in axes.texts} == {round_up(rate) for rate in found}
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_area_between_the_bounds_is_shaded(drawn):
    for axes in drawn.axes:
        assert sum(isinstance(one, FillBetweenPolyCollection) for one in axes.collections) == 1


def test_mechanisms_without_an_upper_curve_or_without_privacy_are_drawn():
    loose = Selection(4.0).certificate(1e-5).plot()
    loose.canvas.draw()
    assert not any(axes.collections for axes in loose.axes)
    noiseless = Noiseless(1.0).certificate(1e-5).plot()
    noiseless.canvas.draw()
    assert not any("only" in label for label in _lines(noiseless.axes[0]))
    assert np.all(_lines(noiseless.axes[0])["certified trade-off function"].get_ydata() == 0)
