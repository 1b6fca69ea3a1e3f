"""What the worker prints, and what it takes from a checkpoint."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest

from backend.lifecycle import ProgressLine, announce
from backend.loading import sampling_defaults


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_per_tenth_where_nobody_watches() -> None:
    stream = io.StringIO()
    progress = ProgressLine(stream)
    for i in range(101):
        progress("reading weights", i / 100)
    progress("warming up", 0.0)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "reading weights:   0%"
    assert lines[-1] == "warming up:   0%"
    assert len(lines) == 12


def test_progress_rewrites_one_line_on_a_terminal() -> None:
    stream = Terminal()
    progress = ProgressLine(stream)
    for i in range(101):
        progress("reading weights", i / 100)
    progress.close()
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("100%\n")


def test_announcements_are_one_json_object_a_line() -> None:
    stream = io.StringIO()
    announce("ready", stream, url="http://127.0.0.1:1", port=1)
    assert json.loads(stream.getvalue()) == {"event": "ready", "url": "http://127.0.0.1:1", "port": 1}
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "do_sample": False}, {}),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20.0}),
        ({"do_sample": True, "temperature": None, "top_p": "x", "min_p": True, "max_length": 20}, {}),
        ({"do_sample": True, "top_k": -1, "min_p": 1.5, "repetition_penalty": 0, "top_p": math.nan}, {"top_k": -1.0}),
    ],
)
def test_recommended_sampling_comes_from_the_generation_config_where_a_request_could_ask_for_it(
    config: dict[str, Any], expected: dict[str, float]
) -> None:
    """TensorRT-LLM PR#16590: min_p above 1 zeroed the row, wherever it came from."""
    assert sampling_defaults(config) == expected
