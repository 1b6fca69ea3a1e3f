"""Certificates and keys: what we show to others, and what we ask of them. Files are PEM."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from proxy.config.base import Section

__all__ = ["ListenTlsConfig", "UpstreamTlsConfig"]


class ListenTlsConfig(Section):
    """TLS towards those who connect to us, 1.2 and up. The files are read again on every reload."""

    cert: str = Field(min_length=1, description="PEM file with our certificate and those between it and the root.")
    key: str = Field(min_length=1, description="PEM file with its private key, without a passphrase.")
    client_ca: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file of who may vouch for them; then each must show a certificate.",
    )


class UpstreamTlsConfig(Section):
    """TLS towards an upstream whose URL begins with https. The files are read again on every reload."""

    ca: str | None = Field(
        default=None, min_length=1, description="PEM file of who may vouch for it; the system's when absent."
    )
    cert: str | None = Field(default=None, min_length=1, description="PEM file with the certificate that we show it.")
    key: str | None = Field(default=None, min_length=1, description="PEM file with the private key of `cert`.")
    server_name: str | None = Field(
        default=None, min_length=1, description="Name that its certificate must have; the URL's host when absent."
    )
    verify: bool = Field(
        default=True, description="false: believe whoever answers. Anybody on the way can then read and change all."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key need each other")
        if not self.verify and self.ca is not None:
            raise ValueError("ca is of no use where verify is false; drop one of them")
        return self
