"""A kernel of one function of the GPU's kernel, for tests/kernel_checks.py. Importing it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from recovery.losses.triton_kernels import _log_m_over_p


@triton.jit
def log_m_over_p(log_p, log_q, found, beta, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write log(m/p) of BLOCK pairs of log-probabilities to ``found``."""
    at = tl.arange(0, BLOCK)
    mixed, _ = _log_m_over_p(tl.load(log_p + at), tl.load(log_q + at), beta)
    tl.store(found + at, mixed)
