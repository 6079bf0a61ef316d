"""The losses as they are defined: formulas over whole distributions in numpy, and their derivatives.

Nothing of the library is imported. Values are computed in extended precision (float64 where a machine has no wider
type), in functions that accept complex numbers, so that derivatives are taken by a complex step: Im f(x + ih) / h is
f'(x) up to h^2, and no digits are lost in a difference. Arrays of N tokens may have further axes before the token's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WIDE = np.longdouble
SCALE, SOFTCAP = 0.7, 5.0
_STEP = WIDE(1e-40)


@dataclass(frozen=True)
class Finding:
    """One comparison: its largest error, the largest reference value, and the error that rounding explains."""

    quantity: str
    case: str
    format: str
    error: float
    size: float
    rounding: float

    @property
    def relative(self) -> float:
        """The error over the largest reference value; 0 where that is below the rounding."""
        return self.error / self.size if self.size > self.rounding else 0.0

    @property
    def times(self) -> float:
        """The error over the rounding."""
        return self.error / self.rounding if self.rounding else (0.0 if self.error == 0.0 else np.inf)


def finding(quantity: str, case: str, kind: str, found: Any, exact: Any, rounding: Any = 0.0) -> Finding:
    """Compare arrays of one shape in the format ``kind``; a value that is not finite is an infinite error."""
    ours, theirs = np.asarray(found, dtype=WIDE), np.asarray(exact, dtype=WIDE)
    assert ours.shape == theirs.shape and np.isfinite(theirs).all(), (quantity, case, ours.shape, theirs.shape)
    error = float(abs(ours - theirs).max(initial=0.0)) if np.isfinite(ours).all() else np.inf
    return Finding(
        quantity, case, kind, error, float(abs(theirs).max(initial=0.0)), float(np.max(rounding, initial=0.0))
    )


def log_softmax(logits_NV: Array) -> Array:
    """Return log-probabilities, for real and complex logits."""
    shifted_NV = logits_NV - logits_NV.real.max(-1, keepdims=True)
    return shifted_NV - np.log(np.exp(shifted_NV).sum(-1, keepdims=True))


def at_least(log_NV: Array, floor: float | None) -> Array:
    """Return max(log, floor)."""
    return log_NV if floor is None else np.where(log_NV.real < floor, floor, log_NV)


def mixed(one_NV: Array, other_NV: Array, share: float) -> Array:
    """Return log(share e^one + (1 - share) e^other)."""
    most_NV = np.maximum(one_NV.real, other_NV.real)
    rest = 1 - WIDE(share)
    return most_NV + np.log(WIDE(share) * np.exp(one_NV - most_NV) + rest * np.exp(other_NV - most_NV))


def jensen_shannon(log_p: Array, log_q: Array, beta: float, _floor: float | None) -> Array:
    """Return beta q log(q/m) + (1 - beta) p log(p/m), m = beta q + (1 - beta) p (arXiv 2306.13649)."""
    log_m = mixed(log_q, log_p, beta)
    return WIDE(beta) * np.exp(log_q) * (log_q - log_m) + (1 - WIDE(beta)) * np.exp(log_p) * (log_p - log_m)


# What each vocabulary entry contributes, from log p, log q, beta and the floor; docs/methods.md names the sources.
ENTRIES: dict[str, Callable[[Array, Array, float, float | None], Array]] = {
    "reverse_kl": lambda log_p, log_q, _, floor: np.exp(log_p) * (log_p - at_least(log_q, floor)),
    "forward_kl": lambda log_p, log_q, _, floor: np.exp(log_q) * (log_q - at_least(log_p, floor)),
    "jsd": jensen_shannon,
    "skew_kl": lambda log_p, log_q, beta, _: np.exp(log_q) * (log_q - mixed(log_q, log_p, beta)),
    "skew_reverse_kl": lambda log_p, log_q, beta, _: np.exp(log_p) * (log_p - mixed(log_p, log_q, beta)),
}


def slope(value: Callable[[Array], Array], at_ND: Array, columns: Sequence[int] = ()) -> Array:
    """Return the derivative of ``value``, [N, D] to [N], in some columns of its argument or in all, [N, columns]."""
    moves = np.eye(at_ND.shape[-1], dtype=WIDE)[list(columns) or slice(None)][:, None, :]
    return (value(at_ND + 1j * _STEP * moves).imag / _STEP).T


class Noise:
    """Multiplies each entry by 1 plus or minus ``unit``, with random signs; without a generator changes nothing."""

    def __init__(self, unit: float = 0.0, random: np.random.Generator | None = None) -> None:
        self.unit, self.random = unit, random

    def __call__(self, values: Array, scale: Array | None = None) -> Array:
        """Return ``values`` [..., N, V], each moved by a unit of ``scale``, by default of its own."""
        if self.random is None:
            return values
        return values + self.unit * self.random.choice((-1.0, 1.0), values.shape[-2:]) * (
            values if scale is None else scale
        )


@dataclass(frozen=True)
class Case:
    """Logits of both sides, [N, V], or hidden states [N, D] of a head [V, D] with scale and soft cap.

    ``columns`` of the gradient are compared, by default all; ``few`` leaves out the settings of the divergences.
    """

    name: str
    student: Array
    teacher: Array
    temperature: float = 1.0
    head_VD: Array | None = None
    columns: tuple[int, ...] = ()
    few: bool = False

    def log_probabilities(self, rows: Array, noise: Noise) -> Array:
        """Return the log-probabilities of either side, [N, V], for its ``rows``."""
        if self.head_VD is not None:
            raw = noise(rows @ self.head_VD.T.astype(WIDE), abs(rows.real) @ abs(self.head_VD.T))
            rows = SOFTCAP * np.tanh(WIDE(SCALE) / SOFTCAP * raw)
        return noise(log_softmax(rows if self.temperature == 1.0 else noise(rows / WIDE(self.temperature))))


@dataclass(frozen=True)
class Form:
    """A term of the loss and its settings, by the names of Term."""

    quantity: str
    name: str
    settings: dict[str, Any]

    def value(self, case: Case, samples: Samples, rows: Array, noise: Noise) -> Array:
        """Return the value per token, [N], at the student's ``rows``."""
        log_p = case.log_probabilities(rows, noise)
        if self.name == "entropy":
            return -(np.exp(log_p) * log_p).sum(-1)
        if self.name in ("cross_entropy", "policy_gradient"):
            chosen = np.take_along_axis(log_p, np.broadcast_to(samples.targets, (*log_p.shape[:-1], 1)), -1)[..., 0]
            return -chosen if self.name == "cross_entropy" else -self._gain(chosen, samples)
        log_q = case.log_probabilities(case.teacher.astype(WIDE), noise)
        if self.name == "top_k":
            which = "reverse_kl" if self.settings.get("reverse", True) else "forward_kl"
            return ENTRIES[which](bucket(log_p, samples.ids), bucket(log_q, samples.ids, noise), 0.0, None).sum(-1)
        found = ENTRIES[self.name](log_p, log_q, self.settings.get("beta", 0.5), self.settings.get("floor"))
        cap = self.settings.get("entry_clip", np.inf)
        return np.where(found.real >= cap, cap, found).sum(-1)

    def _gain(self, chosen: Array, samples: Samples) -> Array:
        """Return min(r A, clip(r) A) (PPO, arXiv 1707.06347), 0 where r is beyond the limit of ``drop``."""
        ratio, clip, drop = np.exp(chosen - samples.old), self.settings.get("clip"), self.settings.get("drop")
        gain = ratio * samples.advantages
        if clip is not None:
            bounded = np.clip(ratio.real, 1 - clip, 1 + clip) * samples.advantages
            gain = np.where(bounded < gain.real, bounded, gain)
        return gain if drop is None else np.where((ratio.real > drop) | (ratio.real < 1 / drop), 0.0, gain)


