"""Time and peak memory of the fused reverse KL and JSD against the plain form, TRL's chunked one and Liger's fused one.

Run: python -m benchmarks.loss [--device cuda --tokens 8192] [--write]

Value and gradient of a divergence between two heads, on the same tensors in one run. Times are of interleaved repeats
(the minimum counts, since other load only adds time), in wall time and in CPU time, which other load affects less. Peak
extra memory is the maximum that the kernel measures in a fresh process, above the memory of the input tensors; on a GPU
that of torch's allocations there. JSD is the symmetric one, beta = 0.5.

- plain: both sides' logits for all tokens, autograd through log_softmax.
- TRL: ChunkedDivergenceFunction, with the arguments that its DistillationTrainer passes.
- Liger: LigerFusedLinearJSDLoss without its hard loss, uncompiled; beta 1 is the reverse KL there too. Its default is
  one chunk of 1,024 tokens, with all logits in memory at once; chunks of 128 are used here, its best ratio of memory to
  time. It computes the gradient of the student's head even if the head is frozen.
- Liger's kernels (on a GPU): LigerFusedLinearJSD, written in Triton, which bounds its chunks itself.
- ours: recovery.losses.fused.fused_loss.

The peers are used if they are installed; otherwise the other two are compared. On a CPU both peers run their plain
PyTorch implementations, as they would for a user on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import _report, _resident
from recovery.losses.fused import fused_loss
from recovery.losses.terms import Term
from recovery.models.hardware import gpu_name
from recovery.models.lm_head import Head

try:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction
except ImportError:
    ChunkedDivergenceFunction = None
try:
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss
except ImportError:
    LigerFusedLinearJSDLoss = None
try:
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD
except ImportError:  # needs Triton
    LigerFusedLinearJSD = None

TIMES = ("seconds", "processor seconds")

# Our maximum share of the other's time or memory, for the frozen head of a 0.6B model.
LIMITS = {
    ("memory", "plain"): {"float32": 1 / 8, "bfloat16": 1 / 8},
    ("memory", "TRL"): {"float32": 1 / 4, "bfloat16": 1 / 4},
    ("memory", "Liger"): {"float32": 1 / 4, "bfloat16": 1 / 4},
    ("time", "plain"): {"float32": 1.0, "bfloat16": 1.0},
    ("time", "TRL"): {"float32": 0.65, "bfloat16": 0.3},
    ("time", "Liger"): {"float32": 1.0, "bfloat16": 1.0},
}
LIGER_CHUNK = 128
WARM_UP = 32


@dataclass(frozen=True)
class Case:
    """One size: N tokens, hidden size D, vocabulary V; ``trained`` is whether the head's gradient is computed."""

    name: str
    tokens: int
    width: int
    vocabulary: int
    dtype: str
    trained: bool = False
    divergence: str = "reverse_kl"

    def __str__(self) -> str:
        return f"{self.divergence} {self.name} {self.dtype}"


def cases(tokens: int) -> list[Case]:
    """Return the compared sizes: a 0.6B model's head, frozen and trained, and a miniature's, trained."""
    return [
        case
        for divergence in ("reverse_kl", "jsd")
        for case in (
            *[Case("0.6B", tokens, 1024, 151_936, kind, False, divergence) for kind in ("float32", "bfloat16")],
            Case("0.6B, head trained", tokens, 1024, 151_936, "bfloat16", True, divergence),
            Case("miniature, head trained", 6_000, 192, 1_536, "float32", True, divergence),
            Case("miniature, head trained", 6_000, 192, 1_536, "bfloat16", True, divergence),
        )
    ]


@dataclass
class Tensors:
    """The inputs: a teacher, and a student slightly perturbed from it."""

    hidden_ND: Tensor
    weight_VD: Tensor
    teacher_ND: Tensor
    teacher_VD: Tensor

    @classmethod
    def of(cls, case: Case, seed: int, device: str = "cpu") -> Tensors:
        """Return random tensors whose logits have a standard deviation of about 2, as in trained models."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, case.dtype)

        def normal(rows: int, scale: float) -> Tensor:
            made = torch.empty(rows, case.width, dtype=dtype)
            for part in made.split(4096):
                part.copy_(torch.randn(part.shape, generator=generator) * scale)
            return made.to(device)

        weight_VD = normal(case.vocabulary, 2 * case.width**-0.5)
        teacher_VD = weight_VD + normal(case.vocabulary, 0.3 * case.width**-0.5)
        teacher_ND = normal(case.tokens, 1.0)
        hidden_ND = teacher_ND + normal(case.tokens, 0.2)
        return cls(hidden_ND.requires_grad_(), weight_VD.requires_grad_(case.trained), teacher_ND, teacher_VD)

    def first(self, tokens: int) -> Tensors:
        """Return the same heads with the first few tokens."""
        hidden_ND = self.hidden_ND.detach()[:tokens].requires_grad_()
        return Tensors(hidden_ND, self.weight_VD, self.teacher_ND[:tokens], self.teacher_VD)

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the leaves that have one."""
        return [leaf.grad for leaf in (self.hidden_ND, self.weight_VD) if leaf.grad is not None]

    def clear(self) -> None:
        """Clear the gradients."""
        self.hidden_ND.grad = self.weight_VD.grad = None


