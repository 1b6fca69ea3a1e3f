"""Taking ports before anything starts, so that a taken one is one clear line and not half a start."""

from __future__ import annotations

import errno
import socket

__all__ = ["BindError", "address_of", "bind", "bind_shared"]


class BindError(Exception):
    """An address cannot be listened on. The text names it and what to do."""


def bind_shared(host: str, port: int, count: int, *, key: str, flag: str, backlog: int = 1024) -> list[socket.socket]:
    """Return `count` listening sockets on one port, among which the kernel deals out connections.

    Nobody else may be there already. Raises BindError.
    """
    if count > 1:
        # SO_REUSEPORT would let us in beside another proxy of the same user, which nobody wants.
        bind(host, port, key=key, flag=flag, backlog=backlog).close()
    sockets = [bind(host, port, key=key, flag=flag, backlog=backlog, shared=count > 1)]
    while len(sockets) < count:
        taken = sockets[0].getsockname()[1]
        sockets.append(bind(host, taken, key=key, flag=flag, backlog=backlog, shared=True))
    return sockets


def bind(host: str, port: int, *, key: str, flag: str, backlog: int = 1024, shared: bool = False) -> socket.socket:
    """Return a listening, non-blocking socket on `host:port`, `shared` with others that are so.

    `key` and `flag` are where the user would choose another port. Raises BindError.
    """
    where = _spell(host, port)
    remedy = f"choose another port with {flag} or {key}.port"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        reason = error.strerror or "cannot be resolved"
        raise BindError(f"{where}: {reason.lower()}; set {key}.host to an address of this machine") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise BindError(_explain(error, where, remedy, key)) from None
    return sock


def _explain(error: OSError, where: str, remedy: str, key: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{where}: the port is in use; stop what listens there, or {remedy}"
    if error.errno == errno.EACCES:
        return f"{where}: not permitted (ports below 1024 need privileges); {remedy}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: not an address of this machine; set {key}.host to one"
    return f"{where}: {(error.strerror or str(error)).lower()}; {remedy}"


def address_of(sock: socket.socket) -> str:
    """Return `host:port` as it goes into a URL, with the port the system picked."""
    host, port = sock.getsockname()[:2]
    return _spell(host, port)


def _spell(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
