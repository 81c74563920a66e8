"""A figure of pyplot that notebooks show once."""

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that pyplot's inline backend closes as soon as it is displayed.

    The backend displays all figures of pyplot at the end of a cell, and would display the value of
    the cell's last expression, and what ``display`` was given, a second time.
    """

    def _ipython_display_(self) -> None:
        if "inline" in matplotlib.get_backend():
            pyplot.close(self)
        raise NotImplementedError  # by IPython's protocol: it then displays the figure as usual
