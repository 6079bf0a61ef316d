"""Quantisation of a GGUF file by llama.cpp itself, in a process of its own: an assertion in it ends that process.

cyllama has ``llama_model_quantize``. xllamacpp, whose server is used elsewhere, is linked without it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from recovery.errors import ModelError
from recovery.models.gguf_files.header import Header, read_header

QUANTISED = {"q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}
"""Types of files that llama.cpp mixes from several types of tensors, with its numbers (``llama_ftype``)."""
BLOCK = 256
"""Values that a k-quant stores together: rows of another width get another type."""
_NEEDS = "quantising a GGUF file needs: pip install 'recovery[llama]'"


def check_quantiser() -> None:
    """Raise ModelError if the quantiser is not installed."""
    try:
        import cyllama  # noqa: F401
    except ImportError:
        raise ModelError(_NEEDS) from None


def quantise(source: Path, target: Path, kind: str) -> Header:
    """Write ``source``, a file of 16 or 32 bits, to ``target`` as ``kind``, one of :data:`QUANTISED`.

    Return the header of what was written. Raise ModelError with llama.cpp's reason if it refuses.
    """
    command = [sys.executable, "-m", __name__, str(source), str(target), str(QUANTISED[kind])]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        named = next(
            (line for line in reversed(lines) if "failed" in line or "rror" in line), lines[-1] if lines else ""
        )
        raise ModelError(f"llama.cpp cannot write {target.name} as {kind}: {named.strip()[:300] or done.returncode}")
    return read_header(target)


def types_text(header: Header, kind: str) -> str:
    """Return which types the tensors of a quantised file have, and which matrices k-quants do not fit."""
    text = ", ".join(f"{count} {name.lower()}" for name, count in header.types.items())
    matrices = [tensor for tensor in header.tensors if len(tensor.shape) > 1]
    uneven = Counter(tensor.type.lower() for tensor in matrices if tensor.shape[-1] % BLOCK)
    if kind not in QUANTISED or not uneven:
        return text
    instead = ", ".join(f"{count} {name}" for name, count in uneven.items())
    return (
        f"{text}; the rows of {uneven.total()} of {len(matrices)} matrices are no multiple of {BLOCK} wide, so "
        f"llama.cpp gave them another type than {kind} has: {instead}"
    )


def _main(source: str, target: str, number: str) -> None:
    from cyllama.llama.llama_cpp import LlamaModelQuantizeParams, model_quantize

    params = LlamaModelQuantizeParams()
    params.ftype = int(number)
    model_quantize(source, target, params)


if __name__ == "__main__":
    _main(*sys.argv[1:])
