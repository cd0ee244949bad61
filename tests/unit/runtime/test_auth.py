from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dataflow.cli.main import main
from dataflow.clock import SystemClock
from dataflow.errors import AkoError, AuthError, ConfigError
from dataflow.runtime import auth
from dataflow.runtime.auth import (
    ALLOWED,
    Role,
    check_host,
    find_authority,
    find_token,
    make_tokens,
    permits,
    read_authority,
    read_token,
)
from dataflow.runtime.certificates import job_pair, make_authority
from dataflow.runtime.client import Client
from dataflow.runtime.master import MasterConfig, serve
from dataflow.runtime.state_dir import read_endpoint
from dataflow.transport.authorization import token_metadata
from dataflow.transport.base import Connection
from dataflow.transport.generated import control_pb2, data_pb2
from dataflow.transport.grpc_connection import GrpcNetwork

METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (control_pb2, health_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def test_there_are_methods_to_test() -> None:
    assert len(METHODS) == 14
    assert "/grpc.health.v1.Health/Check" in METHODS


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        token_metadata("wrong"),
        token_metadata(""),
        (("authorization", "Basic right"),),
    ],
)
def test_every_method_of_every_service_refuses_calls_without_the_token(
    tmp_path: Path, metadata: tuple[tuple[str, str], ...]
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("right")

    async def codes() -> dict[str, grpc.StatusCode]:
        master = asyncio.create_task(serve(MasterConfig(port=0, state_dir=tmp_path)))
        while not (address := read_endpoint(tmp_path)):
            await asyncio.sleep(0.01)
        found = {}
        async with grpc.aio.insecure_channel(address) as channel:
            for method in [*METHODS, "/no.Such/Method"]:
                # Its message goes with the call: one that is written later may find the call ended, which the client
                # calls INTERNAL.
                call = channel.unary_stream(method)(b"\xff not a message of any kind", metadata=metadata)
                found[method] = await call.code()
            allowed = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", metadata=token_metadata("right"))
            found["with the token"] = await allowed.code()
        master.cancel()
        await asyncio.wait([master])
        return found

    found = asyncio.run(codes())
    assert found.pop("with the token") is grpc.StatusCode.OK
    assert found == dict.fromkeys([*METHODS, "/no.Such/Method"], grpc.StatusCode.UNAUTHENTICATED)


NAMES = [method.name for method in control_pb2.DESCRIPTOR.services_by_name["Master"].methods]
WATCHING = {"ListJobs", "GetJob", "Watch", "Logs", "Artifacts", "ListNodes"}


def test_every_method_of_the_master_says_who_may_call_it() -> None:
    assert set(ALLOWED) == set(NAMES)


@pytest.mark.parametrize(
    ("role", "methods"),
    [
        (Role.READ, WATCHING),
        (Role.SUBMIT, WATCHING | {"Submit", "Cancel", "Adjust"}),
        (Role.NODE, {"Attach"}),
        (Role.ADMIN, set(NAMES)),
    ],
)
def test_role_may_call_its_methods_and_the_master_refuses_the_others(
    tmp_path: Path, role: Role, methods: set[str]
) -> None:
    tmp_path.chmod(0o700)
    assert {name for name in NAMES if permits(role, f"/ako.control.Master/{name}")} == methods

    async def refused() -> set[str]:
        found = set()
        async with served(tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
            for name in NAMES:
                call = channel.unary_stream(f"/ako.control.Master/{name}")(
                    b"", metadata=token_metadata(read_token(tmp_path, role))
                )
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in call:  # its status comes after its answers
                        pass
                if await call.code() is grpc.StatusCode.PERMISSION_DENIED:
                    found.add(name)
        return found

    assert asyncio.run(refused()) == set(NAMES) - methods


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """The address of a master that serves inside the block."""
    (folder / "endpoint").unlink(missing_ok=True)
    master = asyncio.create_task(serve(MasterConfig(port=0, state_dir=folder)))
    while not (address := read_endpoint(folder)):
        if master.done():
            await master
        await asyncio.sleep(0.01)
    try:
        yield address
    finally:
        master.cancel()
        await asyncio.wait([master])


def called(address: str, token: str, authority: bytes | None) -> str:
    """What a client hears."""
    with Client(address, token, authority) as client:
        try:
            client.jobs()
        except AkoError as error:
            return f"{type(error).__name__}: {error}"
    return "served"


def test_master_with_certificates_serves_only_those_who_trust_its_authority(tmp_path: Path) -> None:
    folder, other = tmp_path / "one", tmp_path / "other"
    now_s = SystemClock().wall()
    for each in (folder, other):
        each.mkdir(mode=0o700)
        make_authority(each, now_s)

    async def heard() -> list[str]:
        async with served(folder) as address:
            token, loop = read_token(folder), asyncio.get_running_loop()
            ways = (read_authority(folder), None, read_authority(other))
            return [await loop.run_in_executor(None, called, address, token, authority) for authority in ways]

    good, plain, wrong = asyncio.run(heard())
    assert good == "served"
    assert plain.startswith("MasterAwayError: the master cannot be reached")
    assert "if it speaks TLS, set AKO_CA" in plain
    assert wrong.startswith("AuthError: whoever is there does not show a certificate of this cluster")


def test_client_whose_clock_is_days_behind_is_told_that_it_is_the_clock(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    make_authority(tmp_path, SystemClock().wall() + 3 * 86400)

    async def heard() -> str:
        async with served(tmp_path) as address:
            arguments = (address, read_token(tmp_path), read_authority(tmp_path))
            return await asyncio.get_running_loop().run_in_executor(None, called, *arguments)

    assert asyncio.run(heard()).startswith("AuthError: by this machine's clock the master's certificate is not good")


def test_client_with_an_authority_does_not_speak_to_a_master_in_plain_text(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    pair = job_pair(SystemClock().wall())

    async def heard() -> str:
        async with served(tmp_path) as address:
            arguments = (address, read_token(tmp_path), pair.certificate)
            return await asyncio.get_running_loop().run_in_executor(None, called, *arguments)

    assert asyncio.run(heard()).split(":")[0] in ("AuthError", "MasterAwayError")


def test_every_method_of_the_data_plane_refuses_calls_without_the_token() -> None:
    services = data_pb2.DESCRIPTOR.services_by_name.values()
    methods = [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]

    async def accept(connection: Connection) -> None:
        pytest.fail("nobody may get here")

    async def codes() -> set[grpc.StatusCode]:
        network = GrpcNetwork(token="right")
        found = set()
        async with grpc.aio.insecure_channel(await network.listen(accept)) as channel:
            for method in methods:
                for metadata in ((), token_metadata("wrong")):
                    call = channel.stream_stream(method)(metadata=metadata)
                    found.add(await call.code())
        await network.close()
        return found

    assert methods
    assert asyncio.run(codes()) == {grpc.StatusCode.UNAUTHENTICATED}


def test_token_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path)
    assert {len(token) for token in tokens} == {43}
    assert list(tokens.values()) == list(Role)
    assert make_tokens(tmp_path) == tokens == {read_token(tmp_path, role): role for role in Role}
    files = [tmp_path / name for name in ("token", "token.read", "token.submit", "token.node")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_token_that_others_may_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="cannot read"):
        read_token(tmp_path)
    make_tokens(tmp_path)
    token = read_token(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(AuthError, match="others may read") as caught:
        read_token(tmp_path)
    assert token not in str(caught.value)


def test_token_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(AuthError, match=r"a token is one line of ASCII text at .*token; delete it and restart"):
        read_token(tmp_path)


def test_token_comes_from_the_argument_then_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(auth.TOKEN_VARIABLE, raising=False)
    with pytest.raises(AuthError, match="no token"):
        find_token()
    make_tokens(tmp_path)
    made = read_token(tmp_path)
    assert find_token(state_dir=tmp_path) == made
    monkeypatch.setenv(auth.TOKEN_VARIABLE, "from the environment")
    assert find_token(state_dir=tmp_path) == "from the environment"
    assert find_token("given", tmp_path) == "given"


def test_authority_comes_from_the_environment_then_the_directory_but_not_beside_the_token_of_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(auth.TOKEN_VARIABLE, raising=False)
    monkeypatch.delenv(auth.AUTHORITY_VARIABLE, raising=False)
    assert find_authority(tmp_path) is None
    own = make_authority(tmp_path, 0.0).read_bytes()
    assert find_authority(tmp_path) == own
    monkeypatch.setenv(auth.TOKEN_VARIABLE, "of another cluster")
    assert find_authority(tmp_path) is None
    (tmp_path / "other").mkdir()
    other = make_authority(tmp_path / "other", 0.0).read_bytes()
    (tmp_path / "copy.pem").write_bytes(other)
    monkeypatch.setenv(auth.AUTHORITY_VARIABLE, str(tmp_path / "copy.pem"))
    assert find_authority(tmp_path) == other
    monkeypatch.setenv(auth.AUTHORITY_VARIABLE, str(tmp_path / "missing.pem"))
    with pytest.raises(AuthError, match="cannot read the authority's certificate"):
        find_authority(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"import ako\n", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"]
)
def test_authority_that_is_no_certificate_is_refused_before_anybody_is_dialled(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.py"
    file.write_bytes(content)
    monkeypatch.setenv(auth.AUTHORITY_VARIABLE, str(file))
    monkeypatch.setenv(auth.TOKEN_VARIABLE, "x")
    assert main(["ls", "--master", "127.0.0.1:9"]) == 2
    told = f"error: the authority's certificate is no PEM certificate at {file}; copy tls/ca.pem"
    assert capfd.readouterr().err.startswith(told)


def test_authority_may_have_remarks_in_any_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remarked = "# für alle\n".encode() + make_authority(tmp_path, 0.0).read_bytes()
    (tmp_path / "copy.pem").write_bytes(remarked)
    monkeypatch.setenv(auth.AUTHORITY_VARIABLE, str(tmp_path / "copy.pem"))
    assert find_authority() == remarked


@pytest.mark.parametrize("token", ["two\nlines", "caf\u00e9"])
def test_token_that_no_call_can_show_is_refused_and_not_named(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(auth.TOKEN_VARIABLE, token)
    with pytest.raises(AuthError, match="one line of ASCII text at AKO_TOKEN") as caught:
        find_token()
    assert token not in str(caught.value)
    make_tokens(tmp_path)
    (tmp_path / "token").write_text(token)
    with pytest.raises(AuthError, match="one line of ASCII text"):
        read_token(tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_host_that_others_reach_needs_insecure(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no encryption"):
        check_host(host, insecure=False)
    with pytest.raises(ConfigError, match="no encryption"):
        asyncio.run(serve(MasterConfig(host=host, port=0, state_dir=tmp_path)))
    check_host(host, insecure=True)
    check_host(host, insecure=False, encrypted=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_hosts_are_allowed(host: str) -> None:
    refused = None
    try:
        check_host(host, insecure=False)
    except ConfigError as error:
        refused = error
    assert refused is None


def test_client_of_no_master_is_told_so() -> None:
    with (
        Client("127.0.0.1:9", "token") as client,
        pytest.raises(Exception, match=r"cannot be reached at 127\.0\.0\.1:9"),
    ):
        client.jobs()
