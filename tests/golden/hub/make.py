#!/usr/bin/env python3
"""Weights in two tensors as files of the hub have them, and the values that they stand for.

    python3 -m venv v && v/bin/pip install numpy ml_dtypes gguf
    v/bin/python make.py

Codes are random; values come from ml_dtypes (E4M3, E2M1, E8M0, bfloat16) and, for the blocks of NVFP4
in GGUF, from the gguf package. Q1_0, which that package only knows the size of, is unpacked by numpy.
"""
import json
import pathlib

import gguf
import ml_dtypes as ml
import numpy as np
from gguf import quants

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(15)
tensors, cases, expected = {}, [], []
NAMES = {
    np.dtype(ml.float8_e4m3fn): "F8_E4M3", np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8",
    np.dtype(np.float32): "F32", np.dtype(ml.bfloat16): "BF16", np.dtype(np.float16): "F16",
}


def case(layer, part, values, **stored):
    """Tensors by what follows the module's name; `values` are [N][K], or [E][N][K]."""
    stem = f"model.layers.{layer}.{part}"
    for end, array in stored.items():
        tensors[f"{stem}{end}"] = array
    name = f"{stem}.weight" if part.startswith("mlp.up") else stem
    stack = values.reshape((-1,) + values.shape[-2:])
    for index, matrix in enumerate(stack):
        own = name if values.ndim == 2 else f"{name}#{index}"
        start = sum(array.size for array in expected)
        cases.append({"name": own, "n": matrix.shape[0], "k": matrix.shape[1], "value": start})
        expected.append(np.ascontiguousarray(matrix, dtype=np.float32))


def e4m3(*shape):
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x38  # no number
    return codes.view(ml.float8_e4m3fn)


def spread(scales, shape, block):
    wide = np.repeat(np.repeat(scales.astype(np.float32), block[0], 0), block[1], 1)
    return wide[: shape[0], : shape[1]]


def pairs(n, k):
    """Codes of four bits: packed, and as floats."""
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    values = codes.view(ml.float4_e2m1fn).astype(np.float32)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8), values


def positive(*shape, dtype=np.float32):
    return rng.uniform(0.001, 0.02, shape).astype(dtype)


# DeepSeek, Qwen: blocks of 128 × 128, of which neither N nor K is a multiple.
w, s = e4m3(130, 160), positive(2, 2)
case(0, "mlp.up_proj", w.astype(np.float32) * spread(s, w.shape, (128, 128)),
     **{".weight": w, ".weight_scale_inv": s})
w, s = e4m3(64, 96), positive(1, 1, dtype=ml.bfloat16)
case(1, "mlp.up_proj", w.astype(np.float32) * s.astype(np.float32),
     **{".weight": w, ".weight_scale_inv": s})
# compressed-tensors: of the whole tensor, of channels.
w, s = e4m3(33, 64), positive(1)
case(2, "mlp.up_proj", w.astype(np.float32) * s,
     **{".weight": w, ".weight_scale": s, ".input_scale": positive(1)})
w, s = e4m3(40, 64), positive(40, 1, dtype=ml.bfloat16)
case(3, "mlp.up_proj", w.astype(np.float32) * s.astype(np.float32), **{".weight": w, ".weight_scale": s})
# W8A8, with the least code.
w, s = rng.integers(-128, 128, (48, 96), dtype=np.int8), positive(48, 1)
w[0, 0] = -128
case(4, "mlp.up_proj", w.astype(np.float32) * s, **{".weight": w, ".weight_scale": s})
w, s = rng.integers(-127, 128, (33, 64), dtype=np.int8), positive(33)
case(5, "mlp.up_proj", w.astype(np.float32) * (s[:, None] / np.float32(127)), **{".weight": w, ".SCB": s})
# NVFP4 of compressed-tensors and of ModelOpt.
for layer, packed, scale, inverse in [
    (6, ".weight_packed", ".weight_global_scale", True), (7, ".weight", ".weight_scale_2", False),
]:
    codes, values = pairs(36, 160)
    s = np.abs(e4m3(36, 10).astype(np.float32)).astype(ml.float8_e4m3fn)
    g = np.array([1536.0 if inverse else 1 / 1536], dtype=np.float32)
    wide = spread(s, values.shape, (1, 16))
    wide = wide / g if inverse else wide * g
    case(layer, "mlp.up_proj", values * wide, **{packed: codes, ".weight_scale": s, scale: g})
# MXFP4 of compressed-tensors, and gpt-oss's stacks of blocks.
codes, values = pairs(32, 96)
powers = rng.integers(110, 134, (32, 3), dtype=np.uint8)
case(8, "mlp.up_proj", values * spread(powers.view(ml.float8_e8m0fnu), values.shape, (1, 32)),
     **{".weight_packed": codes, ".weight_scale": powers})
codes, values = zip(*[pairs(64, 96) for _ in range(2)])
powers = rng.integers(110, 134, (2, 64, 3), dtype=np.uint8)
wide = np.stack([spread(p.view(ml.float8_e8m0fnu), (64, 96), (1, 32)) for p in powers])
case(9, "mlp.experts.gate_up_proj", np.stack(values) * wide,
     **{"_blocks": np.stack(codes).reshape(2, 64, 3, 16), "_scales": powers})

header, data = {}, b""
for name, array in tensors.items():
    raw = array.tobytes()
    header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                    "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(header).encode()
(here / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
(here / "values.f32").write_bytes(b"".join(array.tobytes() for array in expected))
(here / "values.json").write_text(json.dumps(cases, indent=1) + "\n")

# Block types of GGUF that came later than the others of dequant/.
nvfp4 = rng.integers(0, 256, (6, 36), dtype=np.uint8)
bits = rng.integers(0, 256, (6, 18), dtype=np.uint8)
bits[:, :2] = rng.uniform(-2, 2, 6).astype(np.float16).view(np.uint8).reshape(6, 2)
scales = bits[:, :2].copy().view(np.float16).astype(np.float32)
signs = np.unpackbits(bits[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
for name, raw, values in [
    ("NVFP4", nvfp4, quants.dequantize(nvfp4, gguf.GGMLQuantizationType.NVFP4)),
    ("Q1_0", bits, signs * scales),
]:
    (here / f"../dequant/{name}.raw").write_bytes(raw.tobytes())
    (here / f"../dequant/{name}.f32").write_bytes(values.astype(np.float32).tobytes())
