"""`router verify` and `router replay` of receipts, without a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from router.api.generation.audit.receipts import Presented, TokensDigest
from router.api.media.marks import ImageSource
from router.command.audit import verify
from router.command.audit.computing import OnService
from router.command.client.api import ApiClient
from tests.faults.support.local_cluster import LocalCluster


async def verdict(
    cluster: LocalCluster,
    receipt: dict[str, Any],
    *,
    prompt: Sequence[int] | None = None,
    images: Sequence[ImageSource] = (),
    served: str | None = None,
) -> tuple[dict[str, Any], str]:
    """What is found, and what is printed."""
    computer = OnService(ApiClient(cluster.url), served)
    found = await asyncio.to_thread(verify.verified, receipt, computer, prompt, images)
    return found, "\n".join(verify._lines(found, ""))


def sealed(receipt: dict[str, Any]) -> dict[str, Any]:
    """With the digest over all fields that a forger would compute."""
    return receipt | {"digest": Presented.read(receipt | {"digest": ""}).receipt.digest}


def resealed(receipt: dict[str, Any]) -> dict[str, Any]:
    """With all digests of prompt and answer that a forger would compute."""
    prompt, tokens = receipt["prompt_token_ids"], receipt["token_ids"]
    claimed = Presented.read(receipt).receipt
    forged = replace(claimed, prompt=TokensDigest.of(prompt), output=TokensDigest.of(tokens))
    of_tokens = {
        name: {"count": one.count, "digest": one.digest}
        for name, one in (("prompt", forged.prompt), ("output", forged.output))
    }
    return sealed(receipt | of_tokens | {"pages": list(forged.chain(prompt, tokens))})


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
