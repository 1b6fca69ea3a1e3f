"""Cheap lexical features of a prompt and of its request fields; standard library only, tens of microseconds.

A bounded part of the prompt is scanned, HEAD characters from its start and TAIL from its end: one byte table lowers
and splits it into words, and every word is looked up once in one dictionary (finding words by a regular expression
takes four times as long). The word lists are ordinary knowledge of what people ask for; nothing was mined from a data
set. Only numbers leave this module, never text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from controller.predictor.keys import HEAD, TAIL

__all__ = ["LEXICAL", "REQUEST", "lexical", "request"]

ASK_HEAD, ASK_TAIL = 40, 15
"""Words at the start and at the end of a prompt in which the word families are counted."""

NAN = math.nan

# Upper case to lower, everything in ASCII that cannot be part of a word to a blank, other bytes as they are.
_LOWER = bytes(
    byte if byte >= 128 or chr(byte).isalnum() or chr(byte) in "'+#" else 32 for byte in bytes(range(256)).lower()
)

_FAMILIES: tuple[tuple[str, str], ...] = (
    ("brief", """brief briefly short shortly concise concisely quick quickly simple simply tldr summary summarize
        summarise single only one just"""),
    ("small_thing", """name names title titles headline slogan tagline motto tweet bio caption joke quote haiku word
        year date capital city country number category label keyword keywords emoji emojis synonym synonyms antonym
        pun riddle compliment person sentiment language price answer true false yes no"""),
    ("large_thing", """essay story article blog report chapter novel speech poem song lyrics script guide tutorial
        document documentation proposal review plan itinerary letter paper whitepaper thesis dialogue dialog
        conversation interview monologue syllabus curriculum lesson course recipe strategy presentation scenario
        screenplay campaign schedule routine roadmap policy contract"""),
    ("elaborate", """detailed detail details thorough thoroughly comprehensive complete full depth elaborate long
        longer extensive paragraphs pages expand everything advanced"""),
    ("code", """code coding python java javascript typescript html css sql function script class algorithm api c++
        c# rust golang bash regex program programming app website react json query implement snippet"""),
    ("several", """list steps ideas tips examples ways reasons points bullet items pros cons types recommendations
        suggestions methods benefits advantages disadvantages features options best top some several different
        various books questions causes factors differences similarities strategies things"""),
    ("closed", """classify translate categorize categorise convert correct grammar label extract rewrite rephrase
        paraphrase edit fix choose pick select identify following given sentence text into whether determine"""),
    ("format", "table csv markdown format xml yaml output template columns column rows bullets numbered"),
    ("explain", """why how explain describe compare difference discuss analyze analyse evaluate prove derive process
        understand meaning concept step work works"""),
    ("unit", "word words sentence sentences paragraph paragraphs page pages lines characters line"),
    ("count", "two three four five six seven eight nine ten dozen"),
    ("create", "create write generate make design draft compose develop build invent"),
    ("personal", "i i'm me my we our us i've im"),
)  # fmt: skip


def _set(words: str) -> frozenset[bytes]:
    return frozenset(words.encode().split())


_FAMILIES_OF: dict[bytes, tuple[int, ...]] = {}
for _index, (_, _words) in enumerate(_FAMILIES):
    for _word in _words.encode().split():
        _FAMILIES_OF[_word] = (*_FAMILIES_OF.get(_word, ()), _index)

# What an opening word asks for, ranked by how long such answers tend to be.
_LEADS: dict[bytes, float] = {
    word: float(rank)
    for rank, words in enumerate(
        (
            "is are was were do does did can could will would should has have am isn't aren't",
            "who whom whose when where which identify find calculate compute classify categorize choose pick name",
            "translate convert rewrite rephrase paraphrase correct fix edit change extract replace complete match",
            "what what's whats define tell summarize summarise decide rank sort label answer",
            "if given using in the a on",
            "give list suggest provide recommend show help how why",
            "explain describe compare discuss analyze analyse outline teach elaborate solve prove",
            "create make generate draft design build plan develop propose compose implement come act pretend",
            "write imagine continue expand",
        )
    )
    for word in words.encode().split()
}
_OTHER_LEAD = 4.5

_POLITE = _set("please hi hello hey can could would will you i i'd i'm need want like to me help us now so ok")
_QUANTITY = _set("many much old long far tall often big")

_WORTH = {
    name: worth
    for names, worth in (
        ("word words", 1.0),
        ("sentence sentences", 20.0),
        ("paragraph paragraphs", 90.0),
        ("page pages", 450.0),
        ("line lines", 9.0),
        ("character characters", 0.2),
    )
    for name in names.encode().split()
}
"""What a unit is worth in words."""

