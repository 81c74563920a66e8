"""Data-augmentation MCMC: posterior of any numpyro model given one noisy sum over its records.

The records x_1, ..., x_n are latent. Given the parameters theta, each record in turn is proposed
from the model, x_i* ~ f(. | theta), and accepted with probability

  min(1, eta(y | S - t(x_i) + t(x_i*)) / eta(y | S)),   S = sum_i t(x_i),

with eta the density of the noise on the release y. Given the records, theta is drawn by NUTS as
without privacy. The chain's stationary distribution is the posterior of theta and the records given
y: nothing is approximated. Under epsilon-DP noise (replace one) each acceptance probability is at
least exp(-epsilon), as the density changes by at most that factor (Ju et al. 2022).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy.typing as npt
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import NUTS
from numpyro.infer.gibbs import GIBBS_SITES_KWARG, CustomGibbs, Gibbs

from dpjax._checks import as_finite, check, check_function, check_text, check_type
from dpjax._typing import PRNGKey
from dpjax.adjacency import is_size_public
from dpjax.mechanisms import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

__all__ = ["gibbs_kernel"]

# Values of the sites under the plate by name, the records' axis first.
Records: TypeAlias = Mapping[str, jax.Array]
# From the sites' values to (n, ...): what each record adds to the sum.
Statistic: TypeAlias = Callable[[Records], jax.Array]


def gibbs_kernel(
    model: Callable[..., object],
    released: npt.ArrayLike,
    *,
    mechanism: Laplace | Gaussian | DiscreteLaplace | DiscreteGaussian,
    statistic: Statistic,
    plate: str,
) -> Gibbs:
    """Returns a numpyro kernel of data-augmentation MCMC for a model given one noisy sum.

    The kernel is for `numpyro.infer.MCMC`, whose ``run`` takes the model's arguments. Its samples
    have the model's latent variables, and the latent records by site name: draws of possible
    records, which are post-processing too. One iteration costs O(n) and draws NUTS once.

    Args:
      model: a numpyro model that generates the records: sites under one plate, not observed.
      released: what the mechanism released, an array: the sum of the records' statistics, with
        noise.
      mechanism: that released it: `Laplace`, `Gaussian`, or a discrete one for integers.
      statistic: maps the values of the sites under the plate, by name, with the records' axis
        first, to an array ``(n, ...)``: what each record adds to the sum, clipping included.
      plate: name of the plate over the records.

    Privacy:
      Post-processing of the release, at no privacy cost. The number of records is public, as under
      replace-one and zero-out.

    Source: Ju, Awan, Gong & Rao (2022), "Data augmentation MCMC for Bayesian inference from
    privatized data", Algorithm 1.

    Raises:
      TypeError: an argument of another type.
      ValueError: a mechanism under add-or-remove, whose number of records is private; a release
        that is not finite. Within ``run``: sites under the plate that are observed or have no
        leading axis of records; statistics of another shape than the release.

    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from dpjax import sensitivity
    >>> def model(num_examples):
    ...     p = numpyro.sample("p", dist.Beta(1, 1))
    ...     with numpyro.plate("records", num_examples):
    ...         numpyro.sample("y", dist.Bernoulli(p))
    >>> mechanism = Laplace.from_epsilon(
    ...     sensitivity.of_sum((0.0, 1.0), norm="l1", adjacency="replace_one"), epsilon=1.0)
    >>> kernel = gibbs_kernel(
    ...     model, 71.3, mechanism=mechanism, statistic=lambda sites: sites["y"], plate="records")
    >>> mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=300, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), 100)
    >>> round(float(mcmc.get_samples()["p"].mean()), 1)
    0.7
    """
    # The release and its noise.
    noises = Laplace | Gaussian | DiscreteLaplace | DiscreteGaussian
    check_type("mechanism", mechanism, noises, "a Laplace or Gaussian mechanism, or a discrete one")
    allowed = "of an adjacency under which the number of records is public"
    check(is_size_public(mechanism.adjacency), "mechanism", mechanism.adjacency, allowed)
    check_function("model", model)
    check_function("statistic", statistic, "sites")
    check_text("plate", plate)
    release = jnp.asarray(as_finite(released, "released"), float)

    # Blocks: the records, by their sites under the plate, and the parameters.
    def record_sites(model_trace: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(_sites_of_records(model_trace, plate))

    sweep = RecordSweep(model, release, mechanism, statistic, plate)
    return Gibbs([(sweep, record_sites), (NUTS(model), None)])


class SweepState(NamedTuple):
    """State of `RecordSweep`.

    Attributes:
      z: values of the sites under the plate by name.
      rng_key: of the next sweep.
      accept_prob: mean acceptance probability of the last sweep.
    """

    z: Records
    rng_key: PRNGKey
    accept_prob: jax.Array


class RecordSweep(CustomGibbs):
    """Block of `numpyro.infer.Gibbs` that updates all latent records, one after another."""

    def __init__(
        self,
        model: Callable[..., object],
        released: jax.Array,
        mechanism: Laplace | Gaussian | DiscreteLaplace | DiscreteGaussian,
        statistic: Statistic,
        plate: str,
    ) -> None:
        super().__init__(lambda **_: {})
        self._model, self._released, self._plate = model, released, plate
        self._scale, self._statistic = float(mechanism.scale), statistic
        self._power = 1 if isinstance(mechanism, Laplace | DiscreteLaplace) else 2

    def init(
        self,
        rng_key: PRNGKey,
        num_warmup: int,
        init_params: Records | None,
        model_args: tuple[object, ...],
        model_kwargs: dict[str, Any] | None,
    ) -> SweepState:
        """Returns the state at the records that the model drew."""
        state = super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        return SweepState(state.z, state.rng_key, jnp.ones(()))

    def sample(
        self,
        state: SweepState,
        model_args: tuple[object, ...],
        model_kwargs: dict[str, Any] | None,
    ) -> SweepState:
        """Proposes each record from the model at the current parameters; accepts or rejects it."""
        kwargs = dict(model_kwargs or {})
        params = kwargs.pop(GIBBS_SITES_KWARG, {})
        rng_key, proposal_key, accept_key = jax.random.split(state.rng_key, 3)

        # Proposals do not depend on the current records, so those of all are drawn at once.
        proposing = seed(substitute(self._model, data=params), proposal_key)
        sites = _sites_of_records(trace(proposing).get_trace(*model_args, **kwargs), self._plate)
        proposals = {name: site["value"] for name, site in sites.items()}

        records, accept_probs = self.sweep(accept_key, state.z, proposals)
        return SweepState(records, rng_key, accept_probs.mean())

    def sweep(
        self, key: PRNGKey, records: Records, proposals: Records
    ) -> tuple[Records, jax.Array]:
        """Returns the records after a Metropolis step for each, and the acceptance probabilities.

        Args:
          key: a JAX key.
          records: current values by site, the records' axis first.
          proposals: values of the same shapes.
        """
        current, proposed = (self._statistics(sites) for sites in (records, proposals))
        uniforms = jax.random.uniform(key, (len(current),))

        def step(total: jax.Array, each: tuple[jax.Array, ...]) -> tuple[jax.Array, Any]:
            old, new, uniform = each
            moved = total - old + new
            accept_prob = jnp.exp(jnp.minimum(self._log_noise(moved) - self._log_noise(total), 0.0))
            accepted = uniform < accept_prob
            return jnp.where(accepted, moved, total), (accepted, accept_prob)

        # The sum is computed anew in each sweep, so rounding errors do not add up over sweeps.
        _, (accepted, accept_probs) = jax.lax.scan(
            step, current.sum(0), (current, proposed, uniforms)
        )

        def choose(old: jax.Array, new: jax.Array) -> jax.Array:
            return jnp.where(accepted.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

        return {name: choose(records[name], proposals[name]) for name in records}, accept_probs

    def get_diagnostics_str(self, state: SweepState) -> str:
        """Returns the acceptance probability, for numpyro's progress bar."""
        return f"records acc. prob={state.accept_prob:.2f}"

    def _statistics(self, records: Records) -> jax.Array:
        """The records' statistics, checked against the release."""
        num_examples = len(next(iter(records.values())))
        values = jnp.asarray(self._statistic(records), self._released.dtype)
        expected = num_examples, *self._released.shape
        check(values.shape == expected, "statistic's result", values.shape, f"of shape {expected}")
        return values

    def _log_noise(self, total: jax.Array) -> jax.Array:
        """Log-density of the release given the exact sum, up to a constant."""
        scaled = jnp.abs(self._released - total) / self._scale
        return -jnp.sum(scaled**self._power) / self._power


def _sites_of_records(model_trace: Mapping[str, Any], plate: str) -> dict[str, Any]:
    """Returns the sample sites under the plate; refuses observed ones, and other leading axes."""
    sites = {
        name: site
        for name, site in model_trace.items()
        if site["type"] == "sample" and any(f.name == plate for f in site["cond_indep_stack"])
    }
    check(bool(sites), "plate", plate, "the name of a plate with sites of the model under it")
    for name, site in sites.items():
        if site["is_observed"]:
            raise ValueError(
                f"model must generate its records, but site {name!r} under plate {plate!r} is"
                " observed: call it without the records"
            )
        size = next(f.size for f in site["cond_indep_stack"] if f.name == plate)
        shape = jnp.shape(site["value"])
        if shape[:1] != (size,):
            raise ValueError(
                f"site {name!r} must have the axis of plate {plate!r}, of size {size}, first, got"
                f" values of shape {shape}"
            )
    return sites
