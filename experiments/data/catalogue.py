"""Table of the data sets: files, reading functions and stand-in data.

``registry.txt`` holds the checksums and addresses of the files.
"""

from typing import Any, Literal, overload

from dpjax._checks import check_choice
from dpjax._extras import requires_extra
from experiments.data import images, ratings, reviews, tables
from experiments.data.base import Dataset, DrugResponses, RatingsDataset, RegressionDataset
from experiments.data.sources import TFDS, DataSet, Form
from experiments.data.tables import Scaling

_IDX = [
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]
_FACES = images.of_files(
    "olivetti_faces",
    "Olivetti faces (Olivetti Research Laboratory, Cambridge; the first 7 of each person train)",
    images.read_faces,
    num_classes=40,
)

DATA_SETS = {
    "abalone": DataSet(
        title="Abalone",
        about="""8 attributes of 4,177 animals, 3,341 for training; label 1 is more than nine rings,
        an age above the median. The first four fifths train, as in the published code. W. Nash et
        al., UCI Machine Learning Repository, 1994, doi:10.24432/C55C7W; task and coding of Jälkö,
        Dikmen, Honkela, "Differentially private variational inference for non-conjugate models",
        2017. Scaling "published" is a leak that no ε includes; "public" is none.""",
        folder="abalone",
        forms=(Form(["abalone.data"], tables.read_abalone),),
        stand_in=tables.diabetes_above_median,
    ),
    "abalone_rings": DataSet(
        title="Abalone",
        about="""4,177 animals by 8 attributes, with the number of rings of each, which grows with
        its age; 3,342 for training, in a split of our own. The data are those of "abalone".
        Privacy: the ranges are round numbers by general knowledge of the animals.""",
        folder="abalone",
        forms=(Form(["abalone.data"], tables.read_abalone_rings),),
        stand_in=tables.diabetes,
    ),
    "adult": DataSet(
        title="Adult",
        about="""Income above 50,000 dollars (24 %) from 123 binary features: 32,561 training and
        16,281 test records. R. Kohavi and B. Becker (UCI), coded by J. Platt, "Fast training of
        support vector machines using sequential minimal optimization", 1998. Privacy: the features
        are quantile bins of these data; their published edges are taken as public.""",
        folder="a9a",
        forms=(Form(["a9a", "a9a.t"], tables.read_adult),),
        stand_in=tables.tumours_as_bits,
    ),
    "adult_attributes": DataSet(
        title="Adult",
        about="""Income above 50,000 dollars from 14 attributes, categories numbered: a coding that
        suits linear models badly (accuracy 81 %, against 85 % with "adult"), but that of Jälkö,
        Dikmen, Honkela, 2017, whose own coded file is not published. The 32,561 records of
        adult.data, of which the first 26,048 train: published accuracies are whole numbers of 6,513
        test records, so those of adult.test were not used. R. Kohavi and B. Becker (UCI),
        doi:10.24432/C5XW20. The scalings are as of "abalone".""",
        folder="adult",
        forms=(Form(["adult.data"], tables.read_adult_attributes),),
        stand_in=tables.tumours_as_logarithms,
    ),
    "cifar10": DataSet(
        title="CIFAR-10",
        about="""50,000 training and 10,000 test photographs of 32x32 pixels, ten classes. The JPEG
        files are lossy, which name and note say. A. Krizhevsky, "Learning multiple layers of
        features from tiny images", 2009.""",
        folder="cifar10",
        forms=(
            Form(
                ["cifar-10-binary.tar.gz"],
                images.of_files("cifar10", "CIFAR-10", images.read_cifar10),
            ),
            Form(
                ["cifar10_jpeg.npz"],
                images.of_files(
                    "cifar10 (JPEG re-encoding)", "CIFAR-10 (JPEG re-encoding)", images.read_jpegs
                ),
            ),
        ),
        stand_in=images.digits_in_colour,
        tfds=TFDS("cifar10", (50_000, 10_000), images.of_tfds("cifar10", "CIFAR-10")),
    ),
    "fashion_mnist": DataSet(
        title="Fashion-MNIST",
        about="""60,000 training and 10,000 test pictures of clothes, 28x28 pixels, ten classes. The
        original files have the names of MNIST's and are looked for in their own folder only. H.
        Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine
        learning algorithms", 2017.""",
        folder="fashion_mnist",
        forms=(
            Form(
                _IDX,
                images.of_files("fashion_mnist", "Fashion-MNIST", images.read_mnist),
                folders=("fashion_mnist",),
            ),
            Form(
                ["fashion_mnist.npz"],
                images.of_files("fashion_mnist", "Fashion-MNIST", images.read_sorted_fashion),
            ),
        ),
        stand_in=images.load_digits,
        tfds=TFDS(
            "fashion_mnist", (60_000, 10_000), images.of_tfds("fashion_mnist", "Fashion-MNIST")
        ),
    ),
    "gdsc": DataSet(
        title="GDSC",
        about="""988 cancer cell lines with 705 genomic features (270 mutations, 407 copy-number
        changes, microsatellite instability, 27 tissues) and responses to 265 drugs, a fifth of them
        missing; release 17. A random 80 % trains, in a split of our own. F. Iorio et al., "A
        landscape of pharmacogenomic interactions in cancer", Cell 2016; www.cancerrxgene.org, whose
        terms of use allow research; no copy comes with dpjax.""",
        folder="gdsc",
        forms=(
            Form(
                ["genomic_features_v17.csv.gz", "IC50_v17.csv.gz"],
                tables.read_gdsc,
                host_name="copy in gdsctools",
            ),
        ),
        stand_in=tables.diabetes_as_bits,
    ),
    "imdb": DataSet(
        title="IMDb",
        about="""25,000 training and 25,000 test reviews of 256 tokens; label 1 praises. A token is
        one of 10,000 numbers in Keras' coding: 0 pads, 1 starts a review, 2 stands for rare words,
        from 4 on are the most frequent words of the training reviews; of a long review the end is
        kept. A. Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011. Privacy: the
        vocabulary is computed from private reviews and taken as public, as Bu, Dong, Long, Su
        (2020) do; certificates are conditional on that.""",
        folder="imdb_reviews",
        forms=(
            Form(["imdb_train.jsonl.xz", "imdb_test.jsonl.xz"], reviews.read_json),
            Form(["aclImdb_v1.tar.gz"], reviews.read_archive),
        ),
        stand_in=reviews.digits_as_tokens,
        tfds=TFDS("imdb_reviews", (25_000, 25_000), reviews.read_records),
    ),
    "mnist": DataSet(
        title="MNIST",
        about="""60,000 training and 10,000 test images of handwritten digits, 28x28 pixels. TFDS
        keeps the records in an order of its own. Y. LeCun, C. Cortes, C. Burges, "The MNIST
        database of handwritten digits".""",
        folder="mnist",
        forms=(
            Form(
                _IDX,
                images.of_files("mnist", "MNIST", images.read_mnist),
            ),
        ),
        stand_in=images.load_digits,
        tfds=TFDS("mnist", (60_000, 10_000), images.of_tfds("mnist", "MNIST"), prepares=True),
    ),
    "movielens": DataSet(
        title="MovieLens",
        about="""1,000,209 ratings of films from one star (class 0) to five (class 4): 800,167 for
        training, in a random split of our own of the published sizes. 6,040 users and 3,952 films,
        numbered as published, less one. F. M. Harper and J. A. Konstan, "The MovieLens Datasets:
        History and Context", 2015; its licence does not allow to pass the data on.""",
        folder="movielens",
        forms=(
            Form(
                ["ratings.dat"],
                ratings.read_movielens,
                folders=("movielens", "ml-1m", ""),
            ),
            Form(
                ["ml-1m.zip"],
                ratings.read_movielens,
                folders=("movielens", "ml-1m", ""),
            ),
        ),
        stand_in=ratings.load_restaurants,
    ),
    "olivetti_faces": DataSet(
        title="Olivetti faces",
        about="""Ten pictures of each of 40 people, 64x64 pixels. The first seven of each train, the
        proportion of Fredrikson, Jha, Ristenpart, "Model inversion attacks that exploit confidence
        information and basic countermeasures", 2015; which seven they took is not published.
        Olivetti Research Laboratory, Cambridge; F. Samaria, A. Harter, "Parameterisation of a
        stochastic model for human face identification", 1994; at 64x64 by S. Roweis.""",
        folder="faces",
        forms=(
            Form(["olivettifaces.mat"], _FACES),
            Form(
                ["5976027"],
                _FACES,
                host_name="scikit-learn's copy at figshare",
            ),
        ),
        stand_in=images.few_digits,
    ),
    "svhn": DataSet(
        title="SVHN",
        about="""73,257 training and 26,032 test photographs of the digits of house numbers, cropped
        to 32x32 pixels; the label is the digit in the centre. The first 10,000 test images, split
        8,000 / 2,000 in their order, do as well, which name and note say. Y. Netzer et al.,
        "Reading digits in natural images with unsupervised feature learning", 2011.""",
        folder="svhn",
        forms=(
            Form(
                ["train_32x32.mat", "test_32x32.mat"],
                images.of_files("svhn", "SVHN, cropped digits", images.read_svhn),
            ),
            Form(["svhn_test_first10000_rgb.npz"], images.read_svhn_subset),
        ),
        stand_in=images.digits_in_colour,
        tfds=TFDS("svhn_cropped", (73_257, 26_032), images.of_tfds("svhn", "SVHN, cropped digits")),
    ),
    "wine": DataSet(
        title="Wine Quality",
        about="""4,898 white wines by 11 measurements, with a grade from 0 to 10 each; 3,918 for
        training, in a split of our own. Some wines are listed several times, also across the split.
        P. Cortez et al., "Modeling wine preferences by data mining from physicochemical
        properties", 2009; UCI Machine Learning Repository, doi:10.24432/C56S3T. Privacy: the ranges
        are round numbers by general knowledge of wine and European rules.""",
        folder="wine_quality",
        forms=(Form(["winequality-white.csv"], tables.read_wine),),
        stand_in=tables.diabetes,
    ),
}


