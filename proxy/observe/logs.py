"""Log lines on stderr: text for a terminal, one JSON object a line for everything else."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any, TextIO

from proxy.config.model import LogConfig

__all__ = ["JsonFormatter", "TextFormatter", "setup"]

_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}


_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys or cannot show, and JSON lets through: C1 controls, text directions, lone surrogates."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f]|" + _UNSEEN.pattern)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what was passed as `extra` becomes fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        line: dict[str, Any] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _OWN and key not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _UNSEEN.sub(_escaped, json.dumps(line, default=str, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Time, level, message; made for eyes."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = _CONTROLS.sub(_escaped, f"{clock} {level}{record.getMessage()}")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def setup(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send the `trimtab` loggers to `stream` (stderr), in the configured form. May be called again on reload."""
    out = sys.stderr if stream is None else stream
    as_json = config.format == "json" or (config.format == "auto" and not out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logger = logging.getLogger("trimtab")
    logger.handlers = [handler]
    logger.setLevel(config.level.upper())
    logger.propagate = False


def _iso(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
