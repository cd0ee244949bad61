from pathlib import Path

import pytest
from numba import config

from dataflow.errors import ConfigError
from operators.dnn.kernels import jit

PACKAGE = Path(jit.__file__).parent


@pytest.fixture
def users(tmp_path, monkeypatch):
    """The folder that numba keeps a user's compiled code in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("numba.misc.appdirs.system", "linux")
    return tmp_path / "user" / "numba"


@pytest.fixture
def unwritable(tmp_path):
    """A path where no folder can be made, not even by root: below a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


@pytest.fixture
def read_only_package(monkeypatch):
    """The package in a folder that cannot be written; said by the probe, since root may write everywhere."""
    writable = jit._writable
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(jit, "_writable", lambda folder: not folder.is_relative_to(PACKAGE) and writable(folder))


def test_cache_folder_named_by_the_user_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert jit.cache_folder() == tmp_path / f"kernels-{jit._digest()}"


def test_cache_folder_of_a_package_that_can_be_written_is_its_own(monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(jit, "_writable", lambda _folder: True)
    assert jit.cache_folder() == PACKAGE / "__pycache__" / f"kernels-{jit._digest()}"


@pytest.mark.usefixtures("read_only_package")
def test_cache_folder_of_a_read_only_package_is_the_users_and_changes_with_the_digest(users, monkeypatch):
    assert jit.cache_folder() == users / f"kernels-{jit._digest()}"
    monkeypatch.setattr(jit, "_digest", lambda: "upgraded")
    assert jit.cache_folder() == users / "kernels-upgraded"


def test_cache_folder_without_permission_is_not_taken(users, tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir(mode=0o500)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "theirs"))
    if jit._writable(tmp_path / "theirs"):
        pytest.skip("this user may write to read-only folders, as root may")
    assert jit.cache_folder() == users / f"kernels-{jit._digest()}"


def test_cache_folder_nowhere_to_be_had_is_refused_with_a_fix(unwritable, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(unwritable))
    monkeypatch.setenv("XDG_CACHE_HOME", str(unwritable))
    monkeypatch.setattr("numba.misc.appdirs.system", "linux")
    with pytest.raises(ConfigError, match=r"kept in no folder .*; set NUMBA_CACHE_DIR to one that can be written"):
        jit.cache_folder()


def test_entry_where_the_named_folder_cannot_be_written_is_kept_below_the_digest(users, unwritable, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(unwritable))

    @jit.entry
    def doubled(value):
        return 2 * value

    assert doubled(21) == 42
    (index,) = users.rglob("*.nbi")
    assert index.is_relative_to(users / f"kernels-{jit._digest()}")
