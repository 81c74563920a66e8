"""LIBSVM's sparse text, whole and damaged."""

import io

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from experiments.data import CorruptedFileError, read_libsvm


def test_what_another_library_writes_is_read_back() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 7)) * (rng.random((20, 7)) < 0.4)
    labels = rng.integers(0, 2, 20) * 2.0 - 1
    file = io.BytesIO()
    dump_svmlight_file(features, labels, file, zero_based=False)
    found, found_labels = read_libsvm(file.getvalue(), num_features=7)
    np.testing.assert_array_equal(found, features.astype(np.float32), strict=True)
    np.testing.assert_array_equal(found_labels, labels.astype(np.float32), strict=True)
    file.seek(0)
    other, _ = load_svmlight_file(file, n_features=7, zero_based=False)
    np.testing.assert_allclose(found, other.toarray(), rtol=1e-6)


def test_a_record_may_have_no_feature_and_no_line_end() -> None:
    features, labels = read_libsvm(b"-1 \r\n+1 2:1", num_features=2)
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
def test_a_damaged_line_is_named(line: bytes, fault: str) -> None:
    data = b"-1 1:1\n" + line + b"\n-1 2:1\n"
    with pytest.raises(CorruptedFileError) as error:
        read_libsvm(data, num_features=2, where="folder/a9a")
    assert str(error.value).startswith(f"folder/a9a, line 2: {fault}")
