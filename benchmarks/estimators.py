"""Every divergence and estimator of the losses against its definition, in cases that strain a number format.

Run: python -m benchmarks.estimators [--seed N] [--write]

The reference shares no code with the library: values are the formulas, written out in numpy in extended precision;
gradients are derivatives of these values by a complex step (benchmarks/_definitions.py). Estimators from samples are
averaged over all outcomes of a small vocabulary, weighted by their probabilities: a bias cannot hide in noise.

Both sides read the same rounded logits. "rounding" is the error that the format alone explains: the largest change of
the reference if every log-probability is off by half a unit in its last place (and every logit, where a temperature
divides it or a head computes it), plus half a unit of the result, of 1 (a sum of probabilities) and, in a gradient
p (g - mean g), of the value. The library computes in float32 for bfloat16 as well, and rounds only logits and gradients
to bfloat16. A few times the rounding is as good as a format allows; the exit status is 1 above 64 times. "relative" is
the error over the largest reference value, where that exceeds the rounding.

- The mixtures (jsd, skew_kl, skew_reverse_kl) subtract two log-ratios of up to 60 nats, whose half unit is 32 times
  that of 1: an error of 2e-6 nats where the sides disagree completely.
- The rest of top_k, 1 minus the teacher's k probabilities, is known to 1e-7 at best, and a smaller one counts as 1e-7:
  where the teacher is certain, the penalty of what the student does outside the k entries is bounded by that, and too
  small by most of its size where the sides disagree by dozens of nats.
- In float32 a divergence of 1e-6 nats has one correct digit ("nearly equal"); of equal sides it is exactly 0, unless
  there is a floor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from benchmarks import _outcomes, _report
from benchmarks._definitions import SCALE, SOFTCAP, WIDE, Array, Case, Finding, Form, Noise, Samples, finding, slope
from recovery.losses.dense import LOSSES, divergence
from recovery.losses.divergences import DIVERGENCES
from recovery.losses.fused import FusedOutput, fused_loss
from recovery.losses.terms import Term
from recovery.models.lm_head import Head

UNITS = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
}  # half a unit in the last place of 1
KEPT = 4  # entries of top_k
LIMIT = 64.0  # errors up to this many times the rounding are called rounding


def forms() -> Iterator[Form]:
    """Yield every registered divergence with its mixtures and limits, then the terms on a few entries."""
    for name, one in DIVERGENCES.items():
        for beta in ({},) if one.ends is None else ({"beta": 0.5}, {"beta": 0.02}, {"beta": 0.98}):
            yield Form(name, name, beta)
        yield Form(f"{name}, entries clipped", name, {"entry_clip": 0.05})
        for limits in () if one.bounded else ({"floor": -8.0}, {"floor": -8.0, "entry_clip": 0.05}):
            yield Form(f"{name}, floored", name, limits)
    for limits in ({}, {"clip": 0.2}, {"drop": 2.0}, {"clip": 0.2, "drop": 2.0}):
        yield Form(", ".join(["policy_gradient", *limits]), "policy_gradient", limits)
    yield Form("cross_entropy", "cross_entropy", {})
    yield Form("entropy", "entropy", {})
    yield Form(f"top_k ({KEPT})", "top_k", {})
    yield Form(f"top_k ({KEPT}), forward", "top_k", {"reverse": False})


def cases(random: np.random.Generator) -> list[Case]:
    """Return ordinary logits and those that strain a number format."""

    def draw(spread: float = 2.0, rows: int = 6, columns: int = 12) -> Array:
        return random.normal(size=(rows, columns)) * spread

    same, low, high, untrained = draw(), draw(1.0), draw(1.0), draw()
    one, other = draw(0.1) - 100.0, draw(0.1) - 100.0
    one[:, 3] += 100.0
    other[:, 7] += 100.0
    low[:, 2] -= 60.0
    high[:, 2] += 6.0
    untrained[:, 8:] = -1e4
    return [
        Case("ordinary", draw(), draw()),
        Case("temperature 0.7", draw(), draw(), 0.7),
        Case("temperature 0.02", draw(1.0), draw(1.0), 0.02),
        Case("two entries", draw(columns=2), draw(columns=2)),
        Case("one entry", draw(columns=1), draw(columns=1)),
        Case("one token", draw(rows=1), draw(rows=1)),
        Case("equal", same, same),
        Case("nearly equal", same, same + draw(1e-3)),
        Case("ties", draw(1.0).round(), draw(1.0).round()),
        Case("certain of different tokens", one, other),
        Case("student e^-60, teacher near 1", low, high),
        Case("teacher e^-60, student near 1", high, low),
        Case("logits of ±10,000", draw(1e4), draw(1e4)),
        Case("logits near ±10,000", 1e4 + draw(), draw() - 1e4),
        Case("teacher's last entries at -10,000", draw(), untrained),
        Case("last entries at -10,000 in both", np.where(untrained < -1e3, -1e4, draw()), untrained),
        Case("head with scale and cap", draw(3.0, columns=5), draw(3.0, columns=5), 0.7, draw(1.0, 12, 5)),
        Case("10,000 entries", draw(3.0, 2, 10_000), draw(3.0, 2, 10_000), columns=(0, 1, 2), few=True),
        Case("10,000 entries of a head", draw(4.0, 2, 3), draw(4.0, 2, 3), 1.0, draw(1.0, 10_000, 3), few=True),
    ]


def compared(form: Form, case: Case, dtype: torch.dtype, seed: int = 0, draws: int = 6) -> Iterator[Finding]:
    """Compare value and gradient of the plain and the fused form, on inputs rounded to ``dtype``.

    The rounding is the largest of ``draws`` patterns of signs, 2 for a wide vocabulary.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    case = replace(case, **{name: cast(getattr(case, name), dtype) for name in ("student", "teacher", "head_VD")})
    samples, at = drawn(case, wide, seed), case.student.astype(WIDE)
    kind = str(dtype).removeprefix("torch.")

    def both(noise: Callable[[], Noise]) -> tuple[Array, Array]:
        derivative = slope(lambda rows: form.value(case, samples, rows, noise()), at, case.columns)
        return form.value(case, samples, at, noise()), derivative

    def moved(draw: int) -> tuple[Array, Array]:
        unit = UNITS[wide if case.head_VD is None else dtype]
        return both(lambda: Noise(unit, np.random.default_rng(draw)))

    exact, around = both(Noise), [moved(number) for number in range(2 if case.few else draws)]
    for path, given in (("plain", plain(form, case, samples, dtype)), ("fused", fused(form, case, samples, dtype))):
        for part, found in enumerate(given):
            stored = UNITS[wide] if part == 0 or path == "plain" else UNITS[dtype]
            total = UNITS[wide] * ((1 + abs(exact[0])[:, None]) / case.temperature if part else 1.0)
            rounding = np.max([abs(other[part] - exact[part]) for other in around], axis=0) + stored * abs(exact[part])
            mine = found[:, list(case.columns)] if part and case.columns else found
            name = f"{form.quantity}: {'gradient' if part else 'value'}"
            yield finding(name, case.name, kind, mine, exact[part], rounding + total)


