"""Telling the service manager how we are: datagrams as sd_notify(3) sends them, without a library."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

__all__ = ["Notifier"]

_LOG = logging.getLogger("trimtab")


class Notifier:
    """Speaks to whoever started us and asked to be told. Where nobody did, nothing happens."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog_s = watchdog_s
        """Within this time we must say that we live, again and again; None where nobody waits for it."""

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Return what the environment asks for, and take it out, so that no child speaks in our name."""
        address = environ.pop("NOTIFY_SOCKET", None)
        within, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = within.isdigit() and int(within) > 0 and whose in ("", str(os.getpid()))
        return cls(address, int(within) / 1e6 if watched else None)

    def say(self, *lines: str) -> None:
        """Send assignments such as READY=1. A manager that cannot be told is reported once, and told no more."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except BlockingIOError:
            return  # it has a full queue and will hear the next one
        except OSError as error:
            _LOG.warning("the service manager cannot be told how we are: %s", error.strerror or error)
            self._address = None
