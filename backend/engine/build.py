"""From options to an engine: loads the model, sizes the KV cache, wires the parts."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from backend.engine.core import EngineCore
from backend.engine.errors import EngineError
from backend.engine.held import GrammarFactory
from backend.engine.machine import default_threads
from backend.engine.options import EngineInfo, EngineOptions
from backend.engine.runner import ModelRunner, blocks_that_fit
from backend.grammar import source
from backend.models.errors import ModelError
from backend.weights.loader import LoadedModel, load_model
from policies.registry import PolicyError, create_policy

__all__ = ["build_core", "choose_device"]


def choose_device(name: str) -> torch.device:
    """Return the device that `name` means; "auto" is CUDA where there is one. Raises EngineError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise EngineError(f"device must be auto, cpu or cuda[:n], got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"device {name!r} was asked for, but torch finds no CUDA device")
    return device


def build_core(options: EngineOptions, progress: Callable[[str, float], None]) -> tuple[EngineCore, EngineInfo]:
    """Load the model of `options` and return an engine that is ready. Raises EngineError with one clear line."""
    started = time.monotonic()
    torch.set_num_threads(options.threads or default_threads())
    device = choose_device(options.device)
    options = options.resolve(device.type)
    try:
        policy = create_policy(options.policy, options.policy_options)
        progress("loading the model", 0.0)
        loaded = load_model(options.model, dtype=options.dtype, device=device)
        progress("making the KV cache", 0.9)
        max_len = min(options.max_model_len or loaded.config.max_position, loaded.config.max_position)
        num_blocks = options.num_blocks or blocks_that_fit(
            loaded, options.block_size, options.memory_bytes, options.max_num_seqs * max_len
        )
        asked = options.num_blocks is not None or options.memory_bytes is not None
        runner = ModelRunner(loaded, num_blocks, options.block_size, reserve=asked)
        progress("preparing the device", 0.95)
        runner.warm_up(options.max_num_seqs)
    except (ModelError, PolicyError) as error:
        raise EngineError(str(error)) from error
    core = EngineCore(
        runner,
        loaded.tokenizer,
        options,
        policy,
        eos_token_ids=loaded.eos_token_ids,
        max_model_len=max_len,
        clock=time.monotonic,
        seeds=random.Random(secrets.randbits(64)),
        root=secrets.token_bytes(32),
        grammars=_grammars(loaded, runner.vocab_size),
        overlap=device.type != "cpu",
    )
    progress("ready", 1.0)
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    return core, replace(core.info, device=str(device), gpu=gpu, dtype=dtype, load_s=time.monotonic() - started)


def _grammars(loaded: LoadedModel, vocab_size: int) -> GrammarFactory | None:
    """Return what constrains outputs, where the grammar library is installed; the engine does not need it."""
    if not source.available():
        return None
    from backend.grammar.matcher import Grammars

    return Grammars(loaded.tokenizer.backend.to_str, vocab_size, loaded.eos_token_ids)