_COUNTS = {word: count for count, word in enumerate(b"a one two three four five six seven eight nine ten".split())}
_COUNTS |= {b"a": 1, b"an": 1, b"single": 1}
_UNIT = [name for name, _ in _FAMILIES].index("unit")

LEXICAL: tuple[str, ...] = (
    "log_chars",
    "log_first_line",
    "log_words",
    "mean_word",
    "bytes_per_char",
    "newlines",
    "question_marks",
    "ends_question",
    "question_early",
    "quotes",
    "colons",
    "numbers",
    "largest_number",
    "asked_words",
    "lead",
    "second",
    "verb",
    "quantity",
    *(name for name, _ in _FAMILIES),
)
"""Names of what `lexical` returns, in order."""

REQUEST: tuple[str, ...] = (
    "log_prompt_tokens",
    "log_max_tokens",
    "temperature",
    "stops",
    "json",
    "tools",
    "hour",
)
"""Names of what `request` returns, in order."""


def lexical(text: str) -> list[float]:
    """Return the features named in LEXICAL; NaN where the prompt does not say. Empty text gives all NaN."""
    size = len(text)
    if not size:
        return [NAN] * len(LEXICAL)
    seen = text if size <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"
    raw = seen.encode("utf-8", "surrogatepass")
    words = raw.translate(_LOWER).split()
    count = len(words)
    # What is wanted stands at the start or at the end; what it is wanted of, in between, says other things.
    asking = words if count <= ASK_HEAD + ASK_TAIL else words[:ASK_HEAD] + words[-ASK_TAIL:]
    families = [0.0] * len(_FAMILIES)
    for hits in filter(None, map(_FAMILIES_OF.get, asking)):
        for index in hits:
            families[index] += 1.0
    numbers = [word for word in words if word < b":"]  # digits sort before the colon, letters after
    small = [int(word) for word in numbers if len(word) < 5 and word.isdigit()]
    lead, second, verb = _leads(words)
    first_line = text.find("\n", 0, HEAD)
    return [
        math.log1p(size),
        math.log1p(first_line if first_line >= 0 else size),
        math.log1p(count),
        (len(raw) - raw.count(b" ")) / count if count else NAN,
        len(raw) / len(seen),
        float(raw.count(b"\n")),
        float(raw.count(b"?")),
        float(text[-9:].rstrip().endswith("?")),
        float(b"?" in raw[:200]),
        float(raw.count(b'"')),
        float(raw.count(b":")),
        float(len(numbers)),
        float(max((number for number in small if number <= 2000), default=0)),
        _asked_words(asking) if families[_UNIT] else NAN,
        lead,
        second,
        verb,
        float(b"how" in words[:8] and not _QUANTITY.isdisjoint(words[:8])),
        *families,
    ]


def request(params: Mapping[str, Any] | None, prompt_tokens: int, max_tokens: int | None, hour: float) -> list[float]:
    """Return the features named in REQUEST; NaN where the request does not say. `hour` is the local hour, 0 to 24."""
    params = params or {}
    get = params.get
    temperature, stop, form = get("temperature"), get("stop"), get("response_format")
    return [
        math.log1p(prompt_tokens) if prompt_tokens > 0 else NAN,
        math.log1p(max_tokens) if max_tokens is not None and max_tokens > 0 else NAN,
        float(temperature) if isinstance(temperature, (int, float)) else NAN,
        0.0 if not stop else float(len(stop)) if isinstance(stop, (list, tuple)) else 1.0,
        float(bool(form) or bool(get("guided_json")) or bool(get("format"))),
        float(len(tools)) if isinstance(tools := get("tools"), (list, tuple)) else 0.0,
        hour // 3.0,
    ]


def _leads(words: list[bytes]) -> tuple[float, float, float]:
    """Rank the first word, the second, and the first that is no courtesy."""
    opening = words[:12]
    lead = _LEADS.get(opening[0], _OTHER_LEAD) if opening else NAN
    second = _LEADS.get(opening[1], _OTHER_LEAD) if len(opening) > 1 else NAN
    verb = next((word for word in opening if word not in _POLITE), b"")
    return lead, second, _LEADS.get(verb, _OTHER_LEAD) if verb else NAN


def _asked_words(words: list[bytes]) -> float:
    """Return log1p of the length that is asked for in so many words ("two short paragraphs"), NaN when none is."""
    for place, word in enumerate(words):
        worth = _WORTH.get(word)
        if worth is not None:
            for before in (words[place - 1], words[place - 2]) if place > 1 else words[:place]:
                count = int(before) if before.isdigit() and len(before) < 6 else _COUNTS.get(before)
                if count is not None:
                    return math.log1p(worth * count)
    return NAN
