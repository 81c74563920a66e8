"""What is peculiar to a table: its values, scalings, ranges and splits, and the real records."""

import io
from typing import Any

import numpy as np
import pytest
from helpers.raw_files import ABALONE, ABALONES, RESPONSES, WINES, Tiny, gdsc, write
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from experiments.data import (
    DATA_SETS,
    CorruptedFileError,
    Dataset,
    RegressionDataset,
    load_data,
    load_stand_in,
    tables,
)
from experiments.data.tables import parse_libsvm


def together(found: Dataset) -> np.ndarray:
    return np.concatenate([found.train.x, found.test.x])


@pytest.mark.parametrize(
    ("name", "file", "damaged", "fault"),
    [
        ("abalone", "abalone.data", b"X,1,2,3,4,5,6,7,8\n", "'X'"),
        ("abalone", "abalone.data", b"M,?,2,3,4,5,6,7,8\n", "could not convert"),
        ("abalone", "abalone.data", b"M,1,2\nF,3,4\n", "no table of 9 columns"),
        ("adult", "a9a", b"-1 3:1\n+1 124:1\n", "a9a, line 2: '124:1' found"),
        ("adult_attributes", "adult.data", b"39, Private\n", "no table of 15 columns"),
        ("wine", "winequality-white.csv", b"a;b\n1;2", "has 2 columns, 12 expected"),
        ("wine", "winequality-white.csv", b"a;b\n1;x", "could not convert"),
        (
            "gdsc",
            "IC50_v17.csv.gz",
            gdsc(RESPONSES.replace("61,", "62,"))["IC50_v17.csv.gz"],
            "do not list the same cell lines",
        ),
        ("gdsc", "IC50_v17.csv.gz", b"no gzip", "Not a gzipped file"),
    ],
)
def test_load_data_refuses_other_tables(
    places: Any, put: Any, name: str, file: str, damaged: bytes, fault: str
) -> None:
    folder = put(places.data, name)
    write(folder, {file: damaged})
    places.publish(DATA_SETS[name].folder, Tiny({file: damaged}))
    with pytest.raises(CorruptedFileError, match=rf"{file}.* cannot be read: .*{fault}"):
        load_data(name)


def test_parse_libsvm_reads_what_another_library_writes() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 7)) * (rng.random((20, 7)) < 0.4)
    labels = rng.integers(0, 2, 20) * 2.0 - 1
    file = io.BytesIO()
    dump_svmlight_file(features, labels, file, zero_based=False)
    found, found_labels = parse_libsvm(file.getvalue(), num_features=7)
    np.testing.assert_array_equal(found, features.astype(np.float32), strict=True)
    np.testing.assert_array_equal(found_labels, labels.astype(np.float32), strict=True)
    file.seek(0)
    other, _ = load_svmlight_file(file, n_features=7, zero_based=False)
    np.testing.assert_allclose(found, other.toarray(), rtol=1e-6)


def test_parse_libsvm_reads_records_without_a_feature_or_line_end() -> None:
    features, labels = parse_libsvm(b"-1 \r\n+1 2:1", num_features=2)
    assert features.tolist() == [[0, 0], [0, 1]]
    assert labels.tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "could not convert string to float: ''"),
        (b"one 1:1", "could not convert string to float: 'one'"),
        (b"nan 1:1", "nan found, a finite number expected"),
        (b"+1 3:1", "'3:1' found, an ascending index from 1 to 2 and a value expected"),
        (b"+1 0:1", "'0:1' found"),
        (b"+1 -1:1", "'-1:1' found"),
        (b"+1 2:1 1:1", "'1:1' found"),
        (b"+1 1:1 1:1", "'1:1' found"),
        (b"+1 x:1", "'x:1' found"),
        (b"+1 1", "could not convert string to float: ''"),
        (b"+1 1:", "could not convert string to float: ''"),
        (b"+1 1:inf", "inf found"),
        (b"+1 1:\xff", "could not convert string to float"),
    ],
)
def test_parse_libsvm_names_a_damaged_line(line: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match="line 2") as error:
        parse_libsvm(b"-1 1:1\n" + line + b"\n-1 2:1\n", num_features=2)
    assert str(error.value).startswith(f"line 2: {fault}")


def test_encode_exponents(places: Any, offline: None) -> None:
    values = np.array([[0.0, 0.003, 0.3, 1.0, 1.99, 2.0, 5000.0, 1e9]])
    octaves = tables.encode_exponents(values).reshape(8, 21).argmax(axis=1) - 8
    assert octaves.tolist() == [-8, -8, -2, 0, 0, 1, 12, 12]
    found = load_data("adult", stand_in=True)
    assert (found.name, len(found.train.y), len(found.test.y)) == ("breast_cancer", 455, 114)
    assert set(np.unique(found.train.x)) == {0, 1}
    assert (together(found).sum(axis=1) == 30).all()


