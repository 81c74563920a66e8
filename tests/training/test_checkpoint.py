"""A run resumes to the same result, and from nothing that is not its own checkpoint."""

import dataclasses
import hashlib
import json
import re
import resource
import shutil
import stat
from contextlib import contextmanager
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import Crash, crash_at, gaussian_mechanism, linear_records
from helpers.inputs import squared_error as loss

import dpjax
from dpjax._hashing import hash_dataclass
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import AllocatedSampling, FixedSizeSampling, PoissonSampling, ShuffledEpochs
from dpjax.training import Budget, train
from dpjax.training.checkpoint import CheckpointStore, Identity, program_hash
from dpjax.training.data import Arrays
from dpjax.training.run import identify_run
from dpjax.training.step import PrivateStep
from dpjax.transforms import PrivateTransformation, add_gaussian_noise

KEY = jax.random.key(5)
DELTA = 1e-3
DATA = linear_records(30)
TWELVE_STEPS = {"noise_multiplier": 2.0, "num_steps": 12}
MECHANISM = gaussian_mechanism(PoissonSampling(30, 0.3), **TWELVE_STEPS)
SCALES = np.linspace(1, 2, 2000, dtype=np.float32)


def run(folder=None, mechanism=MECHANISM, data=DATA, key=KEY, loss=loss, **options):
    options = {"steps_per_call": 3, "progress": False, "optimizer": optax.sgd(0.1), **options}
    return train(
        key,
        loss,
        {"w": jnp.zeros(3)},
        data,
        options.pop("optimizer"),
        mechanism=mechanism,
        checkpoint_dir=folder,
        **options,
    )


def interrupted(folder, at=6, **options):
    """A folder with the checkpoints of a run that ended at ``at`` releases."""
    with pytest.raises(Crash):
        run(folder, on_report=crash_at(at), **options)
    return folder


@pytest.fixture(scope="module")
def six_done(tmp_path_factory):
    return interrupted(tmp_path_factory.mktemp("checkpoints") / "run")


@pytest.fixture(scope="module")
def straight():
    """What an uninterrupted run ends with."""
    return run()


@pytest.fixture
def copy_of_six_done(six_done, tmp_path):
    return shutil.copytree(six_done, tmp_path / "run")


def test_train_resumes_to_the_same_result(copy_of_six_done, straight):
    reports = []
    # Whoever resumes has another secret key, and may report more or less often.
    resumed = run(
        copy_of_six_done, key=dpjax.release_key(), on_report=reports.append, steps_per_call=4
    )
    assert [report.num_releases for report in reports] == [10, 12]
    chex.assert_trees_all_equal(resumed.params, straight.params)
    assert resumed.mechanism == straight.mechanism == MECHANISM
    assert resumed.certificate(DELTA) == straight.certificate(DELTA)


@pytest.mark.slow
def test_train_returns_a_finished_run_again(tmp_path):
    first = run(tmp_path)
    again = run(tmp_path, on_report=crash_at(0))
    chex.assert_trees_all_equal(again.params, first.params)
    assert again.mechanism == MECHANISM


