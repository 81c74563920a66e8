"""The pre-trained encoder of the LoRA tutorial: weights, masks, and private gradients."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file

from dpjax import clipped_grad

sys.path[:0] = [str(Path(__file__).parents[1])]
from notebooks.encoder import (  # noqa: E402
    FIRST_WORD,
    HIDDEN,
    PADDING,
    UNKNOWN,
    WEIGHTS,
    Encoder,
    encode,
    find_package,
    flat_parameters,
    read_paragraphs,
)


def padded_batch(length):
    """Four texts of 3 to 9 tokens, padded to ``length``, with labels."""
    tokens = np.full((4, length), PADDING, np.int32)
    rng = np.random.default_rng(0)
    for row, size in zip(tokens, (3, 5, 7, 9), strict=True):
        row[:size] = rng.integers(FIRST_WORD, 50, size)
    return tokens, np.arange(4, dtype=np.int32)


class Classifier(nnx.Module):
    """As in the tutorial: adapters in one projection of each block, and a head."""

    def __init__(self, masked=True):
        rngs = nnx.Rngs(0)
        self.encoder = Encoder(rngs)
        for block in self.encoder.blocks:
            # Not zero as at the start of training, so that the gradient of `lora_a` is not either.
            block.query = nnx.LoRA(
                self.encoder.width,
                2,
                self.encoder.width,
                base_module=block.query,
                b_initializer=nnx.initializers.normal(0.1),
                rngs=rngs,
            )
        self.head = nnx.Linear(self.encoder.width, 4, rngs=rngs)
        self.masked = masked

    def __call__(self, tokens):
        is_word = (tokens != PADDING)[..., None]
        return self.head(jnp.mean(self.encoder(tokens), -2, where=is_word if self.masked else None))


def loss(model, example):
    tokens, label = example
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens), label)


ADAPTERS = nnx.Any(nnx.LoRAParam, nnx.All(nnx.Param, nnx.PathContains("head")))


def sums_with_and_without_padding(model):
    """Clipped sums and norms of the same texts, padded to 9 and to 16 tokens."""
    gradient = clipped_grad(loss, l2_clip=0.5, wrt=ADAPTERS)
    return [gradient(model, padded_batch(length), None) for length in (9, 16)]


@pytest.mark.slow
def test_padding_does_not_change_per_example_gradients():
    (short, short_info), (long, long_info) = sums_with_and_without_padding(Classifier())
    assert float(short_info.norms.min()) > 0.1
    np.testing.assert_allclose(long_info.norms, short_info.norms, rtol=1e-5)
    np.testing.assert_allclose(long_info.losses, short_info.losses, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        assert float(jnp.abs(one).max()) > 1e-3
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_power_a_mean_over_padding_changes_them():
    (_, short_info), (_, long_info) = sums_with_and_without_padding(Classifier(masked=False))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(long_info.norms, short_info.norms, rtol=1e-5)


def test_adapters_and_head_are_what_is_clipped():
    """The sum has no other leaves, and is that of per-example gradients."""
    model, batch = Classifier(), padded_batch(9)
    summed, _ = clipped_grad(loss, l2_clip=0.5, wrt=ADAPTERS)(model, batch, None)
    names = {".".join(map(str, keys)) for keys, _ in nnx.to_flat_state(summed)}
    blocks = [f"encoder.blocks.{number}.query.lora_{part}" for number in (0, 1) for part in "ab"]
    assert names == {"head.kernel", "head.bias", *blocks}
    reference, _ = clipped_grad(loss, l2_clip=0.5, wrt=ADAPTERS, method="vmap")(model, batch, None)
    for one, other in zip(jax.tree.leaves(summed), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_transformer_that_expects_a_batch_gets_the_advice():
    def batch_loss(model, example):
        num_texts, _ = example[0].shape
        return jnp.sum(model(example[0])) / num_texts

    with pytest.raises(ValueError, match="not enough values to unpack") as caught:
        clipped_grad(batch_loss, l2_clip=1.0, wrt=ADAPTERS)(Classifier(), padded_batch(9), None)
    assert any("example[0]: int32[9]" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_weights_are_those_of_an_encoder_that_predicts_hidden_words():
    """Better than the frequencies of words, and than before training."""
    weights = load_file(WEIGHTS)
    model = Encoder(nnx.Rngs(0))
    shapes = {name: value.shape for name, value in flat_parameters(model).items()}
    assert {name: value.shape for name, value in weights.items()} == shapes
    with safe_open(WEIGHTS, framework="numpy") as file:
        vocabulary = file.metadata()["vocabulary"].split()
    assert FIRST_WORD + len(set(vocabulary)) == weights["words.embedding"].shape[0]

    # The loss of one hidden word of some texts, and that of the frequencies in all of them.
    ids = {word: FIRST_WORD + number for number, word in enumerate(vocabulary)}
    tokens = encode(read_paragraphs(find_package("numpy")), ids, 24)
    counts = np.bincount(tokens[tokens >= FIRST_WORD])
    tokens = tokens[::8]
    places = np.random.default_rng(0).integers(0, 8, len(tokens))
    rows = np.arange(len(tokens))
    words = tokens[rows, places]
    tokens[rows, places] = HIDDEN
    known = words != UNKNOWN

    def hidden_word_loss(model):
        logits = model.words.attend(model(tokens)[rows, places])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, words)
        return float(np.mean(losses, where=known))

    of_frequencies = -np.mean(np.log(counts[words[known]] / counts.sum()))
    untrained = hidden_word_loss(model)
    state = nnx.state(model, nnx.Param)
    for keys, variable in nnx.to_flat_state(state):
        variable[...] = jnp.asarray(weights[".".join(map(str, keys))], jnp.float32)
    nnx.update(model, state)
    assert hidden_word_loss(model) < of_frequencies < untrained


def test_paragraphs_of_a_folder(tmp_path):
    text = "One two three four five six seven eight."
    (tmp_path / "tests").mkdir()
    for name in ("a.py", "b.py", "tests/c.py"):
        (tmp_path / name).write_text(f'"""{text}\n\nToo short.\n\n>>> {text}\n"""\n')
    words = text.lower().strip(".").split()
    assert read_paragraphs(tmp_path) == [words]
    (tmp_path / "tests" / "c.py").rename(tmp_path / "c.py")
    (tmp_path / "c.py").write_text(f'"""{text} Nine."""')
    assert read_paragraphs(tmp_path) == [words, [*words, "nine"]]
    assert encode([words], {"one": 7, "three": 9}, 4).tolist() == [[7, UNKNOWN, 9, UNKNOWN]]
    assert encode([["one"]], {"one": 7}, 3).tolist() == [[7, PADDING, PADDING]]


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ModuleNotFoundError, match="no_such_package is not an installed package"):
        find_package("no_such_package")
