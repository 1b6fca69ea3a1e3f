"""TLS contexts as the configuration describes them, and what is wrong with the files it names."""

from __future__ import annotations

import ssl
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from proxy.config.model import Config, PoolConfig
from proxy.config.tls import ListenTlsConfig, UpstreamTlsConfig

__all__ = ["TlsError", "client_context", "file_problems", "fingerprint", "renew", "server_context"]

_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = "PRIVATE KEY-----"
_PROTOCOLS = ["http/1.1"]


class TlsError(ValueError):
    """A file cannot be used. `key` is the configuration's name for it; the text says what is wrong and with what."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def server_context(config: ListenTlsConfig) -> ssl.SSLContext:
    """Return what a listener needs. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    _load_pair(context, config.cert, config.key)
    if config.client_ca is not None:
        _load_roots(context, "client_ca", config.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def renew(context: ssl.SSLContext, config: ListenTlsConfig) -> None:
    """Let new connections see what the files hold now. Raises TlsError, and changes nothing then.

    Clients' authorities are only added: one that is to be trusted no more needs a restart.
    """
    server_context(config)
    _load_pair(context, config.cert, config.key)
    if config.client_ca is not None:
        _load_roots(context, "client_ca", config.client_ca)


def client_context(config: UpstreamTlsConfig) -> ssl.SSLContext:
    """Return what a connection to an upstream needs. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is not None:
        _load_roots(context, "ca", config.ca)
    else:
        context.load_default_certs()
    if config.cert is not None and config.key is not None:
        _load_pair(context, config.cert, config.key)
    return context


def fingerprint(config: PoolConfig) -> bytes:
    """Return what changes when a file that the pool's connections depend on does. b"" where there is none."""
    found = [
        _read(key, path).encode()
        for upstream in config.upstreams
        if (tls := upstream.tls) is not None
        for key, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key))
        if path is not None
    ]
    return sha256(b"\0".join(found)).digest() if found else b""


def file_problems(config: Config) -> list[tuple[tuple[str | int, ...], str]]:
    """Return (path in the configuration, message) for every file that cannot be used."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    for name, listener in (("listen", config.listen.tls), ("admin", config.admin.tls)):
        try:
            if listener is not None:
                server_context(listener)
        except TlsError as error:
            found.append(((name, "tls", error.key), str(error)))
    for index, pool in enumerate(config.pools):
        for place, upstream in enumerate(pool.upstreams):
            try:
                if upstream.tls is not None:
                    client_context(upstream.tls)
            except TlsError as error:
                found.append((("pools", index, "upstreams", place, "tls", error.key), str(error)))
    return found


def _read(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise TlsError(key, f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    if _CERTIFICATE not in _read("cert", cert):
        raise TlsError("cert", f"{cert} holds no PEM certificate")
    secret = _read("key", key)
    if _KEY not in secret:
        raise TlsError("key", f"{key} holds no PEM private key")
    if "ENCRYPTED" in secret:
        raise TlsError("key", f"{key} is protected by a passphrase, and nobody is there to enter it")
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError("key", f"{key} is not the private key of the certificate in {cert}") from None
        raise TlsError("cert", f"{cert} and {key} cannot be used: {error.reason or error}") from None


def _load_roots(context: ssl.SSLContext, key: str, path: str) -> None:
    if _CERTIFICATE not in _read(key, path):
        raise TlsError(key, f"{path} holds no PEM certificate")
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsError(key, f"{path} cannot be used: {error.reason or error}") from None


def _no_passphrase() -> NoReturn:
    """OpenSSL would ask at the terminal otherwise."""
    raise TlsError("key", "the private key is protected by a passphrase, and nobody is there to enter it")
