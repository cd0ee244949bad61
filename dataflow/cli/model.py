"""``ako predict``."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError
from typing import Annotated

import numpy as np
import typer

from ako_jobs.predict import load_model
from dataflow.cli.common import JsonFlag, examples, print_json, verbs
from dataflow.errors import DataError

app = verbs()
_NPY, _SAVE = b"\x93NUMPY", "save one array with numpy.save"


@app.command(
    epilog=examples(
        "ako run ako --out results",
        "ako predict results",
        "ako predict results --images digits.npy",
        "ako predict results --job my_job.py",
    )
)
def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `ako run --out DIR` has kept.")],
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="FILE", help="Images as .npy: (images, channels, height, width)."),
    ] = None,
    job: Annotated[
        str,
        typer.Option(
            "--job", metavar="JOB", help="The job, if network or data are its own: my_job.py. Its code is run."
        ),
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Classify images with a trained model: a class per line; without --images, test it on its data set.

    Pixels are unsigned bytes, or floats in [0, 1]; they are normalised as the training images were.
    """
    model = load_model(folder, job=job)
    if images is not None:
        classes = model.predict(_read_images(images)).tolist()
        print_json(classes) if json else print("".join(f"{each}\n" for each in classes), end="")
        return
    right, count = model.test()
    if json:
        print_json({"accuracy": right / count, "right": right, "images": count})
    else:
        print(f"test accuracy {right / count:.2%} ({right:,} of {count:,} images of {model.input.data.name})")


def _read_images(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            if file.read(len(_NPY)) != _NPY:
                raise DataError(what="not an array of images", where=str(path), fix=_SAVE)
        # Mapped, a file must be as long as its header says before there is memory for the array.
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(what="there is no such file", where=str(path)) from error
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
        raise DataError(what=f"not an array of images: {error}", where=str(path), fix=_SAVE) from error
    return found
