"""Image-classification data sets by name: `load` reads one, `fetch` downloads one.

A loaded set is validated: images and labels agree in number, labels are classes, and training and
test images have one shape. Images stay unsigned bytes; whoever takes a batch normalises it with
`scale`, `mean` and `std`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import pooch
from numpy.typing import NDArray

from ako_jobs import cifar, digits, idx
from ako_jobs.download import Progress, RemoteFile, Source, download
from ako_jobs.reading import first_existing
from dataflow.errors import DataError, suggest

LOADER = "ako_jobs.datasets:load"
"""What `operators.data.DataRef` calls `load`."""

MAX_CLASSES = 2**31
"""Most classes of a data set."""

Labelled = tuple[NDArray[np.uint8], NDArray[np.integer]]
"""Images, uint8 (n, channels, height, width), and labels, any integer type, (n,)."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Labelled images for training and testing. All arrays are read-only and C-contiguous.

    A normalised batch is `(images / scale - mean) / std`, with mean and std along the channel axis.

    Attributes:
        name: the name it was loaded by.
        train_images: uint8 (n, channels, height, width).
        train_labels: int64 (n,), 0 to n_classes - 1.
        test_images: uint8 (m, channels, height, width).
        test_labels: int64 (m,), 0 to n_classes - 1.
        n_classes: number of classes.
        scale: the brightest possible pixel; pixel / scale is in [0, 1].
        mean: per channel, of the training pixels in [0, 1].
        std: per channel, of the training pixels in [0, 1]; 0 where all are alike.
    """

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    n_classes: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_arrays(cls, name: str, train: Labelled, test: Labelled, *, n_classes: int, scale: float) -> Self:
        """Check the arrays and measure the training mean and standard deviation.

        Args:
            name: the data set's, used in errors.
            train: images uint8 (n, channels, height, width) and labels (n,).
            test: images uint8 (m, channels, height, width) and labels (m,).
            n_classes: number of classes.
            scale: the brightest possible pixel.

        Raises:
            DataError: images and labels are no such arrays, differ in number or there are none, a label is not a
                class, training and test images differ in shape, or a pixel is brighter than scale.
        """
        if isinstance(n_classes, bool) or not isinstance(n_classes, Integral) or not 1 <= n_classes <= MAX_CLASSES:
            what, fix = f"n_classes must be an integer, 1 to {MAX_CLASSES}", "have it as many as there are labels"
            raise DataError(what, got=n_classes, where=name, fix=fix)
        again = f"run `ako data fetch {name}`, in case that a file is damaged" if name in SOURCES else ""
        train_images, train_labels = _checked(train, n_classes, f"{name}, training part", again)
        test_images, test_labels = _checked(test, n_classes, f"{name}, test part", again)
        if train_images.shape[1:] != test_images.shape[1:]:
            what = f"test images must have the shape of the training images, {train_images.shape[1:]}"
            raise DataError(what, got=test_images.shape[1:], where=name, fix="use the files of one data set")
        brightest = int(max(train_images.max(), test_images.max()))
        number = isinstance(scale, Real) and not isinstance(scale, bool) and math.isfinite(scale)
        if not number or scale <= 0 or scale < brightest:
            what = f"scale, the brightest possible pixel, must be a number above 0, and {brightest} or more here"
            raise DataError(what, got=repr(scale), where=name, fix="have scale=255.0 for pixels of all bytes")
        mean, std = _moments(train_images, scale)
        return cls(name, train_images, train_labels, test_images, test_labels, int(n_classes), float(scale), mean, std)


def load(name: str, data_dir: str | Path | None = None) -> DataSet:
    """Load a data set by name: digits, mnist, fashion-mnist or cifar10.

    Args:
        name: one of NAMES. "digits" comes with the package and reads no other file.
        data_dir: the folder with the published files, or the parent of a folder `name` with them;
            None means the per-user cache that `fetch` fills.

    Raises:
        DataError: the name is unknown, or the files are missing, damaged, may not be read or do not belong together.
    """
    loader = _LOADERS.get(name)
    if loader is None:
        raise _unknown(name, NAMES)
    parent = _cache(name) if data_dir is None else Path(data_dir)
    try:
        return loader(name, parent / name if (parent / name).is_dir() else parent)
    except PermissionError as error:
        what, fix = f"the {name} data may not be read: {error.strerror}", "have its owner let you, or copy it"
        raise DataError(what, where=str(error.filename), fix=fix) from error


def fetch(name: str, cache: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download a data set's published files, checked against their SHA-256, unless they are there already.

    Args:
        name: one of SOURCES.
        cache: the files go in the folder `name` under it; None means the per-user cache.
        progress: called as (file name, bytes received, bytes in all) after each piece.

    Returns:
        The folder with the files; `load` takes it as `data_dir`.

    Raises:
        DataError: the name is not one that is downloaded, or no mirror gave a sound copy of a file.
    """
    if name not in SOURCES:
        if name in NAMES:
            what = f"the data set {name!r} comes with the package"
            raise DataError(what, fix="there is nothing to fetch")
        raise _unknown(name, tuple(SOURCES))
    parent = _cache(name) if cache is None else Path(cache)
    return download(SOURCES[name], parent / name, progress)