@pytest.mark.slow
def test_train_resumes_the_samplers_state(tmp_path):
    mechanism = gaussian_mechanism(
        ShuffledEpochs(30, 8), noise_multiplier=2.0, num_steps=10, adjacency="replace_one"
    )
    resumed = run(interrupted(tmp_path, mechanism=mechanism), mechanism=mechanism)
    assert (resumed.params["w"] == run(mechanism=mechanism).params["w"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("participations", [1, 2])
def test_train_resumes_in_the_middle_of_an_allocated_epoch(participations, tmp_path):
    """Bit for bit: the rest of an epoch has the records that were not in its first steps."""
    sampling = AllocatedSampling(30, steps_per_epoch=5, participations=participations)
    mechanism = gaussian_mechanism(sampling, **TWELVE_STEPS)
    resumed = run(interrupted(tmp_path, mechanism=mechanism), mechanism=mechanism)
    straight = run(mechanism=mechanism)
    assert (resumed.params["w"] == straight.params["w"]).all()
    assert resumed.certificate(DELTA) == straight.certificate(DELTA)
    # Another key has other batches and noise.
    other = run(mechanism=mechanism, key=jax.random.key(6))
    assert not (other.params["w"] == straight.params["w"]).any()


@pytest.mark.slow
def test_train_resumes_keys_of_another_generator(tmp_path):
    key = jax.random.key(9, impl="rbg")
    folder = interrupted(tmp_path, key=key)
    resumed = run(folder, key=jax.random.key(0, impl="rbg"))
    assert (resumed.params["w"] == run(key=key).params["w"]).all()


@pytest.mark.slow
def test_train_resumed_is_as_seeded_as_its_first_key(tmp_path):
    seeded = run(interrupted(tmp_path / "seeded"), key=dpjax.release_key())
    assert seeded.seeded
    folder = interrupted(tmp_path / "secret", key=dpjax.release_key())
    assert not run(folder, key=KEY).seeded


def scaled_loss(params, example):
    return loss(params, example) * SCALES[-1]


def other_constant_loss(scales):
    """The same text, with other numbers in a large array that it closes over."""

    def closed_over(params, example):
        return loss(params, example) * (scales * scales).mean()

    return closed_over


ONE_VALUE_CHANGED = (DATA[0], np.where(np.arange(30) == 17, np.nextafter(DATA[1], 9), DATA[1]))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"mechanism": MECHANISM.with_privacy_factor(1.0001)},
            "another mechanism, another program",
        ),
        ({"mechanism": MECHANISM.first_steps(11)}, "another mechanism, another program"),
        (
            {"mechanism": dataclasses.replace(MECHANISM, adjacency="replace_one")},
            "another mechanism",
        ),
        ({"data": ONE_VALUE_CHANGED}, "another data"),
        ({"data": jax.tree.map(lambda a: a[::-1], DATA)}, "another data"),
        ({"optimizer": optax.sgd(0.1001)}, "another program"),
        ({"optimizer": optax.adam(0.1)}, "another program"),
        ({"loss": scaled_loss}, "another program"),
        ({"key": jax.random.key(5, impl="rbg")}, "another program"),
    ],
    ids=["noise", "steps", "adjacency", "value", "order", "rate", "adam", "loss", "key kind"],
)
@jax.numpy_dtype_promotion("standard")  # Adam's bias correction promotes
def test_train_refuses_the_checkpoint_of_another_run(changed, named, copy_of_six_done):
    before = {p.name for p in copy_of_six_done.iterdir()}
    with pytest.raises(ValueError, match=f"holds a run with {named}: resuming it here would"):
        run(copy_of_six_done, **changed)
    assert {p.name for p in copy_of_six_done.iterdir()} == before


