"""Log lines: whatever a caller wrote, they show it and obey none of it."""

from __future__ import annotations

import io
import json
import logging

import pytest

from proxy.config.model import LogConfig
from proxy.observe.logs import setup

HOSTILE = "evil\x9b31m\x1b[2J\r\n{\u202etxt\u2066\u2028\x7f\x85\udc9b"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_holds_what_a_terminal_or_a_viewer_obeys(form: str) -> None:
    out = io.StringIO()
    setup(LogConfig.model_validate({"format": form}), out)
    logging.getLogger("trimtab.access").warning("tenant %s", HOSTILE, extra={"tenant": HOSTILE})
    written = out.getvalue()
    written.encode("utf-8")
    for character in "\x9b\x1b\r\u202e\u2066\u2028\x7f\x85":
        assert character not in written
    if form == "json":
        (line,) = written.splitlines()
        assert json.loads(line)["tenant"] == HOSTILE
    else:
        assert "\\u009b31m" in written


def test_what_can_be_read_stays_as_it_is() -> None:
    out = io.StringIO()
    setup(LogConfig.model_validate({"format": "json"}), out)
    logging.getLogger("trimtab").warning("Müller 株式会社 🚀")
    assert "Müller 株式会社 🚀" in out.getvalue()
