"""What cannot be made private is refused, naming the site and saying what is allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from dpsvi_cases import (
    RECORDS,
    X,
    Y,
    flat,
    gradients,
    logistic,
    logistic_guide,
    private,
    step_of,
)
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoNormal,
)

KEY = jax.random.key(0)


def guide_mean(y, *_):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 1.0))


def mean_of(prior=None, around=None, outside=False, likelihood=None):
    """A model of a mean, with one thing wrong."""

    def model(y):
        mean = numpyro.sample("mean", prior(y) if prior else dist.Normal(0, 1))
        if outside:
            numpyro.sample("total", dist.Normal(mean, 1), obs=y.sum())
        with numpyro.plate("records", RECORDS), around or numpyro.handlers.mask(mask=True):
            numpyro.sample("y", likelihood(mean, y) if likelihood else dist.Normal(mean, 1), obs=y)

    return model


def no_plate(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def two_plates(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    for name in "ab":
        with numpyro.plate(name, len(y)):
            numpyro.sample(f"y_{name}", dist.Normal(mean, 1), obs=y)


def local(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mean, 1))
        numpyro.sample("y", dist.Normal(effect, 1), obs=y)


def local_guide(y):
    guide_mean(y)
    with numpyro.plate("records", RECORDS) as chosen:
        loc = numpyro.param("effects", jnp.zeros(RECORDS))
        numpyro.sample("effect", dist.Normal(loc[chosen] + y, 1.0))


def blind_guide(y):
    guide_mean(y)
    with numpyro.plate("records", len(y)):
        numpyro.sample("effect", dist.Normal(numpyro.param("shared", 0.0), 1.0))


def discrete(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        side = numpyro.sample("side", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(mean * side, 1), obs=y)


def stateful(y):
    numpyro.primitives.mutable("running", jnp.zeros(()))
    mean_of()(y)


def stateful_guide(y):
    numpyro.primitives.mutable("kept", {"m": jnp.zeros(())})
    guide_mean(y)


def penalised(y):
    numpyro.factor("penalty", -1.0)
    mean_of()(y)


def imputed(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y, obs_mask=y > 0)


def reads_guide(y):
    numpyro.sample("mean", dist.Normal(y.mean() + numpyro.param("loc", 0.0), 1.0))


def stubborn_guide(y):
    numpyro.sample("mean", dist.VonMises(numpyro.param("loc", 1.0), 1.0))


SCALED = mean_of(around=numpyro.handlers.scale(scale=2.0))
PRIOR_READS = mean_of(prior=lambda y: dist.Normal(0, jnp.abs(y).max()))
CLOSURE = mean_of(likelihood=lambda mean, y: dist.Normal(mean * jnp.asarray(Y), 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "guide", "words"),
    [
        (no_plate, guide_mean, "'y' is observed outside"),
        (mean_of(outside=True), guide_mean, "'total' is observed outside"),
        (two_plates, guide_mean, "one plate of num_examples = 60"),
        (local, AutoNormal(local), "'effect_auto_loc' .* amortised guide"),
        (local, AutoDiagonalNormal(local), "'effect' is one, under plate 'records'.* amortised"),
        (local, guide_mean, "'effect' is one, under plate"),
        (local, local_guide, "'effects' has a leading axis"),
        (local, blind_guide, "'effect' is under plate 'records' but does not depend"),
        (discrete, guide_mean, "'side' is discrete.*MixtureSameFamily"),
        (stateful, guide_mean, "model must not keep state, but site 'running' is mutable"),
        (mean_of(), stateful_guide, "guide must not keep state, but site 'kept' is mutable"),
        (penalised, guide_mean, "numpyro.factor outside.*'penalty'.*prior of a latent variable"),
        (imputed, guide_mean, "obs_mask makes one, 'y_unobserved', of site 'y'.*handlers.mask"),
        (SCALED, guide_mean, "'y' must not be scaled, got a factor of 2.0"),
        (PRIOR_READS, guide_mean, "'mean' must not depend on the records"),
        (mean_of(), reads_guide, "'mean' must not depend on the records"),
        (CLOSURE, guide_mean, "'y' must have one value for one record"),
        (mean_of(), stubborn_guide, "'mean' is VonMises, whose draws have no gradient"),
        (mean_of(), lambda y: numpyro.param("loc", 0.0), "not site 'mean'"),
        (lambda y: guide_mean(y), guide_mean, "none of its sites has obs"),
    ],
)
def test_models_and_guides(model, guide, words):
    with pytest.raises(ValueError, match=words):
        private(model, guide).init(KEY, Y)


class Holder:
    """Neither an array nor a tree of them, as a data set's own class is."""

    def __init__(self, y):
        self.y = y


