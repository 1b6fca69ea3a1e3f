"""The `tritonclient` library over HTTP, with tensors as JSON and in binary."""

import asyncio

import numpy
import tritonclient.http
import tritonclient.http.aio
from calls import run


def tensor(rows, *, binary, library=tritonclient.http):
    """INT32 `x` of shape [rows, 1]."""
    given = library.InferInput("x", [rows, 1], "INT32")
    given.set_data_from_numpy(numpy.arange(rows, dtype=numpy.int32).reshape(rows, 1), binary_data=binary)
    return given


def infer(binary_in, binary_out, rows=3, **more):
    """One inference, the datatype of the output with it."""

    def call(client, model):
        wanted = [tritonclient.http.InferRequestedOutput("y", binary_data=binary_out)]
        answer = client.infer(model, [tensor(rows, binary=binary_in)], outputs=wanted, **more)
        return {"y": answer.as_numpy("y"), "response": answer.get_response()}

    return call


def at_once(client, model):
    """Sixteen at the same time, each with rows of its own."""

    async def go(url):
        async with tritonclient.http.aio.InferenceServerClient(url) as many:
            calls = [many.infer(model, [tensor(1 + n % 4, binary=True)]) for n in range(16)]
            return [answer.as_numpy("y").tolist() for answer in await asyncio.gather(*calls)]

    return asyncio.run(go(client._parsed_url.netloc))


CALLS = {
    "live, ready": lambda c, m: [c.is_server_live(), c.is_server_ready(), c.is_model_ready(m)],
    "server metadata": lambda c, m: c.get_server_metadata(),
    "model metadata": lambda c, m: c.get_model_metadata(m),
    "model configuration": lambda c, m: c.get_model_config(m),
    "infer, binary": infer(True, True),
    "infer, JSON": infer(False, False),
    "infer, binary in, JSON out": infer(True, False),
    "infer, JSON in, binary out": infer(False, True),
    "infer, compressed both ways": infer(
        True, True, 64, request_compression_algorithm="gzip", response_compression_algorithm="gzip"
    ),
    "infer, 32 rows": infer(True, True, 32),
    "infer, sixteen at once": at_once,
    "no such model": lambda c, m: c.infer("none", [tensor(1, binary=True)]),
    "wrong shape": lambda c, m: c.infer(m, [tritonclient.http.InferInput("z", [1, 1], "INT32")]),
}

if __name__ == "__main__":
    run(lambda url: tritonclient.http.InferenceServerClient(url.partition("://")[2]), CALLS)