def cast(values: Any, dtype: torch.dtype) -> Any:
    """Return an array rounded to a format, as float64; None for None."""
    return None if values is None else torch.as_tensor(np.asarray(values, float)).to(dtype).double().numpy()


def drawn(case: Case, wide: torch.dtype, seed: int) -> Samples:
    """Draw tokens and what was known when they were sampled; the ratios lie between 0.33 and 3.3."""
    random = np.random.default_rng(seed)
    log_p, log_q = (case.log_probabilities(rows.astype(WIDE), Noise()) for rows in (case.student, case.teacher))
    targets = random.integers(log_p.shape[1], size=(len(log_p), 1))
    old = np.take_along_axis(log_p, targets, -1)[:, 0] + np.linspace(1.2, -1.1, len(log_p))
    ids = np.argsort(-log_q, -1, kind="stable")[:, :KEPT]
    advantages = random.normal(size=len(log_p))
    return Samples(targets, cast(advantages, wide), cast(old, wide), ids, np.take_along_axis(log_q, ids, -1))


def plain(form: Form, case: Case, samples: Samples, dtype: torch.dtype) -> tuple[Array, ...]:
    """Return value [N] and gradient [N, V] of the divergence over whole logits; nothing if it has no such form."""
    if form.name not in LOSSES or case.head_VD is not None:
        return ()
    student_NV, teacher_NV = (torch.as_tensor(side).to(dtype) for side in (case.student, case.teacher))
    targets_N = torch.as_tensor(samples.targets[:, 0])
    settings = {"targets_N": targets_N, "temperature": case.temperature, **form.settings}
    return tuple(part.double().numpy() for part in divergence(form.name, student_NV, teacher_NV, **settings))


