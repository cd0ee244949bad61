"""The generated modules are those of the proto files, and say what the protocol needs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

from dataflow.transport.generated import data_pb2

ROOT = Path(__file__).resolve().parents[3]


def test_generated_modules_are_fresh() -> None:
    check = subprocess.run(
        [sys.executable, str(ROOT / "proto" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stderr) == (0, "")


def test_data_plane_is_one_bidirectional_stream() -> None:
    method = data_pb2.DESCRIPTOR.services_by_name["DataPlane"].methods_by_name["Connect"]
    assert method.client_streaming
    assert method.server_streaming


def test_every_field_and_enum_value_is_commented() -> None:
    bare = []
    for path in sorted((ROOT / "proto").glob("*.proto")):
        lines = path.read_text().splitlines()
        for above, line in itertools.pairwise(lines):
            declares = line.startswith("  ") and line.rstrip().endswith(";") and not line.lstrip().startswith("//")
            if declares and not above.lstrip().startswith("//"):
                bare.append(f"{path.name}: {line.strip()}")
    assert bare == []
