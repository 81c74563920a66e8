"""Split R-hat and effective sample size of Markov chains, under jit and vmap.

`numpyro.diagnostics` has both for numpy arrays alone; these agree with it.
"""

import jax
import jax.numpy as jnp


def split_r_hat(draws: jax.Array) -> jax.Array:
    """Returns split R-hat of draws ``(num_chains, num_draws, ...)``, of shape ``(...)``.

    Source: Gelman et al. (2013), "Bayesian data analysis", section 11.4.
    """
    half = draws.shape[1] // 2
    within, total = _variances(jnp.concatenate([draws[:, :half], draws[:, -half:]]))
    return jnp.sqrt(total / within)


def effective_sample_size(draws: jax.Array) -> jax.Array:
    """Returns the effective sample size of draws ``(num_chains, num_draws, ...)``.

    Source: Gelman et al. (2013), section 11.5, with the initial monotone sequence of Geyer (1992).
    """
    num_chains, length = draws.shape[:2]
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = jnp.fft.rfft(centred, 2 * length, axis=1)
    products = jnp.fft.irfft((spectrum * spectrum.conj()).real, 2 * length, axis=1)[:, :length]
    within, total = _variances(draws)
    correlation = 1 - (within[None] - products.mean(axis=0) / length) / total[None]
    correlation = correlation.at[0].set(1.0)
    pairs = correlation[: length - length % 2].reshape(-1, 2, *draws.shape[2:]).sum(axis=1)
    # The first pair is kept whatever its sign; the sum of the others ends at a negative one.
    later = jnp.where(jax.lax.cummin(pairs[1:], axis=0) > 0, pairs[1:], 0.0)
    monotone = jax.lax.cummin(jnp.concatenate([pairs[:1], later]), axis=0)
    return num_chains * length / (2 * monotone.sum(axis=0) - 1)


def _variances(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Within the chains, and of all draws together, both unbiased."""
    length = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    total = within * ((length - 1) / length)
    if len(draws) == 1:
        return total, total
    return within, total + draws.mean(axis=1).var(axis=0, ddof=1)
