import functools
import hashlib
import http.server
import threading

import pytest

from ako_jobs.download import RemoteFile, Source, download
from dataflow.errors import DataError

CONTENT = bytes(range(256)) * 1000
GOOD = RemoteFile("images.gz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder served on 127.0.0.1, and its base URL."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    root = tmp_path / "site"
    root.mkdir()
    handler = functools.partial(QuietHandler, directory=root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield root, f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_download_sound_file_arrives_and_reports_progress_to_the_end(site, tmp_path):
    root, url = site
    (root / "images.gz").write_bytes(CONTENT)
    pieces = []
    folder = download(Source((url,), (GOOD,)), tmp_path / "new" / "cache", lambda *piece: pieces.append(piece))
    assert (folder / "images.gz").read_bytes() == CONTENT
    assert pieces == [("images.gz", done, 256_000) for done in (65_536, 131_072, 196_608, 256_000)]


def test_download_file_already_sound_is_not_requested_again(site, tmp_path):
    _, url = site
    (tmp_path / "images.gz").write_bytes(CONTENT)
    assert download(Source((url,), (GOOD,)), tmp_path) == tmp_path


def test_download_first_mirror_lacks_the_file_second_serves_it(site, tmp_path):
    root, url = site
    (root / "second").mkdir()
    (root / "second" / "images.gz").write_bytes(CONTENT)
    folder = download(Source((url, url + "second/"), (GOOD,)), tmp_path / "cache")
    assert (folder / "images.gz").read_bytes() == CONTENT


def test_download_damaged_file_in_the_cache_is_replaced(site, tmp_path):
    root, url = site
    (root / "images.gz").write_bytes(CONTENT)
    (tmp_path / "images.gz").write_bytes(b"damaged")
    download(Source((url,), (GOOD,)), tmp_path)
    assert (tmp_path / "images.gz").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("served", "what"),
    [
        (CONTENT[:-1] + b"x", "hash of downloaded file .* does not match"),
        (CONTENT[:-1], "hash of downloaded file .* does not match"),
        (CONTENT + b"x", "sends more than the 256000 bytes of images.gz"),
    ],
)
def test_download_wrong_content_raises_and_leaves_no_file(site, tmp_path, served, what):
    root, url = site
    (root / "images.gz").write_bytes(served)
    with pytest.raises(DataError, match=what) as caught:
        download(Source((url,), (GOOD,)), tmp_path / "cache")
    assert f"{url}images.gz" in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_download_all_mirrors_fail_raises_naming_each_with_its_reason(site, tmp_path):
    _, url = site
    closed = "http://127.0.0.1:1/"
    with pytest.raises(DataError, match=r"images.gz could not be downloaded .* from any mirror") as caught:
        download(Source((closed, url), (GOOD,)), tmp_path / "cache")
    message = str(caught.value)
    assert f"{closed}images.gz" in message
    assert f"{url}images.gz: 404" in message
    assert "put the file in" in caught.value.fix
    assert list((tmp_path / "cache").iterdir()) == []


def test_download_folder_cannot_be_made_raises_before_any_request(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="folder for downloads cannot be created"):
        download(Source(("http://127.0.0.1:1/",), (GOOD,)), tmp_path / "file" / "cache")