def observing(observe, **plate):
    """A model of the records x that observes something else beside them."""

    def model(x, *others):
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("records", RECORDS, **plate) as chosen:
            observe(dist.Bernoulli(logits=x[chosen] @ weights), chosen, *others)

    return model


def observed(value):
    return lambda given, *others: numpyro.sample("y", given, obs=value(*others))


def log_likelihood_of_all(given, _):
    numpyro.factor("y", given.log_prob(jnp.asarray(Y)).sum(-1, keepdims=True))


def panel(x, y):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("times", 4, dim=-2), numpyro.plate("records", len(x), dim=-1):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def prior_from(x, y, transposed):
    scale = jnp.sqrt((transposed**2).mean(1))
    weights = numpyro.sample("w", dist.Normal(0, scale).to_event(1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def prior_from_closure(x):
    numpyro.sample("spread", dist.HalfNormal(jnp.std(jnp.asarray(Y))))
    logistic(x, x[:, 0] > 0)


def guide_of_x(x, *_):
    logistic_guide(x)


def guide_of_both(x):
    logistic_guide(x)
    numpyro.sample("spread", dist.LogNormal(numpyro.param("log_spread", 0.0), 1.0))


def guide_from_closure(x, y):
    loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
    numpyro.sample("w", dist.Normal(loc + X.mean(0), jnp.std(jnp.asarray(Y))).to_event(1))


WHOLE = "'y' must have one value for one record, but has values of shape \\(60,\\)"
HELD = "read an array of shape \\(60,\\), so with an axis of num_examples = 60"


@pytest.mark.parametrize(
    ("model", "guide", "others", "words"),
    [
        (observing(observed(lambda _: jnp.asarray(Y))), guide_of_x, (), WHOLE),
        (observing(observed(lambda _, held: held.y)), guide_of_x, (Holder(Y),), WHOLE),
        (observing(observed(lambda i: jnp.asarray(Y)[i])), guide_of_x, (), HELD),
        (
            observing(observed(lambda i: jnp.asarray(Y)[i]), subsample_size=10),
            guide_of_x,
            (),
            HELD,
        ),
        (observing(log_likelihood_of_all), guide_of_x, (), HELD),
        (prior_from_closure, guide_of_both, (), HELD),
        (logistic, guide_from_closure, (Y,), HELD),
        (
            observing(observed(lambda _, y: jnp.asarray(y))),
            guide_of_x,
            (Y.tolist(),),
            "records in arrays, but one is a list of num_examples = 60",
        ),
        (observing(observed(lambda _, y: y[0])), guide_of_x, (Y[None],), "shape \\(1, 60\\) has"),
        (panel, guide_of_x, (np.stack([Y] * 4),), "shape \\(4, 60\\) has num_examples = 60"),
        (prior_from, guide_of_x, (Y, X.T), "shape \\(3, 60\\) has.*put the axis of records first"),
    ],
)
def test_data_that_are_no_records(model, guide, others, words):
    with pytest.raises(ValueError, match=words):
        private(model, guide).init(KEY, X, *others)


def set_up_on_the_data(guide):
    SVI(logistic, guide, numpyro.optim.SGD(0.1), Trace_ELBO()).init(KEY, X, Y)
    return guide


def in_a_list(guide):
    parts = AutoGuideList(logistic)
    parts.append(guide)
    return parts


@pytest.mark.parametrize(
    "guide",
    [
        AutoDAIS(logistic, K=1),
        AutoLaplaceApproximation(logistic),
        in_a_list(AutoLaplaceApproximation(logistic)),
    ],
)
def test_guides_that_follow_the_records(guide):
    with pytest.raises(ValueError, match=r"parameters alone, got Auto.*AutoMultivariate"):
        private(guide=guide).init(KEY, X, Y)


def test_a_guide_that_kept_the_data_is_told_from_one_that_did_not():
    normal, dais = (set_up_on_the_data(kind(logistic)) for kind in (AutoNormal, AutoDAIS))
    private(guide=normal).init(KEY, X, Y)
    with pytest.raises(ValueError, match="read an array of shape"):
        private(guide=lambda x, y: dais(x, y)).init(KEY, X, Y)


def test_constants_inside_of_inner_functions():
    inside = jax.jit(lambda given: given + jnp.asarray(Y).sum())
    model = mean_of(likelihood=lambda mean, y: dist.Normal(inside(mean), 1))
    with pytest.raises(ValueError, match=HELD):
        private(model, guide_mean).init(KEY, Y)


def test_static_arguments_that_are_equal_and_of_different_types():
    def model(y, flag):
        shift = 0.0 if flag is True else 3.0
        mean_of(likelihood=lambda mean, y: dist.Normal(mean + shift, 1))(y)

    svi = private(model, guide_mean)
    state = svi.init(KEY, Y, True)
    one, other = (flat(step_of(svi, state, Y, flag)) for flag in (True, 1))
    assert abs(one - other).max() > 1


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (np.array(["a"] * RECORDS), r"args\[1\] must be an array of numbers or booleans.*<U1"),
        (Y.astype(object), r"args\[1\] must be an array of numbers or booleans.*dtype\('O'\)"),
        (pd.Series(["a"] * RECORDS), r"args\[1\] must be an array of numbers or booleans.*'O'"),
        (pd.Series(pd.date_range("2000", periods=RECORDS)), r"args\[1\] must be .*M8"),
        (pd.DataFrame({"a": Y, "b": ["c"] * RECORDS}), r"args\[1\] must be .*dtype\('O'\)"),
        (np.ma.masked_less(Y, 0), r"args\[1\] must be an array without a mask"),
    ],
)
def test_arrays_that_hold_no_numbers(column, words):
    with pytest.raises(ValueError, match=words):
        private().init(KEY, X, column)
    with pytest.raises(ValueError, match=r"kwargs\['y'\]" + words.removeprefix(r"args\[1\]")):
        private().init(KEY, X, y=column)


