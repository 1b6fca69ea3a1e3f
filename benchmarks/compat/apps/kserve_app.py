"""A KServe model server with a model that looks at all its instances at once: merging would change its answers."""

import math
import sys

from kserve import InferOutput, InferResponse, Model, ModelServer


class Softmax(Model):
    """Normalises over what it is given, in both protocols."""

    def __init__(self):
        super().__init__("softmax")
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        """Compute one call."""
        if isinstance(payload, dict):
            return {"predictions": normalised(payload["instances"])}
        given = payload.inputs[0]
        output = InferOutput("y", list(given.shape), "FP64", data=normalised([float(x) for x in given.data]))
        return InferResponse(payload.id, self.name, [output])


def normalised(values):
    """The share of each in the sum of all exponentials."""
    weights = [math.exp(value) for value in values]
    return [round(weight / sum(weights), 12) for weight in weights]


if __name__ == "__main__":
    ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start([Softmax()])
