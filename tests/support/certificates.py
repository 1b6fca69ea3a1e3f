"""A certificate authority for one test run, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Authority", "Pair", "authority", "stranger"]

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Pair(NamedTuple):
    """A certificate and its private key, as PEM files."""

    cert: str
    key: str


class Authority:
    """Issues certificates into `folder`; `cert` is what others must trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self.cert = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_CURVE, "-keyout", self._key, "-out", self.cert, "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def issue(self, name: str, *names: str) -> Pair:
        """Return a certificate for `name` with these subject names, such as `DNS:x` or `IP:127.0.0.1`."""
        stem = self._folder / f"{self._name}-{name}"
        pair, request, extra = Pair(f"{stem}.pem", f"{stem}.key"), f"{stem}.csr", Path(f"{stem}.ext")
        extra.write_text(f"subjectAltName={','.join(names or ('DNS:localhost', 'IP:127.0.0.1'))}\n")
        _openssl("req", "-new", *_CURVE, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-days", "2",
            "-out", pair.cert, "-extfile", str(extra),
        )  # fmt: skip
        return pair


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that is trusted."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")
