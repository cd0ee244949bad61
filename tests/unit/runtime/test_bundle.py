from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from dataflow.errors import BundleError
from dataflow.runtime import bundle as bundles
from dataflow.runtime.bundle import Bundle, make_bundle, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "job"
    (root / "parts" / "__pycache__").mkdir(parents=True)
    (root / "my_job.py").write_text("import helper\n")
    (root / "helper.py").write_text("x = 1\n")
    (root / "notes.txt").write_text("not code")
    (root / "parts" / "one.py").write_text("y = 2\n")
    (root / "parts" / "__pycache__" / "one.pyc").write_bytes(b"cache")
    return root


def names(bundle: Bundle) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(bundle.data)).namelist()


def archive(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def test_bundle_holds_the_folders_python_files_only(folder: Path) -> None:
    assert names(make_bundle(folder)) == ["helper.py", "my_job.py"]


def test_include_adds_files_and_whole_folders_without_caches(folder: Path) -> None:
    assert names(make_bundle(folder, ["notes.txt", "parts"])) == ["helper.py", "my_job.py", "notes.txt", "parts/one.py"]


def test_same_files_give_the_same_archive_whenever_they_were_written(folder: Path) -> None:
    first = make_bundle(folder)
    (folder / "helper.py").touch()
    assert make_bundle(folder) == first
    (folder / "helper.py").write_text("x = 2\n")
    assert make_bundle(folder).digest != first.digest


def test_unpack_gives_back_every_file(folder: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    unpack(make_bundle(folder, ["parts"]), into)
    found = {path.relative_to(into).as_posix(): path.read_text() for path in into.rglob("*.py")}
    assert found == {"helper.py": "x = 1\n", "my_job.py": "import helper\n", "parts/one.py": "y = 2\n"}


@pytest.mark.parametrize("include", ["/etc/passwd", "../secret.py", "parts/../../secret.py", "missing.py", ""])
def test_include_that_leads_out_or_does_not_exist_is_refused(folder: Path, include: str) -> None:
    (folder.parent / "secret.py").write_text("secret")
    with pytest.raises(BundleError):
        make_bundle(folder, [include])


def test_link_that_leads_out_is_refused(folder: Path) -> None:
    (folder.parent / "secret.py").write_text("secret")
    (folder / "link.py").symlink_to("../secret.py")
    with pytest.raises(BundleError, match=r"link leads out.*got link\.py"):
        make_bundle(folder)


def test_too_many_and_too_large_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_FILES", 1)
    with pytest.raises(BundleError, match="may hold 1 files"):
        make_bundle(folder)
    monkeypatch.setattr(bundles, "MAX_FILES", 500)
    monkeypatch.setattr(bundles, "MAX_NBYTES", 19)
    with pytest.raises(BundleError, match="may have 19 bytes"):
        make_bundle(folder)


@pytest.mark.parametrize("name", ["/abs.py", "../up.py", "a/../../up.py", "a\\b.py", "c:/x.py"])
def test_unpack_refuses_names_that_lead_out_and_writes_nothing(tmp_path: Path, name: str) -> None:
    data = archive(("good.py", b"ok"), (name, b"bad"))
    with pytest.raises(BundleError, match="leads out"):
        unpack(Bundle("0" * 64, data), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unpack_refuses_links(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="plain files only"):
        unpack(Bundle("0" * 64, archive((link("a.py"), b"/etc/passwd"))), tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unpack_refuses_compressions_that_take_any_memory(tmp_path: Path, method: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("job.py", "x = 1")
    with pytest.raises(BundleError, match="stored or deflated") as refused:
        unpack(Bundle("0", buffer.getvalue()), tmp_path)
    assert refused.value.got == f"method {method}"


def test_unpack_refuses_bombs_whatever_size_they_claim(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="bytes"):
        unpack(Bundle("0" * 64, archive(("bomb.py", bytes(64 << 20)))), tmp_path)


def test_unpack_refuses_a_wrong_digest_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(BundleError, match="hash to"):
        unpack(Bundle("0" * 64, make_bundle(folder).data), into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize(
    "data", [b"", b"not a zip", archive(("a.py", b"x = 1"))[:-30]], ids=["empty", "text", "cut off"]
)
def test_unpack_refuses_what_is_no_archive(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BundleError, match="no readable archive"):
        unpack(Bundle("0" * 64, data), tmp_path)
