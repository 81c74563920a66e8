"""The command's epsilon and noise against the stored answers of other tools, at equal settings.

``golden/other_tools.json`` has the tools with their versions, and what each printed: epsilons under
add/remove with Poisson sampling, and noise multipliers for an epsilon. Accountants by Rényi
divergence or moments are upper bounds; those by privacy loss distribution are as exact as their
stated error.
"""

import json
from pathlib import Path

import pytest

from dpjax.__main__ import main

FOUND = json.loads((Path(__file__).parent / "golden" / "other_tools.json").read_text("utf-8"))
RENYI = ("opacus rdp", "tensorflow-privacy", "autodp")
# The error that Opacus's and Microsoft's PRV accountants were asked for; Opacus returns the upper
# end, Microsoft's both ends. riskcal's distribution is discretised at 1e-4, connecting the dots.
ERROR, GRID = 0.01, 1e-4


def _answer(capsys, command, setting, options):
    size = f"--n {setting['num_examples']} --batch {setting['batch_size']}"
    stated = f"--steps {setting['num_steps']} --delta {setting['delta']} --adjacency add_remove"
    assert main(f"{command} {size} {stated} {options} --json".split()) == 0
    return json.loads(capsys.readouterr().out)


def _check_epsilon(setting, lower, upper):
    """Both bounds agree with every tool's answer, within the error that the tool states."""
    epsilon = setting["epsilon"]
    least, most = setting["prv_accountant bounds"]
    assert least <= upper
    assert lower <= most
    assert abs(epsilon["prv_accountant"] - (lower + upper) / 2) <= ERROR
    assert lower <= epsilon["opacus prv"] <= upper + 2.1 * ERROR
    assert lower <= epsilon["riskcal"] <= upper + 5 * GRID
    for tool in RENYI:
        assert epsilon[tool] is None or epsilon[tool] >= upper


@pytest.mark.slow
@pytest.mark.parametrize("setting", FOUND["settings"], ids=lambda setting: setting["name"])
def test_epsilon_against_other_tools(setting, capsys):
    found = _answer(capsys, "epsilon", setting, f"--sigma {setting['noise_multiplier']}")
    _check_epsilon(setting, found["epsilon_lower"], found["epsilon"])


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_power_a_noise_three_percent_off_disagrees(factor, capsys):
    setting = FOUND["settings"][0]
    found = _answer(capsys, "epsilon", setting, f"--sigma {factor * setting['noise_multiplier']}")
    with pytest.raises(AssertionError):
        _check_epsilon(setting, found["epsilon_lower"], found["epsilon"])


@pytest.mark.parametrize("setting", FOUND["noise"], ids=lambda setting: str(setting["num_steps"]))
def test_noise_against_other_tools(setting, capsys):
    """At most that of any upper bound, and by PRV accountants within their error of epsilon."""
    found = _answer(capsys, "noise", setting, f"--epsilon {setting['epsilon']}")
    noise = setting["noise_multiplier"]
    for tool, other in noise.items():
        assert other is None or found["noise_multiplier"] <= other * 1.002, tool
    assert found["noise_multiplier"] >= 0.98 * noise["opacus prv"]
