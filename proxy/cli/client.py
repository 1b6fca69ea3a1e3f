"""A small client of the admin API, on the standard library so that `trimtab ctl` starts at once."""

from __future__ import annotations

import getpass
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

__all__ = ["AdminClient", "Refusal", "Unreachable"]

_PATIENCE_S = 10.0


class Unreachable(Exception):
    """Nobody answered at the URL."""


class Refusal(Exception):
    """The API said no; the text is its own."""


class AdminClient:
    """Speaks to one proxy's admin API."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"X-Trimtab-Actor": _actor()}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON of a GET. Raises Refusal and Unreachable."""
        return self._send("GET", path, None, query)

    def send(self, method: str, path: str, body: Any = None, **query: object) -> Any:
        """Make a change and return the answer's JSON. Raises Refusal and Unreachable."""
        return self._send(method, path, body, query)

    def pool(self, name: str | None) -> str:
        """Return `name`, or the only pool's when it is None. Raises Refusal when that is not clear."""
        if name is not None:
            return urllib.parse.quote(name, safe="")
        names = [pool["name"] for pool in self.get("/admin/v1/pools")["pools"]]
        if len(names) != 1:
            raise Refusal(f"which pool? There are {', '.join(names)}; choose with --pool")
        return str(names[0])

    def events(self, every_s: float) -> Iterator[tuple[str, Any]]:
        """Yield (event, data) from the event stream until it ends."""
        name = ""
        with self._open(
            "GET", "/admin/v1/events", None, {"every_s": every_s}, timeout=every_s + 2 * _PATIENCE_S
        ) as stream:
            for raw in stream:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

    def _send(self, method: str, path: str, body: Any, query: dict[str, object]) -> Any:
        with self._open(method, path, body, query) as answer:
            return json.loads(answer.read())

    def _open(self, method: str, path: str, body: Any, query: dict[str, object], timeout: float = _PATIENCE_S) -> Any:
        given = {key: value for key, value in query.items() if value is not None}
        url = self.url + path + (f"?{urllib.parse.urlencode(given, doseq=True)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": "application/json"} if data is not None else {})
        try:
            request = urllib.request.Request(url, data=data, headers=headers, method=method)
            return urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise Refusal(_words(error, self.url)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"{self.url}: {reason}; is the proxy running, and is this its admin port?") from None


def _words(error: urllib.error.HTTPError, url: str) -> str:
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{url}: {error.code} {error.reason}; is this the proxy's admin port?"


def _actor() -> str:
    """Return who is at the keyboard, in the letters that the API takes."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "ctl"
    return re.sub(r"[^A-Za-z0-9@._+-]", "-", name)[:60].lstrip("@._+-") or "ctl"
