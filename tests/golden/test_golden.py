"""Nothing that dpjax computes has changed since it was recorded: see ``record``."""

import copy

import pytest

from golden import record

# Of the groups whose time is spent in compiling, what stands for each kind of case.
QUICK = {
    "gradients": (
        "mlp regularised embedding pooled layer_norm scattered unused siamese weight_normalisation"
    ).split(),
    "inference": [
        "psgld transformation",
        "rejection sample add_remove",
        "regression perturbed add_remove",
        "regression adassp replace_one",
        "conjugate normal replace_one",
    ],
}
# Single cases of other groups that take longest.
LONG = [
    ("draws", "add noise"),
    ("draws", "noise on a tree"),
    ("draws", "noisy sgd"),
    ("draws", "poisson"),
    ("draws", "poisson in parts"),
    ("draws", "poisson, all"),
    ("draws", "shuffled"),
    ("draws", "truncated poisson"),
    ("tradeoff", "group of laplace"),
    ("certificates", "fixed falling noise"),
    ("certificates", "risks of wishart epsilon=2.0 replace_one"),
    ("certificates", "wishart epsilon=2.0 replace_one"),
]


def _parameters():
    for group in record.GROUPS:
        for name in record.cases(group):
            slow = name not in QUICK.get(group, [name]) or (group, name) in LONG
            yield pytest.param(group, name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("group", "name"), list(_parameters()))
def test_case_is_as_recorded(group, name):
    new = record.compute(group, name)
    changed = list(record.differences(record.load(group)[name], new, record.GROUPS[group]))
    assert not changed, "changed; where on purpose, record it and name it in the CHANGELOG"


@pytest.mark.parametrize("group", list(record.GROUPS))
def test_recorded_cases_are_computed(group):
    assert set(record.load(group)) == set(record.cases(group))


RECORDED = {"a": 2.0, "b": [1.0, -3.0], "c": [[1, 2], [3]], "d": None, "e": ["inf", 1.0]}
CHANGES = {
    "a": 2.0 * (1 + 2e-6),
    "b": [1.0, -3.0 - 1e-5],
    "c": [[1, 2], [4]],
    "d": 0.0,
    "e": [1e300, 1.0],
}


@pytest.mark.parametrize("key", list(RECORDED))
def test_compare_reports_changes(key):
    new = copy.deepcopy(RECORDED)
    assert not list(record.differences(RECORDED, new, record.DOUBLE))
    new[key] = CHANGES[key]
    (found,) = record.differences(RECORDED, new, record.DOUBLE)
    assert found.startswith(f"/{key}")
    del new[key]
    assert list(record.differences(RECORDED, new, record.DOUBLE))


def test_compare_within_tolerance():
    new = {**RECORDED, "a": 2.0 * (1 + 1e-7), "b": [1.0 + 1e-6, -3.0]}
    assert not list(record.differences(RECORDED, new, record.DOUBLE))
    assert len(list(record.differences(RECORDED, new, 0.0))) == 2
