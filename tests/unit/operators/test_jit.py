import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from numba import config
from numba.core.compiler_lock import global_compiler_lock

from operators.dnn.kernels import unit
from operators.jit import compiled, compiled_once, in_any_order

ROOT = Path(__file__).parents[3]

FUNCTION = """\
from operators.jit import compiled


@compiled
def doubled(value):
    return 2 * value
"""

UNITS = """\
from operators.dnn.kernels.table import Floats
from operators.dnn.kernels.unit import Unit
from operators.jit import in_any_order


@Unit
def first(values: Floats) -> None:
    values[0] = 1


@Unit
def second(values: Floats) -> None:
    values[0] = 2


def compile_both():
    in_any_order(lambda: first.address("f4"), lambda: second.address("f4"))
"""

LOADING = """\
from pathlib import Path

from operators.jit import compiled_once

print("begins", flush=True)
with compiled_once(Path({folder!r}), "work", "-a"):
    print("loads", flush=True)
    input()
"""

MOMENT_S = 0.5
"""Time for a process to come to where it waits."""

NESTED = """\
from pathlib import Path

from operators.jit import compiled_once, in_any_order

folder = Path({folder!r})


def outer():
    with compiled_once(folder, "outer"):
        print("outer", flush=True)
        with compiled_once(folder, "inner"):
            print("inner", flush=True)


in_any_order(outer)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where what is compiled is kept, by this process and by those that a test starts."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(config, "CACHE_DIR", str(folder))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    return folder


def start(folder, text):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", text], env=environment, **pipes)


def test_what_is_compiled_is_marked_where_it_is_kept(tmp_path):
    with compiled_once(tmp_path, "work", "-float32"):
        pass
    assert (tmp_path / "work-float32.complete").is_file()


def test_what_fails_to_compile_is_not_marked_and_is_free_for_others(tmp_path):
    with pytest.raises(ValueError, match="untyped"), compiled_once(tmp_path, "work"):
        raise ValueError("untyped")
    assert not (tmp_path / "work.complete").exists()
    begun = []
    in_any_order(partial(_load, begun, tmp_path))
    assert begun == [True]


def test_what_another_compiles_is_put_off_and_marked_by_nobody_else(tmp_path):
    begun = []

    def compile_it(name, variant=""):
        begun.append(name)
        with compiled_once(tmp_path, name, variant):
            begun.append(name + variant)

    def release():
        held.pop_all().close()

    with ExitStack() as held:
        held.enter_context(compiled_once(tmp_path, "work", "-a"))
        in_any_order(partial(compile_it, "work", "-b"), partial(compile_it, "other"), release)
    assert begun == ["work", "other", "other", "work", "work-b"]
    assert {path.name for path in tmp_path.glob("*.complete")} == {
        "work-a.complete",
        "work-b.complete",
        "other.complete",
    }


def test_what_is_compiled_within_something_else_is_waited_for(tmp_path):
    with compiled_once(tmp_path, "inner"):
        process = start(tmp_path, NESTED.format(folder=str(tmp_path)))
        assert process.stdout.readline() == "outer\n"
        time.sleep(MOMENT_S)  # it comes to the inner one
    assert process.communicate()[0] == "inner\n"


def test_calls_within_calls_are_put_off_together(tmp_path):
    begun = []

    def compile_it(name):
        begun.append(name)
        with compiled_once(tmp_path, name):
            pass

    with ExitStack() as held:
        held.enter_context(compiled_once(tmp_path, "b"))
        inner = partial(in_any_order, *(partial(compile_it, name) for name in "bc"))
        in_any_order(inner, partial(compile_it, "d"), held.pop_all().close)
    assert begun == list("bcbdbc")


def test_call_that_fails_is_not_put_off(tmp_path):
    begun = []
    with pytest.raises(ValueError, match="untyped"):
        in_any_order(partial(int, "untyped"), partial(begun.append, 1))
    assert begun == []


def test_what_is_complete_is_loaded_while_another_variant_is_compiled(tmp_path):
    with compiled_once(tmp_path, "work", "-a"):
        pass
    begun = []
    with compiled_once(tmp_path, "work", "-b"):
        in_any_order(partial(_load, begun, tmp_path))
    assert begun == [True]


def _load(begun, folder, variant="-a"):
    with compiled_once(folder, "work", variant):
        begun.append(True)


def test_who_has_waited_lets_the_others_load_too(tmp_path):
    with compiled_once(tmp_path, "work", "-a"):
        process = start(tmp_path, LOADING.format(folder=str(tmp_path)))
        assert process.stdout.readline() == "begins\n"
        time.sleep(MOMENT_S)  # it waits
    assert process.stdout.readline() == "loads\n"
    begun = []
    in_any_order(partial(_load, begun, tmp_path, "-b"), partial(begun.append, 1))
    assert begun == [True, 1]
    assert process.poll() is None
    process.communicate("\n")
    assert process.returncode == 0


def test_compilation_that_waits_for_another_process_holds_numbas_lock(tmp_path):
    with compiled_once(tmp_path, "work"):
        assert global_compiler_lock.is_locked()
    assert not global_compiler_lock.is_locked()


def test_folder_that_cannot_be_written_holds_nobody_up(tmp_path):
    (tmp_path / "file").write_text("")
    begun = []
    in_any_order(partial(_load, begun, tmp_path / "file" / "cache"))
    assert begun == [True]


def test_function_is_compiled_by_one_of_several_processes_and_loaded_by_the_others(tmp_path, cache):
    (tmp_path / "once.py").write_text(FUNCTION)
    said = "once.doubled(21), sum(once.doubled.stats.cache_misses.values())"
    text = f"import once; print(flush=True); input(); print({said})"
    processes = [start(tmp_path, text) for _ in range(3)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[0].split() for process in processes]
    assert [result for result, _ in said] == ["42"] * 3
    assert sorted(misses for _, misses in said) == ["0", "0", "1"]
    assert list(cache.rglob("*.complete"))


def test_function_of_a_file_that_has_changed_is_compiled_again(tmp_path, cache):
    text = "import once; print(once.doubled(21))"
    for value in (2, 10):
        (tmp_path / "once.py").write_text(FUNCTION.replace("2 *", f"{value} *"))
        assert start(tmp_path, text).communicate()[0].split() == [str(21 * value)]
    assert len(list(cache.rglob("*.complete"))) == 2


def test_function_keeps_the_interpreter_or_the_order_of_its_sums_only_if_told():
    plain, told = compiled(lambda value: value), compiled(lambda value: value, nogil=False, fastmath={"reassoc"})
    assert (plain.targetoptions["nogil"], plain.targetoptions["fastmath"]) == (True, False)
    assert (told.targetoptions["nogil"], told.targetoptions["fastmath"]) == (False, {"reassoc"})


@pytest.mark.usefixtures("cache")
def test_process_compiles_another_unit_while_the_first_is_compiled_elsewhere(tmp_path):
    (tmp_path / "units.py").write_text(UNITS)
    folder = unit.cache_folder()
    with compiled_once(folder, "first", "-float32"):
        process = start(tmp_path, "import units; units.compile_both()")
        while not (folder / "second-float32.complete").exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(MOMENT_S)
        assert process.poll() is None  # it waits for the first
    process.communicate()
    assert process.returncode == 0
