from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ako_jobs.jobs import load_job, prepare
from ako_jobs.run import execute
from dataflow.errors import AuthError
from dataflow.runtime.auth import Role, find_authority, find_token, make_tokens, read_token
from dataflow.runtime.certificates import make_authority
from dataflow.runtime.listening_users import listening_users, require_own_master

NOBODY = 65534

_LISTENS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def stranger() -> Iterator[int]:
    """The port at which a program of another user listens."""
    if os.getuid():
        pytest.skip("only root may be somebody else")
    words = [sys.executable, "-c", _LISTENS, str(NOBODY)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize(("host", "dialled"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("0.0.0.0", "localhost")])
def test_users_who_listen_are_found_at_whatever_address_reaches_them(host: str, dialled: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip(f"{host} is no address of this machine")
    with listener:
        port = listener.getsockname()[1]
        assert listening_users(dialled, port) == {os.getuid()}
    assert listening_users(dialled, port) == set()


def test_listener_at_another_address_of_the_port_does_not_count() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        assert listening_users("127.0.0.1", listener.getsockname()[1]) == set()


def test_program_of_another_user_is_not_taken_for_the_master(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    with stranger() as port:
        with pytest.raises(AuthError, match="another user's program listens where the master should") as refused:
            require_own_master(f"127.0.0.1:{port}", tmp_path / "token")
        assert refused.value.got == f"user {NOBODY}"
        require_own_master(f"10.0.0.1:{port}", tmp_path / "token")


def test_master_of_this_user_and_a_port_without_one_are_spoken_to(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert find_token(state_dir=tmp_path, plain_at=address) == read_token(tmp_path)
    assert find_token(state_dir=tmp_path, plain_at=address) == read_token(tmp_path)


def test_status_does_not_show_the_token_to_another_users_program(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    with stranger() as port:
        words = [
            sys.executable,
            "-m",
            "dataflow.cli.main",
            "status",
            "--state-dir",
            str(tmp_path),
            "--master",
            f"127.0.0.1:{port}",
        ]
        environment = {key: value for key, value in os.environ.items() if key not in ("AKO_TOKEN", "AKO_CA")}
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "another user's program listens" in ended.stderr


def test_run_at_a_master_does_not_show_the_token_to_another_users_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokens(tmp_path)
    for name in ("AKO_TOKEN", "AKO_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path))
    prepared = prepare(load_job("ako"), {}, 2)
    with stranger() as port, pytest.raises(AuthError, match="another user's program listens"):
        execute(prepared, master=f"127.0.0.1:{port}")


def test_a_token_of_the_state_directory_in_the_environment_goes_with_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokens(tmp_path)
    make_authority(tmp_path, 1.7e9)
    monkeypatch.delenv("AKO_CA", raising=False)
    for role in Role:
        monkeypatch.setenv("AKO_TOKEN", read_token(tmp_path, role))
        assert find_authority(tmp_path) is not None
    monkeypatch.setenv("AKO_TOKEN", "of-another-cluster")
    assert find_authority(tmp_path) is None


def test_token_that_is_found_is_that_of_the_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tokens(tmp_path)
    monkeypatch.delenv("AKO_TOKEN", raising=False)
    assert find_token(state_dir=tmp_path, role=Role.NODE) == read_token(tmp_path, Role.NODE)
    assert find_token(state_dir=tmp_path) == read_token(tmp_path)
