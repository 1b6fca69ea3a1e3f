from __future__ import annotations

import pytest

from backend.engine import ipc
from backend.engine.ipc import pack_delta, unpack_delta
from backend.engine.request import Delta, FinishReason, TokenLogprob, Usage


@pytest.mark.parametrize(
    "delta",
    [
        Delta("r", 0, "text", (1, 2)),
        Delta("r", 1, "", (3,), (TokenLogprob(3, -0.5, ((3, -0.5), (4, -1.5))),)),
        Delta("r", 2, "é", (), (), FinishReason.STOP, "stop", Usage(1, 2, 3)),
        Delta("r", 0, "", (), (), FinishReason.ERROR, None, None, "because"),
        Delta("r", 0, "", (), (), FinishReason.ERROR, None, None, "because", "guided_json"),
    ],
)
def test_deltas_survive_the_wire(delta: Delta) -> None:
    frame = ipc.encode((ipc.Kind.STEP, [pack_delta(delta)]))
    (size,) = ipc.HEADER.unpack(frame[: ipc.HEADER.size])
    assert size == len(frame) - ipc.HEADER.size
    assert unpack_delta(ipc.decode(frame[ipc.HEADER.size :])[1][0]) == delta