DIFFERENCES = {
    "noise": (
        {"mechanism": dataclasses.replace(MECHANISM, noise_multiplier=2.5)},
        "mechanism: noise_multiplier is 2.0 there and 2.5 here; program: it depends on these",
    ),
    "steps": ({"mechanism": MECHANISM.first_steps(11)}, "mechanism: num_steps is 12 there and 11"),
    "clip": (
        {"mechanism": dataclasses.replace(MECHANISM, l2_clip={"w": 1.5})},
        "mechanism: l2_clip is 1.0 there and missing here, l2_clip.w is missing there and 1.5 here",
    ),
    "adjacency and unit": (
        {"mechanism": dataclasses.replace(MECHANISM, adjacency="replace_one", unit="one person")},
        "adjacency is add_remove there and replace_one here, unit is one record there and one pers",
    ),
    "sampler": (
        {
            "mechanism": gaussian_mechanism(
                FixedSizeSampling(30, 9), **TWELVE_STEPS, adjacency="zero_out"
            )
        },
        "mechanism: sampling.type is PoissonSampling there and FixedSizeSampling here",
    ),
    "values": (
        {"data": ONE_VALUE_CHANGED},
        "differs: data: values or order of the training arrays",
    ),
    "dtype": (
        {"data": (DATA[0].astype(np.float16), DATA[1])},
        "data: [0] is float32[30, 3] there and float16[30, 3] here; program: it depends on these",
    ),
    "optimiser": (
        {"optimizer": optax.sgd(0.1, momentum=0.9)},
        ".trace['w'] is missing there and float32[3] here",
    ),
    "learning rate": (
        {"optimizer": optax.sgd(0.2)},
        "differs: program: loss or optimiser, their numbers",
    ),
    "loss": ({"loss": scaled_loss}, "differs: program: loss or optimiser, their numbers"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DIFFERENCES)
@jax.numpy_dtype_promotion("standard")
def test_train_names_what_differs_from_the_checkpoint(case, copy_of_six_done):
    changed, message = DIFFERENCES[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        run(copy_of_six_done, **changed)


@pytest.mark.slow
def test_train_names_the_steps_of_epochs(tmp_path):
    plan = partial(
        dpjax.dpsgd, num_examples=30, batch_size=10, epsilon=5.0, delta=DELTA, adjacency="zero_out"
    )
    run(tmp_path, plan(epochs=2))
    with pytest.raises(ValueError, match=r"mechanism: noise_multiplier is .* only more steps") as e:
        run(tmp_path, plan(epochs=4))
    assert "num_steps is" not in str(e.value)  # more steps alone would be no other run
    with pytest.raises(ValueError, match="num_steps is 6 there and 3 here"):
        run(tmp_path, plan(epochs=1))


@pytest.mark.slow
def test_folder_without_description_is_resumed_and_refused(copy_of_six_done, straight):
    """As folders from before descriptions were stored."""
    for path in copy_of_six_done.glob("*/identity/metadata"):
        saved = json.loads(path.read_text())
        assert saved.pop("description")["mechanism"]["num_steps"] == "12"
        path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="mechanism: its fields, which this folder does not descr"):
        run(copy_of_six_done, MECHANISM.first_steps(11))
    chex.assert_trees_all_equal(run(copy_of_six_done).params, straight.params)


def test_differences_are_shortened(copy_of_six_done):
    other = dataclasses.replace(MECHANISM, noise_multiplier=tuple(np.linspace(2, 3, 12).tolist()))
    with pytest.raises(
        ValueError, match=r"2.0 there and \[2.0, .* \.\.\. .*3.0\] \(sha256"
    ) as caught:
        run(copy_of_six_done, other)
    assert len(str(caught.value)) < 800


EIGHT_STEPS = MECHANISM.first_steps(8)
FALLING = tuple(3.0 - 0.1 * step for step in range(12))


@pytest.fixture(scope="module")
def eight_planned(tmp_path_factory):
    """The folder of a finished run of eight steps."""
    folder = tmp_path_factory.mktemp("eight") / "run"
    run(folder, EIGHT_STEPS)
    return folder


@pytest.fixture
def copy_of_eight(eight_planned, tmp_path):
    return shutil.copytree(eight_planned, tmp_path / "run")


@pytest.mark.slow
def test_train_continues_a_finished_run_with_more_steps(copy_of_eight, straight):
    reports = []
    # The key given is not used: the keys of all steps are those of the folder.
    continued = run(copy_of_eight, key=dpjax.release_key(), on_report=reports.append)
    assert [report.num_releases for report in reports] == [11, 12]
    chex.assert_trees_all_equal(continued.params, straight.params)
    assert continued.mechanism == MECHANISM
    assert continued.seeded
    assert continued.first_plan == 8
    certificate, of_straight = (each.certificate(DELTA) for each in (continued, straight))
    assert certificate.epsilon == of_straight.epsilon
    (caveat,) = set(certificate.caveats) - set(of_straight.caveats)
    assert caveat.startswith("The run was planned with 8 steps and continued with more.")
    assert "12 steps, 8 planned at first" in str(certificate)
    assert continued.certificate(DELTA).epsilon > EIGHT_STEPS.certificate(DELTA).epsilon

    # The folder is then that of the longer run.
    again = run(copy_of_eight, on_report=crash_at(0))
    chex.assert_trees_all_equal(again.params, straight.params)
    assert again.first_plan == 8
    fewer = r"another mechanism.*Its run has num_steps = 12 and this one 8: only more steps"
    with pytest.raises(ValueError, match=fewer):
        run(copy_of_eight, EIGHT_STEPS)


@pytest.mark.slow
def test_train_continues_an_interrupted_run_with_more_steps(tmp_path, straight):
    folder = interrupted(tmp_path, at=6, mechanism=EIGHT_STEPS)
    # A crash of the longer run, before and after its first checkpoint.
    with pytest.raises(Crash):
        run(folder, on_report=crash_at(9))
    chex.assert_trees_all_equal(run(folder).params, straight.params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"mechanism": MECHANISM.with_privacy_factor(1.1)}, "another mechanism, another program"),
        (
            {"mechanism": dataclasses.replace(MECHANISM, noise_multiplier=FALLING)},
            "another mechanism, another program",
        ),
        (
            {"mechanism": dataclasses.replace(MECHANISM, sampling=PoissonSampling(30, 0.4))},
            "another mechanism, another program",
        ),
        ({"mechanism": dataclasses.replace(MECHANISM, l2_clip=1.5)}, "another mechanism, another"),
        ({"mechanism": dataclasses.replace(MECHANISM, unit="one person")}, "another mechanism"),
        ({"data": ONE_VALUE_CHANGED}, "another data"),
        ({"optimizer": optax.sgd(0.2)}, "another program"),
        ({"loss": scaled_loss}, "another program"),
    ],
    ids=["noise", "noises", "rate", "clip", "unit", "value", "learning rate", "loss"],
)
def test_train_refuses_more_steps_of_another_run(changed, named, copy_of_eight):
    before = {p.name for p in copy_of_eight.iterdir()}
    message = f"holds a run with {named}.*Its run has num_steps = 8 and this one 12: only more"
    with pytest.raises(ValueError, match=message):
        run(copy_of_eight, **changed)
    assert {p.name for p in copy_of_eight.iterdir()} == before