def fused(form: Form, case: Case, samples: Samples, dtype: torch.dtype) -> tuple[Array, ...]:
    """Return value [N] and gradient [N, D] of the fused loss; the head of plain logits is the identity.

    Only the value of the entropy, which is reported with every loss.
    """
    if case.few and case.head_VD is None:
        return ()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight_VD = np.eye(case.student.shape[1]) if case.head_VD is None else case.head_VD
    scale, softcap = (1.0, None) if case.head_VD is None else (SCALE, SOFTCAP)
    fields: dict[str, tuple[Any, torch.dtype]] = {
        "teacher_hidden_NE": (case.teacher, dtype),
        "top_ids_NK": (samples.ids, torch.long),
        "top_logprobs_NK": (samples.logprobs.astype(float), wide),
        "targets_N": (samples.targets[:, 0], torch.long),
        "advantages_N": (samples.advantages, wide),
        "old_logprobs_N": (samples.old, wide),
    }
    needs = {
        "entropy": ("targets",),
        "cross_entropy": ("targets",),
        "policy_gradient": ("targets", "advantages", "old"),
        "top_k": ("top",),
    }
    wanted = needs.get(form.name, ("teacher",))
    tensors: dict[str, Any] = {
        name: torch.as_tensor(v).to(kind) for name, (v, kind) in fields.items() if name.startswith(wanted)
    }
    hidden_ND = torch.as_tensor(case.student).to(dtype).requires_grad_()
    head = Head(torch.as_tensor(weight_VD).to(dtype), None, scale, softcap)
    if "teacher_hidden_NE" in tensors:  # the teacher's vocabulary is padded, and cut to the student's
        padded_VD = torch.cat([head.weight_VD, torch.full((4, head.width), 9.0, dtype=dtype)])
        tensors["teacher_head"] = replace(head, weight_VD=padded_VD).first(head.vocabulary)
    term = Term("cross_entropy" if form.name == "entropy" else form.name, **form.settings, **tensors)
    output: FusedOutput = fused_loss(hidden_ND, head, [term], temperature=case.temperature, chunk_tokens=4)
    if form.name == "entropy":
        return (output.entropy_N.double().numpy(),)
    output.loss.backward()
    assert hidden_ND.grad is not None
    return output.per_token_N.double().numpy(), hidden_ND.grad.double().numpy()


def findings(seed: int) -> list[Finding]:
    """Return all comparisons; wide vocabularies take part without the settings of the divergences."""
    found: list[Finding] = []
    for case in cases(np.random.default_rng(seed)):
        for dtype in [dtype for dtype in UNITS if not (case.few and dtype == torch.float64)]:
            for form in [form for form in forms() if not (case.few and form.settings)]:
                found += compared(form, case, dtype, seed)
    return [*found, *_outcomes.averages(seed), *_outcomes.statistics(seed), *_outcomes.nothing()]


def worst(rows: Sequence[Finding], key: Callable[[Finding], Any], measure: Callable[[Finding], float]) -> list[Finding]:
    """Return the row with the largest ``measure`` for each ``key``, in the order of the first ones."""
    found: dict[Any, Finding] = {}
    for row in rows:
        if key(row) not in found or measure(row) > measure(found[key(row)]):
            found[key(row)] = row
    return list(found.values())


def main() -> int:
    """Compare and print; write with --write. Return 1 if an error is more than LIMIT times the rounding."""
    options = _report.parser(__doc__, "estimators", "seed").parse_args()
    torch.set_num_threads(1)
    rows = findings(options.seed)
    by_quantity = worst(rows, lambda row: (row.quantity, row.format), lambda row: row.times)
    by_case = worst([row for row in rows if row.format == "float32"], lambda row: row.case, lambda row: row.relative)
    formats = [
        (kind, f"{len(mine):,}", f"{max(row.times for row in mine):.1f}", sum(row.times > LIMIT for row in mine))
        for kind in dict.fromkeys(row.format for row in rows)
        if (mine := [row for row in rows if row.format == kind])
    ]
    header = ("quantity", "format", "case", "error", "relative", "rounding", "error / rounding")
    trained = [row for row in by_quantity if row.format != "float64"]
    parts = [
        _report.table(("format", "comparisons", "largest error / rounding", f"above {LIMIT:g}"), formats),
        "\nEach quantity in the case with the largest error over the rounding:\n",
        _report.table(header, map(cells, trained)),
        "\nEach case in float32, with the quantity of the largest relative error:\n",
        _report.table(header, map(cells, by_case)),
    ]
    body = "\n".join(parts)
    print(body)
    if options.write:
        text = f"{_report.note(__doc__)}\n{body}"
        facts = _report.machine(("torch", "numpy"), seed=options.seed)
        data = {"quantities": [asdict(row) for row in by_quantity], "cases": [asdict(row) for row in by_case]}
        _report.write("estimators", "The losses against their definitions", text, facts, data)
    return int(any(row.times > LIMIT for row in rows))


def cells(row: Finding) -> tuple[str, ...]:
    """Return a row of the table."""
    relative = f"{row.relative:.1e}" if row.relative else "-"
    return row.quantity, row.format, row.case, f"{row.error:.1e}", relative, f"{row.rounding:.1e}", f"{row.times:.1f}"


if __name__ == "__main__":
    sys.exit(main())
