"""``ako data``: list data sets and fetch them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from ako_jobs.datasets import NAMES, fetch, load
from dataflow.cli.common import JsonFlag, examples, print_json, print_table, verbs
from dataflow.errors import DataError

app = verbs()
_data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List data sets and fetch them.")
app.add_typer(_data, name="data")


@_data.command(
    "ls",
    epilog=examples(
        "ako data ls",
        "ako data ls --data-dir ~/data",
    ),
)
def list_sets(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Folder of the files; the user's cache if left out."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List data sets; each that is there is read and checked."""
    rows = [_describe(name, data_dir) for name in NAMES]
    if json:
        print_json(rows)
        return
    print_table(
        ("NAME", "TRAINING", "TEST", "IMAGE", "NOTE"),
        [(row["name"], row.get("train"), row.get("test"), row.get("image"), row["note"]) for row in rows],
    )


@_data.command(
    "fetch",
    epilog=examples(
        "ako data fetch mnist",
        "ako data fetch cifar10 --to ~/data",
        "ako run ako data=cifar10 data_dir=~/data",
    ),
)
def fetch_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist, fashion-mnist or cifar10.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Put them there; the user's cache if left out.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Download a data set, checked against published checksums, unless it is there already."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done_nbytes: int, all_nbytes: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=all_nbytes)
            bars.update(tasks[file], completed=done_nbytes)

        folder = fetch(name, to, show)
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print(folder)


def _describe(name: str, data_dir: Path | None) -> dict[str, Any]:
    try:
        data = load(name, data_dir)
    except DataError as error:
        return {"name": name, "found": False, "note": str(error)}
    image = "x".join(str(length) for length in data.train_images.shape[1:])
    train, test = len(data.train_images), len(data.test_images)
    note = "in the package" if name == "digits" else "found"
    return {"name": name, "found": True, "train": train, "test": test, "image": image, "note": note}
