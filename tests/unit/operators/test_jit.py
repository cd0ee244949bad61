import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numba import config

from operators.dnn.kernels import unit
from operators.jit import compiled, compiled_once

ROOT = Path(__file__).parents[3]

FUNCTION = """\
from operators.jit import compiled


@compiled
def doubled(value):
    return 2 * value
"""

UNITS = """\
from operators.dnn.kernels.table import Floats
from operators.dnn.kernels.unit import Unit, compile_units


@Unit
def first(values: Floats) -> None:
    values[0] = 1


@Unit
def second(values: Floats) -> None:
    values[0] = 2
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
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=environment)


def test_what_is_compiled_is_marked_where_it_is_kept(tmp_path):
    with compiled_once(tmp_path, "work", "-float32") as free:
        assert free
    assert (tmp_path / "work-float32.complete").is_file()


def test_what_fails_to_compile_is_not_marked_and_is_free_for_others(tmp_path):
    with pytest.raises(ValueError, match="untyped"), compiled_once(tmp_path, "work"):
        raise ValueError("untyped")
    with compiled_once(tmp_path, "work", wait=False) as free:
        assert free
        assert not (tmp_path / "work.complete").exists()


def test_who_does_not_wait_is_told_that_another_is_at_it_and_marks_nothing(tmp_path):
    with compiled_once(tmp_path, "work", "-a"):
        for variant in ("-a", "-b"):
            with compiled_once(tmp_path, "work", variant, wait=False) as free:
                assert not free
        with compiled_once(tmp_path, "other", wait=False) as free:
            assert free
    assert {path.name for path in tmp_path.glob("*.complete")} == {"work-a.complete", "other.complete"}


def test_what_is_complete_is_loaded_while_another_variant_is_compiled(tmp_path):
    with compiled_once(tmp_path, "work", "-a"):
        pass
    with compiled_once(tmp_path, "work", "-b"), compiled_once(tmp_path, "work", "-a", wait=False) as free:
        assert free


def test_folder_that_cannot_be_written_holds_nobody_up(tmp_path):
    (tmp_path / "file").write_text("")
    with compiled_once(tmp_path / "file" / "cache", "work") as free:
        assert free


def test_function_is_compiled_by_one_of_several_processes_and_loaded_by_the_others(tmp_path, cache):
    (tmp_path / "once.py").write_text(FUNCTION)
    text = "import once; print(once.doubled(21), sum(once.doubled.stats.cache_misses.values()))"
    said = [process.communicate()[0].split() for process in [start(tmp_path, text) for _ in range(3)]]
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
        process = start(tmp_path, "import units; units.compile_units([units.first, units.second], 'f4')")
        while not (folder / "second-float32.complete").exists():
            assert process.poll() is None
            time.sleep(0.05)
        assert process.poll() is None  # it waits for the first
    process.communicate()
    assert process.returncode == 0
