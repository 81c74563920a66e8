"""GDSC from each of its sources, all tiny and made up, and the real files where at hand."""

import gzip
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, published, write

from experiments.data import CorruptedFileError, gdsc
from experiments.data.gdsc import DrugResponses, load_gdsc

FEATURES = """COSMIC_ID,TISSUE_FACTOR,MSI_FACTOR,TP53_mut,gain_A
7,lung,0,1,0
100,skin,1,1,0
23,lung,0,0,1
5,bone,0,0,0
61,skin,0,0,1
"""
# In another order of the lines; the drugs' values are 1 to 5 and 10 to 50 by ascending id.
RESPONSES = """COSMIC_ID,Drug_1_IC50,Drug_9_IC50
100,5,50
5,1,10
23,3,
7,2,20
61,,40
"""
NAMES = ("MSI_FACTOR", "TP53_mut", "gain_A", "tissue_bone", "tissue_lung", "tissue_skin")
RECORDS = {
    (0, 0, 0, 1, 0, 0): (1, 10),
    (0, 1, 0, 0, 1, 0): (2, 20),
    (0, 0, 1, 0, 1, 0): (3, np.nan),
    (0, 0, 1, 0, 0, 1): (np.nan, 40),
    (1, 1, 0, 0, 0, 1): (5, 50),
}


def contents(features: str = FEATURES, responses: str = RESPONSES) -> dict[str, bytes]:
    texts = {"genomic_features_v17.csv.gz": features, "IC50_v17.csv.gz": responses}
    return {name: gzip.compress(text.encode(), mtime=0) for name, text in texts.items()}


def publish(patch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    patch.setattr(gdsc, "_FILES", published(files))


@pytest.fixture
def tiny(places: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Publishes five cell lines in place of 988."""
    publish(monkeypatch, contents())
    return places


def assert_tiny(found: DrugResponses) -> None:
    assert (found.feature_names, found.drug_names) == (NAMES, ("Drug_1_IC50", "Drug_9_IC50"))
    assert [len(part.y) for part in (found.train, found.test)] == [4, 1]
    assert {a.dtype.name for a in (*found.train, *found.test)} == {"float32"}
    x, y = (np.concatenate(parts) for parts in zip(found.train, found.test, strict=True))
    assert {tuple(row) for row in x} == set(RECORDS)
    for features, responses in zip(x, y, strict=True):
        np.testing.assert_array_equal(responses, RECORDS[tuple(features)])
    assert (found.name, found.is_stand_in, found.num_classes) == ("gdsc", False, 0)


@pytest.mark.parametrize("below", ["gdsc", "."])
def test_raw_files_come_first_and_lines_are_matched(tiny: Any, below: str) -> None:
    write(tiny.data / below, contents())
    found = load_gdsc()
    assert_tiny(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"


def test_a_missing_raw_file_is_an_error(tiny: Any) -> None:
    (write(tiny.data / "gdsc", contents()) / "IC50_v17.csv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"IC50_v17\.csv\.gz missing"):
        load_gdsc()


@pytest.mark.parametrize(("cut", "fault"), [(1, "truncated"), (0, "corrupted")])
def test_other_bytes_are_an_error(tiny: Any, cut: int, fault: str) -> None:
    path = write(tiny.data / "gdsc", contents()) / "IC50_v17.csv.gz"
    data = path.read_bytes()[::-1]
    path.write_bytes(data[: len(data) - cut])
    with pytest.raises(CorruptedFileError, match=rf"IC50_v17\.csv\.gz is {fault}"):
        load_gdsc()


def test_different_lines_are_an_error(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = contents(responses=RESPONSES.replace("61,", "62,"))
    publish(monkeypatch, other)
    write(tiny.data, other)
    with pytest.raises(CorruptedFileError, match="do not list the same cell lines"):
        load_gdsc()


def test_the_host_comes_second(tiny: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gdsc, "_HOST", host.address)
    write(host.folder, contents())
    found = load_gdsc()
    assert_tiny(found)
    assert found.source == "copy in gdsctools"
    assert "holds no raw file of gdsc" in found.note
    monkeypatch.setattr(gdsc, "_HOST", "http://absent.invalid/")
    assert_tiny(load_gdsc())  # from the cache


def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any) -> None:
    found = load_gdsc()
    assert (found.name, found.is_stand_in) == ("diabetes", True)
    assert found.note.startswith("This is not GDSC")
    assert caplog.messages == [found.note]
    assert found.train.x.shape == (354, 10)
    assert found.test.y.shape == (88, 1)
    assert len(found.feature_names) == 10
    assert set(np.unique(found.train.x)) == {0, 1}
    assert np.isfinite(found.train.y).all()


@pytest.fixture(scope="module")
def real() -> DrugResponses:
    """The real GDSC, from raw files already on this machine."""
    return load_real(load_gdsc, "gdsc", "IC50_v17.csv.gz")


def test_the_real_cell_lines(real: DrugResponses) -> None:
    x, y = (np.concatenate(parts) for parts in zip(real.train, real.test, strict=True))
    assert (x.shape, y.shape) == ((988, 705), (988, 265))
    assert np.isfinite(y).sum() == 213_787
    assert set(np.unique(x)) == {0, 1}
    counts = dict(zip(real.feature_names, x.sum(axis=0), strict=True))
    assert (counts["TP53_mut"], counts["MSI_FACTOR"], counts["tissue_leukemia"]) == (650, 60, 82)
    tissues = [count for name, count in counts.items() if name.startswith("tissue_")]
    assert (len(tissues), sum(tissues)) == (27, 988)
    # That lines are matched with responses: a BRAF inhibitor works where BRAF is mutated.
    drug, gene = real.drug_names.index("Drug_1036_IC50"), real.feature_names.index("BRAF_mut")
    assert np.nanmean(y[x[:, gene] == 1, drug]) < np.nanmean(y[x[:, gene] == 0, drug]) - 1
