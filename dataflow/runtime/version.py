"""The program's version, which all processes of a cluster must share."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("ako-dataflow")
