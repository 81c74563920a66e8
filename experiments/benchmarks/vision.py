"""Networks for 32 × 32 colour images: a wide residual network and a vision transformer."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class WideResNet16(nn.Module):
    """WRN-16 with group normalisation in place of batch normalisation; logits ``(batch, 10)``.

    Source: Zagoruyko & Komodakis (2016); De et al. (2022) for the normalisation.
    """

    widening: int = 4

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Conv(16, (3, 3), use_bias=False)(images)
        for number, width in enumerate((16, 32, 64)):
            for block in range(2):
                x = _block(x, self.widening * width, 2 if number and not block else 1)
        x = nn.relu(nn.GroupNorm(16)(x)).mean(axis=(1, 2))
        return nn.Dense(10)(x)


def _block(x: jax.Array, width: int, stride: int) -> jax.Array:
    """A residual block with normalisation and ReLU before its convolutions (in a compact call)."""
    h = nn.relu(nn.GroupNorm(16)(x))
    if x.shape[-1] != width:
        x = nn.Conv(width, (1, 1), strides=stride, use_bias=False)(h)
    h = nn.Conv(width, (3, 3), strides=stride, use_bias=False)(h)
    h = nn.relu(nn.GroupNorm(16)(h))
    return x + nn.Conv(width, (3, 3), use_bias=False)(h)


class VisionTransformer(nn.Module):
    """ViT-Ti on patches of 4 × 4 pixels; logits ``(batch, 10)``.

    Source: Dosovitskiy et al. (2021); Touvron et al. (2021) for the size.
    """

    width: int = 192
    depth: int = 12
    heads: int = 3

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Conv(self.width, (4, 4), strides=4)(images)
        x = x.reshape(len(x), -1, self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        for _ in range(self.depth):
            x = x + nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x))
            hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        return nn.Dense(10)(jnp.mean(nn.LayerNorm()(x), axis=1))
