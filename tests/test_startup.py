"""Modules imported before a command runs, and the note printed while they load."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from benchmarks.startup import COMMANDS, Command
from pipelines.cli import main
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.__main__ import StartupFinder
from recovery.errors import RecoveryError
from recovery.lazy_import import lazily

ROOT = Path(__file__).resolve().parent.parent
SELDOM_NEEDED = ("datasets", "lm_eval", "nltk", "plotly", "gradio")


def test_stages_load_no_library_that_they_do_not_use_and_say_when_they_load_any() -> None:
    code = (
        "import sys; from recovery.__main__ import arrange; arrange(); arrange();"
        "import pipelines.plan, pipelines.midtraining.stage, pipelines.distillation.stage;"
        f"print([name for name in {SELDOM_NEEDED!r} if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
    assert finished.stderr == "loading torch and transformers\n"


def test_the_finder_leaves_all_other_modules_to_others(capsys: pytest.CaptureFixture[str]) -> None:
    finder = StartupFinder()
    finder.find_spec("json")
    assert not finder.reported
    assert capsys.readouterr().err == ""


def test_a_lazy_module_is_imported_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = lazily("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hls(0, 0, 0) == (0.0, 0.0, 0.0)


def test_commands_that_run_no_model_and_mistakes_in_those_that_do_import_no_torch(
    tmp_path: Path, tiny_model: Path
) -> None:
    folder = tmp_path / "workspace"
    with Session.open(folder, model=str(tiny_model), display=Display(quiet=True)) as session:
        session.tracker.cycle(session.experiment_id, 1, documents="./q1", corpus_hash="c" * 64)
        for number, name in enumerate(("midtrained", "recovered")):
            session.tracker.add_checkpoint(
                session.experiment_id, f"cycle-1/{name}", name, path=name, content_hash=str(number) * 64,
                parent_id=session.base.id, cycle_id=session.cycle_id(1),
            )  # fmt: skip
    done = (
        "status", "checkpoints", "report 1", "gate 1 --rule domain>=0.5", "accept 1 --why good", "prune",
        "study", "study results",
    )  # fmt: skip
    wrong = (
        "midtrain --docs nowhere", "midtrain --docs . --student nosuch", "cycle --docs nowhere",
        "cycle --docs . --gate domain>=7", "cycle", "cycle --docs . --gate domain(9)>=0.5",
        "cycle --docs . --knowledge-teacher nosuch", "interpolate --origin nosuch", "train --expert a=nosuch",
        "distill --knowledge-teacher nosuch", "distill --teacher nosuch", "interpolate --student nosuch", "eval nosuch",
        "train --teacher nosuch", "drift nosuch", "ask hello --checkpoint nosuch", "export nosuch ./out", "resume",
        "study nosuch", "study horizon --arms nosuch", "study states --cycles 3", 'ask ""', 'ask hello --checkpoint ""',
        "midtrain", "report x", "gate x", "accept x --why good", "demo --arms nosuch",
        "demo --example docs --arms nosuch", "train --method grpo --reward nosuch:x --student base",
        "distill --divergence sampled --teacher http://127.0.0.1:9 --server-wait 0 --student base",
        f"cycle --docs . --recipe {tmp_path}/taught.toml", f"midtrain --docs {tmp_path}/empty",
        f"cycle --docs docs --docs {tmp_path}/empty", f"probes build --docs {tmp_path}/empty",
        f"compare opd --docs {tmp_path}/empty",
    )  # fmt: skip
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    taught = '[distill]\nteacher = "http://127.0.0.1:9"\ndivergence = "sampled"\nserver_wait = 0\n'
    (tmp_path / "taught.toml").write_text(taught)
    tasks = ("eval base --task nosuch.yaml", "eval base --ifeval nosuch.jsonl")
    code = (
        "import json, shlex, sys\n"
        "from pipelines.cli.main import run\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    try: status = run([*shlex.split(line), '--workspace', sys.argv[2]])\n"
        "    except SystemExit as end: status = end.code\n"
        "    heavy = [name for name in ('torch', 'transformers', 'lm_eval', 'gradio') if name in sys.modules]\n"
        "    print('ran', line, '->', status, *heavy, flush=True)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, json.dumps([*done, *wrong, *tasks]), str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ran = [line for line in finished.stdout.splitlines() if line.startswith("ran ")]
    refused = [line.rpartition(" -> ")[2] for line in ran[len(done) :]]
    assert refused == [*["1"] * len(wrong), *["1 lm_eval"] * len(tasks)], finished.stdout
    for reason in (": nothing is trained yet: start", "--reward nosuch:x cannot be", "no lm-eval task file nosuch"):
        assert reason in finished.stderr
    assert finished.stderr.count("empty is empty: put documents in it") == 4, finished.stderr
    assert finished.stderr.count("http://127.0.0.1:9 [Errno 111] Connection refused, for") == 2, finished.stderr
    statuses = [line.split(" -> ")[1] for line in ran[: len(done)]]
    assert statuses == ["0", "0", "0", "4", *["0"] * (len(done) - 4)], finished.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.arguments)
def test_the_benchmark_of_start_up_runs_commands_that_exist(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name, *arguments = command.arguments.split()
    if name != "--help":
        context = click.Context(main.recover)
        parsed = main.recover.get_command(context, name)
        assert parsed is not None
        with contextlib.suppress(RecoveryError):  # of the value, not of the option
            parsed.make_context(name, arguments)


def test_a_plan_imports_no_library_that_builds_models() -> None:
    code = (
        "import sys; from pipelines.plan import make_plan; make_plan('docs/qwen3-8b.json', '24,cpu');"
        "print([name for name in ('transformers', 'peft', 'sklearn', 'sqlalchemy') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_the_page_of_an_experiment_is_written_without_torch() -> None:
    code = "import sys, pipelines.experiments.page, pipelines.experiments.records; print('torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "False\n"
