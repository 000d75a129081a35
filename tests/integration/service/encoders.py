"""A service with encode workers, and what became of the images."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.service.image_service import ImageService, serving
from tests.integration.service.vision_models import VisionModel


class Encoders(ImageService):
    """A cluster with encode workers."""

    @property
    def encoder(self) -> LocalWorker:
        return self.worker("encode-0")

    def worker(self, name: str) -> LocalWorker:
        return next(worker for worker in self.cluster.workers if worker.worker_id == name)

    @property
    def handouts(self) -> Any:
        return _handler(self.encoder).images.handouts

    def media(self, name: str = "encode-0") -> Any:
        """The `MediaEncoder` of a worker."""
        parts: Any = self.worker(name).host._parts
        return parts.runner.media

    async def outcomes(self) -> dict[str, int]:
        """Images whose rows were to come from an encode worker, by what became of them."""
        counts: dict[str, int] = {}
        for session in self.cluster.registry.computing():
            text = (await self.client.get(f"http://{session.info.metrics_address}/metrics")).text
            for outcome, count in re.findall(
                r'^baton_image_rows_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.M
            ):
                counts[outcome] = counts.get(outcome, 0) + int(float(count))
        return counts

    async def grown(self, before: dict[str, int]) -> dict[str, int]:
        now = await self.outcomes()
        return {name: now[name] - before.get(name, 0) for name in now if now[name] > before.get(name, 0)}

    async def images_encoded(self, *, by_encoder: bool) -> int:
        stats = {s.worker_id: await s.stats() for s in self.cluster.registry.sessions()}
        return sum(
            one.images_encoded for name, one in stats.items() if name.startswith("encode") is by_encoder
        )


@asynccontextmanager
async def encoding_service(
    model: VisionModel, mode: Mode, *, encoders: int = 1, **more: Any
) -> AsyncIterator[Encoders]:
    """`more`: arguments of `local_cluster`."""
    async with serving(model, mode, encoders=encoders, **more) as found:
        yield Encoders(found.client, found.model, found.cluster)


def _handler(worker: LocalWorker) -> Any:
    return worker.host._handler
