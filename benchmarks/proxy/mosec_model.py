"""A Mosec server whose model gives its input back after MODEL_MS for a whole batch, and counts what it got."""

import json
import os
import time
from pathlib import Path

from mosec import Server, Worker

SLEEP_S = float(os.environ["MODEL_MS"]) / 1000
TALLY = Path(os.environ["TALLY"])


class Echo(Worker):
    """One batch in, the same items out."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = self.items = 0
        self.written = 0.0

    def forward(self, data):  # type: ignore[no-untyped-def]
        self.batches += 1
        self.items += len(data)
        if SLEEP_S:
            time.sleep(SLEEP_S)
        if time.monotonic() - self.written > 0.1:  # seldom: the file is not what is measured
            self.written = time.monotonic()
            new = TALLY.with_suffix(".new")
            new.write_text(json.dumps([self.batches, self.items]))
            new.replace(TALLY)  # whole, whenever it is read
        return [{"output": item["input"]} for item in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Echo, num=1, max_batch_size=int(os.environ["BATCH"]), max_wait_time=int(os.environ["WINDOW_MS"])
    )
    server.run()
