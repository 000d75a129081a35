"""Copies of adapters that other workers have: folders of this process, until all ranks have read them."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

import grpc

from engine.adapters.peft_folder import CONFIG_FILE, WEIGHTS_FILE, content_hash
from engine.errors import AdapterRefused
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.peer_calls import channel_to

log = logging.getLogger(__name__)

_LONGEST_S: Final = 60.0
"""Longest fetch. A worker that stops answering is noticed before, by keepalive pings."""


class AdapterCopies:
    """For any thread. Folders are below the machine's directory for temporary files (TMPDIR)."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._folder: Path | None = None
        """Made with the first copy."""
        self._channels: set[grpc.Channel] = set()
        """Channels of fetches that run."""
        self._is_stopped = False

    def fetch(self, digest: bytes, source: worker_pb2.AdapterSource) -> Path:
        """A folder with an adapter of another worker, whose content has this digest.

        Needs memory for one part of it at a time. Raises AdapterRefused.
        """
        began, channel = time.monotonic(), channel_to(source.address, source.certificate)
        folder: Path | None = None
        try:
            self._begin(channel)
            folder = Path(tempfile.mkdtemp(dir=self._root()))
            stub = worker_pb2_grpc.AdapterFilesStub(channel)  # type: ignore[no-untyped-call]
            wanted = worker_pb2.FetchAdapter(digest=digest, ticket=source.ticket)
            num_bytes = save(stub.Fetch(wanted, timeout=_LONGEST_S), digest, folder)
        except (AdapterRefused, grpc.RpcError, OSError, ValueError) as error:  # ValueError: it was closed
            if folder is not None:
                self.drop(folder)
            reason = error.details() if isinstance(error, grpc.RpcError) else error
            raise AdapterRefused(f"there is no copy of it at {source.address}: {reason}") from None
        finally:
            self._channels.discard(channel)
            channel.close()
        seconds = time.monotonic() - began
        log.info("%d bytes of an adapter came from %s in %.3f s", num_bytes, source.address, seconds)
        return folder

    def drop(self, folder: Path) -> None:
        """Remove a copy; no effect on other folders."""
        if folder.parent == self._folder:
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """End all fetches, and refuse further ones."""
        with self._lock:
            self._is_stopped = True
            running = list(self._channels)
        for channel in running:
            channel.close()

    def remove(self) -> None:
        """Remove all copies, after `stop`."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, channel: grpc.Channel) -> None:
        with self._lock:
            if self._is_stopped:
                raise AdapterRefused("the worker stops")
            self._channels.add(channel)

    def _root(self) -> Path:
        """Raises OSError."""
        with self._lock:
            if self._folder is None:
                parent = Path(tempfile.gettempdir()) / f"baton-adapters-{os.getuid()}"
                parent.mkdir(mode=0o700, exist_ok=True)
                _remove_remains(parent)
                self._folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
            return self._folder


def save(parts: Iterator[worker_pb2.AdapterPart], digest: bytes, place: Path) -> int:
    """Write the files of an adapter to a folder, and return how many bytes came.

    Raises AdapterRefused unless they are the content with this digest, OSError, and what `parts` raises.
    """
    head = next(parts, worker_pb2.AdapterPart())
    free = shutil.disk_usage(place).free
    if head.bytes > free:
        raise AdapterRefused(f"it has {head.bytes} bytes, and {place.parent} has room for {free}")
    content, left = content_hash(head.config), head.bytes
    (place / CONFIG_FILE).write_bytes(head.config)
    with (place / WEIGHTS_FILE).open("wb") as file:
        for part in parts:
            left -= len(part.data)
            if left < 0:
                break
            content.update(part.data)
            file.write(part.data)
    if left or content.digest() != digest:
        raise AdapterRefused("its bytes are not those of the adapter that was loaded")
    return head.bytes


def _remove_remains(parent: Path) -> None:
    """Remove folders of processes that were killed."""
    for folder in parent.iterdir():
        try:
            os.kill(int(folder.name.partition("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (ValueError, PermissionError):
            continue
