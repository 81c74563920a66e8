"""Counts of collectives: of a known program, and of private steps against the plain one."""

import pytest

from experiments.benchmarks import meshes
from experiments.benchmarks.models import Mlp, Model, _images


@pytest.fixture(scope="module")
def small():
    return Model("small", "small", Mlp((32,)), lambda count: _images(count, (4, 4, 1)))


def values(model, compile_step, rule=None, **options):
    sharding = meshes.data_mesh(8, rule)
    return meshes.count(compile_step(model, sharding, **options), 8)


def test_a_private_step_sends_what_the_plain_step_sends(small):
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
    def split(path, leaf):
        return meshes.split_largest(path, leaf)

    private = values(small, meshes.compile_private, split, split=True)
    matrices = 4 * (16 * 32 + 32 * 10) / 1024
    assert private["all-gather KiB"] == private["reduce-scatter KiB"] == matrices


def test_every_part_of_a_program_is_read():
    text = """
      %a = (f32[2,3]{1,0}, bf16[4]{0}) all-reduce-start(%x, %y), to_apply=%add
      %b = pred[8]{0} all-gather(%z), dimensions={0}
      %c = f32[] add(%a, %b)
    """
    assert list(meshes.collectives(text, 8)) == [("all-reduce", 32), ("all-gather", 8)]
