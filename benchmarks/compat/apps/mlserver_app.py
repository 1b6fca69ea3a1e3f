"""A model for MLServer's custom runtime: doubles, in the Open Inference Protocol."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Twice(MLModel):
    """`y` = 2 `x`."""

    async def load(self) -> bool:
        """Nothing to load."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Compute one call."""
        given = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("y", given * 2)
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=[output])
