"""Every data set from each of its sources: what they hold, their order, and damaged files."""

import re
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.raw_files import FORMS, assert_read, write

from experiments.data import DATA_SETS, CorruptedFileError, Dataset, load_data, sources
from experiments.data.sources import DataSet, Form, UnavailableError, fetch_file

# pooch leaves the answer of a failed download open until it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ALL = [(name, number) for name, forms in FORMS.items() for number in range(len(forms))]
DOWNLOADED = [name for name, forms in FORMS.items() if any(tiny.downloaded for tiny in forms)]


def downloaded_form(name: str) -> int:
    return next(i for i, tiny in enumerate(FORMS[name]) if tiny.downloaded)


def raw_forms(name: str) -> tuple[Form, ...]:
    """The forms whose files the tests publish with checksums."""
    return tuple(form for form in DATA_SETS[name].forms if list(form.files) != ["ratings.dat"])


def test_forms_are_those_of_the_data_sets() -> None:
    assert set(FORMS) == set(DATA_SETS)
    for name, forms in FORMS.items():
        assert [list(form.files) for form in raw_forms(name)] == [list(t.contents) for t in forms]


@pytest.mark.parametrize(("name", "form"), ALL)
@pytest.mark.parametrize("below", [None, ""])
def test_load_data_prefers_raw_files(
    places: Any, put: Any, offline: None, name: str, form: int, below: str | None
) -> None:
    if below == "" and raw_forms(name)[form].folders == (DATA_SETS[name].folder,):
        pytest.skip("its files are looked for in its own folder only")
    put(places.data, name, form, below)
    found = load_data(name)
    assert_read(found, FORMS[name][form])
    assert (found.source, found.is_stand_in) == ("raw files in DPJAX_DATA_DIR", False)
    assert "not available:" not in found.note


@pytest.mark.parametrize("name", [name for name, forms in FORMS.items() if len(forms) > 1])
def test_load_data_prefers_the_first_form(places: Any, put: Any, name: str) -> None:
    for form in range(len(FORMS[name])):
        put(places.data, name, form)
    (places.data / DATA_SETS[name].folder / next(iter(FORMS[name][1].contents))).write_bytes(b"?")
    assert_read(load_data(name), FORMS[name][0])


@pytest.mark.parametrize(
    ("name", "form", "number"),
    [(n, f, i) for n, f in ALL for i in range(len(FORMS[n][f].contents))],
)
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-9] + b"?" * 9])
def test_load_data_refuses_other_bytes(
    places: Any, put: Any, name: str, form: int, number: int, damage: Any
) -> None:
    """A host with good files, and other sources, are not asked then."""
    put(places.host, name, downloaded_form(name))
    file, data = list(FORMS[name][form].contents.items())[number]
    path = put(places.data, name, form) / file
    path.write_bytes(damage(data))
    expected = sources.published_files().registry[f"{DATA_SETS[name].folder}/{file}"]
    allowed = f"is not the published file: .* sha256 {expected} expected; delete it"
    with pytest.raises(CorruptedFileError, match=f"{re.escape(str(path))} {allowed}"):
        load_data(name)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (n, i)
        for n, f in ALL
        if f == 0 and len(FORMS[n][0].contents) > 1
        for i in range(len(FORMS[n][0].contents))
    ],
)
def test_load_data_names_a_missing_raw_file(places: Any, put: Any, name: str, number: int) -> None:
    missing = list(FORMS[name][0].contents)[number]
    (put(places.data, name) / missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"holds only a part of .*: {missing} missing"):
        load_data(name)


def test_load_data_prefers_a_folder_of_all_files(places: Any, put: Any) -> None:
    put(places.data, "mnist", below="")
    (put(places.data, "mnist") / "train-images-idx3-ubyte.gz").unlink()
    assert_read(load_data("mnist"), FORMS["mnist"][0])


