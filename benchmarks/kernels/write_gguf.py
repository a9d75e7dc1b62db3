"""Writes a random model as a GGUF file; runs with the Python of a peer's environment that has gguf.

    PYTHON write_gguf.py FILE SEED EXPERTS REST SIZE

EXPERTS and REST are GGUF quantisation types (`Q4_0`, `Q8_0`) of the experts and of all other
matrices but the router, which stays float32; SIZE is JSON with the fields of `random_model.Size`.
"""

import json
import sys
from typing import Any

import gguf  # type: ignore[import-not-found]
import numpy as np
from random_model import Size, Stack, matrices, stacks, vectors  # type: ignore[import-not-found]

NAMES = {
    "embedding": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
    "attention_norm": "blk.{layer}.attn_norm.weight",
    "mlp_norm": "blk.{layer}.ffn_norm.weight",
    "q_norm": "blk.{layer}.attn_q_norm.weight",
    "k_norm": "blk.{layer}.attn_k_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "output": "blk.{layer}.attn_output.weight",
    "router": "blk.{layer}.ffn_gate_inp.weight",
    "expert_gate": "blk.{layer}.ffn_gate_exps.weight",
    "expert_up": "blk.{layer}.ffn_up_exps.weight",
    "expert_down": "blk.{layer}.ffn_down_exps.weight",
}


def quantisation(part: str, experts: str, rest: str) -> gguf.GGMLQuantizationType:
    """How a part's matrices are stored."""
    kind = experts if part.startswith("expert_") else "F32" if part == "router" else rest
    return gguf.GGMLQuantizationType[kind]


def declare(writer: gguf.GGUFWriter, size: Size, experts: str, rest: str) -> None:
    """The model's header and the list of its tensors, in the order in which they are written."""
    writer.add_block_count(size.layers)
    writer.add_context_length(40960)
    writer.add_embedding_length(size.hidden)
    writer.add_feed_forward_length(3 * size.hidden)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_key_length(size.head_dim)
    writer.add_value_length(size.head_dim)
    writer.add_rope_freq_base(size.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(size.experts)
    writer.add_expert_used_count(size.top_k)
    writer.add_expert_feed_forward_length(size.intermediate)
    writer.add_vocab_size(size.vocab)
    writer.add_tokenizer_model("no_vocab")
    for part, layer, length in vectors(size):
        writer.add_tensor_info(
            NAMES[part].format(layer=layer), (length,), np.dtype("f4"), 4 * length
        )
    for part, layer, (rows, columns), copies in matrices(size):
        kind = quantisation(part, experts, rest)
        shape = (copies, rows, columns) if part.startswith("expert_") else (copies * rows, columns)
        stored: tuple[int, ...] = shape
        dtype: np.dtype[Any] = np.dtype(np.float32)
        if kind is not gguf.GGMLQuantizationType.F32:
            stored, dtype = gguf.quant_shape_to_byte_shape(shape, kind), np.dtype(np.uint8)
        writer.add_tensor_info(
            NAMES[part].format(layer=layer), stored, dtype,
            int(np.prod(stored)) * dtype.itemsize, raw_dtype=kind,
        )  # fmt: skip


def data(stack: Stack, kind: gguf.GGMLQuantizationType) -> Any:
    """All copies of a matrix as they lie in the file."""
    if kind is gguf.GGMLQuantizationType.F32:
        return stack.base_RK
    first = gguf.quantize(stack.base_RK, kind)
    return np.concatenate([stack.copy(index, first) for index in range(stack.copies)])


def main() -> None:
    """Write the file."""
    file, seed, experts, rest, fields = sys.argv[1:]
    size = Size(**json.loads(fields))
    writer = gguf.GGUFWriter(file, "qwen3moe")
    declare(writer, size, experts, rest)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, _, length in vectors(size):
        writer.write_tensor_data(np.ones(length, np.float32))
    for stack in stacks(size, int(seed)):
        writer.write_tensor_data(data(stack, quantisation(stack.part, experts, rest)))
    writer.close()


if __name__ == "__main__":
    main()