@pytest.mark.slow
def test_train_refuses_a_learning_rate_that_is_scheduled_over_more_steps(tmp_path):
    short, long = (optax.sgd(optax.cosine_decay_schedule(0.1, steps)) for steps in (8, 12))
    run(tmp_path, EIGHT_STEPS, optimizer=short)
    with pytest.raises(
        ValueError, match=r"another program: .* a learning rate scheduled over them"
    ):
        run(tmp_path, optimizer=long)
    # The schedule of the shorter run is at its end, zero.
    continued = run(tmp_path, optimizer=short)
    chex.assert_trees_all_equal(continued.params, run(optimizer=short).params)


@pytest.mark.slow
def test_train_continues_noise_multipliers_that_begin_alike(tmp_path):
    falling = dataclasses.replace(MECHANISM, noise_multiplier=FALLING)
    run(tmp_path, falling.first_steps(8))
    other = (*FALLING[:7], 1.0, *FALLING[8:])
    with pytest.raises(ValueError, match="another mechanism, another program"):
        run(tmp_path, dataclasses.replace(MECHANISM, noise_multiplier=other))
    continued = run(tmp_path, falling)
    chex.assert_trees_all_equal(continued.params, run(mechanism=falling).params)
    assert continued.mechanism == falling


@pytest.mark.slow
def test_train_continues_epochs(tmp_path):
    plan = partial(
        dpjax.dpsgd, num_examples=30, batch_size=10, noise_multiplier=2.0, adjacency="zero_out"
    )
    run(tmp_path, plan(epochs=2))
    continued = run(tmp_path, plan(epochs=4))
    assert continued.mechanism == plan(epochs=4)
    chex.assert_trees_all_equal(continued.params, run(mechanism=plan(epochs=4)).params)
    # Noise that is calibrated for more epochs is other noise.
    with pytest.raises(ValueError, match=r"noise calibrated for more steps"):
        run(tmp_path, dataclasses.replace(plan(epochs=6), noise_multiplier=2.5))


