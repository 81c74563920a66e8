"""``import dpjax`` imports nothing heavy, and optional dependencies only where they are used."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dpjax
from dpjax._extras import requires_extra

ROOT = Path(dpjax.__file__).parents[1]
OPTIONAL = (
    "matplotlib tensorflow tensorflow_datasets sklearn PIL arviz_base arviz_stats jinja2"
    " grpc cryptography phe"
)
UNTIL_USED = f"{OPTIONAL} flax orbax.checkpoint"
HEAVY = f"{UNTIL_USED} jax optax numpyro scipy dp_accounting tqdm chex"


# Seconds to import, and of use to accounts and closed-form posteriors alone.
ACCOUNTING = "dp_accounting scipy.stats scipy.optimize"
OF_TRAINING = (
    "train private_step SubsampledGaussian PoissonSampling TruncatedPoissonSampling ShuffledEpochs"
    " FixedSizeSampling Budget MeshSharding clipped_grad noisy_sgd add_gaussian_noise mechanism_of"
    " Laplace Gaussian DiscreteGaussian NoisyMax RandomizedResponse Sensitivity release_key"
)
RELEASE = "dpjax.Laplace(dpjax.Sensitivity(1.0, 'l1', 'add_remove'), 1.0)"
# Parts of a program that one interpreter runs in this order.
PROGRAM = {
    "package": "import dpjax",
    "training": f"[getattr(dpjax, name) for name in {OF_TRAINING.split()}]; dpjax.bayes.DPSVI",
    "event": f"{RELEASE}.event",
    "accounting": "dpjax.accounting",
    "every name": "[getattr(dpjax, name) for name in dpjax.__all__]",
    "federated": "from dpjax import federated; [getattr(federated, n) for n in federated.__all__]",
    "transport": "import dpjax.federated.processes.transport",
}
WATCHED = f"{HEAVY} {ACCOUNTING} dpjax.federated.processes".split()


@pytest.fixture(scope="module")
def imported():
    """The modules that a fresh interpreter holds after each part and those before it."""
    report = f"import sys; print(*[name for name in {WATCHED} if name in sys.modules])"
    code = "\n".join(f"{part}\n{report}" for part in PROGRAM.values())
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = (set(line.split()) for line in process.stdout.splitlines())
    return dict(zip(PROGRAM, found, strict=True))


def test_import_dpjax_imports_nothing_heavy(imported):
    assert imported["package"] == set()
    assert {"jax", "optax"} <= imported["training"]  # power


def test_public_names_import_no_optional_dependency_and_neither_flax_nor_orbax(imported):
    assert not imported["every name"] & set(UNTIL_USED.split())


def test_federated_imports_no_transport(imported):
    assert not imported["federated"] & {*UNTIL_USED.split(), "dpjax.federated.processes"}
    assert {"grpc", "dpjax.federated.processes"} <= imported["transport"]  # power


def test_accounts_import_no_jax():
    code = (
        "import sys, dpjax; mechanism = dpjax.SubsampledGaussian(dpjax.PoissonSampling(100, 0.1),"
        " l2_clip=1.0, noise_multiplier=1.0, num_steps=9, adjacency='zero_out')\n"
        "print(mechanism.certificate(1e-3).epsilon > 0, 'jax' in sys.modules)\n"
        "mechanism.noise(dpjax.release_key()); print('jax' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert process.stdout.decode().split() == ["True", "False", "True"]  # the last one: power


def test_training_and_releases_import_neither_accountants_nor_scipys_distributions(imported):
    assert not imported["training"] & set(ACCOUNTING.split())
    assert "dp_accounting" in imported["event"]  # power
    assert set(ACCOUNTING.split()) <= imported["accounting"]  # power


@pytest.mark.parametrize("name", ["dpjax", "dpjax.gradients", "dpjax.mechanisms"])
def test_names_for_mypy_are_the_names_exported(name):
    """The imports under ``TYPE_CHECKING`` and the table of exports list the same names."""
    package = importlib.import_module(name)
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in blocks[0].body if isinstance(node, ast.ImportFrom)]
    for_mypy = {(node.module, alias.name) for node in imports for alias in node.names}
    exported = {(module, name) for module, names in package._EXPORTS.items() for name in names}
    modules = {(name, module) for module in getattr(package, "_SUBPACKAGES", ())}
    assert for_mypy == exported | modules
    assert {each for _, each in exported | modules} == set(package.__all__)


@pytest.mark.parametrize("name", dpjax.__all__)
def test_public_names_are_modules_classes_or_functions_of_that_name(name):
    value = getattr(dpjax, name)
    if name in dpjax._SUBPACKAGES:
        assert value is sys.modules[f"dpjax.{name}"]
    else:
        assert value.__name__ == name
        assert value.__module__.startswith(dpjax._MODULE_OF[name])
    assert name in dir(dpjax)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        dpjax.no_such_name  # noqa: B018


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"^matplotlib is not installed: .* extra 'plot'"):
        dpjax.certificates.figure.plot_tradeoff(None, None, epsilon=1.0, delta=0.1, attack_goal="")


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("sklearn.datasets", "scikit-learn", "data"),
        ("PIL", "pillow", "data"),
        ("tensorflow_datasets", "tensorflow-datasets", "data"),
        ("arviz_base", "arviz-base", "arviz"),
        ("arviz_stats", "arviz-stats", "arviz"),
        ("grpc", "grpcio", "federated"),
        ("cryptography.x509", "cryptography", "federated"),
    ],
)
def test_missing_library_has_the_name_that_the_extra_installs(monkeypatch, module, library, extra):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert any(line.startswith(library) for line in extras[extra])
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"^{library} is not installed: .*extra '{extra}' .*: pip install '\.\[{extra}\]'"
    with pytest.raises(ImportError, match=message), requires_extra(extra):
        importlib.import_module(module)


def test_other_import_errors_pass_unchanged():
    with pytest.raises(ImportError, match="broken"), requires_extra("plot"):
        raise ImportError("broken")