def test_adult_attributes_are_numbered_and_scaled(places: Any, put: Any) -> None:
    put(places.data, "adult_attributes")
    found = load_data("adult_attributes")
    x = together(found)
    assert (x.shape, x.dtype) == ((5, 14), np.float32)
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([0, 1, 0, 1], [0])
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose((x**2).mean(axis=0), 1.0, rtol=1e-5)
    workclass = np.array([2, 0, 2, 1, 2])  # "?", "Local-gov", "Private"
    np.testing.assert_allclose(x[:, 1], (workclass - 1.4) / workclass.std(), rtol=1e-5)
    assert "a leak that ε does not include" in found.note

    x = together(load_data("adult_attributes", scaling="public"))
    np.testing.assert_allclose(x[:, 9], [-np.sqrt(3), np.sqrt(3)] * 2 + [-np.sqrt(3)], rtol=1e-6)
    np.testing.assert_allclose(x[0, 0], (39 - 41.5) / (47 / np.sqrt(12)), rtol=1e-5)


def test_abalone_is_coded_and_scaled(places: Any, put: Any) -> None:
    put(places.data, "abalone")
    found = load_data("abalone")
    x = together(found)
    assert (x.shape, x.dtype, found.train.y.dtype) == ((5, 8), np.float32, np.int32)
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([1, 0, 1, 0], [0])
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose((x**2).mean(axis=0), 1.0, rtol=1e-5)
    length = np.array([row[1] for row in ABALONES])
    np.testing.assert_allclose(x[:, 1], (length - length.mean()) / length.std(), rtol=1e-5)


def test_public_scaling_depends_on_no_other_record(places: Any, put: Any) -> None:
    folder = put(places.data, "abalone")
    whole = together(load_data("abalone", scaling="public"))
    sexes = [-np.sqrt(3), 0.0, np.sqrt(3)]
    np.testing.assert_allclose(whole[:, 0], [sexes[code] for code in (2, 0, 1, 2, 0)], rtol=1e-6)

    changed = ABALONE.contents["abalone.data"].replace(b"0.455", b"9.999")
    write(folder, {"abalone.data": changed})
    places.publish("abalone", Tiny({"abalone.data": changed}))
    found = together(load_data("abalone", scaling="public"))
    np.testing.assert_array_equal(found[1:], whole[1:])
    # The power check: the published standardisation does.
    assert np.ptp(together(load_data("abalone"))[1:, 1]) < 0.2


@pytest.mark.parametrize("scaling", ["published", "public"])
def test_stand_ins_are_scaled_too(places: Any, offline: None, scaling: Any) -> None:
    diabetes = load_data("abalone", scaling=scaling, stand_in=True)
    assert (diabetes.train.x.shape, diabetes.test.x.shape) == ((353, 10), (89, 10))
    assert diabetes.train.y.sum() + diabetes.test.y.sum() == 221
    tumours = load_data("adult_attributes", scaling=scaling, stand_in=True)
    assert (tumours.train.x.shape, tumours.test.x.shape) == ((455, 30), (114, 30))
    assert np.isfinite(together(tumours)).all()
    if scaling == "public":
        assert (np.abs(together(diabetes)) <= 1.74).mean(axis=0).min() > 0.8


def common_share(found: RegressionDataset) -> np.ndarray:
    low, high = np.array(found.feature_ranges).T
    return ((found.train.x >= low) & (found.train.x <= high)).mean(axis=0)


def test_wine_and_its_stand_in_are_in_their_ranges(places: Any, put: Any, offline: None) -> None:
    stand_in = load_data("wine", stand_in=True)
    assert (stand_in.train.x.shape, stand_in.test.x.shape) == ((354, 10), (88, 10))
    assert len(stand_in.feature_names) == len(stand_in.feature_ranges) == 10
    assert common_share(stand_in).min() > 0.8
    assert stand_in.target_range == (0.0, 300.0)

    put(places.data, "wine")
    found = load_data("wine")
    x, y = together(found), np.concatenate([found.train.y, found.test.y])
    assert (x.dtype, y.dtype, len(found.test.y)) == (np.float32, np.float32, 1)
    table = np.column_stack([x, y])[np.argsort(y)]
    np.testing.assert_array_equal(table, np.array(WINES, np.float32))
    assert (found.num_classes, found.target_range) == (0, (4.0, 8.0))