def _unknown(name: str, known: tuple[str, ...]) -> DataError:
    return DataError("unknown data set", got=name, fix=suggest(name.lower(), known))


def _load_digits(name: str, _: Path) -> DataSet:
    images, labels = digits.read_digits()
    test = digits.is_test(labels)
    return DataSet.from_arrays(
        name, (images[~test], labels[~test]), (images[test], labels[test]), n_classes=10, scale=digits.MAX_PIXEL
    )


def _load_idx(name: str, folder: Path) -> DataSet:
    train, test = (_read_idx_pair(name, folder, part) for part in ("train", "t10k"))
    return DataSet.from_arrays(name, train, test, n_classes=10, scale=255)


def _read_idx_pair(name: str, folder: Path, part: str) -> Labelled:
    paths = []
    for stem in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
        path = first_existing(folder, stem, (".gz", ""))
        if path is None:
            raise _missing(name, folder, f"{stem}.gz or {stem}")
        paths.append(path)
    images, labels = idx.read_images(paths[0]), idx.read_labels(paths[1])
    if images.shape[1:] != (28, 28):
        what = f"{name} images have 28 x 28 pixels"
        raise DataError(what, got=images.shape[1:], where=str(paths[0]), fix="use the published files")
    if len(images) != len(labels):
        what = f"{paths[0].name} holds {len(images)} images, so the label file must hold as many labels"
        raise DataError(what, got=len(labels), where=str(paths[1]), fix="use the files of one data set")
    return images[:, np.newaxis], labels


def _load_cifar10(name: str, folder: Path) -> DataSet:
    batches = cifar.read_folder(folder)
    if batches is None:
        raise _missing(name, folder, f"{cifar.ARCHIVE} or {cifar.TRAIN_BATCHES[0]}")
    images, labels = zip(*(batches[batch] for batch in cifar.TRAIN_BATCHES), strict=True)
    train = np.concatenate(images), np.concatenate(labels)
    return DataSet.from_arrays(name, train, batches[cifar.TEST_BATCH], n_classes=cifar.N_CLASSES, scale=255)


def _missing(name: str, folder: Path, files: str) -> DataError:
    what = f"the {name} data is not in this folder: it holds no {files}"
    return DataError(what, where=str(folder), fix=f"run `ako data fetch {name}`, or pass data_dir= its folder")