def released_noises(results):
    """The noise of each step, of runs whose gradients are zero and learning rate is one."""
    params = np.concatenate([[np.zeros(3)], *results])
    return np.diff(params, axis=0).ravel()


@pytest.mark.slow
def test_continued_run_uses_each_noise_once(tmp_path):
    def zero_loss(params, example):
        return 0.0 * loss(params, example)

    def steps_of(mechanism, folder):
        released = []
        run(
            folder,
            mechanism,
            loss=zero_loss,
            optimizer=optax.sgd(1.0),
            steps_per_call=1,
            on_report=lambda report: released.append(np.asarray(report.params["w"])),
        )
        return released

    first = steps_of(EIGHT_STEPS, tmp_path / "one")
    noises = released_noises([first, steps_of(MECHANISM, tmp_path / "one")])
    assert len(noises) == 12 * 3
    assert np.abs(np.subtract.outer(noises, noises) + np.eye(36)).min() > 1e-6

    # Power: a run with the same key in a folder of its own repeats the noise.
    second = released_noises([steps_of(EIGHT_STEPS, tmp_path / "other")])
    np.testing.assert_array_equal(second, noises[:24])


@pytest.mark.slow
def test_program_hash_includes_constants_that_a_loss_closes_over(tmp_path):
    folder = interrupted(tmp_path, loss=other_constant_loss(SCALES))
    other = SCALES.copy()
    other[1000] += 1e-4
    for scales in (other, jnp.asarray(other)):
        with pytest.raises(ValueError, match="another program"):
            run(folder, loss=other_constant_loss(scales))
    assert run(folder, loss=other_constant_loss(SCALES)).mechanism == MECHANISM


def test_hash_dataclass_depends_on_every_field_and_its_type():
    described = partial(dataclasses.replace, MECHANISM, adjacency="replace_one")
    different = [
        described(),
        described(sampling=PoissonSampling(30, 0.3, physical_batch_size=9)),
        described(sampling=PoissonSampling(30, 0.30000000000000004)),
        described(sampling=ShuffledEpochs(30, 9)),
        described(sampling=FixedSizeSampling(30, 9)),
        described(l2_clip={"w": 1.0}),
        described(noise_multiplier=(2.0,) * 12),
        described(unit="one person"),
        MECHANISM,
    ]
    assert len({hash_dataclass(mechanism) for mechanism in different}) == len(different)
    assert hash_dataclass(described()) == hash_dataclass(described())


LARGE = np.linspace(0.5, 1.0, 3000)


@dataclasses.dataclass(frozen=True)
class WithArray:
    values: object


def with_entry(value, dtype=np.float64):
    """An array that is abbreviated where it is printed, with another entry in its middle."""
    changed = LARGE.astype(dtype)
    changed[1500] = value
    return changed


def test_hash_dataclass_depends_on_every_entry_of_an_array():
    different = [
        LARGE,
        with_entry(0.75 + 1e-15),
        with_entry(0.0),
        with_entry(-0.0),
        with_entry(np.nan),
        with_entry(np.nan, np.float32),
        LARGE.astype(np.float32),
        LARGE.reshape(3, 1000),
        LARGE[:-1],
        tuple(LARGE),
    ]
    hashes = [hash_dataclass(WithArray(one)) for one in different]
    assert len(set(hashes)) == len(different)
    for one, found in zip(different, hashes, strict=True):
        again = one if isinstance(one, tuple) else one[::-1].copy()[::-1]  # other strides
        assert hash_dataclass(WithArray(again)) == found
    single = LARGE.astype(np.float32)
    assert hash_dataclass(WithArray(jnp.asarray(single))) == hashes[6]


def test_identify_run_hashes_data_by_their_values():
    state, update = jnp.zeros(2), lambda state, data: (state + data, state)
    step = PrivateStep(None, None, update)
    identity = identify_run(MECHANISM, Arrays(jnp.ones(2)), step, state)
    assert identity == identify_run(MECHANISM, Arrays(np.ones(2, np.float32)), step, state)
    assert identity.program == program_hash(update, state, np.ones(2, np.float32))
    other = identify_run(MECHANISM, Arrays(jnp.zeros(2)), step, state)
    assert other == identity._replace(data=other.data) != identity
    assert all(len(each) == 64 for each in identity)