def plain(t: Tensors, divergence: str) -> Tensor:
    """Return the divergence by its definition, over whole logits."""
    log_p = (t.hidden_ND @ t.weight_VD.t()).log_softmax(-1)
    log_q = (t.teacher_ND @ t.teacher_VD.t()).log_softmax(-1)
    if divergence == "reverse_kl":
        return (log_p.exp() * (log_p - log_q)).sum()
    p, q = log_p.exp(), log_q.exp()
    log_m = ((p + q) / 2).log()
    return 0.5 * (q * (log_q - log_m) + p * (log_p - log_m)).sum()


def trl(t: Tensors, divergence: str) -> Tensor:
    """Return TRL's loss, called as by its trainer."""
    beta = 1.0 if divergence == "reverse_kl" else 0.5
    found, _entropy = ChunkedDivergenceFunction.apply(
        t.hidden_ND, t.weight_VD, None, t.teacher_ND, t.teacher_VD, None, beta, 1.0, 1.0, None, 1.0, None
    )
    return found.sum()


def liger(t: Tensors, divergence: str) -> Tensor:
    """Return Liger's loss; Liger's own value is the mean over tokens."""
    beta = 1.0 if divergence == "reverse_kl" else 0.5
    loss = LigerFusedLinearJSDLoss(0.0, 1.0, beta=beta, compiled=False, chunk_size=LIGER_CHUNK)
    labels_N = t.hidden_ND.new_zeros(len(t.hidden_ND), dtype=torch.long)
    mean: Tensor = loss(t.hidden_ND, t.weight_VD, t.teacher_ND, t.teacher_VD, labels_N)
    return mean * len(labels_N)


def liger_kernels(t: Tensors, divergence: str) -> Tensor:
    """Return the loss of Liger's Triton kernels; its own value is the mean over tokens."""
    loss = LigerFusedLinearJSD(jsd_beta=1.0 if divergence == "reverse_kl" else 0.5)
    mean: Tensor = loss(t.hidden_ND, t.weight_VD, t.teacher_ND, t.teacher_VD, None)
    return mean * len(t.hidden_ND)


def ours(t: Tensors, divergence: str) -> Tensor:
    """Return this project's fused loss."""
    term = Term(divergence, teacher_hidden_NE=t.teacher_ND, teacher_head=Head(t.teacher_VD))
    return fused_loss(t.hidden_ND, Head(t.weight_VD), [term]).loss


LOSSES: dict[str, Callable[[Tensors, str], Tensor]] = {
    "plain": plain,
    "TRL": trl,
    "Liger": liger,
    "Liger's kernels": liger_kernels,
    "ours": ours,
}
if LigerFusedLinearJSD is None:
    del LOSSES["Liger's kernels"]
if ChunkedDivergenceFunction is None:
    del LOSSES["TRL"]
if LigerFusedLinearJSDLoss is None:
    del LOSSES["Liger"]


def value_and_gradient(name: str, tensors: Tensors, divergence: str) -> dict[str, float]:
    """Return wall and CPU seconds, loss, and norm of the gradient."""
    tensors.clear()
    device = tensors.hidden_ND.device.type
    _resident.finish(device)
    started, worked = time.perf_counter(), time.process_time()
    loss = LOSSES[name](tensors, divergence)
    loss.backward()  # type: ignore[no-untyped-call]
    _resident.finish(device)
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    # In parts: a float32 copy of a whole head's gradient would count towards the loss's memory.
    parts = [part for gradient in tensors.gradients() for part in gradient.split(4096)]
    norm = sum(part.float().square().sum().item() for part in parts) ** 0.5
    return {"seconds": seconds, "processor seconds": processor, "loss": loss.item(), "gradient norm": norm}


def time_all(case: Case, repeats: int, seed: int, device: str) -> dict[str, dict[str, Any]]:
    """Time the losses alternately on the same tensors, after a warm-up on a few tokens, or on all on a GPU, where a
    kernel is chosen by size. There the peak memory is measured as well.
    """
    tensors = Tensors.of(case, seed, device)
    found: dict[str, dict[str, Any]] = {name: {key: [] for key in TIMES} for name in LOSSES}
    for name, entry in found.items():
        if device == "cpu":
            value_and_gradient(name, tensors.first(WARM_UP), case.divergence)
            continue
        tensors.clear()
        before = _resident.now(device)
        value_and_gradient(name, tensors, case.divergence)
        entry["megabytes"] = round(_resident.peak(device) - before, 1)
    for _ in range(repeats):
        for name, entry in found.items():
            once = value_and_gradient(name, tensors, case.divergence)
            for key in TIMES:
                entry[key].append(round(once.pop(key), 6))
            entry.update(once)
    return found