@overload
def load_data(name: Literal["gdsc"], *, stand_in: bool = ...) -> DrugResponses: ...
@overload
def load_data(name: Literal["movielens"], *, stand_in: bool = ...) -> RatingsDataset: ...
@overload
def load_data(
    name: Literal["abalone_rings", "wine"], *, stand_in: bool = ...
) -> RegressionDataset: ...
@overload
def load_data(name: str, *, stand_in: bool = ..., scaling: Scaling = ...) -> Dataset: ...
def load_data(name: str, *, stand_in: bool = False, **options: Any) -> Any:
    """Returns a data set of `DATA_SETS`, from the first of its sources that has it, or the digits.

    The sources are, in this order, the raw files in ``DPJAX_DATA_DIR``, the copy prepared by TFDS
    in ``$TFDS_DATA_DIR``, and the host's files, which are kept in ``$XDG_CACHE_HOME/dpjax``.

    Args:
      name: of the data set, or ``"digits"``, which come with dpjax.
      stand_in: whether other data of the same kind are returned where no source is available, with
        ``is_stand_in`` set and a note that says so. Results on them are not results on the data
        set.
      scaling: of "abalone" and "adult_attributes": ``"published"`` (default) standardises the
        columns with the statistics of all records, ``"public"`` scales them by public ranges.

    Raises:
      ValueError: for an unknown name or scaling; the error lists those that there are.
      FileNotFoundError: if no source is available and ``stand_in`` is False; the error says where
        the data were looked for. Or if ``DPJAX_DATA_DIR`` holds some of the files and not the
        others.
      ImportError: if a library that reads the data is not installed; the error names it.
      CorruptedFileError: if a source has damaged data; no other source is tried then.

    >>> load_data("digits").num_classes
    10
    """
    check_choice("name", name, ("digits", *DATA_SETS))
    if "scaling" in options:
        check_choice("scaling", options["scaling"], ("published", "public"))
    if name == "digits":
        return images.load_digits()
    with requires_extra("data"):
        return DATA_SETS[name].load(stand_in=stand_in, **options)


def load_stand_in(name: str) -> Any:
    """Returns the data that stand in for a data set of `DATA_SETS`."""
    return DATA_SETS[name].load_stand_in()
