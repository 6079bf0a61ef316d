"""Write docs/methods.md, the overview of all methods, and one page per method in docs/methods/: `make docs`.

With --check nothing is written and the exit status is 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.cli.methods import objective
from recovery.arms import ARMS, DISTILL, INTERPOLATE, NONE
from recovery.config import DistillConfig, InterpolateConfig, MidtrainConfig, build
from recovery.losses.divergences import DIVERGENCES
from recovery.methods import METHODS, Method
from recovery.settings import flag_of

HERE = Path(__file__).resolve().parent


def page(method: Method) -> str:
    """Return one method's page."""
    config = build(DistillConfig, {"method": method.name})
    values = [f"alpha {config.alpha:g}", f"lambda {config.lam:g}", f"teacher {config.teacher}"]
    values += [f"objective {objective(config)}"]
    values += [f"context {config.context}"] if config.context != "none" else []
    values += [f"answers {config.answers}"] if config.alpha < 1 else []
    settings = _flags(DistillConfig, method.settings)
    lines = [
        f"# {method.name}: {method.title}",
        "",
        f"    {method.formula}",
        "",
        f"**Use it** {_when(method.use)}.",
        "",
        f"**Not** {_when(method.avoid)}.",
        "",
        *([f"**Measured here**: {method.measured} ([studies](../studies.md)).", ""] if method.measured else []),
        *([f"**Requires** {method.expects}.", ""] if method.expects else []),
        f"Its place among the [methods](../methods.md): {', '.join(values)}.",
        "",
        f"`recover train --method {method.name}` sets {settings or 'nothing, it is the default'}. Flags override it.",
        "",
        f"Source: {method.source}.",
        "",
    ]
    return "\n".join(lines)


def _flags(kind: type, settings: Mapping[str, Any]) -> str:
    given = {name: value for name, value in settings.items() if value is not None and value is not False}
    return ", ".join(f"`{flag_of(kind, name)}{'' if value is True else f' {value}'}`" for name, value in given.items())


def _when(text: str) -> str:
    return text if text.startswith(("to ", "anything ", "without ")) else f"when {text}"


def sheet() -> str:
    """Return the overview page: all methods, and which one to use when."""
    lines = [
        "# Methods",
        "",
        "Which method suits which situation? All are settings of one objective. They differ in the source of the",
        "states (alpha: the share that the student samples itself), in the weight of the teacher against the reward",
        "(lambda), and in the teacher:",
        "",
        "    grad J = E[ sum_t A_t grad log pi(y_t | s_t) ],    s_t from alpha pi + (1 - alpha) data",
        "    A_t    = lambda [log pi_T(y_t | c_T, s_t) - log pi(y_t | s_t)] + (1 - lambda) [R(y) - b(x)]",
        "",
        "If the teacher's logits are available, the divergence over the whole vocabulary replaces the sampled",
        "log-ratio: the same expectation, far less variance. `recover train --method NAME` runs one method,",
        "`recover compare` several at equal cost. Published claims about them are",
        "[studies](commands/experiments.md#recover-study).",
        "",
        "| method | use it | alpha | lambda | teacher | objective |",
        "|---|---|---|---|---|---|",
    ]
    for method in METHODS.values():
        config = build(DistillConfig, {"method": method.name})
        context = "" if config.context == "none" else f" + {config.context}"
        lines.append(
            f"| [{method.name}](methods/{method.name}.md) | {_when(method.use)} | {config.alpha:g} | {config.lam:g} | "
            f"{config.teacher}{context} | {objective(config)} |"
        )
    return "\n".join([*lines, "", *_situations(), *_divergences(), *_TOKENIZERS, *_arms()])


def _divergences() -> list[str]:
    """Return the table of divergences over the whole vocabulary."""
    lines = [
        "## Divergences",
        "",
        "`--divergence` selects how student and teacher are compared at each position, over the whole vocabulary: p is",
        "the student's distribution, q the teacher's, m a mixture of both with share `--beta`.",
        "",
        "| `--divergence` | value | at `--beta` 0 and 1 | source |",
        "|---|---|---|---|",
    ]
    for one in DIVERGENCES.values():
        ends = " and ".join(end or "zero (refused)" for end in one.ends) if one.ends else ""
        lines.append(f"| {one.name} | {one.formula} | {ends} | {one.source} |".replace("||", "\\|\\|"))
    return [*lines, ""]


