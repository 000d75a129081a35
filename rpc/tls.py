"""TLS between processes that know each other's certificates, and for servers whose certificate is in files.

Baton's own processes need no certificate authority. A worker generates a key that never leaves it; the
routers of a cluster share one. Each side gets the other's certificate, which is public. No other process can
authenticate as either of them.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAME: Final = "baton"
"""Common name of every generated certificate; processes are distinguished by their keys."""

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_CLOCK_SKEW: Final = datetime.timedelta(days=1)
_LIFETIME: Final = datetime.timedelta(days=3650)
"""Longer than any cluster runs; no key is stored in a file."""


class BadCertificate(Exception):
    """A certificate or key file cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Key and self-signed certificate of a worker, or of the routers of a cluster."""

    certificate: bytes
    """PEM; public."""
    key: bytes = field(repr=False)
    """PEM; must not be logged, and leaves the process only as `pem`."""

    @property
    def pem(self) -> bytes:
        """Key and certificate, for another router of the same cluster."""
        return self.key + self.certificate

    @classmethod
    def from_pem(cls, pem: bytes) -> Identity:
        key, mark, certificate = pem.partition(_CERTIFICATE)
        return cls(mark + certificate, key)

    @classmethod
    def generate(cls) -> Identity:
        """A new key and its certificate. Takes about 1 ms."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def serve(self, client: bytes) -> grpc.ServerCredentials:
        """Credentials of a server that accepts only the holder of the certificate `client` (PEM)."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=client, require_client_auth=True
        )

    def serve_all(self) -> grpc.ServerCredentials:
        """Credentials of a server that accepts every client: what it serves needs a permission of its own."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)])

    def call(self, server: bytes) -> grpc.ChannelCredentials:
        """Credentials of a channel that accepts only the holder of the certificate `server` (PEM)."""
        return grpc.ssl_channel_credentials(
            root_certificates=server, private_key=self.key, certificate_chain=self.certificate
        )


@dataclass(slots=True, eq=False)
class TlsFiles:
    """A server's certificate chain and its key, as PEM files without a passphrase.

    After `reload` the servers present the new certificate to new connections.
    """

    certificate: Path
    key: Path
    _contexts: list[ssl.SSLContext] = field(default_factory=list, repr=False)
    """Contexts of running servers."""
    _pair: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)
    """Key and certificate chain that gRPC presents, PEM."""

    @property
    def files(self) -> tuple[Path, ...]:
        return self.certificate, self.key

    def __str__(self) -> str:
        return f"{self.certificate} and {self.key}"

    def check(self) -> None:
        """Raises BadCertificate if a server could not use the files."""
        try:
            self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except ssl.SSLError as error:
            raise BadCertificate(
                f"{self.certificate} and {self.key} are not a certificate and its key: {error.reason}"
            ) from None
        except OSError as error:
            raise BadCertificate(f"{error.filename or self.certificate}: {error.strerror}") from None

    def context(self) -> ssl.SSLContext:
        """TLS context of servers based on Python's ssl: TLS 1.2 and 1.3.

        Raises OSError, SSLError, BadCertificate.
        """
        context = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._contexts.append(context)
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of gRPC servers. Raises OSError."""
        self._pair = self._read()

        def presented() -> grpc.ServerCertificateConfiguration:
            """Called by gRPC for each connection."""
            return grpc.ssl_server_certificate_configuration([self._pair])

        return grpc.dynamic_ssl_server_credentials(presented(), presented)

    def reload(self) -> None:
        """Read the files again. Raises BadCertificate, and keeps the certificate as it was."""
        self.check()
        for context in self._contexts:
            self._loaded(context)
        self._pair = self._read()

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        self._read()  # load_cert_chain does not say which file cannot be read
        context.load_cert_chain(self.certificate, self.key, password=self._refuse_passphrase)
        return context

    def _read(self) -> tuple[bytes, bytes]:
        return self.key.read_bytes(), self.certificate.read_bytes()

    def _refuse_passphrase(self) -> NoReturn:
        """Without this, OpenSSL would ask for the passphrase on the terminal."""
        raise BadCertificate(f"{self.key} has a passphrase; store the key without one")
