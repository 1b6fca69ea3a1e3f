"""The promise to who installs only the proxy: nothing of the worker is needed, and it is small."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.e2e.spine_process import Trimtab, mock_upstream, resident_mb
from tests.support.late import late

openai = late("openai")

HEAVY = ("torch", "numpy", "sklearn", "scipy", "tokenizers", "safetensors", "gguf", "jinja2", "transformers")
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from proxy.cli import main
main(prog_name="trimtab")
"""
MAX_IDLE_MB = 90


async def test_proxy_alone_needs_none_of_the_workers_packages_and_stays_small(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WITHOUT)
    with mock_upstream() as mock, Trimtab.serve(tmp_path, "--upstream", mock, command=command) as running:
        assert resident_mb(running.process.pid) < MAX_IDLE_MB
        async with openai.AsyncOpenAI(base_url=f"{running.proxy}/v1", api_key="x", max_retries=0) as client:
            chat = await client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "hi"}])
            assert chat.choices[0].message.content
            answers = await asyncio.gather(
                *[client.embeddings.create(model="mock", input=[f"{number}"]) for number in range(10, 30)]
            )
        vectors = [answer.data[0].embedding for answer in answers]
        assert vectors == [[2.0, float(number)] for number in range(10, 30)]
        # Several control ticks, the learning of lengths included, have to do without as well.
        status, document = await asyncio.to_thread(running.request, "GET", "/admin/v1/pools/default")
        assert status == 200, document
        assert resident_mb(running.process.pid) < MAX_IDLE_MB
        assert "No module named" not in running.err
        assert await asyncio.to_thread(running.stop) == 0