@pytest.mark.parametrize("name", DOWNLOADED)
def test_load_data_downloads_after_the_other_sources(
    places: Any, put: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(places.host, name, downloaded_form(name))
    found = load_data(name)
    assert_read(found, FORMS[name][downloaded_form(name)])
    hosts = ("original host", "copy in gdsctools", "scikit-learn's copy at figshare")
    assert found.source in hosts
    assert f"holds no raw file of {DATA_SETS[name].folder}" in found.note
    assert ("prepared by TFDS" in found.note) == (DATA_SETS[name].tfds is not None)
    assert kept(places) == FORMS[name][downloaded_form(name)].contents

    # What was downloaded serves offline.
    for path in folder.iterdir():
        path.unlink()
    assert_read(load_data(name), FORMS[name][downloaded_form(name)])


def kept(places: Any) -> dict[str, bytes]:
    """Everything in the cache, temporary files included."""
    return {p.name: p.read_bytes() for p in places.cache.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", DOWNLOADED)
@pytest.mark.parametrize("fault", ["altered", "cut"])
def test_load_data_refuses_other_bytes_of_the_host(
    places: Any, put: Any, name: str, fault: str
) -> None:
    file = next(iter(FORMS[name][downloaded_form(name)].contents))
    path = put(places.host, name, downloaded_form(name)) / file
    if fault == "cut":
        places.cut.add(file)
    else:
        path.write_bytes(path.read_bytes()[::-1])
    message = "is not the published file" if fault == "altered" else "is truncated"
    with pytest.raises(CorruptedFileError, match=rf"http://127.0.0.1:\d+/.*/{file} {message}"):
        load_data(name)
    assert kept(places) == {}


def test_load_data_downloads_missing_files_alone(places: Any, put: Any) -> None:
    put(places.host, "mnist")
    fetch_file("mnist/train-images-idx3-ubyte.gz")
    (places.host / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    assert_read(load_data("mnist"), FORMS["mnist"][0])


def test_load_data_checks_a_cached_file_each_time(places: Any, put: Any, offline: None) -> None:
    (put(places.cache, "mnist") / "t10k-images-idx3-ubyte.gz").write_bytes(b"rotten")
    with pytest.raises(CorruptedFileError, match=r"t10k-images-idx3-ubyte\.gz .*6 bytes.*delete"):
        load_data("mnist")


def test_load_data_downloads_a_damaged_cached_file_again(places: Any, put: Any) -> None:
    put(places.host, "mnist")
    (put(places.cache, "mnist") / "t10k-images-idx3-ubyte.gz").write_bytes(b"rotten")
    assert_read(load_data("mnist"), FORMS["mnist"][0])
    assert kept(places) == FORMS["mnist"][0].contents


def test_load_data_leaves_no_file_after_a_crash(
    places: Any, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(places.host, "wine")

    def crash(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.move", crash)
    with pytest.raises(KeyboardInterrupt):
        load_data("wine")
    assert kept(places) == {}


def test_fetch_file_has_the_reason_of_a_failure(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match=r"a9a could not be downloaded: .*404"):
        fetch_file("a9a/a9a")
    monkeypatch.setattr(sources, "_TIMEOUT", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a9a"
        sources.REGISTRY.write_text(f"a9a/a9a {'0' * 64} {url}\n")
        with pytest.raises(UnavailableError, match=r"could not be downloaded: timed out"):
            fetch_file("a9a/a9a")


def test_fetch_file_into_a_cache_that_cannot_be_written(places: Any, put: Any) -> None:
    put(places.host, "wine")
    places.cache.parent.mkdir(parents=True)
    places.cache.write_text("a file where the folder should be")
    with pytest.raises(UnavailableError, match="could not be downloaded"):
        fetch_file("wine_quality/winequality-white.csv")


@pytest.mark.parametrize("name", DATA_SETS)
def test_load_data_offline_is_a_stand_in_that_says_so(
    places: Any, offline: None, caplog: Any, name: str
) -> None:
    found = load_data(name, stand_in=True)
    assert found.is_stand_in
    assert found.source.endswith("(stand-in)")
    assert found.note.startswith(f"This is not {DATA_SETS[name].title}, which was not available")
    assert f"holds no raw file of {DATA_SETS[name].folder}" in found.note
    assert "could not be downloaded: offline" in found.note
    assert caplog.messages == [found.note]
    assert found.train.x.shape[1:] == found.test.x.shape[1:]
    assert {len(part.x) == len(part.y) > 0 for part in (found.train, found.test)} == {True}


@pytest.mark.parametrize("name", DATA_SETS)
def test_load_data_offline_is_an_error_that_says_where_it_looked(
    places: Any, offline: None, caplog: Any, name: str
) -> None:
    data_set = DATA_SETS[name]
    with pytest.raises(FileNotFoundError) as raised:
        load_data(name)
    message = str(raised.value)
    assert message.startswith(f"{data_set.title} is not available: DPJAX_DATA_DIR={places.data} ")
    assert ("prepared by TFDS" in message) == (data_set.tfds is not None)
    assert re.search(r"http://127\.0\.0\.1:\d+/.* could not be downloaded: offline", message)
    assert f"folder {data_set.folder!r} of its files ({data_set.forms[0].files[0]}" in message
    assert "stand_in=True" in message
    assert caplog.messages == []


def test_stand_ins_do_not_replace_data_that_are_there_or_damaged(places: Any, put: Any) -> None:
    path = put(places.data, "wine")
    assert not load_data("wine", stand_in=True).is_stand_in
    (path / "winequality-white.csv").write_bytes(b"?")
    with pytest.raises(CorruptedFileError, match="is not the published file"):
        load_data("wine", stand_in=True)


def test_load_data_expands_the_home_folder(
    places: Any, put: Any, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(places.data, "wine")
    monkeypatch.setenv("HOME", str(places.data.parent))
    monkeypatch.setenv("DPJAX_DATA_DIR", "~/data")
    assert load_data("wine").source == "raw files in DPJAX_DATA_DIR"
    monkeypatch.delenv("XDG_CACHE_HOME")
    cache = Path(sources.published_files().path)
    assert cache == places.data.parent / ".cache" / "dpjax"
    monkeypatch.setenv("DPJAX_DATA_DIR", "")
    assert "DPJAX_DATA_DIR is not set" in load_data("wine", stand_in=True).note


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), EOFError("odd")])
def test_load_names_the_files_that_a_reader_refuses(places: Any, error: Exception) -> None:
    def read(paths: list[Path], source: str) -> Dataset:
        raise error

    write(places.data, {"one": b"1", "two": b"2"})
    data_set = DataSet("Toy", "", "toy", (Form(["one", "two"], read),), load_data)
    with pytest.raises(CorruptedFileError, match=r"data/one or .*data/two cannot be read: .*odd"):
        data_set.load()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, {}, "name must be one of 'digits', 'abalone'") for name in ("MNIST", None, [])),
        ("abalone", {"scaling": "robust"}, "scaling must be one of 'published', 'public'"),
    ],
)
def test_load_data_refuses(name: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(name, **options)


# Where TFDS, or scikit-learn, registers the files: the checksums, and the addresses, are theirs.
LISTINGS = {
    "mnist": "url_checksums/mnist.txt",
    "fashion_mnist": "url_checksums/fashion_mnist.txt",
    "cifar10": "url_checksums/cifar10.txt",
    "movielens": "url_checksums/movielens.txt",
    "imdb": "datasets/imdb_reviews/checksums.tsv",
    "svhn": "datasets/svhn_cropped/checksums.tsv",
}


@pytest.mark.parametrize("name", LISTINGS)
def test_registry_has_the_checksums_of_tfds(name: str) -> None:
    import tensorflow_datasets

    lines = (Path(tensorflow_datasets.__file__).parent / LISTINGS[name]).read_text().splitlines()
    registered = {url.partition("://")[2]: sha for url, _, sha, *_ in map(str.split, lines)}
    files, folder = sources.published_files(), DATA_SETS[name].folder
    urls = {key: url for key, url in files.urls.items() if key.startswith(f"{folder}/")}
    assert len(urls) >= 1
    for key, url in urls.items():
        assert registered[url.partition("://")[2]] == files.registry[key]


def test_registry_has_a_checksum_for_every_file_and_a_host_for_every_set() -> None:
    from sklearn.datasets._olivetti_faces import FACES

    files = sources.published_files()
    assert files.registry["faces/5976027"] == FACES.checksum
    assert files.urls["faces/5976027"] == FACES.url
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in files.registry.values())
    for data_set in DATA_SETS.values():
        forms = [{f"{data_set.folder}/{n}" for n in form.files} for form in data_set.forms]
        assert any(form <= set(files.urls) for form in forms)
        assert all(form <= {*files.registry, "movielens/ratings.dat"} for form in forms)
        assert len(data_set.about) > 50


def test_load_data_in_two_threads(places: Any, put: Any) -> None:
    """Rows of an experiment may load the same data set at once."""
    put(places.host, "wine")
    found: list[Dataset] = []
    threads = [threading.Thread(target=lambda: found.append(load_data("wine"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found[0].train.x, found[1].train.x)
