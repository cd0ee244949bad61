"""The decorators of compiled code, typed.

Compiled functions release the GIL, follow IEEE division (no ZeroDivisionError for a NaN), and allow only the
re-association of sums and contraction to fused multiply-adds: NaN and infinity still propagate.

numba's on-disk cache notices a change of the file that holds an entry, not of the kernels it calls.
An entry's cache therefore lies in a folder named after the content of every file of this package.
"""

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import config, extending

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

FAST_MATH = {"contract", "reassoc", "nsz", "arcp"}


def kernel(function: F) -> F:
    """Compile a function that only compiled functions call."""
    compiled = numba.njit(nogil=True, error_model="numpy", fastmath=FAST_MATH)
    return cast("F", compiled(function))


def entry(function: F) -> F:
    """Compile a function that Python calls, and keep the result on disk.

    Compilation happens on the first call with arguments of new types. The cache is under NUMBA_CACHE_DIR
    where that is set, else under this package's __pycache__; numba picks a user folder where it may write to neither.
    """
    compiled = numba.njit(nogil=True, error_model="numpy", fastmath=FAST_MATH, cache=True)
    return cast("F", cached(lambda: compiled(function)))


def intrinsic(function: F) -> Callable[..., Any]:
    """Make a function that emits instructions one that compiled functions call, without its first argument."""
    return cast("Callable[..., Any]", extending.intrinsic(function))


def cached(make: Callable[[], T]) -> T:
    """Make a compiled function whose cache lies in `cache_folder`."""
    settings = cast("Any", config)
    previous = settings.CACHE_DIR
    settings.CACHE_DIR = str(cache_folder())
    try:
        return make()
    finally:
        settings.CACHE_DIR = previous


def cache_folder() -> Path:
    """Where compiled kernels of this version of the sources are kept."""
    parent = cast("Any", config).CACHE_DIR or Path(__file__).parent / "__pycache__"
    return Path(parent) / f"kernels-{_source_digest()}"


@contextmanager
def compiled_once(name: str) -> Iterator[None]:
    """Let one process compile what has this name into the cache; once it has, all the others load it side by side.

    Where the cache cannot be written, everybody compiles for himself.
    """
    folder = cache_folder()
    complete = folder / f"{name}.complete"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = None if complete.exists() else (folder / f"{name}.lock").open("w")
    except OSError:
        lock = None
    if lock is None:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
        yield
        complete.touch()


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