def steps_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def corrupted(folder, how) -> None:
    """Damages a file of the newest checkpoint."""
    newest = folder / max(steps_in(folder), key=int)
    if how == "empty identity":
        (newest / "identity" / "metadata").write_bytes(b"")
    if how == "no identity":
        shutil.rmtree(newest / "identity")
    if how == "half of the arrays":
        for path in (newest / "state" / "d").iterdir():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if how == "no arrays":
        shutil.rmtree(newest / "state")
    if how == "identity of other words":
        (newest / "identity" / "metadata").write_text("[1, 2]")
    if how == "empty folder":
        shutil.rmtree(newest)
        newest.mkdir()


# orbax drops the reads that are still under way when one fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("how", "item"),
    [
        ("empty identity", "identity"),
        ("no identity", "identity"),
        ("half of the arrays", "state"),
        ("no arrays", "state"),
        ("identity of other words", "identity"),
        ("empty folder", "identity"),
    ],
)
def test_train_names_a_damaged_checkpoint(how, item, copy_of_six_done):
    corrupted(copy_of_six_done, how)
    words = (
        f"a checkpoint at release 6 whose {item} cannot be read .* remove its folder '6' to resume"
        " from the one at release 3"
    )
    with pytest.raises(ValueError, match=words):
        run(copy_of_six_done)


@pytest.mark.slow
def test_train_resumes_from_the_checkpoint_before_a_damaged_one(copy_of_six_done, straight):
    shutil.rmtree(copy_of_six_done / "6")
    reports = []
    resumed = run(copy_of_six_done, on_report=reports.append)
    assert reports[0].num_releases == 6
    chex.assert_trees_all_equal(resumed.params, straight.params)


@pytest.mark.slow
def test_train_ignores_a_checkpoint_that_is_half_written(copy_of_six_done, straight):
    unfinished = copy_of_six_done / "9.orbax-checkpoint-tmp"
    shutil.copytree(copy_of_six_done / "6", unfinished)
    resumed = run(copy_of_six_done)
    chex.assert_trees_all_equal(resumed.params, straight.params)


@pytest.mark.slow
def test_checkpoint_store_keeps_the_newest_two(tmp_path):
    run(tmp_path)
    assert steps_in(tmp_path) == ["12", "9"]


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow
def test_checkpoint_store_is_readable_by_its_owner_alone(six_done, tmp_path):
    assert mode(six_done) == 0o700
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    interrupted(open_folder)
    assert mode(open_folder) == 0o755  # the user's own choice
    assert {mode(open_folder / step) for step in steps_in(open_folder)} == {0o700}
    assert mode(open_folder / "lock") == 0o600


def test_train_never_advises_to_remove_the_only_checkpoint(copy_of_six_done):
    """Beginning again would release the same steps with other noise."""
    shutil.rmtree(copy_of_six_done / "3")
    corrupted(copy_of_six_done, "empty identity")
    with pytest.raises(ValueError, match=r"at release 6 .* no earlier one.* restored from a copy"):
        run(copy_of_six_done)


