"""Generate the Python modules of proto/*.proto into dataflow/transport/generated.

    python proto/generate.py           write them
    python proto/generate.py --check   exit 1 if the committed ones differ

The modules are committed, so that running Ako needs no compiler. They import each other by absolute name, and a
proto file imports another as ``import "dataflow/transport/generated/data.proto"``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dataflow/transport/generated"

RAW_SERVICES = ("data",)
"""Proto files whose services carry raw bytes through a generic handler: no stubs are made for them."""


def generate(out: Path) -> None:
    """Generate all modules below `out`, which stands for the repository's root.

    Raises:
        RuntimeError: the compiler refused a file; it has printed why.
    """
    common = [
        "protoc",
        f"-I{PACKAGE}={ROOT / 'proto'}",
        f"-I{resources.files('grpc_tools') / '_proto'}",
        f"--python_out={out}",
        f"--pyi_out={out}",
    ]
    for source in sorted((ROOT / "proto").glob("*.proto")):
        stubs = "\nservice " in source.read_text() and source.stem not in RAW_SERVICES
        arguments = [*common, f"--grpc_python_out={out}"] if stubs else common
        if protoc.main([*arguments, f"{PACKAGE}/{source.name}"]) != 0:
            message = f"protoc refused {source}"
            raise RuntimeError(message)


def differences() -> list[str]:
    """Names of the generated files that differ from the committed ones, are missing, or are left over."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = _contents(Path(folder) / PACKAGE)
    committed = _contents(ROOT / PACKAGE)
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2*")}


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    stale = differences()
    for name in stale:
        print(f"{PACKAGE}/{name} is stale: run python proto/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
