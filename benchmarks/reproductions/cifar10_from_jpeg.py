"""CIFAR-10 in its binary version from a copy of JPEG files, one for each image; needs Pillow.

    python benchmarks/reproductions/cifar10_from_jpeg.py /path/to/cifar10 cifar10-jpeg
    python benchmarks/reproductions/dana_runs.py --data-set cifar10 --data cifar10-jpeg

The copy is two archives, cifar10-train-jpeg.tar.xz and cifar10-test-jpeg.tar.xz, whose members are in the official
order and named train/<class>/<number>.jpg. JPEG has changed their pixels: accuracy on them is not that on CIFAR-10.
"""

from __future__ import annotations

import argparse
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from ako_jobs.cifar import TEST_BATCH, TRAIN_BATCHES

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def records(archive: Path) -> Iterator[bytes]:
    """A record for each image of an archive: its label, then its red, green and blue pixels."""
    with tarfile.open(archive) as members:
        for member in members:
            file = members.extractfile(member)
            if file is not None:
                pixels = np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1)
                yield bytes([CLASSES.index(member.name.split("/")[1])]) + pixels.tobytes()


def main() -> None:
    """Write the batch files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of the archives")
    parser.add_argument("target", type=Path, help="folder for the batch files")
    asked = parser.parse_args()
    asked.target.mkdir(parents=True, exist_ok=True)
    for part, names in (("train", TRAIN_BATCHES), ("test", (TEST_BATCH,))):
        images = records(asked.source / f"cifar10-{part}-jpeg.tar.xz")
        for name in names:
            (asked.target / name).write_bytes(b"".join(islice(images, 10_000)))


if __name__ == "__main__":
    main()