@contextmanager
def files_of_at_most(num_bytes):
    """Writing more to a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_train_names_a_full_disk_and_loses_nothing(copy_of_six_done, straight):
    reported = []
    words = (
        f"'{copy_of_six_done}': the checkpoint at release 9 cannot be written .* free disk space"
    )
    with pytest.raises(OSError, match=words), files_of_at_most(50):
        run(copy_of_six_done, on_report=reported.append)
    assert reported == []
    resumed = run(copy_of_six_done)
    chex.assert_trees_all_equal(resumed.params, straight.params)


@pytest.mark.slow
def test_train_reports_after_the_checkpoint_is_on_disk(tmp_path):
    def on_report(report):
        newest = tmp_path / str(report.num_releases)
        assert json.loads((newest / "identity" / "metadata").read_text())["seeded"]

    run(tmp_path, on_report=on_report)


@pytest.mark.parametrize("below", [".", "run", "deep/run"])
def test_checkpoint_store_names_a_file_in_place_of_the_folder(below, tmp_path):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / below)
    words = f"checkpoint_dir must be a folder, .* got '{folder}', where '{tmp_path / 'file'}' is a"
    with pytest.raises(ValueError, match=words):
        CheckpointStore(folder, Identity("a", "b", "c"), seeded=True)


@pytest.mark.slow
def test_train_keeps_a_budget_across_resumption(copy_of_six_done, straight):
    spent = MECHANISM.first_steps(6).certificate(DELTA).epsilon
    with pytest.raises(ValueError, match=r"budget must admit the 6 releases .* admits 5$"):
        run(copy_of_six_done, budget=Budget(0.999 * spent, DELTA))
    same = run(copy_of_six_done, budget=Budget(1.001 * spent, DELTA), on_report=crash_at(0))
    assert same.mechanism == MECHANISM.first_steps(6)
    eight = MECHANISM.first_steps(8).certificate(DELTA).epsilon
    larger = run(copy_of_six_done, budget=Budget(1.001 * eight, DELTA))
    assert larger.mechanism == MECHANISM.first_steps(8)
    assert larger.certificate(DELTA).epsilon <= 1.001 * eight
    assert (run(copy_of_six_done).params["w"] == straight.params["w"]).all()


# --- no noise is applied to two sums, whatever was lost in a crash and done again


def recording(monkeypatch):
    """Makes every run log (release, noise key, hash of the clipped sum) into its own state."""

    def noise(mechanism, key):
        inner = add_gaussian_noise(
            noise_multiplier=mechanism.noise_multiplier, l2_clip=mechanism.l2_clip, key=key
        )

        def update(updates, state, params=None, **_):
            words = jax.random.key_data(state.key)
            jax.debug.callback(log, state.num_releases, words, updates["w"])
            return inner.update(updates, state, params)

        return PrivateTransformation.of(inner.init, update, inner.description)

    def log(num_releases, words, summed):
        digest = hashlib.sha256(np.asarray(summed).tobytes()).hexdigest()
        applied.append((np.asarray(words).tobytes(), int(num_releases), digest))

    applied = []
    monkeypatch.setattr(SubsampledGaussian, "noise", noise)
    return applied


def reused(applied) -> set:
    """The noise keys that were applied to more than one sum."""
    sums = {}
    for words, _, digest in applied:
        sums.setdefault(words, set()).add(digest)
    return {words for words, digests in sums.items() if len(digests) > 1}


def run_until_done(folder, monkeypatch, save_fails_at):
    """Interrupts a run before its checkpoint is written, at each of these releases in turn."""
    save = CheckpointStore.save
    for fails_at in save_fails_at:
        monkeypatch.setattr(CheckpointStore, "save", _crashing(save, fails_at))
        with pytest.raises(Crash):
            run(folder)
    monkeypatch.setattr(CheckpointStore, "save", save)
    run(folder)
    jax.effects_barrier()


def _crashing(save, fails_at):
    def save_or_crash(store, state, num_releases):
        if num_releases >= fails_at:
            raise Crash
        save(store, state, num_releases)

    return save_or_crash


@pytest.mark.slow
def test_train_applies_no_noise_to_two_sums(tmp_path, monkeypatch):
    applied = recording(monkeypatch)
    run_until_done(tmp_path, monkeypatch, save_fails_at=(3, 9))
    releases = [num_releases for _, num_releases, _ in applied]
    assert set(releases) == set(range(12))
    assert len(releases) > 12  # some were lost and done again
    assert reused(applied) == set()


@pytest.mark.slow
def test_power_replayed_noise_is_detected(tmp_path, monkeypatch):
    applied = recording(monkeypatch)
    restore = CheckpointStore.restore

    def keys_alone(store, like):
        return restore(store, like)._replace(params=like.params)

    monkeypatch.setattr(CheckpointStore, "restore", keys_alone)
    run_until_done(tmp_path, monkeypatch, save_fails_at=(9,))
    assert reused(applied) != set()
