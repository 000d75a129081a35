"""Calls from worker to worker: channels, and the permission to fetch an adapter."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import grpc

from rpc.channel import CLIENT_OPTIONS
from rpc.tls import NAME

TICKET_BYTES: Final = 32
_PERSON: Final = b"baton ticket"


def channel_to(address: str, certificate: bytes) -> grpc.Channel:
    """To the worker that has this certificate (PEM); empty: plaintext. Connects lazily."""
    if not certificate:
        return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate)
    options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", NAME))
    return grpc.secure_channel(address, credentials, options=options)


def ticket_for(key: bytes, digest: bytes) -> bytes:
    """Permission to fetch the adapter with this digest from the worker whose key it is.

    The worker and its routers know the key, and make the same ticket without asking each other.
    """
    return blake2b(digest, key=key, digest_size=TICKET_BYTES, person=_PERSON).digest()
