"""A base in NF4: how far it is from the model itself, what it saves, and what a LoRA step on it costs.

Run: python -m benchmarks.quantization --model FOLDER|FILE.gguf [--write]

The clean model answers the built-in prompts; on its answers its next-token distributions are compared with those of its
copy in NF4, which is the teacher that --quantized-teacher would use. Then an adapter is trained by cross-entropy on the
answers of the first seed, on the quantised base and on the base itself by turns; what the quantised one learned is
compared with the same adapter on the unquantised base, which is what evaluations and exports use. Times are processor
seconds on one thread; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import _report
from recovery.batching import Batch, Row, micro_batches
from recovery.data.prompts import behaviour_prompts
from recovery.losses.dense import divergence
from recovery.losses.fused import fused_loss
from recovery.losses.terms import Term
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine

TOKEN_BUDGET = 1024


@dataclass
class Distance:
    """Divergences between a model and a changed one, token by token (nats), and whether their first choices agree."""

    forward: list[float] = field(default_factory=list)
    reverse: list[float] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return the means as cells of a table."""
        means = [statistics.fmean(values) for values in (self.forward, self.reverse, self.equal)]
        return [str(len(self.equal)), f"{means[0]:.4f}", f"{means[1]:.4f}", f"{means[2]:.1%}"]


def answers(clean: Loaded, seed: int, prompts: int, tokens: int) -> list[Row]:
    """Return rows of built-in prompts, each with an answer that the model samples."""
    chosen = behaviour_prompts(seed=seed).train[:prompts]
    asked = [clean.chat.prompt_ids(prompt.messages) for prompt in chosen]
    given = TransformersEngine(clean).generate(asked, Sampling(tokens, seed=seed))
    return [
        Row([*prompt, *answer.ids], [False] * len(prompt) + [True] * len(answer.ids))
        for prompt, answer in zip(asked, given, strict=True)
    ]


def distance(model: Loaded, changed: Loaded, rows: Sequence[Row]) -> Distance:
    """Compare the next-token distributions of both at the targets of the rows; forward is KL(model || changed)."""
    found = Distance()
    for batch in micro_batches(rows, TOKEN_BUDGET, model.chat.pad_id):
        with model.inference(), changed.inference():
            first_NV, second_NV = _logits(model, batch), _logits(changed, batch)
        found.forward += divergence("reverse_kl", first_NV, second_NV)[0].tolist()
        found.reverse += divergence("reverse_kl", second_NV, first_NV)[0].tolist()
        found.equal += (first_NV.argmax(-1) == second_NV.argmax(-1)).float().tolist()
    return found


def _logits(model: Loaded, batch: Batch) -> torch.Tensor:
    return model.head.logits(batch.gather(model.hidden(batch))).float()


def size(model: Loaded) -> int:
    """Return the bytes of a model's weights, with the constants of quantised ones."""
    weights = list(model.model.parameters())
    constants = sum(weight.quant_state.absmax.nbytes for weight in weights if hasattr(weight, "quant_state"))
    return constants + sum(weight.nbytes for weight in weights)


@dataclass
class Trained:
    """A student and the processor seconds of each of its steps."""

    student: Loaded
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.student.trainable().values(), lr=1e-4)

    def step(self, rows: Sequence[Row]) -> None:
        """Take one step on the rows and time it."""
        begun, student = time.process_time(), self.student
        for batch in micro_batches(rows, TOKEN_BUDGET, student.chat.pad_id):
            hidden_ND = batch.gather(student.hidden(batch))
            fused_loss(hidden_ND, student.head, [Term("cross_entropy", targets_N=batch.targets_N)]).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.process_time() - begun)


def by_turns(model: Path, rows: Sequence[Row], rounds: int) -> tuple[Trained, Trained]:
    """Train on the rows with a quantised and an unquantised base by turns; the first step of each is not timed."""
    sides = []
    for quantize in ("nf4", "none"):
        torch.manual_seed(0)
        sides.append(Trained(load_model(model, tuning="lora", device="cpu", quantize=quantize)))
    for _ in range(rounds + 1):
        for side in sides:
            side.step(rows)
    for side in sides:
        del side.seconds[0]
    return sides[0], sides[1]


def markdown(model: Path, options: argparse.Namespace) -> str:
    """Measure, and return the tables."""
    clean = load_model(model, device="cpu")
    rows = {seed: answers(clean, seed, options.prompts, options.tokens) for seed in options.seeds}
    quantised = load_model(model, device="cpu", quantize="nf4")
    lines = [[f"clean, its copy in NF4; seed {seed}", *distance(clean, quantised, rows[seed]).cells()] for seed in rows]
    weights = {"clean": size(clean), "in NF4": size(quantised)}
    first = rows[options.seeds[0]]
    nf4, plain = by_turns(model, first, options.rounds)
    with TemporaryDirectory() as folder:
        nf4.student.save(Path(folder) / "adapter")
        moved = load_model(folder + "/adapter", device="cpu")
    lines.append(["trained in NF4, its adapter on the clean base", *distance(nf4.student, moved, first).cells()])
    lines.append(["clean, trained in NF4", *distance(clean, nf4.student, first).cells()])
    ratio = statistics.median(a / b for a, b in zip(nf4.seconds, plain.seconds, strict=True))
    heads = ["model, changed one", "tokens", "KL(model, changed)", "KL(changed, model)", "equal first choice"]
    return "\n".join(
        [
            _report.table(heads, lines),
            "",
            "Divergences are means in nats a token, over the whole vocabulary.",
            "",
            *(f"- Weights {name}: {count / 2**20:,.0f} MiB." for name, count in weights.items()),
            f"- A LoRA step in NF4 takes {statistics.median(nf4.seconds):.2f} s, unquantised "
            f"{statistics.median(plain.seconds):.2f} s of processor time: {ratio:.2f} times as long (median of "
            f"{options.rounds} rounds).",
        ]
    )


def main() -> None:
    """Measure and print; write with --write."""
    parser = _report.parser(__doc__, "quantization")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a seed")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = _report.machine(("torch", "transformers", "peft", "bitsandbytes"), model=options.model.stem)
    body = markdown(options.model, options)
    print(body)
    if options.write:
        _report.write("quantization", "A base in NF4", body, facts, {"table": body.splitlines()})


if __name__ == "__main__":
    main()
