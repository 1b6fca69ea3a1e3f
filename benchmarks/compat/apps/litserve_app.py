"""A LitServe server that gives its input back, doubled, in batches."""

import sys

import litserve


class Twice(litserve.LitAPI):
    """`{"input": x}` in, `{"output": x + x}` out."""

    def setup(self, device):
        """Nothing to load."""

    def decode_request(self, request):
        """Read one input."""
        return request["input"]

    def batch(self, inputs):
        """Make a batch."""
        return list(inputs)

    def predict(self, inputs):
        """Compute a batch."""
        return [x + x for x in inputs]

    def unbatch(self, outputs):
        """Take it apart."""
        return outputs

    def encode_response(self, output):
        """Write one output."""
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(Twice(max_batch_size=8, batch_timeout=0.005), accelerator="cpu")
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )
