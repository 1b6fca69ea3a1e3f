"""When an upstream says that it may be asked again."""

from __future__ import annotations

import re
from calendar import timegm
from email.utils import parsedate_tz
from typing import Final

__all__ = ["retry_after_s"]

_SECONDS: Final = re.compile(rb"\d{1,12}(?:\.\d{0,9})?")
_LONGEST: Final = 64
"""No date is written in more characters."""


def retry_after_s(value: bytes | None, now: float, said_at: bytes | None = None) -> float | None:
    """Return for how many seconds Retry-After asks to be left alone (RFC 9110 section 10.2.3).

    None when it says nothing that can be read. It is a number of seconds, fractions included, or a date in any of
    HTTP's three forms. A date is compared with the answer's own Date, `said_at`, where that can be read, so that
    clocks need not agree, else with `now`, seconds since the epoch. One that has passed is 0.
    """
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _date(value, now)
    if until is None:
        return None
    said = None if said_at is None else _date(said_at.strip(), now)
    return max(0.0, until - (now if said is None else said))


def _date(value: bytes, now: float) -> float | None:
    """Return a date in seconds since the epoch; one without a zone is in GMT, as they all are."""
    if len(value) > _LONGEST:
        return None
    try:
        parts = parsedate_tz(value.decode("ascii"))
        if parts is None or not 1 <= parts[1] <= 12 or not 1 <= parts[2] <= 31:
            return None
        found = float(timegm((*parts[:6], 0, 1, 0))) - (parts[9] or 0)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    # RFC 9110 section 5.6.7: two digits of a year that would be more than 50 years ahead are the century before's.
    if b"-" in value and found > now + _FIFTY_YEARS_S:
        found = float(timegm((parts[0] - 100, *parts[1:6], 0, 1, 0))) - (parts[9] or 0)
    return found


_FIFTY_YEARS_S: Final = 50 * 365.25 * 86_400
