"""GGUF files: every supported element type, the names, the rotary layout, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from backend.engine.runner import ModelRunner
from backend.models.errors import ModelError
from backend.models.families import find_gguf_family
from backend.weights.gguf_config import gguf_config
from backend.weights.gguf_file import GGUFFile
from backend.weights.loader import load_model
from backend.weights.sources import read_gguf_tensor
from tests.backend.models.checkpoints import (
    FAMILIES,
    VOCAB,
    MiniLoop,
    Sequence,
    make_checkpoint,
    reference_logits,
    tiny_tokenizer,
)
from tests.support.late import late

transformers = late("transformers")

Q = gguf.GGMLQuantizationType


def _write(path: Path, tensors: dict[str, tuple[np.ndarray, Q]], arch: str = "llama") -> GGUFFile:
    writer = gguf.GGUFWriter(path, arch)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def _random_blocks(kind: Q, rows: int, columns: int) -> np.ndarray:
    """Quantised data of a type the gguf package can only read: random bytes with small finite scales."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(3).integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    scales = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    for at in {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}[kind]:
        raw[..., at : at + 2] = scales
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q4_K, Q.Q5_K, Q.Q6_K])
def test_quantised_tensors_are_dequantised(kind: Q, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((6, 512), dtype=np.float32)
    readable_only = kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K)
    data = _random_blocks(kind, 6, 512) if readable_only else gguf.quants.quantize(values, kind)
    file = _write(tmp_path / "model.gguf", {"w": (data, kind)})
    tensor = read_gguf_tensor(file, file.tensors["w"])
    assert tensor.shape == (6, 512)
    assert tensor.isfinite().all()
    np.testing.assert_array_equal(tensor.numpy(), gguf.quants.dequantize(data, kind))
    if not readable_only:
        assert np.abs(tensor.numpy() - values).max() < 0.6


def test_plain_tensors_keep_their_values_and_types(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((4, 32), dtype=np.float32)
    as_bf16 = gguf.quants.quantize(values, Q.BF16)
    file = _write(
        tmp_path / "model.gguf",
        {"a": (values, Q.F32), "b": (values.astype(np.float16), Q.F16), "c": (as_bf16, Q.BF16)},
    )
    wanted = torch.from_numpy(values)
    assert torch.equal(read_gguf_tensor(file, file.tensors["a"]), wanted)
    assert torch.equal(read_gguf_tensor(file, file.tensors["b"]), wanted.half())
    assert torch.equal(read_gguf_tensor(file, file.tensors["c"]), wanted.bfloat16())


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    raw = np.zeros((2, 84), dtype=np.uint8)
    file = _write(tmp_path / "model.gguf", {"blk.0.attn_q.weight": (raw, Q.Q2_K)})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight is Q2_K"):
        read_gguf_tensor(file, file.tensors["blk.0.attn_q.weight"])


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    file = _write(tmp_path / "model.gguf", {"token_embd.weight": (np.zeros((4, 8), np.float32), Q.F32)}, arch="rwkv6")
    with pytest.raises(ModelError, match=r"model\.gguf: general\.architecture 'rwkv6'"):
        gguf_config(file)


@pytest.mark.parametrize("length", [3, 10, 60, 200])
def test_a_file_cut_short_is_refused(length: int, tmp_path: Path) -> None:
    whole = tmp_path / "model.gguf"
    _write(whole, {"w": (np.zeros((4, 8), np.float32), Q.F32)})
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        read_gguf_tensor(file := GGUFFile(cut), file.tensors["w"])


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """What the converters of the ggml project do to query and key projections of `llama`."""
    halves = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_NAMES = _GGUF_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _export(model: transformers.PreTrainedModel, arch: str, path: Path) -> None:
    """Write a tiny model as GGUF, the way converters lay it out."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    rope = config.rope_parameters
    theta = (rope.get("full_attention") or rope)["rope_theta"]
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(theta)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    tokenizer = tiny_tokenizer()
    tokens = [tokenizer.id_to_token(index) for index in range(VOCAB - 1)] + ["!!"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(2)
    names = _GEMMA_NAMES if arch == "gemma3" else _GGUF_NAMES
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        weight = weight.float()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.startswith("model.layers."):
            _, _, index, *module, part = name.split(".")
            kind = names[".".join(module)]
            translated = f"blk.{index}.{kind}.{part}"
            if arch == "llama" and kind in heads:
                weight = _interleave(weight, heads[kind])
        else:
            translated = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            }[name]
        if arch == "gemma3" and translated.endswith("norm.weight"):
            weight = weight + 1
        writer.add_tensor(translated, weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenizer_id(token: str) -> int:
    index: int | None = tiny_tokenizer().token_to_id(token)
    assert index is not None
    return index


@pytest.mark.parametrize("family", ["llama", "llama-biased-tied", "qwen2", "qwen3", "gemma3"])
def test_a_model_out_of_gguf_gives_transformers_logits(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    if family == "gemma3":
        # GGUF implies Gemma's layer pattern (every sixth layer is global) and query scale.
        torch.manual_seed(0)
        small = FAMILIES["gemma3"]().config.to_dict()
        small |= {"num_hidden_layers": 6, "layer_types": None, "query_pre_attn_scalar": small["head_dim"]}
        small["final_logit_softcapping"] = None
        reference = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**small)).eval()
    else:
        reference = make_checkpoint(family, tmp_path)
    arch = family.split("-")[0]
    assert find_gguf_family(arch).gguf_arch == arch
    path = tmp_path / "model.gguf"
    _export(reference, arch, path)
    loaded = load_model(path, dtype="float32")
    assert loaded.eos_token_ids == {2}
    assert loaded.tokenizer.encode("!!!") == [VOCAB - 1, tokenizer_id("!")]
    sequence = Sequence([index * 7 % VOCAB for index in range(40)])
    got = MiniLoop(ModelRunner(loaded, num_blocks=8, block_size=8)).prefill(sequence, 1)
    torch.testing.assert_close(got, reference_logits(reference, sequence.ids), atol=1e-4, rtol=1e-4)
