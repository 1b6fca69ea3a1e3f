"""A TorchServe handler that gives its input back, doubled, in batches."""

import json


def handle(data, context):
    """Compute a batch; None is how it is told to load its model."""
    if data is None:
        return None
    outputs = []
    for row in data:
        body = row.get("body") or row.get("data")
        document = json.loads(body) if isinstance(body, bytes | bytearray) else body
        outputs.append({"output": document["input"] + document["input"]})
    return outputs
