"""An S3 store on this machine, and what may be wrong with one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "kv-tier"


class Store:
    """moto's, on one port over all its starts."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.url = f"s3://{BUCKET}/prefix?endpoint={self.endpoint}"
        self.client: Any = boto3.session.Session().client("s3", endpoint_url=self.endpoint)
        self._server: ThreadedMotoServer | None = None

    def start(self) -> None:
        """With what it held before."""
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def names(self) -> list[str]:
        return [found["Key"] for found in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]

    def content(self, name: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return content

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=name, Body=content)


@contextmanager
def store() -> Iterator[Store]:
    opened = Store()
    opened.start()
    # moto keeps its buckets for the life of the process.
    opened.client.create_bucket(Bucket=BUCKET)
    try:
        yield opened
    finally:
        opened.stop()
        opened.start()
        for name in opened.names():
            opened.client.delete_object(Bucket=BUCKET, Key=name)
        opened.client.delete_bucket(Bucket=BUCKET)
        opened.stop()


@contextmanager
def trickling(content: bytes, at_once: int) -> Iterator[str]:
    """URL of a store that answers all with `content`: some at once, then a byte in a tenth of a second."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with answering(head + content, len(head) + at_once) as url:
        yield url


@contextmanager
def answering(answer: bytes, at_once: int | None = None) -> Iterator[str]:
    """URL of a store that answers all with these bytes, HEAD with the lines before the body.

    `at_once`: all others come one by one, in a tenth of a second each.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve_one(connection: socket.socket) -> None:
        with connection:
            try:
                request = connection.recv(1 << 16)
                if request.startswith(b"HEAD"):
                    # Otherwise the client may send its next request here before it sees the end.
                    connection.sendall(answer.partition(b"\r\n\r\n")[0] + b"\r\nConnection: close\r\n\r\n")
                    return
                connection.sendall(answer[:at_once])
                for byte in b"" if at_once is None else answer[at_once:]:
                    over.wait(0.1)
                    connection.sendall(bytes([byte]))
            except OSError:
                pass  # the client has given up

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"s3://{BUCKET}?endpoint=http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.close()