@dataclass(frozen=True)
class Samples:
    """Sampled tokens [N, 1], their advantages and old log-probabilities [N], the teacher's top entries [N, k]."""

    targets: Array
    advantages: Array
    old: Array
    ids: Array
    logprobs: Array


def bucket(log_NV: Array, ids_NK: Array, noise: Noise | None = None) -> Array:
    """Return the log-probabilities of k entries and of the rest, [N, k + 1]; [N, k] if there is no rest.

    With noise the rest is 1 minus the kept probabilities: more is not known from k log-probabilities.
    """
    kept = np.take_along_axis(log_NV, np.broadcast_to(ids_NK, (*log_NV.shape[:-1], ids_NK.shape[-1])), -1)
    if ids_NK.shape[-1] == log_NV.shape[-1]:
        return kept
    if noise is not None and noise.random is not None:
        rest = np.maximum(1 - noise(np.exp(kept).sum(-1, keepdims=True)), noise.unit)
        return np.concatenate([kept, np.log(rest)], -1)
    inside = np.zeros(log_NV.shape[-2:], dtype=bool)
    np.put_along_axis(inside, ids_NK, True, -1)
    most = np.where(inside, -np.inf, log_NV.real).max(-1, keepdims=True)
    rest = np.where(inside, 0.0, np.exp(np.where(inside, 0.0, log_NV - most))).sum(-1, keepdims=True)
    return np.concatenate([kept, most + np.log(rest)], -1)
