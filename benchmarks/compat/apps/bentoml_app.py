"""A BentoML service on paths that others have too: a picture, an array, text, a vector and a stream."""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import bentoml
from pydantic import RootModel


class Numbers(RootModel):
    """A JSON array, and nothing around it."""

    root: list[float]


@bentoml.service(workers=1)
class Odd:
    """What it computes depends on its input alone."""

    @bentoml.api(route="/classify")
    def classify(self, image: Path) -> dict:
        """Tell the size of a file."""
        return {"bytes": image.stat().st_size}

    @bentoml.api(route="/score")
    def score(self, numbers: Annotated[list[float], RootModel], /) -> list[float]:
        """Double an array."""
        return [2 * number for number in numbers]

    @bentoml.api(route="/generate")
    def generate(self, text: str, /) -> str:
        """Give text back, twice."""
        return text + text

    @bentoml.api(route="/embed")
    def embed(self, inputs: str) -> list[float]:
        """Make a flat vector."""
        return [float(len(inputs)), float(sum(inputs.encode()) % 97)]

    @bentoml.api(route="/completions")
    def complete(self, prompt: str, n: int = 3) -> Generator[str, None, None]:
        """Stream words."""
        for number in range(n):
            yield f"{prompt} {number}\n"


if __name__ == "__main__":
    sys.argv = ["bentoml", "serve", f"{Path(__file__).stem}:Odd", "--port", sys.argv[1], "--host", "127.0.0.1"]
    from bentoml_cli.cli import cli

    cli()
