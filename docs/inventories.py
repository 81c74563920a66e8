"""Links to other projects: a small local inventory for each, since `make docs` uses no network."""

import zlib
from pathlib import Path

_URLS = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "jax": "https://docs.jax.dev/en/latest",
    "optax": "https://optax.readthedocs.io/en/latest",
    "numpyro": "https://num.pyro.ai/en/stable",
    "flax": "https://flax.readthedocs.io/en/latest",
}
ONLINE = {project: (url, None) for project, url in _URLS.items()}

# Name, kind and page (``$`` stands for the name) of what the reference links to.
_ENTRIES = {
    "python": """
        collections.abc.Callable class library/collections.abc.html#$
        collections.abc.Iterator class library/collections.abc.html#$
        collections.abc.Mapping class library/collections.abc.html#$
        collections.abc.Sequence class library/collections.abc.html#$
        pathlib.Path class library/pathlib.html#$
        typing.Any data library/typing.html#$
        typing.NamedTuple class library/typing.html#$
        bool class library/functions.html#$
        bytes class library/stdtypes.html#$
        dict class library/stdtypes.html#$
        float class library/functions.html#$
        int class library/functions.html#$
        list class library/stdtypes.html#$
        object class library/functions.html#$
        str class library/stdtypes.html#$
        tuple class library/stdtypes.html#$
        ValueError exception library/exceptions.html#$
        TypeError exception library/exceptions.html#$
        """,
    "numpy": "numpy.ndarray class reference/generated/$.html#$",
    "jax": """
        jax.Array class _autosummary/$.html#$
        jax.jaxlib._jax.Array class _autosummary/jax.Array.html#jax.Array
        jax.grad function _autosummary/$.html#$
        jax.random.key function _autosummary/$.html#$
        """,
    "optax": """
        optax.GradientTransformation class api/transformations.html#$
        optax.GradientTransformationExtraArgs class api/transformations.html#$
        optax.chain function api/combining_optimizers.html#$
        """,
    "numpyro": "numpyro.infer.svi.SVI class svi.html#$",
    "flax": "flax.nnx.Module class api_reference/flax.nnx/module.html#$",
}


def write(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes an inventory for each project and returns the mapping that intersphinx reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for project, entries in _ENTRIES.items():
        rows = [line.split() for line in entries.splitlines() if line.strip()]
        lines = "".join(f"{name} py:{kind} 1 {page} -\n" for name, kind, page in rows)
        header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        header += "# The remainder of this file is compressed using zlib.\n"
        (folder / f"{project}.inv").write_bytes(header.encode() + zlib.compress(lines.encode()))
    return {name: (url, str(folder / f"{name}.inv")) for name, url in _URLS.items()}
