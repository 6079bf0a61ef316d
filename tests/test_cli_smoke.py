"""The command line as a process: its output and its exit statuses."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from benchmarks.startup import HELP, RECOVER, cpu_seconds
from pipelines.cli import common, main, stage_options
from recovery import __version__
from recovery.errors import UsageError
from recovery.workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "numpy", "sqlalchemy", "gradio", "lm_eval", "peft", "plotly")
Recover = Callable[..., subprocess.CompletedProcess[str]]


def every_command() -> list[list[str]]:
    """Return the path of every command and subcommand: ``["distill"]``, ``["miniature", "build"]`` ..."""
    context = click.Context(main.recover)
    paths = []
    for name in main.recover.list_commands(context):
        paths.append([name])
        command = main.recover.get_command(context, name)
        if isinstance(command, click.Group):
            paths.extend([name, inner] for inner in command.list_commands(click.Context(command)))
    return paths


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for path in every_command():
        assert main.run([*path, "--help"]) == 0, path
        printed = capsys.readouterr()
        assert printed.out.startswith(f"Usage: recover {' '.join(path)} "), path
        assert printed.err == "", path


def test_help_of_a_command_shows_fifteen_options_at_most_and_help_all_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in every_command():
        texts = []
        for flag in ("--help", "--help-all", "--help"):
            status = main.run([*path, flag])
            texts.append(capsys.readouterr().out)
            if status == 2:
                break  # a command of few options has no --help-all
            assert status == 0, path
        options = [set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)) for text in texts]
        assert len(options[0] - {"--help", "--help-all"}) <= 15, path
        if len(texts) == 3:
            assert options[0] < options[1] and texts[2] == texts[0], path


def test_the_options_of_a_short_help_exist() -> None:
    for path in every_command():
        command: click.Command | None = main.recover
        for name in path:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name)
        if isinstance(command, common.ShortHelp):
            assert set(command.common) <= {parameter.name for parameter in command.params}, path


def test_a_name_that_is_no_text_is_printed_with_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="utf-8", write_through=True))
    assert main.run(["--version"]) == 0
    printed.truncate(printed.seek(0))
    common.emit({"written": os.fsdecode(b"caf\xe9")}, True, "")
    assert json.loads(printed.getvalue()) == {"written": "caf\udce9"}


def test_help_lists_every_command_with_its_line(recover: Recover) -> None:
    finished = recover("--help")
    assert finished.stderr == ""
    words = " ".join(finished.stdout.split())
    for name, (_, line) in main.COMMANDS.items():
        assert f"{name} {line}" in words


def test_no_help_imports_anything_heavy() -> None:
    code = (
        "import sys, json\n"
        "from pipelines.cli.main import run\n"
        "for path in json.loads(sys.argv[1]): assert run([*path, '--help']) == 0, path\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    paths = json.dumps([[], *every_command()])
    finished = subprocess.run(
        [sys.executable, "-c", code, paths], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_version(recover: Recover) -> None:
    assert recover("--version").stdout.strip() == f"recover, version {__version__}"


@pytest.mark.parametrize("arguments", [["nosuch"], ["doctor", "--nosuch"], ["doctor", "surplus"]])
def test_wrong_usage_ends_with_status_2_and_a_hint(recover: Recover, arguments: list[str]) -> None:
    finished = recover(*arguments, check=False)
    assert finished.returncode == 2
    assert "--help" in finished.stderr
    assert finished.stdout == ""


def test_doctor_answers_in_json_and_for_a_person(recover: Recover, tmp_path: Path) -> None:
    findings = json.loads(recover("doctor", "--json", "--workspace", tmp_path / "new", check=False).stdout)["findings"]
    by_name = {finding["name"]: finding for finding in findings}
    assert by_name["machine"]["facts"]["cores"] >= 1
    assert by_name["machine"]["facts"]["memory_bytes"] > 2**28
    assert by_name["versions"]["facts"]["torch"].startswith("2.13.0")
    assert by_name["workspace"]["facts"] == {"path": str(tmp_path / "new"), "exists": False}
    assert not (tmp_path / "new").exists()


def test_an_error_raised_on_purpose_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, UsageError("--steps 0 is too few: give at least 1")) == 1
    assert capsys.readouterr().err == "recover: error: --steps 0 is too few: give at least 1\n"


def test_an_error_nobody_expected_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, ZeroDivisionError())


def test_an_interrupt_ends_with_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_with(monkeypatch, KeyboardInterrupt()) == 130


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Run a command that raises ``error`` through the real entry point."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: failing)
    return main.run(["status"])


def test_ctrl_c_leaves_no_traceback(tmp_path: Path) -> None:
    code = (
        "import signal, sys, click\n"
        "from pipelines.cli import main\n"
        # Tests started by a shell in the background inherit an ignored SIGINT.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "@click.command()\n"
        "def waiting():\n"
        "    print('waiting', flush=True); sys.stdin.read()\n"
        "main.LazyGroup.get_command = lambda *_: waiting\n"
        "sys.exit(main.run(['status']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_given_distinguishes_a_flag_from_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    @click.command()
    @common.workspace
    @stage_options.seed
    @stage_options.steps
    @stage_options.template
    @click.pass_context
    def command(context: click.Context, **_: object) -> None:
        seen.update(common.given(context))

    monkeypatch.setenv("RECOVER_WORKSPACE", "elsewhere")
    command.main(["--seed", "0", "--template-arg", "enable_thinking=false"], standalone_mode=False)
    assert seen == {
        "workspace": Workspace(Path("elsewhere")),
        "seed": 0,
        "template_args": {"enable_thinking": False},
    }


def test_emit_writes_json_that_any_reader_takes(capsys: pytest.CaptureFixture[str]) -> None:
    common.emit({"path": Path("a/b"), "nan": float("nan"), 1: (1.5, True, None)}, True, "unused")
    assert json.loads(capsys.readouterr().out) == {"path": "a/b", "nan": None, "1": [1.5, True, None]}


@pytest.mark.slow  # CPU time is higher on a busy machine
def test_help_stays_within_its_limit_of_cpu_time() -> None:
    assert min(cpu_seconds([*RECOVER, HELP.arguments]) for _ in range(5)) <= HELP.limit
