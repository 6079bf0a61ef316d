"""The benchmarks' calculations, and that the compared losses agree."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    _report,
    _sides,
    attention,
    growth,
    job,
    loss,
    quantization,
    roofline,
    scaling,
    served,
    step,
    until,
)
from recovery.batching import micro_batches
from recovery.lazy_import import lazily
from recovery.losses.objective import DistillationObjective
from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise
from recovery.models.loading import load_model

bitsandbytes = lazily("bitsandbytes")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("divergence", ["reverse_kl", "jsd"])
@pytest.mark.parametrize("trained", [False, True])
def test_every_loss_gives_the_same_value_and_gradient(dtype: str, divergence: str, trained: bool) -> None:
    tensors = loss.Tensors.of(loss.Case("tiny", 40, 16, 96, dtype, trained, divergence), seed=1)
    found = {name: loss.value_and_gradient(name, tensors, divergence) for name in loss.LOSSES}
    tolerance = 1e-4 if dtype == "float32" else 0.2  # Liger accumulates in bfloat16
    for name, values in found.items():
        for key in ("loss", "gradient norm"):
            assert values[key] == pytest.approx(found["ours"][key], rel=tolerance), name
    assert found["ours"]["loss"] > 0


def test_limits_are_judged_at_the_size_they_are_for() -> None:
    def entry(seconds: float, megabytes: float) -> dict[str, object]:
        return {"seconds": [seconds], "processor seconds": [seconds], "megabytes": megabytes}

    found = {"plain": entry(2.0, 800.0), "TRL": entry(4.0, 300.0), "ours": entry(1.0, 100.0)}
    ratios = loss.ratios(found)
    assert ratios["time/TRL"] == 0.25
    assert ratios["memory/plain"] == 0.125
    large, small = loss.Case("0.6B", 1, 1, 1, "bfloat16"), loss.Case("miniature", 1, 1, 1, "bfloat16")
    words = [line.rsplit(" ", 1)[1] for line in loss.verdicts(large, ratios)]
    assert words == ["met", "MISSED", "met", "met"]
    assert loss.verdicts(small, ratios) == []


def test_results_name_the_machine_and_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report, "RESULTS", tmp_path / "results")
    options = _report.parser("About it.", "x", "seed", named=True).parse_args(["--seed", "3", "--write"])
    assert (options.name, options.write, options.seed) == ("x", True, 3)
    facts = _report.machine(seed=options.seed)
    page = _report.write(options.name, "Title", _report.table(("a", "b"), [(1, 2)]), facts, {"figure": 1.5})
    text = page.read_text() + page.with_suffix(".json").read_text()
    assert "- seed: 3\n" in text
    assert "| 1 | 2 |" in text
    assert '"figure": 1.5' in text
    assert "torch" in text
    assert os.uname().nodename not in text


def test_the_ratio_is_theirs_over_ours_after_the_warm_up() -> None:
    sides = []
    for name, seconds in (("ours", [9.0, 1.0, 1.0]), ("TRL", [9.0, 2.0, 3.0])):
        steps = [{"seconds": s, "processor seconds": s, "tokens": 10.0} for s in seconds]
        sides.append(_sides.Side(name, process=None, errors=Path(), steps=steps))  # type: ignore[arg-type]
    assert step.ratios(sides) == {"seconds": 2.5, "processor seconds": 2.5}
    assert step.ratios(sides[:1]) == {}
    for side in sides:
        side.steps = [{**one, "generating": 0.5, "training": 0.5, "loss": 0.1} for one in side.steps]
    assert "goal 2.5: met" in step.markdown(sides, step.REAL_GOAL)
    assert "goal 4.0: MISSED" in step.markdown(sides, step.GOAL)


def test_tokens_are_read_off_where_the_curve_crosses_the_goal() -> None:
    points = [(100.0, 0.5, 0.0), (400.0, 0.7, 0.0), (1600.0, 0.9, 0.0)]
    assert until.needed(points, 0.8) == pytest.approx(800.0)
    assert until.needed(points, 0.95) is None
    assert until.needed(points, 0.4) == 100.0


def test_each_side_counts_at_its_best_rate_with_the_mean_of_its_seeds() -> None:
    def runs(side: str, rate: float, tokens: float, *values: float) -> dict[until.Run, until.End]:
        return {
            until.Run(side, until.SEARCHED, rate, seed): until.End(tokens, value) for seed, value in enumerate(values)
        }

    found = runs("ours", 1e-3, 100.0, 0.8) | runs("ours", 2e-3, 60.0, 0.99, 1.0)
    found |= runs("TRL", 1e-3, 140.0, 0.995) | runs("TRL", 2e-3, 90.0, 0.7)
    assert until.curve(found, "ours") == [(60.0, pytest.approx(0.995), pytest.approx(0.5**0.5 / 100))]
    assert "0.43; limit 0.8: met; goal 0.3: MISSED." in until.markdown(found, base=1.0, degraded=0.7)
    assert (
        until.verdict(60.0, None, most=300.0)
        == "Our tokens over TRL's: less than 0.20 (TRL did not reach it); limit 0.8: met; goal 0.3: met."
    )
    assert "MISSED" in until.verdict(None, 100.0, most=300.0)


def test_a_slope_is_that_of_the_logarithms() -> None:
    found = scaling.fit([1.0, 2.0, 4.0], [[3.0, 6.0, 12.0], [3.0, 3.0, 3.0]])
    assert found["largest"] == pytest.approx(1.0)
    assert found["least"] == pytest.approx(0.0)
    assert 0.0 < found["slope"] < 1.0


def _linear_operations(shape: list[int], weight: list[int], *_: object, **__: object) -> int:
    return 2 * math.prod(shape) * weight[0]


def test_operations_are_those_that_torch_counts(tmp_path: Path) -> None:
    """The operation counts by shape equal torch's own count for a real training step with a teacher."""
    size = scaling.Size(answers=2, vocabulary=2048, width=128, layers=2, new_tokens=16)
    model = scaling.Model.of(size, tmp_path, seed=0)
    rows = [dataclasses.replace(row, loss_mask=[True] * len(row.ids)) for row in model.rows(1)]
    [batch] = micro_batches(rows, 4096, model.student.chat.pad_id)
    objective = DistillationObjective({"base": model.teacher})
    # oneDNN's operator, used in float32 on machines without bfloat16 products; torch's counter lacks it.
    unknown = {torch.ops.mkldnn._linear_pointwise: _linear_operations}
    with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
        objective(model.student, batch).loss.backward()
    work, context = (
        roofline.Work.of(Path(model.student.path)),
        sum(map(sum, (range(2, len(row.ids) + 1) for row in rows))),
    )
    expected = work.trained(batch.tokens, context) + work.body(batch.tokens, context) + 2 * work.head * batch.tokens
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.1)


