"""A small text encoder, pre-trained on public text: what `private_lora` fine-tunes.

``python notebooks/encoder.py`` hides words of the documentation of Python and of eleven of its libraries,
trains the encoder to predict them, and writes ``notebooks/encoder.safetensors``.
"""

import importlib.util
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, traverse_util

WEIGHTS = Path(__file__).with_suffix(".safetensors")
PADDING, UNKNOWN, HIDDEN = 0, 1, 2
FIRST_WORD = 3

_PUBLIC = (
    "IPython flax jax mpmath numpy numpyro sphinx sqlalchemy tensorflow_datasets tornado xarray"
)
_WIDTH, _NUM_HEADS, _NUM_BLOCKS, _MAX_LENGTH = 64, 4, 2, 32
_NUM_IDS = 3000


def read_paragraphs(folder: Path) -> list[list[str]]:
    """Returns the paragraphs of all docstrings below a folder: words in lower case, at least eight.

    A paragraph that occurs more than once is returned once.
    """
    paragraphs: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if {"tests", "test", "site-packages"} & set(path.relative_to(folder).parts):
            continue
        for docstring in re.findall(r'"""(.*?)"""', path.read_text("utf-8", "ignore"), re.DOTALL):
            for paragraph in re.split(r"\n\s*\n", docstring):
                words = re.findall(r"[a-z][a-z']+", paragraph.lower())
                if len(words) >= 8 and not re.search(">>>|---|===", paragraph):
                    paragraphs.setdefault(" ".join(words), words)
    return list(paragraphs.values())


def find_package(name: str) -> Path:
    """Returns the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{name} is not an installed package", name=name)
    return Path(spec.submodule_search_locations[0])


def encode(texts: Iterable[list[str]], ids: Mapping[str, int], length: int) -> np.ndarray:
    """Returns int32 ``(n, length)``: the ids of the first words of each text, padded at the end."""
    rows = []
    for words in texts:
        tokens = [ids.get(word, UNKNOWN) for word in words[:length]]
        rows.append(tokens + [PADDING] * (length - len(tokens)))
    return np.array(rows, np.int32)


class Block(nnx.Module):
    """Self-attention, and a network of two layers, each added to its input."""

    def __init__(self, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(_WIDTH, rngs=rngs)
        self.query = nnx.Linear(_WIDTH, _WIDTH, rngs=rngs)
        self.key = nnx.Linear(_WIDTH, _WIDTH, rngs=rngs)
        self.value = nnx.Linear(_WIDTH, _WIDTH, rngs=rngs)
        self.out = nnx.Linear(_WIDTH, _WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(_WIDTH, rngs=rngs)
        self.up = nnx.Linear(_WIDTH, 4 * _WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * _WIDTH, _WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, is_word: jax.Array) -> jax.Array:
        """Maps ``(..., length, width)`` to the same shape; no position attends to padding."""
        y = self.attention_norm(x)
        heads = (*y.shape[:-1], _NUM_HEADS, _WIDTH // _NUM_HEADS)
        query, key, value = (
            project(y).reshape(heads) for project in (self.query, self.key, self.value)
        )
        mixed = nnx.dot_product_attention(query, key, value, mask=is_word[..., None, None, :])
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Encoder(nnx.Module):
    """Transformer from tokens ``(..., length)`` to vectors ``(..., length, width)``."""

    width = _WIDTH

    def __init__(self, rngs: nnx.Rngs):
        init = nnx.initializers.normal(0.05)
        self.words = nnx.Embed(_NUM_IDS, _WIDTH, embedding_init=init, rngs=rngs)
        self.positions = nnx.Embed(_MAX_LENGTH, _WIDTH, embedding_init=init, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(_NUM_BLOCKS)])
        self.norm = nnx.LayerNorm(_WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.words(tokens) + self.positions(jnp.arange(tokens.shape[-1]))
        for block in self.blocks:
            x = block(x, tokens != PADDING)
        return self.norm(x)


def flat_parameters(model: nnx.Module) -> dict[str, jax.Array]:
    """Returns the parameters by their paths: ``{"blocks.0.query.kernel": ...}``."""
    flat = traverse_util.flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {".".join(map(str, path)): array for path, array in flat.items()}


def pretrain(texts: jax.Array, num_steps: int, batch_size: int, num_hidden: int = 5) -> Encoder:
    """Trains an encoder to predict hidden words of ``texts``, without privacy."""
    graph, params = nnx.split(Encoder(nnx.Rngs(0)))
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, num_steps // 10, num_steps)
    optimizer = optax.adam(rate)

    def loss(params: nnx.State, tokens: jax.Array, places: jax.Array) -> jax.Array:
        # The hidden words are predicted with the embedding's own vectors.
        model = nnx.merge(graph, params)
        words = jnp.take_along_axis(tokens, places, 1)
        hidden = tokens.at[jnp.arange(batch_size)[:, None], places].set(HIDDEN)
        vectors = jnp.take_along_axis(model(hidden), places[..., None], 1)
        losses = optax.softmax_cross_entropy_with_integer_labels(model.words.attend(vectors), words)
        return jnp.mean(losses, where=words >= FIRST_WORD)

    @jax.jit
    def step(
        params: nnx.State, state: optax.OptState, key: jax.Array
    ) -> tuple[nnx.State, optax.OptState, jax.Array]:
        text_key, place_key = jax.random.split(key)
        tokens = texts[jax.random.randint(text_key, (batch_size,), 0, len(texts))]
        lengths = jnp.sum(tokens != PADDING, axis=1, keepdims=True)
        places = jax.random.uniform(place_key, (batch_size, num_hidden)) * lengths
        value, gradient = jax.value_and_grad(loss)(params, tokens, places.astype(int))
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    for number in range(num_steps):
        key = jax.random.fold_in(jax.random.key(0), number)
        params, state, value = step(params, state, key)
        if number % 100 == 0:
            print(f"step {number}: {value:.2f}", flush=True)
    return nnx.merge(graph, params)


def main() -> None:
    """Pre-trains the encoder, and writes its weights in half precision with its vocabulary."""
    from safetensors.numpy import save_file

    # The public texts, and their most frequent words.
    folders = [find_package(name) for name in _PUBLIC.split()]
    folders.append(Path(sysconfig.get_path("stdlib")))
    texts = [words for folder in folders for words in read_paragraphs(folder)]
    counts = Counter(word for words in texts for word in words)
    vocabulary = [word for word, _ in counts.most_common(_NUM_IDS - FIRST_WORD)]
    ids = {word: FIRST_WORD + number for number, word in enumerate(vocabulary)}

    tokens = jnp.asarray(encode(texts, ids, 24))
    model = pretrain(tokens, num_steps=1500, batch_size=128)
    weights = {
        name: np.asarray(array, np.float16) for name, array in flat_parameters(model).items()
    }
    save_file(weights, WEIGHTS, metadata={"vocabulary": " ".join(vocabulary)})


if __name__ == "__main__":
    main()
