"""Trains the story models and writes them as GGUF: `python3 train.py [FOLDER]`.

Needs `jax`, `tokenizers` and `gguf` from PyPI and about 25 minutes of one CPU core. Nothing of this is
needed to build or test the workspace.
"""

import functools
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from grammar import NAMES, copies, stories, turns

VOCABULARY = 512
BEGIN, END = "<|story|>", "<|end|>"
CONTEXT = 320
ROPE_BASE = 10_000.0
EPSILON = 1e-5


@dataclass(frozen=True)
class Phase:
    """Rows of a batch, tokens of a row, steps, rate; how many rows are drills, and of which kind."""

    rows: int
    tokens: int
    steps: int
    rate: float
    drills: int = 0
    drill: object = None


@dataclass(frozen=True)
class Size:
    """Shape of a model; every K is a multiple of 32, as the NPU wants it."""

    name: str
    width: int
    layers: int
    heads: int
    inner: int
    phases: tuple


# Stories alone teach the language in some hundred steps, and in two thousand not that a name is to be
# copied. Texts that are full of names teach that at once, and it then spreads to the stories.
SIZES = [
    Size("story", 64, 4, 4, 192, (
        Phase(48, 32, 300, 6e-3, 48, turns),
        Phase(24, 64, 300, 6e-3, 24, copies),
        Phase(12, 192, 700, 6e-3, 3, copies),
        Phase(8, CONTEXT, 200, 1.5e-3),
        Phase(8, CONTEXT, 1000, 4e-3),
    )),
    Size("story-draft", 32, 3, 2, 96, (
        Phase(24, 64, 200, 1e-2, 24, turns),
        Phase(10, 160, 900, 1e-2),
    )),
]


def train_tokenizer():
    """Byte-level BPE with the pre-tokenizer of GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[BEGIN, END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    # A name is one token at the beginning of a line, too.
    lines = (f"{name}\n" * 200 for name in NAMES)
    tokenizer.train_from_iterator(chain(lines, islice(stories(0), 20_000)), trainer)
    return tokenizer


def batches(tokenizer, phase, seed):
    """Stories from BEGIN to END, a row each; what is behind the end does not count."""
    begin, end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
    encoded = ([begin, *tokenizer.encode(text).ids, end] for text in stories(seed))
    rng = random.Random(seed)
    while True:
        rows = np.full((phase.rows, phase.tokens + 1), -1, np.int32)
        for number, row in enumerate(rows):
            if number < phase.drills:
                ids = [begin, *tokenizer.encode(phase.drill(rng)).ids]
            else:
                ids = next(ids for ids in encoded if len(ids) <= CONTEXT + 1)
            ids = ids[: len(row)]
            row[: len(ids)] = ids
        yield rows


def initial(size, key):
    """Weights by their names in a GGUF, as [N, K]."""
    shapes = {"token_embd": (VOCABULARY, size.width)}
    for layer in range(size.layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}"] = (size.width, size.width)
        shapes[f"blk.{layer}.ffn_gate"] = shapes[f"blk.{layer}.ffn_up"] = (size.inner, size.width)
        shapes[f"blk.{layer}.ffn_down"] = (size.width, size.inner)
    weights = {}
    for name, shape in shapes.items():
        key, use = jax.random.split(key)
        scale = 0.02 if name == "token_embd" else shape[1] ** -0.5
        if name.endswith(("attn_output", "ffn_down")):
            scale /= (2 * size.layers) ** 0.5
        weights[name] = scale * jax.random.normal(use, shape, jnp.float32)
    for layer in range(size.layers):
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{layer}.{name}"] = jnp.ones(size.width)
    weights["output_norm"] = jnp.ones(size.width)
    return weights


def norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPSILON) * weight


def rope(x):
    """Rotates neighbouring pairs, as llama.cpp does for this architecture. x: [B, T, H, D]."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * ROPE_BASE ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def logits(size, weights, tokens):
    batch, length = tokens.shape
    heads = (batch, length, size.heads, size.width // size.heads)
    causal = jnp.tril(jnp.ones((length, length), bool))
    x = weights["token_embd"][tokens]
    for layer in range(size.layers):
        of = lambda name: weights[f"blk.{layer}.{name}"]
        y = norm(x, of("attn_norm"))
        q, k, v = ((y @ of(f"attn_{part}").T).reshape(heads) for part in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", rope(q), rope(k)) * heads[-1] ** -0.5
        shares = jax.nn.softmax(jnp.where(causal, scores, -1e9), -1)
        y = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape)
        x = x + y @ of("attn_output").T
        y = norm(x, of("ffn_norm"))
        x = x + (jax.nn.silu(y @ of("ffn_gate").T) * (y @ of("ffn_up").T)) @ of("ffn_down").T
    return norm(x, weights["output_norm"]) @ weights["token_embd"].T


def loss(size, weights, rows, names):
    """Mean loss of a token, and the share of names that are guessed where they return.

    There a name counts four times: a story hangs on it. names: [vocabulary], which name a token is, or 0.
    """
    tokens, targets = rows[:, :-1], rows[:, 1:]
    all_logits = logits(size, weights, jnp.maximum(tokens, 0))
    known = jax.nn.log_softmax(all_logits)
    right = jnp.take_along_axis(known, jnp.maximum(targets, 0)[..., None], -1)[..., 0]
    which = jnp.where(tokens >= 0, names[tokens], 0)
    wanted = jnp.where(targets >= 0, names[targets], 0)
    before = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    returns = (wanted > 0) & jnp.any((wanted[:, :, None] == which[:, None, :]) & before, -1)
    counts = (targets >= 0) * jnp.where(returns, 4.0, 1.0)
    guessed = names[jnp.argmax(all_logits, -1)] == wanted
    share = jnp.sum(guessed & returns) / jnp.maximum(jnp.sum(returns), 1)
    return -jnp.sum(right * counts) / jnp.sum(counts), share


@functools.partial(jax.jit, static_argnums=(0, 1))
def step(size, phase, weights, means, squares, number, rows, names):
    """AdamW with warm-up, a cosine to a fiftieth, and gradients cut to norm 1."""
    (value, share), gradients = jax.value_and_grad(loss, 1, has_aux=True)(size, weights, rows, names)
    length = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
    gradients = jax.tree.map(lambda g: g / jnp.maximum(length, 1.0), gradients)
    done = number / phase.steps
    rate = phase.rate * jnp.minimum(number / 100, 0.02 + 0.49 * (1 + jnp.cos(jnp.pi * done)))
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda s, g: 0.98 * s + 0.02 * g * g, squares, gradients)

    def move(weight, mean, square):
        by = mean / (1 - 0.9**number) / (jnp.sqrt(square / (1 - 0.98**number)) + 1e-8)
        return weight - rate * (by + (0.02 * weight if weight.ndim > 1 else 0))

    return jax.tree.map(move, weights, means, squares), means, squares, value, share