def peak_memory(case: Case, name: str, seed: int) -> float:
    """Return the peak extra MB of one loss, measured in a separate process."""
    request = json.dumps({"case": asdict(case), "loss": name, "seed": seed})
    threads = str(torch.get_num_threads())
    command = [sys.executable, "-m", "benchmarks.loss", "--threads", threads, "--peak-of", request]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(finished.stdout.split()[-1])


def _print_peak(request: dict[str, Any]) -> None:
    """In the child: run a tiny case to load the libraries, then measure the large one."""
    case = Case(**request["case"])
    small = Case("small", 64, 64, 256, case.dtype, case.trained)
    value_and_gradient(request["loss"], Tensors.of(small, 0), case.divergence)
    tensors = Tensors.of(case, request["seed"])
    before = _resident.now()
    value_and_gradient(request["loss"], tensors, case.divergence)
    print(_resident.peak() - before)


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return ours over each of the others, in time (minimum over minimum) and memory."""
    result = {}
    for other in found:
        if other != "ours":
            for name, key in (("time", "seconds"), ("processor time", "processor seconds")):
                result[f"{name}/{other}"] = min(found["ours"][key]) / min(found[other][key])
            result[f"memory/{other}"] = found["ours"]["megabytes"] / found[other]["megabytes"]
    return {key: round(value, 4) for key, value in result.items()}


def verdicts(case: Case, found: dict[str, float]) -> list[str]:
    """Return a line for each limit that applies to this size: met or missed."""
    if case.name != "0.6B":
        return []
    lines = []
    for (what, other), limit in LIMITS.items():
        ratio = found.get(f"{what}/{other}")
        if ratio is not None:
            word = "met" if ratio <= limit[case.dtype] else "MISSED"
            result = f"{ratio:.3f}, limit {limit[case.dtype]:.3f}: {word}"
            lines.append(f"{case.divergence}, {case.dtype}, {what} against {other}: {result}")
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{1e3 * seconds:.2f} ms"


def markdown(measured: list[tuple[Case, dict[str, dict[str, Any]]]]) -> str:
    """Return the tables and the limits as Markdown."""
    parts = []
    for case, found in measured:
        rows = [
            (
                name,
                _time(min(entry["seconds"])),
                _time(statistics.median(entry["seconds"])),
                _time(min(entry["processor seconds"])),
                f"{entry['megabytes']:.0f} MB",
                f"{entry['loss']:.5g}",
                f"{entry['gradient norm']:.5g}",
            )
            for name, entry in found.items()
        ]
        size = f"N={case.tokens:,}, D={case.width:,}, V={case.vocabulary:,}"
        parts.append(f"## {case.divergence}: {case.name}, {case.dtype} ({size})\n")
        head = ("loss", "fastest", "median", "CPU time", "peak extra memory", "value", "gradient norm")
        parts.append(_report.table(head, rows) + "\n")
        parts.append("Ours over theirs: " + ", ".join(f"{k} {v:.3f}" for k, v in ratios(found).items()) + ".\n")
    limits = [line for case, found in measured for line in verdicts(case, ratios(found))]
    return "\n".join([*parts, "## Limits\n", *[f"- {line}" for line in limits]])


def main() -> int:
    """Measure and print; write with --write. Return 1 if a limit was missed."""
    parser = _report.parser(__doc__, "loss", "seed", named=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens (N) for the 0.6B model's head")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="only cases whose divergence, size and type contain this")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.device == "cpu":
        LOSSES.pop("Liger's kernels", None)
    if options.peak_of:
        _print_peak(json.loads(options.peak_of))
        return 0
    packages = ("torch", "transformers", "trl", "liger-kernel")
    facts = _report.machine(packages, gpu=gpu_name(options.device), threads=options.threads, seed=options.seed)
    measured = []
    for case in cases(options.tokens):
        if options.only not in str(case):
            continue
        found = time_all(case, options.repeats, options.seed, options.device)
        if options.device == "cpu":
            for name, entry in found.items():
                entry["megabytes"] = round(peak_memory(case, name, options.seed), 1)
        measured.append((case, found))
        print(markdown([(case, found)]).split("## Limits")[0], flush=True)
    body = markdown(measured)
    print(body[body.index("## Limits") :])
    if options.write:
        data = [{"case": asdict(case), "losses": found, "ratios": ratios(found)} for case, found in measured]
        text = f"{_report.note(__doc__)}\n{body}"
        print(_report.write(options.name, "The fused loss", text, facts, {"cases": data}))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