@pytest.fixture(scope="module")
def small_job(tmp_path_factory: pytest.TempPathFactory) -> job.Job:
    folder = tmp_path_factory.mktemp("job")
    docs = write_corpora(folder / "corpora", 1, entities=6, documents=2)[0]
    sizes = {"batch_tokens": 256, "row_length": 128, "prompts": 4, "new_tokens": 8, "threads": 1, "seed": 0, "limit": 8}
    return job.Job(str(materialise(folder / "model")), str(docs), str(folder), 2, 2, **sizes)


def test_every_token_of_a_cycle_is_counted_in_its_phase(small_job: job.Job) -> None:
    meter = roofline.Meter(roofline.Work.of(Path(small_job.model)), documents=1, profiled=2)
    whole = roofline.cycle(small_job, meter)
    phases = meter.phases
    with job.our_session(small_job) as session:
        of = job.stages(session)
        assert phases["mid-training"].tokens == of["midtrain"].tokens_trained
        trained = phases["training"].tokens + phases[roofline.PROFILED].tokens
        assert trained == of["distill"].tokens_trained
        assert phases["sampling"].tokens == of["midtrain"].tokens_sampled + of["distill"].tokens_sampled
    assert all(phases[name].tokens for name in ("evaluation: answers", "evaluation: likelihoods"))
    assert 0 < sum(phase.seconds for phase in phases.values()) < whole
    assert meter.shares["matrix products"] > 0
    page = roofline.markdown(meter, roofline.Rates(1e18, 1e18), whole)
    assert "| training " in page and "0.5: MISSED" in page and "one step under" not in page


def test_both_models_of_a_job_are_judged_by_the_same_rulers(small_job: job.Job, tmp_path: Path) -> None:
    whole = dataclasses.replace(small_job, folder=str(tmp_path), whole=True)
    with job.our_session(whole) as session:
        job.whole_cycle(session, whole)
        job.whole_cycle(session, whole)  # it is done: nothing is repeated
        assert {kind: stage.attempts for kind, stage in job.stages(session).items()} == {"midtrain": 1, "distill": 1}
        base, ours, other = (session.resolve(name).id for name in ("base", "cycle-1/recovered", "cycle-1/midtrained"))
        page = job.scored(session.tracker.database, base, ours, ours)
        assert "| +0.000 (-0.318 to +0.318) | NOT SHOWN |" in page, "the same model twice, and too few instructions"
        assert "K, bits" in job.scored(session.tracker.database, base, ours, other)