_TOKENIZERS = """## A teacher with another tokenizer

`--teacher`, `--knowledge-teacher` and `--expert` may be a checkpoint of another model family, with byte-level BPE or
SentencePiece tokens. It reads the conversation in its own template and tokens, and responses are aligned by the bytes
that tokens spell. A span is the shortest run of the student's tokens that spells the same bytes as a run of the
teacher's; the end of a turn is a span of its own. With p the student and q the teacher after the same text:

| span | loss | |
|---|---|---|
| one token each | D(p', q'), for every divergence above | exact for p' and q', with all tokens at once |
| several tokens | r = sum log p - sum log q over the tokens, gradient r grad sum log p | one sample of the reverse KL |
| no counterpart: text that the teacher's tokenizer changes, bytes that it lacks | none | |

r is bounded to 10 nats either way. p' and q' are p and q over what both vocabularies can spell: tokens that spell the
same are one outcome, a token of one side alone counts as the longest shared token that it begins with, and end tokens
of one side alone as the end of a turn. With equal vocabularies D(p', q') is the ordinary divergence.

Two biases are not corrected. The teacher's distribution after a token is conditional on its tokenizer having ended a
token there ([arXiv 2410.09303](https://arxiv.org/abs/2410.09303)): a student that writes words in smaller pieces is
judged too severely. And the probability of a span is that of one spelling, not the sum over all. The more positions are
one to one, the less both matter: the curves `aligned_one_to_one`, `aligned_merged` and `aligned_left_out` are shares of
the scored tokens. Below `--min-aligned` (one to one and merged together) the run stops with an error.

Refused with a one-line error: a server, `--divergence top_k` or `sampled`, given answers (`--alpha` below 1),
`--continuation`, several weighted teachers, an anchor with another tokenizer, a teacher without a chat template or
whose template cannot render a prompt.

Sources of the alignment: GOLD (Hugging Face, 2025; `GOLDTrainer` of TRL) and
[arXiv 2606.09456](https://arxiv.org/abs/2606.09456). GOLD compares tokens of one side alone by sorted probabilities
(ULD, [arXiv 2402.12030](https://arxiv.org/abs/2402.12030)); here they count with the text that they begin with.
Formulas: [spans.py](../recovery/losses/spans.py), [outcomes.py](../recovery/losses/terms.py).
""".split("\n")


def _arms() -> list[str]:
    """Return the table of arms."""
    lines = [
        "## Arms: recovery and its baselines",
        "",
        "An arm is a complete configuration of a cycle (`recover methods arms`). All arms use the same documents and",
        "the same number of mid-training tokens. The table shows only what an arm changes. In the runs of",
        "[real.md](real.md) all else is in [recipe.toml](../examples/nextjs/recipe.toml): `augment = 4`, 4 epochs, 60",
        "steps of recovery with 30% questions, and others.",
        "",
        "| arm | | mid-training | then | source |",
        "|---|---|---|---|---|",
    ]
    for arm in ARMS.values():
        trained = _flags(MidtrainConfig, arm.midtrain)
        then = _flags(InterpolateConfig if arm.follow == INTERPOLATE else DistillConfig, arm.settings)
        command = {NONE: "", DISTILL: "`recover train` ", INTERPOLATE: "`recover interpolate` "}[arm.follow]
        lines.append(f"| {arm.name} | {arm.title} | {trained} | {command}{then} | {arm.source} |")
    return [*lines, ""]


def _situations() -> list[str]:
    return [
        "## Choosing a method",
        "",
        "- **Behaviour was lost, a clean checkpoint has it**: [opd](methods/opd.md) (`recover distill`).",
        "- **Documents are to be learnt**: `recover midtrain`, then opd with a knowledge teacher (`recover cycle`).",
        "- **Good answers are available, the model lacks the skill**: [sft](methods/sft.md), with `--anchor` or opd",
        "  afterwards.",
        "- **Answers can be checked, no better model exists**: [grpo](methods/grpo.md);",
        "  [rejection-sft](methods/rejection-sft.md) if that is enough.",
        "- **A stronger model exists**: opd from it; [off-policy-kd](methods/off-policy-kd.md) first if the student",
        "  is far behind.",
        "- **The model can do it with a context**: train it to need no context any more: demonstrations",
        "  ([sdft](methods/sdft.md)), rules ([deliberative](methods/deliberative.md)), a system prompt",
        "  ([opcd](methods/opcd.md)) or a text ([document-in-context](methods/document-in-context.md)).",
        "- **Several experts, one model**: opd with `--expert TAG=NAME`.",
        "- **The teacher is a server**: [opd](methods/opd.md) with `--divergence top_k`, or",
        "  [opd-sampled](methods/opd-sampled.md); one that returns only text: its responses as the data of",
        "  [sft](methods/sft.md) (`--data FILE`).",
        "- **The teacher's probabilities are not wanted**: [continuation-opd](methods/continuation-opd.md), with a",
        "  checkpoint as the teacher.",
        "",
    ]


def main() -> int:
    """Write the pages; with --check, return 1 if they would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    pages = {HERE / "methods.md": sheet()} | {HERE / "methods" / f"{m.name}.md": page(m) for m in METHODS.values()}
    stale = [p for p, text in pages.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    stale += [p for p in (HERE / "methods").glob("*.md") if p not in pages]
    for path in () if check else stale:
        if path in pages:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages[path], encoding="utf-8")
        else:
            path.unlink()
    if check and stale:
        print(f"out of date: {', '.join(p.name for p in stale)}: run make docs")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
