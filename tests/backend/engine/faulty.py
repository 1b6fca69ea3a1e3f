"""Engines with something wrong, for the process to start."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch

from backend.engine.core import EngineCore
from backend.engine.errors import EngineError
from backend.engine.held import MakeGrammar
from backend.engine.options import EngineInfo, EngineOptions
from backend.engine.step import StepInput
from tests.backend.engine.fake import VOCAB, FakeRunner, fake_core

Progress = Callable[[str, float], None]


def unloadable(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    raise EngineError("the disk is on fire")


def broken(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    raise ValueError("surprise")


def vanishing(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    os._exit(7)


class FailingRunner(FakeRunner):
    def execute(self, step: StepInput) -> torch.Tensor:
        raise RuntimeError("no more")


def failing(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    core = fake_core(options, runner=FailingRunner(64, 4))
    return core, core.info


class HangingRunner(FakeRunner):
    def execute(self, step: StepInput) -> torch.Tensor:
        threading.Event().wait()
        raise AssertionError("nobody sets it")


def hanging(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    core = fake_core(options, runner=HangingRunner(64, 4))
    return core, core.info


class EmbeddingFake(FakeRunner):
    def embed(self, token_ids: list[list[int]], pooling: str) -> torch.Tensor:
        if not all(token_ids):
            raise ValueError("empty")
        return torch.tensor([[sum(ids) / len(ids), float(len(ids))] for ids in token_ids])


def embedding(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    core = fake_core(options, runner=EmbeddingFake(64, 4))
    return core, core.info


class Anything:
    def allowed(self) -> torch.Tensor | None:
        return torch.ones(VOCAB, dtype=torch.bool)

    def accept(self, token: int) -> bool:
        return True


def compile_on_word(grammar: str) -> Future[MakeGrammar]:
    """Take a grammar for the path of a named pipe, and be done with it when somebody has written to that."""
    made: Future[MakeGrammar] = Future()

    def work() -> None:
        if Path(grammar).read_text() == "fails":
            made.set_exception(ValueError("no text satisfies it"))
        else:
            made.set_result(Anything)

    threading.Thread(target=work, daemon=True).start()
    return made


def compiling(options: EngineOptions, progress: Progress) -> tuple[EngineCore, EngineInfo]:
    core = fake_core(options, grammars=compile_on_word)
    return core, core.info
