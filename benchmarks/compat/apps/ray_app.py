"""A Ray Serve application that doubles what it is given, whatever the path, and streams under one."""

import asyncio
import os
import signal
import sys

from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse


@serve.deployment(num_replicas=1, max_ongoing_requests=32, ray_actor_options={"num_cpus": 0.1})
class Twice:
    """`{"input": x}` in, `{"output": x + x}` out; anything else comes back as it is."""

    async def __call__(self, request: Request):
        """Answer one request."""
        body = await request.body()
        if request.url.path.endswith("/stream"):
            return StreamingResponse(self.words(), media_type="text/event-stream")
        try:
            given = (await request.json())["input"]
        except (ValueError, KeyError, TypeError):
            return {"path": request.url.path, "bytes": len(body)}
        return {"output": given + given}

    async def words(self):
        """Send three events."""
        for number in range(3):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0.01)


def _stop(number, frame):
    """Leave by way of `finally`, so that nothing that Ray started is left behind."""
    raise SystemExit(0)


if __name__ == "__main__":
    import ray

    signal.signal(signal.SIGTERM, _stop)
    try:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            object_store_memory=100 * 1024 * 1024,
            _node_ip_address="127.0.0.1",
            _temp_dir=os.getcwd(),
        )
        serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
        serve.run(Twice.bind(), name="twice", route_prefix="/")
        signal.pause()
    finally:
        ray.shutdown()
