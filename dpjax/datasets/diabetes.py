"""scikit-learn's diabetes data, the stand-in for tables that are not available."""

import numpy as np

from dpjax._extras import requires_extra
from dpjax.datasets.base import Range

# Of adults, by general knowledge.
RANGES = {
    "age (years)": Range(20.0, 80.0),
    "sex": Range(1.0, 2.0),
    "body mass index (kg/m^2)": Range(18.0, 35.0),
    "mean blood pressure (mmHg)": Range(70.0, 120.0),
    "cholesterol (mg/dl)": Range(120.0, 260.0),
    "low-density lipoproteins (mg/dl)": Range(50.0, 190.0),
    "high-density lipoproteins (mg/dl)": Range(30.0, 80.0),
    "cholesterol over high-density lipoproteins": Range(2.0, 7.0),
    "log of triglycerides (mg/dl)": Range(3.8, 5.8),
    "glucose (mg/dl)": Range(65.0, 120.0),
}


def read_diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Returns 442 patients by 10 measurements as they were taken, and their disease's progression.

    >>> x, progression = read_diabetes()
    >>> x.shape, progression.max().item()
    ((442, 10), 346.0)
    """
    with requires_extra("data"):
        from sklearn.datasets import load_diabetes

    x, progression = load_diabetes(return_X_y=True, scaled=False)
    return x, progression
