"""Compares the GPU's kernel with the plain operations; ``python -m tests.kernel_checks`` in the interpreter.

TRITON_INTERPRET=1 must be set before Triton is imported, hence the separate process.
"""

from __future__ import annotations

import os

import pytest
import torch

from recovery.losses import fused, kernels
from recovery.losses.fused import FusedOutput, fused_loss
from recovery.losses.terms import Term
from recovery.models.lm_head import Head

# Larger than the kernel's block, and no multiple of it.
VOCABULARY, WIDTH, TOKENS, CHUNK = 5000, 32, 7, 3
KINDS = (
    ["reverse_kl"],
    ["forward_kl"],
    ["jsd"],
    ["jsd", "jsd", "jsd"],
    ["reverse_kl", "forward_kl", "jsd", "reverse_kl"],
)
DTYPES = (torch.float32, torch.bfloat16)
# The interpreter takes a minute for a few tokens: the types differ only in how they are loaded, and two of the kinds
# contain all divergences. A GPU goes over all of them.
INTERPRETED = [*((kinds, torch.float32) for kinds in KINDS), (KINDS[0], torch.bfloat16), (KINDS[-1], torch.bfloat16)]
FEW_TOKENS = 4  # a whole chunk and a part of one


class Case:
    """Random hidden states and heads (with bias and scale) of a student and of a teacher per term, and weights."""

    def __init__(self, kinds: list[str], dtype: torch.dtype, device: str, tokens: int) -> None:
        self.random = torch.Generator().manual_seed(len(kinds))
        self.dtype, self.device = dtype, device
        bias_V = self._normal(VOCABULARY, 0.5)[:, 0].contiguous()
        self.head = Head(self._weight().requires_grad_(), bias_V, scale=0.7)
        self.hidden_ND = self._normal(tokens, 1.0).requires_grad_()
        self.weights_N = torch.rand(tokens, generator=self.random).to(device)
        teachers = [
            (self._normal(tokens, 1.0), Head(self._weight(), scale=1.0 + number)) for number in range(len(kinds))
        ]
        if len(kinds) > 2:  # a teacher that is nearly the student, where differences lose digits
            teachers[1] = (self.hidden_ND.detach() + self._normal(tokens, 0.01), self.head)
        # The last teacher is the student.
        teachers[-1] = (self.hidden_ND.detach().clone(), self.head)
        self.terms = [
            Term(kind, weight=0.5 + number, beta=0.3, teacher_hidden_NE=hidden_NE, teacher_head=head)
            for number, (kind, (hidden_NE, head)) in enumerate(zip(kinds, teachers, strict=True))
        ]

    def run(self) -> tuple[FusedOutput, torch.Tensor, torch.Tensor]:
        """Return the output of the loss and the gradients of the hidden states and of the head."""
        weight_VD = self.head.weight_VD
        self.hidden_ND.grad = weight_VD.grad = None
        output = fused_loss(
            self.hidden_ND, self.head, self.terms, temperature=1.3, weights_N=self.weights_N, chunk_tokens=CHUNK
        )
        output.loss.backward()  # type: ignore[no-untyped-call]
        assert self.hidden_ND.grad is not None and weight_VD.grad is not None
        return output, self.hidden_ND.grad.clone(), weight_VD.grad.clone()

    def _normal(self, rows: int, scale: float) -> torch.Tensor:
        return (torch.randn(rows, WIDTH, generator=self.random) * scale).to(self.dtype).to(self.device)

    def _weight(self) -> torch.Tensor:
        return self._normal(VOCABULARY, 0.3)


def check(
    kinds: list[str], dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch, tokens: int = TOKENS
) -> None:
    """Assert that value, entropy, gradients and norms are those without the kernel."""
    assert kernels.available(torch.device(device))
    case = Case(kinds, dtype, device, tokens)
    calls: list[str] = []

    def counted(kind: str, *arguments: object, **named: object) -> None:
        calls.append(kind)
        compute_(kind, *arguments, **named)  # type: ignore[arg-type]

    compute_ = kernels.divergence_
    monkeypatch.setattr(fused.kernels, "divergence_", counted)
    found = case.run()
    assert len(calls) == len(kinds) * -(-tokens // CHUNK)
    with monkeypatch.context() as patch:
        patch.setattr(fused.kernels, "available", lambda _device: False)
        expected = case.run()
    for kind, one, other in zip(kinds, found[0].values_TN, expected[0].values_TN, strict=True):
        rounding = 1e-8 if kind == "jsd" else 3e-6  # terms of a KL cancel, in the plain operations too
        assert (one - other).norm() <= 1e-4 * other.norm() + rounding, (kind, dtype, one, other)
    coarse = 1e-5 if dtype == torch.float32 else 2e-2
    for name, allowed in [("entropy_N", 1e-5), ("grad_norm_N", coarse), ("gradient_ND", coarse)]:
        one, other = getattr(found[0], name).float(), getattr(expected[0], name).float()
        assert (one - other).norm() <= allowed * other.norm(), (name, kinds, dtype)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one.float() - other.float()).norm() <= coarse * other.float().norm(), (kinds, dtype)
    assert torch.equal(found[0].values_TN[-1], torch.zeros(tokens, device=device))  # of the student with itself
    hidden_NE = case.terms[0].teacher_hidden_NE
    assert hidden_NE is not None
    hidden_NE[2] = float("nan")  # a bad number is seen, and by no other token
    assert case.run()[0].values_TN[0].isnan().tolist() == [token == 2 for token in range(tokens)]


def check_mixture(device: str) -> None:
    """Assert that log(m/p) keeps its digits where student and teacher differ by little, and where by much."""
    from tests.mixture_kernel import log_m_over_p

    size = 1024
    u_N = torch.logspace(-7, 1.7, size // 2, dtype=torch.float64)
    u_N = torch.cat([u_N, -u_N]).float()
    for beta in (0.1, 0.5, 0.9):
        found_N = torch.empty(size, device=device)
        log_m_over_p[(1,)](torch.zeros(size, device=device), u_N.to(device), found_N, beta, BLOCK=size)
        exact_N = torch.log1p(beta * torch.expm1(u_N.double()))
        assert ((found_N.cpu() - exact_N) / exact_N).abs().max() < 2e-6, beta


def main() -> None:
    """Run all checks on the CPU, in Triton's interpreter."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    check_mixture("cpu")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for kinds, dtype in INTERPRETED:
            with monkeypatch.context() as patch:
                check(kinds, dtype, "cpu", patch, FEW_TOKENS)
    print(f"{len(INTERPRETED)} cases agree")


if __name__ == "__main__":
    main()
