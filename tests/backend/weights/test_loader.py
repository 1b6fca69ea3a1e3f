"""What is found, what is refused in one line, and which tokens end a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.models.errors import ModelError
from backend.weights.loader import load_model
from backend.weights.locate import locate_model
from tests.backend.models.checkpoints import MiniLoop, Sequence, make_checkpoint, reference_logits


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint("llama", tmp_path)
    return tmp_path


def _edit_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in raw.items() if value is not ...}))


def _edit_tensors(path: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is not supported"),
        ({"architectures": ..., "model_type": "rwkv"}, r"architecture none \(model_type 'rwkv'\)"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantisation 'gptq' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope type 'linear' needs a factor"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"intermediate_size": 97}, r"mlp.gate_proj.weight has shape \(96, 64\), config.json implies \(97, 64\)"),
        ({"num_hidden_layers": 3}, r"tensor model.layers.2.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 1}, r"tensor model.layers.1.\S+ is not part of a llama decoder \(and 8 more\)"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    _edit_config(checkpoint, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(checkpoint, dtype="float32")
    assert "\n" not in str(caught.value)
    assert str(checkpoint) in str(caught.value)


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    _edit_tensors(checkpoint, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.1\.self_attn\.k_proj\.weight is missing"):
        load_model(checkpoint)


def test_an_unexpected_tensor_is_named(checkpoint: Path) -> None:
    _edit_tensors(checkpoint, lambda tensors: tensors.update({"model.layers.0.mlp.router.weight": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.router\.weight is not part of"):
        load_model(checkpoint)


def test_integer_weights_are_refused(checkpoint: Path) -> None:
    _edit_tensors(checkpoint, lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}))
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight has type torch\.int8"):
        load_model(checkpoint)


def test_a_damaged_file_is_named(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_model(checkpoint)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    from backend.engine.runner import ModelRunner

    reference = make_checkpoint("qwen3", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loop = MiniLoop(ModelRunner(load_model(tmp_path, dtype="float32"), num_blocks=4, block_size=8))
    sequence = Sequence(list(range(20)))
    want = reference_logits(reference, sequence.ids)[-1:]
    torch.testing.assert_close(loop.prefill(sequence, 32), want, atol=1e-4, rtol=1e-4)
    next(tmp_path.glob("*-00002-of-*.safetensors")).unlink()
    with pytest.raises(ModelError, match=r"00002-of-.*: no such file, but model\.safetensors\.index\.json names it"):
        load_model(tmp_path)


def test_a_gemma_checkpoint_with_a_vision_tower_serves_its_text_part(tmp_path: Path) -> None:
    from backend.engine.runner import ModelRunner

    reference = make_checkpoint("gemma3", tmp_path)

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.patch.weight"] = torch.zeros(2)

    _edit_tensors(tmp_path, wrap)
    text = json.loads((tmp_path / "config.json").read_text())
    wrapped = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "eos_token_id": [1, 9]}
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    loaded = load_model(tmp_path, dtype="float32")
    sequence = Sequence(list(range(30)))
    got = MiniLoop(ModelRunner(loaded, num_blocks=4, block_size=8)).prefill(sequence, 64)
    want = reference_logits(reference, sequence.ids)[-1:]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("listed", [7, [7, 9]])
def test_ends_are_the_union_of_config_generation_config_and_tokenizer(
    checkpoint: Path, listed: int | list[int]
) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<s>"}}))
    loaded = load_model(checkpoint)
    assert loaded.eos_token_ids == {1, 2} | ({7} if listed == 7 else {7, 9})


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere is no model: there is no such file or directory"):
        locate_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"is no model: it has no config\.json"):
        locate_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"it has a config\.json but no \.safetensors"):
        locate_model(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"notes\.txt is no model: it does not start with the GGUF magic"):
        locate_model(tmp_path / "notes.txt")


def test_a_directory_with_one_gguf_file_means_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert locate_model(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"2 \.gguf files, name one of them"):
        locate_model(tmp_path)


def test_a_missing_tokenizer_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_model(checkpoint)
