#!/usr/bin/env python3
"""Writes a made-up mixture of experts as GGUF: random weights in f32, an architecture that llama.cpp knows.

    python3 ggml-ork/mixture.py qwen3moe|olmoe FILE

Needs PyPI's gguf. The vocabulary is bytes. Weights are scaled so that values keep their size from layer to
layer, that a router prefers some experts clearly, and that the first tokens stand out.
"""
import sys

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, HEADS_KV, EXPERTS, USED, EXPERT_WIDTH = 3, 256, 4, 2, 32, 4, 128
HEAD = WIDTH // HEADS


def byte_tokens():
    """A byte's character in vocabularies of GPT-2's kind."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain}
    names |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


def main():
    architecture, path = sys.argv[1:]
    kv = HEADS_KV if architecture == "qwen3moe" else HEADS
    random = np.random.default_rng(20)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(EXPERT_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(kv)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)

    tokens = byte_tokens() + ["<end>", "in", "th"]
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["i n", "t h"])
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)

    def matrix(name, n, k, size=1.0, stack=()):
        values = random.standard_normal((*stack, n, k)) * size / np.sqrt(k)
        writer.add_tensor(name + ".weight", values.astype(np.float32))

    def norm(name, width):
        writer.add_tensor(name + ".weight", np.ones(width, np.float32))

    matrix("token_embd", len(tokens), WIDTH, np.sqrt(WIDTH))
    for i in range(LAYERS):
        block = f"blk.{i}."
        norm(block + "attn_norm", WIDTH)
        matrix(block + "attn_q", HEADS * HEAD, WIDTH)
        matrix(block + "attn_k", kv * HEAD, WIDTH)
        matrix(block + "attn_v", kv * HEAD, WIDTH)
        matrix(block + "attn_output", WIDTH, HEADS * HEAD)
        each = HEAD if architecture == "qwen3moe" else WIDTH
        norm(block + "attn_q_norm", each)
        norm(block + "attn_k_norm", each)
        norm(block + "ffn_norm", WIDTH)
        matrix(block + "ffn_gate_inp", EXPERTS, WIDTH, 3.0)
        matrix(block + "ffn_gate_exps", EXPERT_WIDTH, WIDTH, stack=(EXPERTS,))
        matrix(block + "ffn_up_exps", EXPERT_WIDTH, WIDTH, stack=(EXPERTS,))
        matrix(block + "ffn_down_exps", WIDTH, EXPERT_WIDTH, 2.0, (EXPERTS,))
    norm("output_norm", WIDTH)
    matrix("output", len(tokens), WIDTH, 3.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
