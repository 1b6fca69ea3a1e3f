"""A PyTriton server with one model, `twice`: INT32 `x` of shape [n, 1] in, `y` = 2x out."""

import sys

import numpy
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def infer(x):
    """One batch."""
    return {"y": x * 2}


if __name__ == "__main__":
    port, grpc, metrics = map(int, sys.argv[1:4])
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_address="127.0.0.1",
        grpc_port=grpc,
        metrics_address="127.0.0.1",
        metrics_port=metrics,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="twice",
            infer_func=infer,
            inputs=[Tensor(name="x", dtype=numpy.int32, shape=(1,))],
            outputs=[Tensor(name="y", dtype=numpy.int32, shape=(1,))],
            config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
        )
        triton.serve()
