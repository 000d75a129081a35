"""A streamed completion, read beside the test."""

from __future__ import annotations

import json
import threading

import httpx

from tests.e2e.router_process import RouterProcess


class Streaming:
    """A streamed completion, read on a thread of its own."""

    def __init__(
        self, service: RouterProcess, prompt: str | list[int], max_tokens: int, **options: object
    ) -> None:
        self._body = {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            **options,
        }
        self._url = f"{service.url}/v1/completions"
        self._texts: list[str] = []
        self._grown = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for_chunks(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: len(self._texts) >= count, timeout=60)

    def finish(self) -> str:
        self._thread.join(120)
        assert self._error is None, self._error
        return "".join(self._texts)

    def broken_off(self) -> str:
        """What came before the connection broke."""
        self._thread.join(120)
        assert isinstance(self._error, httpx.TransportError), self._error
        return "".join(self._texts)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120) as response:
                for line in response.iter_lines():
                    data = line.removeprefix("data: ")
                    if not line or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    assert "error" not in event, event
                    with self._grown:
                        self._texts += [choice["text"] for choice in event["choices"]]
                        self._grown.notify_all()
        except Exception as error:
            self._error = error
