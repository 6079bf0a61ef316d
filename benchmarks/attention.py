"""Attention on a CPU: ours against torch's kernel, in training and for a decoded token.

Run: python -m benchmarks.attention [--rounds 9] [--write]

One layer's attention, forward and backward, by turns with torch's kernel alone and with plain products that keep the
scores, on one thread. Times are processor seconds, so that other work on the machine counts little; the ratio is the
median over the rounds. Errors are those of the gradients against float32, relative to their norm, the worst of queries,
keys and values. In float32 long rows use the kernel, so nothing is compared. A decoded token is a single query
to the keys and values of a cache with more room, without gradients; its errors are those of the result.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import _report
from recovery.models.attention import attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
FASTER = 1.0


@dataclass(frozen=True)
class Case:
    """Rows of equal length through heads in groups; ``packed``: documents of 40 to 400 tokens in each row, as many as
    fit, so that there is a mask.

    With ``decoded`` a single query attends to ``tokens`` tokens in a cache; in every other row the first are padding.
    """

    rows: int
    tokens: int
    heads: int
    groups: int
    width: int
    packed: bool = False
    decoded: bool = False

    def __str__(self) -> str:
        packed = ", packed" if self.packed else ", one query" if self.decoded else ""
        return f"{self.rows} x {self.tokens}, {self.heads} heads in {self.groups} groups of {self.width}{packed}"


CASES = (
    Case(32, 110, 9, 3, 64),
    Case(24, 150, 9, 3, 64),
    Case(4, 512, 9, 3, 64),
    Case(4, 512, 9, 3, 64, packed=True),
    Case(2, 1024, 9, 3, 64),
    Case(1, 2048, 9, 3, 64),
    Case(1, 2048, 9, 3, 64, packed=True),
    Case(1, 2048, 16, 8, 128),
    Case(64, 80, 4, 2, 32),
    Case(32, 100, 9, 3, 64, decoded=True),
    Case(128, 250, 9, 3, 64, decoded=True),
    Case(16, 600, 9, 3, 64, decoded=True),
    Case(16, 150, 32, 8, 128, decoded=True),
    Case(128, 80, 6, 3, 32, decoded=True),
)
_ROOM, _REPEATS = 50, 10


def ours(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The function that training uses, [B, Q, heads, d]."""
    return attention(torch.nn.Module(), query, key, value, mask)[0]


def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """torch's kernel, with its own backward pass."""
    mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=True)
    return mixed.transpose(1, 2)


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Two products with the scores of whole rows between them."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value).transpose(1, 2)


WAYS: dict[str, Attention] = {"ours": ours, "kernel": kernel, "plain": plain}


@dataclass
class Measured:
    """Processor seconds of each way by round, and its worst relative error."""

    seconds: dict[str, list[float]]
    errors: dict[str, float]

    def ratio(self, way: str) -> float:
        """How many times as long a way takes as ours: the median over the rounds."""
        pairs = zip(self.seconds[way], self.seconds["ours"], strict=True)
        return statistics.median(theirs / mine for theirs, mine in pairs)

    def milliseconds(self, way: str) -> float:
        """The median time of a way."""
        return 1000 * statistics.median(self.seconds[way])


def measure(case: Case, rounds: int, seed: int) -> Measured:
    """Time all ways by turns on the same tensors, after a warm-up of each."""
    generator = torch.Generator().manual_seed(seed)
    held, queries = case.tokens + _ROOM * case.decoded, 1 if case.decoded else case.tokens
    shapes = [(case.rows, case.heads, queries), *2 * [(case.rows, case.groups, held)]]
    exact = [torch.randn(*shape, case.width, generator=generator).bfloat16() for shape in shapes]
    exact[1:] = [tensor[:, :, : case.tokens] for tensor in exact[1:]]
    upstream = torch.randn(case.rows, queries, case.heads, case.width, generator=generator).bfloat16()
    mask, run = None, decoded if case.decoded else gradients
    if case.packed:
        mask = torch.stack([separated(case.tokens, generator) for _ in range(case.rows)])
    if case.decoded:
        mask = torch.ones(case.rows, 1, 1, case.tokens, dtype=torch.bool)
        mask[::2, ..., :9] = False
    reference = run(plain, [leaf.float() for leaf in exact], mask, upstream.float())[0]
    found = Measured({way: [] for way in WAYS}, {})
    for number in range(rounds + 1):
        for way, function in WAYS.items():
            made, seconds = run(function, exact, mask, upstream)
            if number:
                found.seconds[way].append(seconds)
            pairs = zip(made, reference, strict=True)
            found.errors[way] = max(float((one.float() - wanted).norm() / wanted.norm()) for one, wanted in pairs)
    return found


def separated(tokens: int, generator: torch.Generator) -> Tensor:
    """The mask of one packed row, [1, T, T]."""
    lengths = torch.randint(40, 401, (tokens // 40 + 1,), generator=generator)
    document_T = torch.arange(len(lengths)).repeat_interleave(lengths)[:tokens]
    return (document_T.unsqueeze(0) == document_T.unsqueeze(1)).tril().unsqueeze(0)


def gradients(
    function: Attention, tensors: Sequence[Tensor], mask: Tensor | None, upstream: Tensor
) -> tuple[list[Tensor], float]:
    """Return the gradients of queries, keys and values, and the processor seconds of both passes."""
    query, key, value = leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    started = time.process_time()
    torch.autograd.backward(function(query, key, value, mask), upstream)
    seconds = time.process_time() - started
    return [leaf.grad for leaf in leaves if leaf.grad is not None], seconds


@torch.no_grad()
def decoded(
    function: Attention, tensors: Sequence[Tensor], mask: Tensor | None, _upstream: Tensor
) -> tuple[list[Tensor], float]:
    """Return the result for a single query, and the processor seconds of one call."""
    query, key, value = tensors
    started = time.process_time()
    for _ in range(_REPEATS):
        made = function(query, key, value, mask)
    return [made], (time.process_time() - started) / _REPEATS


def main() -> int:
    """Run the benchmark; return 0 if ours is at least as fast as the kernel in every case."""
    parser = _report.parser(__doc__, "attention", "seed")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = _report.machine(("torch",), products="bfloat16", threads=1, seed=options.seed)
    facts["native bfloat16"] = "yes" if torch.cpu._is_avx512_bf16_supported() else "no"
    found = {str(case): measure(case, options.rounds, options.seed) for case in CASES}
    rows = [
        [name, *(f"{one.milliseconds(way):.1f}" for way in WAYS), *(f"{one.ratio(way):.2f}" for way in list(WAYS)[1:]),
         *(f"{one.errors[way]:.4f}" for way in WAYS)]
        for name, one in found.items()
    ]  # fmt: skip
    heads = ["rows x tokens", "ours, ms", "kernel, ms", "plain, ms", "kernel / ours", "plain / ours",
             "error, ours", "error, kernel", "error, plain"]  # fmt: skip
    body = f"{_report.table(heads, rows)}\n\nMedians of {options.rounds} rounds; processor time."
    print(body)
    if options.write:
        data = {name: {"seconds": one.seconds, "errors": one.errors} for name, one in found.items()}
        title = "Attention on a CPU: forward and backward, and of a decoded token"
        _report.write("attention", title, body, facts, {"cases": data})
    return int(any(one.ratio("kernel") < FASTER for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
