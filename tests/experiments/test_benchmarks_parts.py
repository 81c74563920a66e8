"""Accountants, routes, and collectives of steps on a mesh, as the benchmarks measure them."""

import math

import pytest

from experiments.benchmarks import __main__ as command
from experiments.benchmarks import meshes, routes
from experiments.benchmarks.accounting import (
    SETTINGS,
    array_methods,
    many_group,
    random_settings,
    single_group,
)
from experiments.benchmarks.models import MODELS, Mlp, Model, _images
from experiments.benchmarks.results import (
    format_text,
    load,
    measure,
)
from experiments.benchmarks.timing import Effort

QUICK = Effort(0.01, 3)


def test_main_prints_epsilon_of_each_accountant(tmp_path, capsys):
    argv = ["accounting", "--only", "MNIST row 1", "--repetitions", "3", "--seconds", "0.01"]
    assert command.main([*argv, "--results", str(tmp_path)]) == 0
    benchmark = load(tmp_path, "accounting")
    (table,) = benchmark.tables
    found = {row.case: row for row in table.rows}
    assert found["dpjax, pld"].values["× certified"] == 1
    moments = found["dpjax, moments"].values["ε"]
    assert round(moments, 2) == 1.19
    assert found["dpjax, moments_accountant.epsilon"].values["ε"] == pytest.approx(moments)
    assert round(found["dpjax, gdp_clt"].values["ε"], 2) == 0.83
    assert found["dpjax, gdp_clt"].note == "an approximation, not a bound"
    tight = found["dp-accounting, PLDAccountant"].values["× certified"]
    assert tight == pytest.approx(1, abs=0.01)
    assert found["dp-accounting, RdpAccountant"].values["× certified"] > 1.05
    assert all(m.values["ms"] > 0 and m.repetitions == 3 for m in table.rows)
    assert {"JAX", "numpy", "dp-accounting"} <= benchmark.versions.keys()
    assert capsys.readouterr().out == format_text(benchmark) + "\n"
    assert [setting.num_steps for setting in SETTINGS] == [
        3515, 14062, 10546, 14531, 15937, 23437, 2060, 439, 1600
    ]  # fmt: skip


def test_groups_time_no_setting_twice():
    asked = []

    def epsilon(setting):
        asked.append(setting.noise_multiplier)
        return 2 * SETTINGS[0].certified

    (measured,) = measure(single_group(SETTINGS[0], {"method": epsilon}), QUICK).rows
    assert len(asked) > 3
    assert len(set(asked)) == len(asked)
    assert max(asked) < 1.3001
    assert measured.values["× certified"] == pytest.approx(2)
    asked.clear()
    many = {"many": (lambda noise, rate, steps: asked.append(noise[0]), 5)}
    (measured,) = measure(many_group(many), QUICK).rows
    assert measured.values["settings"] == 5
    assert "ε" not in measured.values
    assert len(set(asked)) == len(asked)


def test_array_methods_solve_every_setting():
    for solve, number in array_methods().values():
        settings = random_settings(min(number, 3))
        values = solve(*settings)
        assert values.shape == (len(settings[0]),)
        assert all(0 <= value < math.inf for value in values)


@pytest.fixture(scope="module")
def small():
    return Model("small", "small", Mlp((32,)), lambda count: _images(count, (4, 4, 1)))


def values(model, compile_step, rule=None, **options):
    sharding = meshes.data_mesh(8, rule)
    return meshes.count(compile_step(model, sharding, **options), 8)


def test_one_kind_of_parameter_takes_another_route():
    model = MODELS["mlp"]
    params, batch = model.init(), model.batch(4)

    def chosen():
        return [block.route.name for block in routes.plan_of(model, params, batch).blocks]

    before, kind = chosen(), routes.Kind("dot_general", (784, 256), 1)
    with routes.taking(kind, "instantiate"):
        changed = chosen()
    differ = [(old, new) for old, new in zip(before, changed, strict=True) if old != new]
    assert differ == [("ghost", "instantiate")]
    assert chosen() == before


def test_private_step_sends_what_the_plain_step_sends(small):
    size = 4 * (16 * 32 + 32 + 32 * 10 + 10) / 1024
    plain = values(small, meshes.compile_plain)
    private = values(small, meshes.compile_private, split=True)
    # The plain step sums the gradient; the private one three numbers more.
    assert plain["all-reduce KiB"] == size
    assert private["all-reduce KiB"] == pytest.approx(size + 12 / 1024)
    for found in (plain, private):
        assert found["all-gather KiB"] == found["other KiB"] == 0


@pytest.mark.slow
def test_split_parameters_are_gathered_and_their_sum_is_scattered(small):
    private = values(small, meshes.compile_private, meshes.split_largest, split=True)
    matrices = 4 * (16 * 32 + 32 * 10) / 1024
    assert private["all-gather KiB"] == private["reduce-scatter KiB"] == matrices


def test_collectives_of_a_program():
    text = """
      %a = (f32[2,3]{1,0}, bf16[4]{0}) all-reduce-start(%x, %y), to_apply=%add
      %b = pred[8]{0} all-gather(%z), dimensions={0}
      %c = f32[] add(%a, %b)
    """
    assert list(meshes.collectives(text, 8)) == [("all-reduce", 32), ("all-gather", 8)]
