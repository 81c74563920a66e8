"""Drug sensitivity of cancer cell lines with their genomic features (GDSC, release 17)."""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpjax._extras import requires_extra
from experiments.data.base import Dataset, Split
from experiments.data.sources import CorruptedFileError, RawFile, first_raw, read_raw

_HOST = (
    "https://raw.githubusercontent.com/CancerRxGene/gdsctools/"
    "770be3914a04ff047cbec2a2c66e55e465176e81/gdsctools/data/"
)
_FILES = (
    RawFile(
        "genomic_features_v17.csv.gz",
        42_772,
        "1bc36a0d332b2d3d7acc14960a4c053a5b5415f78d063d488ad4808b72d4a93b",
    ),
    RawFile(
        "IC50_v17.csv.gz",
        1_437_973,
        "db719ed21ab8725611b9c2ff74dfc0063ff657bc4758ccc97489a047ec46f9d7",
    ),
)
_LINE, _TISSUE = "COSMIC_ID", "TISSUE_FACTOR"
_SEED = 0
_TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class DrugResponses(Dataset):
    """A `Dataset` whose records are cell lines and whose targets are their responses to drugs.

    Record ``i`` has the 0/1 features ``x[i]``, float32, and the responses ``y[i]``, float32 of
    shape ``(num_drugs,)``: the natural logarithm of the concentration (in micromoles) that halves
    growth, NaN where it was not measured. ``num_classes`` is zero: a response is a number.

    Attributes:
      feature_names: one for each column of ``x``: mutated genes end in ``_mut``, gained and lost
        regions begin with ``gain_`` and ``loss_``, and tissues with ``tissue_``.
      drug_names: one for each column of ``y``.
    """

    feature_names: tuple[str, ...]
    drug_names: tuple[str, ...]


class _Table(NamedTuple):
    """A file's columns, and its rows in the order of the cell lines' ids."""

    names: list[str]
    lines: list[int]
    rows: list[list[str]]


def load_gdsc() -> DrugResponses:
    """Returns GDSC, release 17: 988 cell lines, 705 features and responses to 265 drugs.

    The features are 270 mutations, 407 copy-number changes, microsatellite instability, and 27
    tissues, each 0 or 1. A fifth of the responses is missing. A random 80 % of the lines is for
    training, in a split of our own with a fixed seed: none is published. The sources, in this
    order:

    1. raw files: ``$DPJAX_DATA_DIR/gdsc/``, or ``$DPJAX_DATA_DIR`` itself;
    2. the files in Sanger's package ``gdsctools``, downloaded into the cache folder;
    3. the stand-in: scikit-learn's diabetes data, with features above and below their means, and
       ``is_stand_in`` set.

    Every raw file is checked by its sha256, recorded from the copy in ``gdsctools``. GDSC's terms
    of use allow research; no copy comes with this package.

    Source: F. Iorio et al., "A landscape of pharmacogenomic interactions in cancer", Cell 2016;
    www.cancerrxgene.org.

    Raises:
      FileNotFoundError: if ``DPJAX_DATA_DIR`` holds one of the two files and not the other.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_raw("gdsc", _FILES, _HOST, _gdsc, _stand_in, host_name="copy in gdsctools")


def _gdsc(folder: Path, source: str) -> DrugResponses:
    features, responses = (_read(folder, file) for file in _FILES)
    if features.lines != responses.lines:
        raise CorruptedFileError(f"the files of GDSC in {folder} do not list the same cell lines")
    names, x = _encode(features)
    y = np.array([[float(cell or "nan") for cell in row] for row in responses.rows], np.float32)
    train, test = _split(x, y)
    return DrugResponses(
        name="gdsc",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=0,
        note=f"GDSC, release 17: {len(x):,} cell lines with {len(names)} genomic features and"
        f" responses to {y.shape[1]} drugs, from {source}.",
        feature_names=names,
        drug_names=tuple(responses.names),
    )


def _read(folder: Path, file: RawFile) -> _Table:
    text = gzip.decompress(read_raw(folder, file)).decode()
    header, *rows = csv.reader(text.splitlines())
    rows = sorted(rows, key=lambda row: int(row[header.index(_LINE)]))
    return _Table(header[1:], [int(row[0]) for row in rows], [row[1:] for row in rows])


def _encode(features: _Table) -> tuple[tuple[str, ...], np.ndarray]:
    """Turns the tissue into one column for each; all others are 0 or 1 as they are."""
    place = features.names.index(_TISSUE)
    tissues, code = np.unique([row[place] for row in features.rows], return_inverse=True)
    others = [i for i in range(len(features.names)) if i != place]
    binary = np.array([[float(row[i]) for i in others] for row in features.rows], np.float32)
    one_of = np.eye(len(tissues), dtype=np.float32)[code]
    names = [features.names[i] for i in others] + [f"tissue_{tissue}" for tissue in tissues]
    return tuple(names), np.hstack([binary, one_of])


def _split(x: np.ndarray, y: np.ndarray) -> tuple[Split, Split]:
    order = np.random.default_rng(_SEED).permutation(len(x))
    held_out = round(_TEST_SHARE * len(x))
    train, test = order[held_out:], order[:held_out]
    return Split(x[train], y[train]), Split(x[test], y[test])


def _stand_in() -> DrugResponses:
    with requires_extra("data"):
        from sklearn import datasets

    diabetes = datasets.load_diabetes()
    x, y = (diabetes.data > 0).astype(np.float32), np.log(diabetes.target)
    train, test = _split(x, y.astype(np.float32)[:, None])
    return DrugResponses(
        name="diabetes",
        train=train,
        test=test,
        source="scikit-learn diabetes (stand-in)",
        is_stand_in=True,
        num_classes=0,
        note="This is not GDSC, which was not available: scikit-learn's diabetes data (442"
        " patients; ten measurements, above the mean or not; log of the disease's progression)"
        " stand in for it, so no number here is one of drug sensitivity.",
        feature_names=tuple(diabetes.feature_names),
        drug_names=("progression",),
    )