def test_gdsc_matches_cell_lines_with_responses(places: Any, put: Any) -> None:
    put(places.data, "gdsc")
    found = load_data("gdsc")
    names = ("MSI_FACTOR", "TP53_mut", "gain_A", "tissue_bone", "tissue_lung", "tissue_skin")
    assert (found.feature_names, found.drug_names) == (names, ("Drug_1_IC50", "Drug_9_IC50"))
    assert [len(part.y) for part in (found.train, found.test)] == [4, 1]
    records = {
        (0, 0, 0, 1, 0, 0): (1, 10),
        (0, 1, 0, 0, 1, 0): (2, 20),
        (0, 0, 1, 0, 1, 0): (3, np.nan),
        (0, 0, 1, 0, 0, 1): (np.nan, 40),
        (1, 1, 0, 0, 0, 1): (5, 50),
    }
    x, y = together(found), np.concatenate([found.train.y, found.test.y])
    assert {tuple(row) for row in x} == set(records)
    for features, responses in zip(x, y, strict=True):
        np.testing.assert_array_equal(responses, records[tuple(features)])
    stand_in = load_stand_in("gdsc")
    shapes = stand_in.train.x.shape, stand_in.test.y.shape
    assert (stand_in.name, *shapes) == ("diabetes", (354, 10), (88, 1))
    assert len(stand_in.feature_names) == 10
    assert set(np.unique(stand_in.train.x)) == {0, 1}
    assert np.isfinite(stand_in.train.y).all()


@pytest.mark.slow
def test_real_adult(real: Any) -> None:
    found = real("adult", "a9a.t")
    assert (found.train.x.shape, found.test.x.shape) == ((32_561, 123), (16_281, 123))
    assert found.train.x.sum(dtype=float) == 451_592
    assert set(np.unique(found.train.x)) == {0, 1}
    assert (found.train.y.sum(), found.test.y.sum()) == (7_841, 3_846)


def test_real_adult_attributes(real: Any) -> None:
    found = real("adult_attributes", "adult.data")
    assert (found.train.x.shape, found.test.x.shape) == ((26_048, 14), (6_513, 14))
    assert found.train.y.sum() + found.test.y.sum() == 7_841
    categories = {i: n for i, n in enumerate(tables._ADULT.values()) if isinstance(n, int)}
    x = together(found)
    assert {column: len(np.unique(x[:, column])) for column in categories} == categories


def test_real_abalone(real: Any) -> None:
    found = real("abalone", "abalone.data")
    assert (found.train.x.shape, found.test.x.shape) == ((3_341, 8), (836, 8))
    assert (found.train.y.sum(), found.test.y.sum()) == (1_689, 392)
    codes, counts = np.unique(together(found)[:, 0], return_counts=True)
    assert counts.tolist() == [1_342, 1_307, 1_528]
    sex = np.repeat([0, 1, 2], counts)
    np.testing.assert_allclose(np.diff(codes), 1 / sex.std(), rtol=1e-5)


def test_real_rings_of_abalone(real: Any) -> None:
    found = real("abalone_rings", "abalone.data")
    rings = np.concatenate([found.train.y, found.test.y])
    assert (len(found.train.y), len(rings), found.target_range) == (3_342, 4_177, (4.0, 16.0))
    assert np.bincount(rings.astype(int))[[1, 9, 29]].tolist() == [1, 689, 1]
    assert common_share(found).min() > 0.8


def test_real_wine(real: Any) -> None:
    found = real("wine", "winequality-white.csv")
    assert (found.train.x.shape, found.test.x.shape) == ((3_918, 11), (980, 11))
    grades = np.concatenate([found.train.y, found.test.y])
    assert np.bincount(grades.astype(int)).tolist() == [0, 0, 0, 20, 163, 1457, 2198, 880, 175, 5]
    assert common_share(found).min() > 0.8


def test_real_gdsc(real: Any) -> None:
    found = real("gdsc", "IC50_v17.csv.gz")
    x, y = (np.concatenate(parts) for parts in zip(found.train, found.test, strict=True))
    assert (x.shape, y.shape) == ((988, 705), (988, 265))
    assert np.isfinite(y).sum() == 213_787
    assert set(np.unique(x)) == {0, 1}
    counts = dict(zip(found.feature_names, x.sum(axis=0), strict=True))
    assert (counts["TP53_mut"], counts["MSI_FACTOR"], counts["tissue_leukemia"]) == (650, 60, 82)
    tissues = [count for name, count in counts.items() if name.startswith("tissue_")]
    assert (len(tissues), sum(tissues)) == (27, 988)
    # That lines are matched with responses: a BRAF inhibitor works where BRAF is mutated.
    drug, gene = found.drug_names.index("Drug_1036_IC50"), found.feature_names.index("BRAF_mut")
    assert np.nanmean(y[x[:, gene] == 1, drug]) < np.nanmean(y[x[:, gene] == 0, drug]) - 1
