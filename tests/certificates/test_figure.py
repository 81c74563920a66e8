"""Figures of certificates: pyplot's where that is in use, and shown once in notebooks."""

import gc
import subprocess
import sys
import weakref

import nbclient
import nbformat
import pytest

from dpjax.certificates.figure import new_figure, plot_epsilon

CERTIFICATE = """import dpjax
sensitivity = dpjax.Sensitivity(1.0, "l2", "zero_out", shape=())
certificate = dpjax.Gaussian(sensitivity, scale=4.0).certificate(1e-5)
"""


@pytest.fixture
def pyplot():
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    pyplot.close("all")  # those of other tests
    yield pyplot
    pyplot.close("all")


def test_figure_is_pyplots_where_pyplot_was_imported(pyplot):
    figure = new_figure(6.0, 4.0)
    assert pyplot.gcf() is figure
    assert pyplot.get_fignums() == [figure.number]
    pyplot.close(figure)
    assert pyplot.get_fignums() == []


@pytest.mark.slow
def test_figure_is_held_by_nobody_where_pyplot_was_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    held = weakref.ref(new_figure(6.0, 4.0))
    gc.collect()
    assert held() is None
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.slow
def test_plot_in_a_script_is_saved_by_savefig(tmp_path):
    """As users write it; without pyplot, plotting does not import it."""
    script = f"""{CERTIFICATE}
import sys
certificate.plot()
assert "matplotlib.pyplot" not in sys.modules
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
certificate.plot()
plt.savefig("here.svg")
assert "any attack" in open("here.svg").read()
print(len(plt.get_fignums()))
"""
    script = f"import matplotlib; matplotlib.rcParams['svg.fonttype'] = 'none'\n{script}"
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True
    )
    assert process.stdout.decode() == "1\n"


@pytest.mark.slow
def test_plot_in_a_notebook_is_shown_once():
    cells = {
        CERTIFICATE: 0,
        "certificate.plot()": 1,
        "figure = certificate.plot()": 1,
        "import matplotlib.pyplot as plt\ncertificate.plot()\nplt.show()": 1,
        "from IPython.display import display\ndisplay(certificate.plot())": 1,
        "certificate.plot()\ncertificate.plot()": 2,
        "assert plt.get_fignums() == []": 0,
    }
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    images = [
        sum("image/png" in output.get("data", {}) for output in cell.outputs)
        for cell in notebook.cells
    ]
    assert images == list(cells.values())


def test_plot_epsilon_has_the_points_and_the_target(pyplot):
    (axes,) = plot_epsilon([1.0, 2.0], [0.5, 0.8], delta=1e-5, target=1.0).axes
    points, target = axes.get_lines()
    assert points.get_xydata().tolist() == [[1.0, 0.5], [2.0, 0.8]]
    assert target.get_ydata()[0] == 1.0
    assert axes.get_ylabel() == "epsilon at delta = 1e-05"
