"""Headless Chromium, spoken to over its debugging pipe: no driver, no package."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str:
    """Its path; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


@dataclass
class Page:
    """One tab."""

    writer: Any
    session: str = ""
    errors: list[str] = field(default_factory=list)
    """Uncaught exceptions and console errors, violations of the CSP among them."""
    advice: list[str] = field(default_factory=list)
    """What the browser notes about the page, other than errors."""
    requested: list[str] = field(default_factory=list)
    """URLs."""
    answers: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    ids: Any = field(default_factory=lambda: count(1))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.ids)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.answers[number] = asyncio.get_running_loop().create_future()
        self.writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_S):
            return await self.answers[number]

    async def open(self, url: str, width: int = 1280, height: int = 900, *, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        await self.call("Page.navigate", url=url)

    async def prefer(self, scheme: str) -> None:
        """`scheme`: light or dark."""
        preference = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[preference])

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The expression's value once it is true. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not (value := await self.evaluate(expression)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return value

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))  # noqa: ASYNC240

    def take(self, message: dict[str, Any]) -> None:
        if (number := message.get("id")) is not None:
            future = self.answers.pop(number)
            if "error" in message:
                future.set_exception(RuntimeError(message["error"]["message"]))
            else:
                future.set_result(message["result"])
            return
        event = message["params"]
        match message["method"]:
            case "Runtime.exceptionThrown":
                self.errors.append(str(event["exceptionDetails"]))
            case "Log.entryAdded" if event["entry"]["level"] == "error":
                self.errors.append(event["entry"]["text"])
            case "Log.entryAdded":
                self.advice.append(event["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(event["request"]["url"])


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    program = chromium()
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f'exec "$0" "$@" 3<&{commands_in} 4>&{answers_out}'),
            program,
            *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server", "--hide-scrollbars"),
            f"--user-data-dir={profile}",
            pass_fds=(commands_in, answers_out),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        writer = open(commands_out, "wb", buffering=0)  # noqa: SIM115, ASYNC230
        page = Page(writer)
        reading = asyncio.create_task(_read(answers_in, page))
        try:
            target = await page.call("Target.createTarget", url="about:blank")
            attached = await page.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            page.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            yield page
        finally:
            page.session = ""
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(10):
                    writer.write(b'{"id":0,"method":"Browser.close"}\0')
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            reading.cancel()
            writer.close()


async def _read(pipe: int, page: Page) -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    file = open(pipe, "rb", buffering=0)  # noqa: SIM115, ASYNC230
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            message = json.loads((await reader.readuntil(b"\0"))[:-1])
            if message.get("id") != 0:
                page.take(message)
