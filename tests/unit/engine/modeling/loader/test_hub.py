"""GGUF files by the id of a repository and a quantization, from a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

SHA = "a" * 40
ASK = """
import sys
from pathlib import Path
from engine.modeling.loader.hub.download import download_gguf
path = download_gguf("someone/tiny-GGUF", sys.argv[1])
print(path.name, path.read_bytes().decode(), *sorted(file.name for file in path.parent.iterdir()))
"""


class _Hub(BaseHTTPRequestHandler):
    files: ClassVar[tuple[str, ...]] = ()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, prefix = self.path.partition("?")[0], f"/someone/tiny-GGUF/resolve/{SHA}/"
        if path.startswith(f"/api/models/someone/tiny-GGUF/tree/{SHA}"):
            tree = [{"type": "file", "path": name, "size": len(name), "oid": name} for name in self.files]
            self._answer(json.dumps(tree).encode())
        elif path.startswith("/api/models/someone/tiny-GGUF"):
            siblings = [{"rfilename": name} for name in self.files]
            self._answer(json.dumps({"id": "someone/tiny-GGUF", "sha": SHA, "siblings": siblings}).encode())
        elif path.startswith(prefix) and path.removeprefix(prefix) in self.files:
            self._answer(path.removeprefix(prefix).encode())
        else:
            self.send_error(404)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("ETag", f'"{self.path.rpartition("/")[2]}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def ask(quantization: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    variables |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "" if endpoint else "1"}
    return subprocess.run(
        [sys.executable, "-c", ASK, quantization], capture_output=True, text=True, env=variables, check=False
    )


def test_the_file_of_a_quantization_is_fetched_and_found_again_without_a_network(
    hub: str, tmp_path: Path
) -> None:
    _Hub.files = ("tiny-Q4_K_M.gguf", "tiny-UD-Q4_K_XL.gguf", "tiny-Q8_0-00001-of-00002.gguf")
    _Hub.files += ("tiny-Q8_0-00002-of-00002.gguf", "mmproj-Q8_0.gguf", "README.md")

    found = ask("q4_k_m", hub, tmp_path)
    assert found.stdout.split() == ["tiny-Q4_K_M.gguf"] * 3, found.stderr
    parts = ask("Q8_0", hub, tmp_path).stdout.split()
    names = [f"tiny-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert parts == [names[0], names[0], "tiny-Q4_K_M.gguf", *names]
    assert ask("Q4_K_M", "", tmp_path).stdout.split()[0] == "tiny-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ("Q5_K_M", "no file of the quantization Q5_K_M: a/tiny-Q4_0.gguf, b/tiny-Q4_0.gguf"),
        ("Q4_0", "several files of the quantization Q4_0: a/tiny-Q4_0.gguf, b/tiny-Q4_0.gguf"),
    ],
)
def test_a_quantization_that_names_no_file_or_several_is_refused(
    quantization: str, message: str, hub: str, tmp_path: Path
) -> None:
    _Hub.files = ("a/tiny-Q4_0.gguf", "b/tiny-Q4_0.gguf")

    found = ask(quantization, hub, tmp_path)

    assert f"CheckpointError: someone/tiny-GGUF has {message}" in found.stderr