def test_a_job_is_judged_by_the_medians_of_its_pairs() -> None:
    def run(seconds: float, megabytes: float) -> dict[str, float]:
        times = {name: seconds for phase in job.PHASES for name in (phase, f"{phase}, processor")}
        tokens = dict.fromkeys(("trained", "replayed", "sampled"), 10.0)
        return {"seconds": seconds, "processor seconds": seconds, "megabytes": megabytes, **times, **tokens}

    page = job.timing({"ours": [run(1.0, 40.0)] * 3, "TRL": [run(2.0, 100.0), run(3.0, 100.0), run(2.6, 100.0)]})
    assert "2.60 in wall time" in page and "goal 2.5: met" in page
    assert "memory over TRL's: 0.40; goal 0.5: met" in page
    assert "goal 2.5" not in job.timing({"ours": [run(1.0, 40.0)]})


@pytest.mark.slow
def test_a_step_is_measured(tiny_qwen3: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.step", "--model", str(tiny_qwen3)]
    command += ["--prompts", "4", "--new-tokens", "4", "--steps", "1"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "tokens a step" in finished.stdout, finished.stderr
    assert "| ours" in finished.stdout


@pytest.mark.parametrize("packed", [False, True])
def test_every_way_of_attention_is_timed_on_the_same_tensors(packed: bool) -> None:
    found = attention.measure(attention.Case(2, 12, 4, 2, 16, packed), rounds=2, seed=0)
    assert {way: len(seconds) for way, seconds in found.seconds.items()} == {"ours": 2, "kernel": 2, "plain": 2}
    assert all(error < 0.02 for error in found.errors.values())
    found.seconds.update(ours=[1.0, 2.0], kernel=[3.0, 2.0], plain=[1.0, 1.0])
    assert (found.ratio("kernel"), found.ratio("plain")) == (2.0, 0.75)


def test_a_quantised_base_is_that_of_its_dequantised_weights(tiny_wide: Path) -> None:
    """The distance that is reported is that of the weights in NF4, not of how their products are computed."""
    clean, quantised, rounded = (
        load_model(tiny_wide, precision="float32", device="cpu", quantize=way) for way in ("none", "nf4", "none")
    )
    errors = []
    for name, layer in quantised.core.named_modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
            exact = rounded.core.get_submodule(name).weight.data
            errors.append(float((weight - exact).norm() / exact.norm()))
            exact.copy_(weight)
    assert len(errors) == 14 and 0.08 < min(errors) <= max(errors) < 0.11, "NF4 in blocks of 64 of normal weights"
    rows = quantization.answers(clean, seed=0, prompts=2, tokens=8)
    assert max(quantization.distance(clean, clean, rows).forward) == 0.0
    products = quantization.distance(quantised, rounded, rows)
    assert max(products.forward) < 1e-5
    found, expected = quantization.distance(clean, quantised, rows), quantization.distance(clean, rounded, rows)
    # Small divergences are squares of distances: the products may move the quantised model by no more than their own.
    for a, b, c in zip(found.forward, expected.forward, products.forward, strict=True):
        assert abs(a**0.5 - b**0.5) < 1.1 * max(c, 0.0) ** 0.5 + 5e-4
    # The tiny model's distributions are nearly uniform, which hides most of its distance: logits four times as large.
    for model in (clean, quantised):
        model.core.get_submodule("model.norm").weight.data.mul_(4.0)
    found = quantization.distance(clean, quantised, rows)
    assert min(max(found.forward), max(found.reverse)) > 1e-4
    assert quantization.size(quantised) < quantization.size(clean)
    nf4, plain = quantization.by_turns(tiny_wide, rows, rounds=2)
    assert (len(nf4.seconds), len(plain.seconds)) == (2, 2)


def test_growth_by_documents_tells_what_is_faster_than_the_documents() -> None:
    documents = (60.0, 600.0, 6000.0)
    assert growth.exponents(documents, (1.0, 1.0, 10.0)) == [0.0, pytest.approx(1.0), None]
    assert growth.exponents(documents, [7 + n**2 for n in documents])[2] == pytest.approx(2.0)
    rows = [{growth.DOCUMENTS: n, "linear": 3 * n, "fixed": 5.0, "none": 0.0} for n in documents]
    text, good = growth.documents_body(rows)
    assert good and "MISSED" not in text
    text, good = growth.documents_body([{**row, "square": row["linear"] ** 2} for row in rows])
    assert not good and text.count("MISSED") == 1


def test_what_a_served_model_costs_is_all_but_the_server_alone() -> None:
    spent = {part: [2.0, 1.0, 0.5] for part in served.PARTS} | {served.FLOOR: [8.0, 0.0, 6.0]}
    assert served.ratios(spent) == (10 / 8, 7.5 / 6)
    assert served.ratios(spent, times=10) == ((3 * 2 + 20 * 2) / 80, (3 * 1.5 + 20 * 1.5) / 60)
    page = served.body(spent, {served.ANSWERS: 70, served.FLOOR: 71}, 40, 8)
    assert "1.25 in wall time, 1.25 in processor time. For 1,000" in page
    assert "0.53 and 0.53; limit 1.3: met; goal 1.1: met." in page
    assert "Killed when 8 were kept, the command asked for the other 40 alone." in page