def test_pandas_data_are_their_arrays():
    svi = private()
    state = svi.init(KEY, X, Y)
    plain = flat(step_of(svi, state, X, Y))
    frame, series = pd.DataFrame(X, columns=list("abc")), pd.Series(Y)
    np.testing.assert_array_equal(flat(step_of(svi, state, frame, y=series)), plain)
    assert svi.predict(KEY, svi.get_params(state), 3, frame[:4])["y"].shape == (3, 4)


def flat_prior(y):
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    positive = dist.ImproperUniform(dist.constraints.positive, (), event_shape=(2,))
    scale = numpyro.sample("scale", positive)
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, scale.sum()), obs=y)


def flat_prior_guide(y):
    guide_mean(y)
    loc = numpyro.param("scale_loc", jnp.zeros(2))
    numpyro.sample("scale", dist.LogNormal(loc, 1.0).to_event(1))


@pytest.mark.slow
def test_an_improper_prior():
    svi = private(flat_prior, flat_prior_guide)
    theirs, mine, _, _ = gradients(svi, (Y,), {})
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    assert svi.posterior_samples(KEY, svi.init(KEY, Y), 3, Y)["scale"].shape == (1, 3, 2)


@pytest.mark.parametrize(
    "loss", [RenyiELBO(), Trace_ELBO(multi_sample_guide=True), Trace_ELBO(sum_sites=False)]
)
def test_losses_that_are_no_sum_over_records(loss):
    with pytest.raises(ValueError, match="loss must be Trace_ELBO or TraceMeanField_ELBO"):
        private(loss=loss)


def test_an_optimizer_that_evaluates_the_loss():
    with pytest.raises(ValueError, match="optim must use gradients alone"):
        private(optim=numpyro.optim.Minimize())


def test_a_batch_where_the_whole_data_set_belongs():
    with pytest.raises(ValueError, match=r"the whole data set.*num_examples = 60.*20"):
        private().init(KEY, X[:20], Y[:20])


def test_a_call_before_init():
    with pytest.raises(ValueError, match="init must be called first"):
        private().get_params(private().init(KEY, X, Y))


def test_what_is_allowed_is_not_refused():
    def amortised(y):
        guide_mean(y)
        slope = numpyro.param("slope", 0.5)
        with numpyro.plate("records", len(y)):
            numpyro.sample("effect", dist.Normal(slope * y, 1.0))

    def masked(y, seen):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)), numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    private(local, amortised).init(KEY, Y)
    private(masked, guide_mean).init(KEY, Y, np.arange(RECORDS) % 2 == 0)
    private(logistic, logistic_guide).init(KEY, X, y=Y)


def test_arguments_of_a_new_kind_are_checked_in_a_step_too():
    def model(y, whole=False):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            shown = Y if whole else y
            numpyro.sample("y", dist.Normal(mean, 1), obs=shown)

    def guide(y, whole=False):
        guide_mean(y)

    svi = private(model, guide)
    state = svi.init(KEY, Y)
    svi.update(state, Y)
    with pytest.raises(ValueError, match="site 'y'"):
        svi.update(state, Y, whole=True)
    with pytest.raises(ValueError, match="site 'y'"):
        svi.run(KEY, Y, num_steps=2, whole=True, init_state=state, progress_bar=False)


def test_other_parameters_for_the_same_arguments_are_checked():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    def guide(y):
        numpyro.sample("mean", dist.Normal(jnp.mean(numpyro.param("loc", 0.0)), 1.0))

    svi = private(model, guide)
    svi.init(KEY, Y)
    svi.init(KEY, Y, init_params={"loc": jnp.ones(2)})
    with pytest.raises(ValueError, match="params must be shared by all records, but 'loc'"):
        svi.init(KEY, Y, init_params={"loc": jnp.ones(RECORDS)})
