"""Processes that need CIFAR at once: one downloads it, and nothing half done looks whole."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import pickle
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR100

from batchformer.lab.data.sets.cifar import cifar_lt
from batchformer.lab.data.sets.image_layouts import find_cifar

FOLDER = "cifar-100-python"
FILES = ("train", "test", "meta")


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def small_release() -> tuple[bytes, dict[str, str]]:
    """An archive in the official layout with few images, and the MD5 of it and of its files."""
    draw = np.random.RandomState(0)
    labels = (np.arange(300) % 100).tolist()
    images = {"data": draw.randint(0, 256, (300, 3072), dtype=np.uint8), "fine_labels": labels}
    names = {"fine_label_names": [f"c{i}" for i in range(100)]}
    files = {"train": images, "test": images, "meta": names, "file.txt~": {}}
    buffer, sums = io.BytesIO(), {}
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            one = pickle.dumps(content)
            sums[name] = md5(one)
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size = len(one)
            archive.addfile(entry, io.BytesIO(one))
    return buffer.getvalue(), {**sums, "archive": md5(buffer.getvalue())}


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@dataclass
class Site:
    """A web site with the release, slow enough to be waited for."""

    sums: dict[str, str]
    content: bytes
    port: int = 0
    asked: int = 0
    go_on: threading.Event = field(default_factory=threading.Event)

    def wait_until_asked(self, times: int = 1) -> None:
        wait_until(lambda: self.asked >= times)


@pytest.fixture
def site() -> Iterator[Site]:
    content, sums = small_release()
    one = Site(sums, content)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(one.content)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            if "Method" in self.headers:
                return  # how torchvision asks whether the address leads elsewhere
            half = len(one.content) // 2
            self.wfile.write(one.content[:half])
            self.wfile.flush()
            one.asked += 1
            one.go_on.wait(60)
            with suppress(OSError):  # who asked was killed
                self.wfile.write(one.content[half:])

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        one.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield one
        one.go_on.set()
        server.shutdown()


def fetch(site: tuple[int, dict[str, str]], root: Path, output: Path, dies_moving: str) -> None:
    """Load the release from the site into `root`; the process may die in moving a file."""
    port, sums = site
    CIFAR100.url = f"http://127.0.0.1:{port}/{CIFAR100.filename}"
    CIFAR100.tgz_md5 = sums["archive"]
    CIFAR100.train_list = [["train", sums["train"]]]
    CIFAR100.test_list = [["test", sums["test"]]]
    CIFAR100.meta = {**CIFAR100.meta, "md5": sums["meta"]}
    replace = Path.replace

    def dying(path: Path, target: Path) -> Path:
        if Path(target).name == dies_moving:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    Path.replace = dying  # type: ignore[method-assign, assignment]
    torch.set_num_threads(1)
    with output.open("w", buffering=1) as sys.stderr:
        try:
            cifar_lt("cifar100", ratio=1, root=root)
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            sys.exit(1)


class Process:
    """A process that loads the data."""

    def __init__(self, site: Site, root: Path, name: str, dies_moving: str = "") -> None:
        self.output = root.with_name(name)
        arguments = ((site.port, site.sums), root, self.output, dies_moving)
        context = multiprocessing.get_context("fork")  # torch is loaded already
        self.process = context.Process(target=fetch, args=arguments)
        self.process.start()

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def wait_until_it_waits(self) -> None:
        wait_until(lambda: "waiting for another process" in self.said)

    def end(self) -> int | None:
        self.process.join(60)
        return self.process.exitcode


def names_in(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_of_three_that_begin_together_one_downloads(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    root.parent.mkdir()
    first = Process(site, root, "first")
    site.wait_until_asked()
    others = [Process(site, root, name) for name in ("second", "third")]
    for other in others:
        other.wait_until_it_waits()
    assert find_cifar("cifar100", root) is None
    site.go_on.set()
    for one in (first, *others):
        assert one.end() == 0, one.said
    assert site.asked == 1 and names_in(root) == {FOLDER}
    words = f"CIFAR100: waiting for another process that downloads it into {root}."
    assert [one.said.count(words) for one in (first, *others)] == [0, 1, 1]


def test_a_downloader_that_is_killed_leaves_nothing_and_the_next_one_downloads(
    site: Site, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    first = Process(site, root, "first")
    site.wait_until_asked()
    second = Process(site, root, "second")
    second.wait_until_it_waits()
    first.process.kill()
    assert first.end() == -signal.SIGKILL and find_cifar("cifar100", root) is None
    assert not (root / FOLDER).exists()
    site.wait_until_asked(2)
    site.go_on.set()
    assert second.end() == 0, second.said
    assert names_in(root) == {FOLDER}


def test_files_that_are_half_moved_do_not_look_whole(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "data"
    site.go_on.set()
    (root / FOLDER).mkdir(parents=True)
    (root / FOLDER / "notes.txt").write_text("mine")
    (root / FOLDER / "train").write_text("left by something else")
    for file in FILES:
        assert Process(site, root, f"dies at {file}", file).end() == -signal.SIGKILL
        assert find_cifar("cifar100", root) is None
    last = Process(site, root, "last")
    assert last.end() == 0, last.said
    assert find_cifar("cifar100", root) == root / FOLDER
    assert {md5((root / FOLDER / name).read_bytes()) for name in FILES} <= {*site.sums.values()}
    assert (root / FOLDER / "notes.txt").read_text() == "mine"
    assert names_in(root) == {FOLDER}


def test_a_download_that_fails_leaves_no_folder(site: Site, tmp_path: Path) -> None:
    site.content = site.content[:-1]
    site.go_on.set()
    one = Process(site, tmp_path / "data", "one")
    assert one.end() == 1 and "CIFAR100 not found" in one.said and "download failed" in one.said
    assert not (tmp_path / "data").exists()


def test_an_archive_that_lies_there_is_not_downloaded_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    archive = tmp_path / "data" / CIFAR100.filename
    archive.write_bytes(site.content)
    one = Process(site, tmp_path / "data", "one")
    assert one.end() == 0 and site.asked == 0, one.said
    assert archive.read_bytes() == site.content and not archive.is_symlink()


def test_a_folder_that_cannot_be_written_is_said(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder would be")
    one = Process(site, tmp_path / "data", "one")
    assert one.end() == 1 and "the download failed" in one.said