def _checked(part: Labelled, n_classes: int, where: str, again: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not isinstance(part, tuple | list) or len(part) != 2:
        got = f"{len(part)} of them" if isinstance(part, tuple | list) else _kind(part)
        raise DataError(what="a part must be two arrays", got=got, where=where, fix="have (images, labels)")
    images, labels = part
    arrays = isinstance(images, np.ndarray) and isinstance(labels, np.ndarray)
    images_fit = arrays and images.dtype == np.uint8 and images.ndim == 4 and images.size > 0
    if not images_fit or labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        what = "images must be uint8 (n, channels, height, width) with as many integer labels, and not empty"
        got = f"images {_kind(images)}, labels {_kind(labels)}"
        fix = "have np.array(images, np.uint8) of pixels from 0 to 255, and np.array(labels, int)"
        raise DataError(what, got=got, where=where, fix=fix)
    if (wrong := np.flatnonzero((labels < 0) | (labels >= n_classes))).size:
        what, got = f"a label must be 0 to {n_classes - 1}", f"{labels[wrong[0]]} for image {wrong[0]}"
        fix = again or "mend the label, leave the image out, or have more n_classes"
        raise DataError(what, got=got, where=where, fix=fix)
    # A view: the caller's own array stays as writable as it was.
    images, classes = np.ascontiguousarray(images).view(), labels.astype(np.int64)
    images.setflags(write=False)
    classes.setflags(write=False)
    return images, classes


def _kind(array: object) -> str:
    """What an array is of, or what it is instead of one."""
    return f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"


def _moments(images: NDArray[np.uint8], scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and population standard deviation per channel, from exact integer sums."""
    sums, squares = np.zeros((2, images.shape[1]), np.int64)
    # In pieces: the squares of a whole set would take several times its memory.
    for start in range(0, len(images), 1024):
        piece = images[start : start + 1024]
        sums += piece.sum((0, 2, 3), dtype=np.int64)
        squares += np.square(piece, dtype=np.uint32).sum((0, 2, 3), dtype=np.int64)
    n = images.size // images.shape[1]
    mean = sums / n
    std = np.sqrt(squares / n - mean**2)
    return tuple((mean / scale).tolist()), tuple((std / scale).tolist())


_LOADERS: Mapping[str, Callable[[str, Path], DataSet]] = MappingProxyType(
    {"digits": _load_digits, "mnist": _load_idx, "fashion-mnist": _load_idx, "cifar10": _load_cifar10}
)

NAMES: tuple[str, ...] = tuple(_LOADERS)
"""Names `load` knows."""

SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "mnist": Source(
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            files=(
                RemoteFile(
                    "train-images-idx3-ubyte.gz",
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                RemoteFile(
                    "train-labels-idx1-ubyte.gz",
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                RemoteFile(
                    "t10k-images-idx3-ubyte.gz",
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                RemoteFile(
                    "t10k-labels-idx1-ubyte.gz",
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            ),
        ),
        # Sizes and checksums of the next two: TensorFlow Datasets, url_checksums/, for the same addresses.
        "fashion-mnist": Source(
            mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            files=(
                RemoteFile(
                    "train-images-idx3-ubyte.gz",
                    26_421_880,
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                RemoteFile(
                    "train-labels-idx1-ubyte.gz",
                    29_515,
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                RemoteFile(
                    "t10k-images-idx3-ubyte.gz",
                    4_422_102,
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                RemoteFile(
                    "t10k-labels-idx1-ubyte.gz",
                    5_148,
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            ),
        ),
        "cifar10": Source(
            mirrors=("https://www.cs.toronto.edu/~kriz/",),
            files=(
                RemoteFile(
                    cifar.ARCHIVE,
                    170_052_171,
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
        ),
    }
)
"""Where `fetch` downloads each data set."""


def _cache(name: str) -> Path:
    """The per-user cache; any folder for what comes with the package.

    Raises:
        DataError: this user has none.
    """
    try:
        return Path(pooch.os_cache("ako"))
    except RuntimeError as error:
        if name not in SOURCES:
            return Path()
        what = f"this user has no home directory, where the files of {name} could be"
        raise DataError(what, fix="set HOME, or name their folder") from error
