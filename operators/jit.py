"""The decorator of compiled functions that Python calls, typed; what is compiled is kept on disk, for all processes."""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from llvmlite import binding
from numba.core.compiler_lock import global_compiler_lock

F = TypeVar("F", bound=Callable[..., object])

ONE_THREAD: AbstractContextManager[Any] = global_compiler_lock
"""Held while something is compiled: numba's own lock, so that whoever compiles what calls our functions has it, too."""


def compiled(function: F, *, nogil: bool = True, fastmath: Collection[str] = ()) -> F:
    """Compile a function on its first call with arguments of new types.

    Division is that of IEEE: a zero gives an infinity or NaN. Without fast math every product and sum is rounded as
    NumPy rounds it, so runs can be compared bit for bit. numba's cache notices a change of the file that holds a
    function, not of what it calls in others, so functions that call each other share a file.

    Args:
        function: of numbers, arrays, and other compiled functions.
        nogil: it gives up the interpreter while it runs.
        fastmath: LLVM's flags, if there are to be any.
    """
    made = cast("Any", numba.njit)(nogil=nogil, error_model="numpy", cache=True, fastmath=set(fastmath) or False)
    dispatcher: Any = made(function)
    source, compile_it = Path(function.__code__.co_filename), dispatcher.compile
    name, stamp = f"{source.stem}.{function.__qualname__}-{function.__code__.co_firstlineno}", source.stat()

    def compile_once(signature: Any) -> Any:
        variant = hashlib.sha256(repr((*machine(), signature, stamp.st_mtime_ns, stamp.st_size)).encode()).hexdigest()
        with compiled_once(Path(dispatcher.stats.cache_path), name, f"-{variant[:12]}"):
            return compile_it(signature)

    dispatcher.compile = compile_once
    return cast("F", dispatcher)


@cache
def machine() -> tuple[str, ...]:
    """What compiled code depends on besides its source: Python, the compiler, and the processor with its registers."""
    features = sorted(name for name, there in binding.get_host_cpu_features().items() if there)
    versions = str(sys.implementation.cache_tag), numba.__version__, llvmlite.__version__
    return *versions, binding.get_host_cpu_name(), *features


@contextmanager
def compiled_once(folder: Path, name: str, variant: str = "") -> Iterator[None]:
    """Let one process compile a variant of what has this name; once it has, the others load it.

    Variants are compiled one after the other: numba's index of a function must not be written by two at a time. Where
    the folder cannot be written, or numba's files are gone but not the marks, everybody compiles for himself.

    Args:
        folder: where numba keeps what it compiles.
        name: a file's.
        variant: what follows the name once the variant has been compiled.
    """
    with ONE_THREAD, ExitStack() as stack:
        complete = folder / f"{name}{variant}.complete"
        if not _is_there(complete):
            _lock(stack, folder / f"{name}.lock")
        known = _is_there(complete)
        if known:
            stack.pop_all().close()  # all who have waited load it side by side
        with _patience(waits=True):  # what belongs to it is compiled with it
            yield
        if not known:
            with suppress(OSError):
                complete.touch()


def in_any_order(*calls: Callable[[], object]) -> None:
    """Call functions that compile something; of several processes each begins with what no other has begun.

    Args:
        calls: in order, but for those that would wait for another process, which are called again at the end.
    """
    with ONE_THREAD:
        later = []
        for call in calls:
            try:
                with _patience(waits=False):
                    call()
            except _BusyError:
                later.append(call)
        for call in later:
            call()


class _BusyError(Exception):
    """Another process is compiling what would be compiled."""


_WAITS = ContextVar("waits", default=True)
"""Whether to wait for other processes."""


@contextmanager
def _patience(*, waits: bool) -> Iterator[None]:
    before = _WAITS.set(waits)
    try:
        yield
    finally:
        _WAITS.reset(before)


def _lock(stack: ExitStack, path: Path) -> None:
    """Lock a file, where that can be done, until the stack is left."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(path.open("w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX if _WAITS.get() else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _BusyError from None
        stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a fork may have the file open, too


def _is_there(path: Path) -> bool:
    with suppress(OSError):
        return path.exists()
    return False
