"""The decorators of compiled code, typed.

Compiled functions release the GIL, follow IEEE division (no ZeroDivisionError for a NaN), and allow only the
re-association of sums and contraction to fused multiply-adds: NaN and infinity still propagate.

numba's on-disk cache notices a change of the file that holds an entry, not of the kernels it calls.
An entry's cache therefore lies in a folder named after the content of every file of this package.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast

import numba
from numba import config, extending
from numba.misc.appdirs import AppDirs

from dataflow.errors import ConfigError
from operators import jit
from operators.jit import ONE_THREAD, F, compiled, machine

T = TypeVar("T")

FAST_MATH = {"contract", "reassoc", "nsz", "arcp"}


def kernel(function: F) -> F:
    """Compile a function that only compiled functions call: Python could not."""
    without_wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made = cast("Any", numba.njit)(nogil=True, error_model="numpy", fastmath=FAST_MATH, **without_wrappers)
    return cast("F", made(function))


def entry(function: F) -> F:
    """Compile a function that Python calls, and keep the result on disk.

    Compilation happens on the first call with arguments of new types. The cache is in `cache_folder`.
    """
    return cached(lambda: compiled(function, fastmath=FAST_MATH))


def intrinsic(function: F) -> Callable[..., Any]:
    """Make a function that emits instructions one that compiled functions call, without its first argument."""
    return cast("Callable[..., Any]", extending.intrinsic(function))


def cached(make: Callable[[], T]) -> T:
    """Make a compiled function whose cache lies in `cache_folder`, one thread at a time.

    What is compiled meanwhile is optimised at level 2: numba's own, 3, takes longer, and the inner loops are slower.
    """
    settings = cast("Any", config)
    with ONE_THREAD:
        previous = settings.CACHE_DIR, settings.OPT
        settings.CACHE_DIR, settings.OPT = str(cache_folder()), type(settings.OPT)(2)
        try:
            return make()
        finally:
            settings.CACHE_DIR, settings.OPT = previous


def cache_folder() -> Path:
    """Where compiled kernels of this version of the sources, of numba and of this kind of processor are kept.

    Below NUMBA_CACHE_DIR where that is set, else this package's __pycache__; below numba's folder for the user if that
    cannot be written.

    Raises:
        ConfigError: neither can be written.
    """
    name = f"kernels-{_digest()}"
    users: str = cast("Any", AppDirs)(appname="numba", appauthor=False).user_cache_dir
    parents = [str(cast("Any", config).CACHE_DIR or Path(__file__).parent / "__pycache__"), users]
    for parent in parents:
        folder = Path(parent) / name
        if _writable(folder):
            return folder
    what = "compiled kernels can be kept in no folder"
    raise ConfigError(what, got=" or ".join(parents), fix="set NUMBA_CACHE_DIR to one that can be written")


def _writable(folder: Path) -> bool:
    """Whether files can be made there; tried, since permissions do not tell of read-only disks."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@cache
def _digest() -> str:
    """What compiled code depends on: the sources, how they are compiled, the compiler and the processor."""
    digest = hashlib.sha256(repr(machine()).encode())
    for path in (Path(jit.__file__), *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
