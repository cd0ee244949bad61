"""Limits are those of a process of its own."""

from __future__ import annotations

import subprocess
import sys


def told(soft: int, hard: int, code: str) -> str:
    """What Python code prints in a process with these limits."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    whole = f"{limits}\nfrom dataflow.runtime.descriptors import *\n{code}"
    return subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True).stdout.strip()


RAISED = "raise_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE))"


def test_limit_is_raised_as_far_as_the_system_grants() -> None:
    assert told(64, 512, f"import resource; {RAISED}") == "(512, 512)"


def test_limit_that_cannot_be_raised_is_left() -> None:
    assert told(64, 64, f"import resource; {RAISED}") == "(64, 64)"


REQUIRED = """
for count in (60, 61, 62):
    try:
        require(count, "a master")
        print("granted")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_descriptors_that_are_not_left_are_refused_with_how_many_there_are() -> None:
    needs, fix = (
        "ConfigError a master needs {} more file descriptors, and has 3 of 64 open; ",
        "raise the limit, as with",
    )
    refused = [needs.format(62) + fix + " `ulimit -n 1024`"]
    assert told(64, 64, REQUIRED).splitlines() == ["granted", "granted", *refused]