def write(size, weights, tokenizer, path):
    """A GGUF that llama.cpp takes: matrices as F16, norms as F32, the head tied to the embedding."""
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_name(path.stem)
    out.add_description("little stories from a grammar; made by train.py beside this file")
    out.add_license("MIT OR Apache-2.0")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(size.width)
    out.add_block_count(size.layers)
    out.add_feed_forward_length(size.inner)
    out.add_head_count(size.heads)
    out.add_head_count_kv(size.heads)
    out.add_layer_norm_rms_eps(EPSILON)
    out.add_rope_dimension_count(size.width // size.heads)
    out.add_rope_freq_base(ROPE_BASE)
    out.add_vocab_size(VOCABULARY)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.get)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([control if token in (BEGIN, END) else normal for token in tokens])
    out.add_token_merges(merges(tokenizer))
    out.add_bos_token_id(ids[BEGIN])
    out.add_eos_token_id(ids[END])
    out.add_add_bos_token(True)
    for name, weight in weights.items():
        values = np.asarray(weight)
        out.add_tensor(name + ".weight", values.astype(np.float16) if values.ndim > 1 else values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def merges(tokenizer):
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in pairs]


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    tokenizer = train_tokenizer()
    numbers = {name: number for number, name in enumerate(NAMES, 1)}
    names = jnp.array([numbers.get(tokenizer.decode([token]).strip(), 0) for token in range(VOCABULARY)])
    for size in SIZES:
        weights = initial(size, jax.random.key(1))
        print(f"{size.name}: {sum(weight.size for weight in weights.values())} parameters", flush=True)
        start = time.monotonic()
        for seed, phase in enumerate(size.phases, 1):
            means = squares = jax.tree.map(jnp.zeros_like, weights)
            for number, rows in enumerate(islice(batches(tokenizer, phase, seed), phase.steps), 1):
                weights, means, squares, value, share = step(
                    size, phase, weights, means, squares, float(number), rows, names)
                if number % 50 == 0:
                    took = time.monotonic() - start
                    print(f"phase {seed}, step {number}, loss {value:.3f}, "
                          f"names {share:.2f}, {took:.0f} s", flush=True)
            write(size, weights, tokenizer, folder / f"{size.name}.gguf")


if __name__ == "__main__":
    main()
