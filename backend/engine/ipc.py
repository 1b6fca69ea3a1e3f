"""Frames between the API process and the engine process: a length, then a pickled tuple.

Both ends are the same program and the socket pair is private to them, so pickle is safe here and is the fastest
way to move a few hundred small tuples. A frame is one tuple whose first item is its kind (`Kind`).
"""

from __future__ import annotations

import pickle
import struct
from enum import IntEnum
from typing import Any, Final

from backend.engine.request import Delta, FinishReason, TokenLogprob, Usage

__all__ = ["HEADER", "Frame", "Kind", "decode", "encode", "pack_delta", "unpack_delta"]

HEADER: Final = struct.Struct("<I")
Frame = tuple[Any, ...]


class Kind(IntEnum):
    """What a frame means; the comment is the rest of the tuple."""

    START = 0  # EngineOptions, build ("module:function")
    GENERATE = 1  # GenerationRequest
    ABORT = 2  # request id
    EMBED = 3  # job, [[token id]], pooling
    DROP = 4  # job: nobody wants it any more
    CLOSE = 5  #
    WAKE = 6  # (never sent: the engine process puts it into its own inbox)
    PROGRESS = 10  # stage, fraction
    READY = 11  # EngineInfo
    FAILED = 12  # one line: the engine never came up, or cannot go on
    STEP = 13  # [packed delta], EngineStats
    REFUSED = 14  # request id, EngineError
    EMBEDDED = 15  # job, [[float]] or None, error or None


def encode(frame: Frame) -> bytes:
    """Return the frame as it goes over the wire."""
    body = pickle.dumps(frame, protocol=5)
    return HEADER.pack(len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> Frame:
    """Return the frame of one body (without its header)."""
    frame: Frame = pickle.loads(body)
    return frame


def pack_delta(delta: Delta) -> Frame:
    """Reduce a delta to plain values; most have neither logprobs nor a finish and pickle as four small items."""
    if delta.finish_reason is None and not delta.logprobs:
        return (delta.request_id, delta.index, delta.text, delta.token_ids)
    usage = delta.usage
    return (
        delta.request_id,
        delta.index,
        delta.text,
        delta.token_ids,
        tuple((entry.token_id, entry.logprob, entry.top) for entry in delta.logprobs),
        delta.finish_reason.value if delta.finish_reason else None,
        delta.stop_reason,
        (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if usage else None,
        delta.error,
        delta.error_param,
    )


def unpack_delta(packed: Frame) -> Delta:
    """Inverse of `pack_delta`."""
    if len(packed) == 4:
        return Delta(*packed)
    request_id, index, text, token_ids, logprobs, finish, stop_reason, usage, *error = packed
    return Delta(
        request_id,
        index,
        text,
        token_ids,
        tuple(TokenLogprob(*entry) for entry in logprobs),
        FinishReason(finish) if finish else None,
        stop_reason,
        Usage(*usage) if usage else None,
        *error,
    )
