"""A user's mistake is reported in one line that says what to do, and leaves nothing half done."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sqlalchemy import select

from db.schema import Base
from pipelines.cli import main
from pipelines.cli.main import run
from pipelines.cycle_plan import CyclePlan, write_plan
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import CycleConfig
from recovery.errors import UsageError
from recovery.workspace import Workspace
from tests.cli.conftest import Refused
from tests.damaged_tracker import hide_rows


def test_a_damaged_tracker_is_not_gone_on_with(refused: Refused, tmp_path: Path, tiny_model: Path) -> None:
    workspace = Workspace(tmp_path / "work")
    with Session.open(workspace, model=str(tiny_model), display=Display(quiet=True)) as session:
        session.tracker.event(session.experiment_id, "words")
    hide_rows(tmp_path / "work" / "tracker.db", "event")
    line = refused("resume", "--workspace", "work")
    assert "tracker.db is damaged (" in line and "restore a copy of it" in line


def test_before_the_first_use(refused: Refused, tmp_path: Path) -> None:
    for command in ("status", "checkpoints", "resume", "dashboard"):
        assert "there is no workspace" in refused(command)
    assert "there is no workspace" in refused("export", "latest", "out")
    assert "start with `recover demo`, or with `recover cycle --model NAME --docs FOLDER`" in refused("status")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
@pytest.mark.parametrize("command", ["midtrain --docs docs", "eval"])
def test_a_gpu_that_is_not_there(refused: Refused, docs: Path, tiny_model: Path, command: str, device: str) -> None:
    line = refused(*command.split(), "--workspace", "work", "--model", tiny_model, "--device", device)
    assert f"--device {device}: torch sees 0 CUDA GPUs here" in line


def test_documents_that_are_none(refused: Refused, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "photo.md").write_bytes(bytes(range(256)) * 40)
    assert "--docs FOLDER" in refused("midtrain", "--model", tiny_model)
    for name in ("nowhere", "at/no.where/all"):
        assert f"there is no folder or file {name}:" in refused("midtrain", "--docs", name, "--model", tiny_model)
    for name in ("pages.md", "docs/manual.pdf", "rows.jsonl.gz"):
        assert f"there is no file {name}:" in refused("midtrain", "--docs", name, "--model", tiny_model)
    assert "empty" in refused("midtrain", "--docs", "empty", "--model", tiny_model)
    assert "binary" in refused("midtrain", "--docs", "binary", "--model", tiny_model)
    assert "no documents to train on" in refused("cycle", "--model", tiny_model)


def test_a_name_that_is_nearly_right_gets_the_right_one(refused: Refused, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "a.md").write_text("The harbour office opens at seven. " * 40)
    (tmp_path / "Tiny-Instruct.Q4_1.gguf").touch()
    for command in ("cycle", "midtrain"):
        line = refused(command, "--docs", "handbok", "--model", tiny_model)
        assert line.endswith("there is no folder or file handbok: did you mean handbook?")
    right = tmp_path / "Tiny-Instruct.Q4_1.gguf"
    for name in ("Tiny-Instruct.Q4_0.gguf", f"{tmp_path}/Tiny-Instruct.Q4_0.gguf"):
        line = refused("midtrain", "--docs", "handbook", "--model", name)
        assert line.endswith(f"there is no file {name}: did you mean {Path(name).with_name(right.name)}?")
    line = refused("midtrain", "--docs", "handbook", "--model", f"{tmp_path}/other.gguf")
    assert line.endswith(f"there is no file {tmp_path}/other.gguf: correct the path, or give a hub id (ORG/MODEL)")
    line = refused("plan", "--model", "./nothere")
    assert line.count("nothere") == 2, "a relative path, and where it was looked for"
    line = refused("plan", "--model", f"{tmp_path}/nothere")
    assert line.count("nothere") == 1 and "there is no folder" in line


def test_a_hub_id_that_cannot_be_fetched_is_one_short_line(refused: Refused, docs: Path) -> None:
    line = refused("cycle", "--docs", "docs", "--model", "ORG/NOPE")
    assert line.endswith(
        "'ORG/NOPE' is neither a folder with a model nor a hub id that can be fetched: the hub was not reached, and "
        "there is no copy here"
    )


def test_tables_without_a_clear_column_or_a_place_for_their_tools(
    refused: Refused, tmp_path: Path, tiny_model: Path
) -> None:
    model = ("--model", tiny_model)
    pq.write_table(pa.table({"a": ["One?"], "b": ["Two?"]}), tmp_path / "two.parquet")
    rows = {"prompt": ["Warm?"], "answer": ["No."], "tools": ['[{"name": "weather"}]']}
    pq.write_table(pa.table(rows), tmp_path / "tools.parquet")
    reason = "two.parquet cannot be used as documents: which column holds the texts, a or b?"
    assert reason in refused("midtrain", "--docs", "two.parquet", *model)
    assert "there is no column 'c'" in refused("cycle", "--docs", "two.parquet:c", *model)
    sft = ("train", "--method", "sft", *model, "--dry-run", "--data")
    assert "which column holds the prompts, a or b?" in refused(*sft, "two.parquet")
    assert "two.parquet:c: there is no column" in refused(*sft, "tools.parquet", "--prompts", "two.parquet:c")
    assert "chat template has no place for the tools" in refused(*sft, "tools.parquet")


def test_models_and_checkpoints_that_are_none(
    refused: Refused, tmp_path: Path, tiny_model: Path, tiny_llama: Path
) -> None:
    assert "nor a hub id that can be fetched" in refused("eval", "--model", "nobody/nothing")
    (tmp_path / "folder").mkdir()
    assert "holds no model" in refused("eval", "--model", "folder")
    assert "there is no checkpoint 'cycle-4/recovered'" in refused("eval", "cycle-4/recovered", "--model", tiny_model)
    with Session.open(tmp_path / "recovery-workspace", model=str(tiny_model)):
        pass
    assert "another --workspace" in refused("eval", "--model", tiny_llama)
    assert "nothing to recover" in refused("distill", "--teacher", "base")
    line = refused("distill", "--teacher", "localhost:8000", "--student", "base")
    assert "the address of a server begins with http://: http://localhost:8000" in line
    assert "no checkpoint 'midtrained'" in refused("distill", "--student", "midtrained")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert "is not empty" in refused("export", "base", "full")


def test_a_stage_beside_unfinished_cycles(refused: Refused, tmp_path: Path, docs: Path, tiny_model: Path) -> None:
    """Its checkpoint would be taken for one of theirs, and its documents for theirs."""
    with Session.open(tmp_path / "work", model=str(tiny_model), display=Display(quiet=True)) as session:
        write_plan(session, CyclePlan(1, CycleConfig(docs=(Path("docs"), Path("docs")))))
    for command in (["midtrain", "--docs", "docs"], ["distill"], ["train"], ["interpolate"]):
        line = refused(*command, "--workspace", "work")
        assert "cycles 1 to 2 are unfinished here: `recover resume` goes on; `recover cycle --abandon` gives up" in line
        assert "plan.json" not in line
    command = ["midtrain", "--docs", "docs", "--workspace", "work", "--dry-run"]
    assert run(command) == 0


def test_a_mistake_about_a_recovery_in_a_recipe_of_a_cycle(
    refused: Refused, tmp_path: Path, docs: Path, tiny_model: Path
) -> None:
    """It would be reported after hours of mid-training. A dry run finds it as well."""
    cycle = ("cycle", "--docs", "docs", "--workspace", "work", "--model", tiny_model, "--recipe", "own.toml")
    for setting, reason in (
        ('teacher = "nobody"', "there is no checkpoint 'nobody'"),
        ('teacher = "latest"', "--teacher latest: at the recovery that is the model just mid-trained"),
        ('teacher = "cycle-1/midtrained"', "so there is nothing to recover: name another checkpoint, such as base"),
        ('experts = ["code"]', "--expert 'code' is not TAG=NAME"),
        ('context = "rules"\ncontext_file = "nowhere.txt"', "--context-file nowhere.txt is not a file"),
    ):
        (tmp_path / "own.toml").write_text(f"[distill]\n{setting}\n")
        assert reason in refused(*cycle, "--dry-run")
        assert reason in refused(*cycle)
    with Session.open(tmp_path / "work", model=str(tiny_model), display=Display(quiet=True)) as session:
        assert not session.cycles()
        write_plan(session, CyclePlan(1, CycleConfig(docs=(Path("docs"),))))
    (tmp_path / "own.toml").write_text('[distill]\nknowledge_teacher = "latest"\nearlier_teacher = "midtrained"\n')
    assert run([*map(str, cycle), "--dry-run"]) == 0, "also beside an unfinished plan"


EMPTY = (
    "midtrain --docs", "cycle --docs", "plan --model miniature --docs", "plan --model", "midtrain --docs . --model",
    "probes build --docs", "probes review --docs", "distill --prompts", "status --workspace",
    "study results --write-docs", "report --bundle", "gate --junit",
)  # fmt: skip


@pytest.mark.parametrize("command", EMPTY)
def test_a_name_that_is_empty(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of a script that is not set: it would mean the current folder, or the miniature."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("The harbour office opens at seven. " * 40)
    assert run([*command.split(), ""]) == 2
    assert f"Invalid value for '{command.split()[-1]}': the name is empty." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["one.txt"], "nothing was begun"


PLACES = (
    "midtrain --docs", "probes build --docs", "plan --model miniature --docs", "distill --prompts", "eval",
    "distill --teacher", "midtrain --docs docs --replay-data", "export base", "ask hello --checkpoint",
    "midtrain --docs docs --augment 2 --writer",
)  # fmt: skip


def test_paths_at_which_nothing_can_be(refused: Refused, begun: Path, docs: Path) -> None:
    long = "n" * 300
    for command in (*PLACES, "status --workspace", "midtrain --docs docs --model"):
        line = refused(*command.split(), "~no-such-user/x")
        assert line.endswith("~no-such-user/x: there is no such home folder: write the whole path"), command
    for command in (*PLACES, "probes build --docs docs --out", "eval --task", "study results --write-docs"):
        assert f"{long} cannot be read or written (File name too long): check" in refused(*command.split(), long)


def test_a_page_that_cannot_be_written(
    refused: Refused, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before the runs it is about; when the disk turns out to be full after them, the old page stays."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("old")
    assert run(["study", "results", "--write-docs", "docs/a.md/y.md"]) == 2
    assert f"docs/a.md/y.md cannot be written below {tmp_path}/docs/a.md" in capsys.readouterr().err

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    line = refused("study", "results", "--write-docs", "docs/a.md")
    assert "docs/a.md cannot be written (No space left on device): check" in line
    assert [(path.name, path.read_text()) for path in (tmp_path / "docs").iterdir()] == [("a.md", "old")]


def test_an_export_without_a_checkpoint_is_of_the_latest(refused: Refused, tmp_path: Path, begun: Path) -> None:
    """The folder must then be no checkpoint's name: it would be the folder that was left out."""
    assert "latest is a checkpoint: name also the new folder" in refused("export", "latest")
    assert run(["export", "out"]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert [run(["export", *names]) for names in (["base", "a", "b"], ["base", ""], [])] == [2, 2, 2]


def test_json_before_a_subcommand_is_not_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["--json", "show", "opd"], ["show", "opd", "--json"]):
        assert run(["methods", *command]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "opd"
    assert run(["methods", "--json", "arms"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_settings_that_cannot_be(refused: Refused, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "r.toml").write_text("[distill]\nsampels_per_prompt = 3\n")
    assert "did you mean 'samples_per_prompt'" in refused("distill", "--recipe", "r.toml")
    assert "--steps and --epochs" in refused("midtrain", "--steps", "3", "--epochs", "2")
    assert "--until 0.9 needs --development" in refused("distill", "--until", "0.9", "--development", "5")
    assert "--device 'gpu' is not known: use auto" in refused("eval", "--model", tiny_model, "--device", "gpu")
    assert not (tmp_path / "recovery-workspace").exists(), "nothing was begun"


def test_a_value_of_a_recipe_is_refused_at_its_place(refused: Refused, tmp_path: Path, docs: Path) -> None:
    """It was called an option that nobody had given."""
    (tmp_path / "r.toml").write_text("[distill]\nsteps = -3\n")
    for command in ("distill", "train", "cycle", "midtrain"):
        assert refused(command, "--recipe", "r.toml").endswith(
            "error: r.toml: [distill] steps is -3, but must be at least 1"
        )
    (tmp_path / "gate.toml").write_text('[cycle]\ngate = ["ifeval >= 0.9*base", "domain >= banana"]\n')
    assert "found 'banana' at character 11" in (line := refused("cycle", "--docs", "docs", "--recipe", "gate.toml"))
    assert line.endswith("(gate is set by gate.toml)")


def test_a_plan_for_a_model_that_is_not_there_loads_no_library(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pipelines.plan", None)  # which imports torch
    assert "there is no folder ./nothere" in refused("plan", "--model", "./nothere")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("distill --steps x", "'--steps': 'x' is not a whole number."),
        ("distill --steps 1.5", "'--steps': '1.5' is not a whole number."),
        ("distill --steps 0", "'--steps': 0 is not in the range x>=1."),
        ("distill --lr x", "'--lr': 'x' is not a number."),
        ("distill --lr nan", "'--lr': nan is not a finite number."),
        ("plan --model miniature --document-mb nan", "'--document-mb': nan is not a finite number."),
        ("plan --model miniature --tflops inf", "'--tflops': inf is not a finite number."),
        ("plan --model miniature --utilisation nan", "'--utilisation': nan is not a finite number."),
        ("plan --model miniature --utilisation inf", "'--utilisation': inf is not in the range 0<x<=1."),
        ("drift --limit x", "'--limit': 'x' is not a whole number."),
    ],
)
def test_what_is_no_number_is_called_so(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It was "not a valid integer range"."""
    assert run(command.split()) == 2
    assert capsys.readouterr().err.endswith(f"Error: Invalid value for {reason}\n")


REFUSED = (
    ("midtrain --docs docs --model ./nothere", "there is no folder ./nothere"),
    ("distill --student docs --model docs", "docs holds no model"),
    ("cycle --docs docs --model docs --workspace a/b", "docs holds no model"),
    ("interpolate --model docs", "docs holds no model"),
    ("eval base --ifeval nowhere.jsonl", "cannot read nowhere.jsonl: No such file"),
    ("cycle --docs docs --ifeval docs/a.md", "docs/a.md, line 1: not an IFEval prompt"),
)


@pytest.mark.parametrize(("command", "reason"), REFUSED)
def test_a_command_that_is_refused_leaves_no_workspace(
    command: str, reason: str, refused: Refused, tmp_path: Path, docs: Path
) -> None:
    """There was a folder with nothing but a lock in it."""
    assert reason in refused(*command.split())
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_a_command_that_is_misspelt_and_documents_that_are_given_twice(
    docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two folders the last one was taken, without a word."""
    assert run(["midtrian"]) == 2
    assert "No such command 'midtrian'. Did you mean 'midtrain'?" in capsys.readouterr().err
    assert run(["midtrain", "--docs", str(docs), "--docs", str(docs)]) == 2
    assert "Invalid value for '--docs': takes one folder or file; `recover cycle`" in capsys.readouterr().err


def test_corpora_are_not_written_among_other_documents(refused: Refused, tmp_path: Path) -> None:
    """These became part of the corpus, without a word."""
    (tmp_path / "mine" / "q2").mkdir(parents=True)
    (tmp_path / "mine" / "q2" / "a.md").write_text("Mine.")
    line = refused("miniature", "corpora", "mine")
    assert line.endswith("mine/q2 is not empty: name another FOLDER, or delete mine/q2 first")
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["q2", "a.md"]
    assert run(["miniature", "corpora", "mine", "--count", "1"]) == 0


def test_a_dry_run_says_what_would_be_done_and_trains_nothing(
    tmp_path: Path, docs: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["midtrain", "--docs", "docs", "--model", str(tiny_model), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["steps"] > 0 and plan["seconds"] >= 0 and plan["documents"] == 1
    assert plan["memory"]["memory"]["held"]["weights"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["docs"], "nor is there a workspace"


@pytest.mark.parametrize("line", ["midtrain --docs docs", "cycle --docs docs", "eval base", "distill --student docs"])
@pytest.mark.parametrize("place", ["docs/a.md/w", "docs/a.md/v/w"])
def test_a_dry_run_says_that_its_workspace_cannot_be_written(
    tmp_path: Path,
    docs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    place: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*line.split(), "--model", "miniature", "--workspace", place, "--dry-run"]) == 1
    (said,) = capsys.readouterr().err.splitlines()  # nothing is loaded before
    assert said.startswith(f"recover: error: the run could not write its workspace {place}: ")
    assert said.endswith("a.md is no folder: use --workspace")


DRY = (
    "midtrain --docs docs", "cycle --docs docs", "distill --student {other}",
    "train --method sft --data chat.jsonl", "eval base", "probes build --docs docs --writer base --out probes.jsonl",
)  # fmt: skip


@pytest.mark.parametrize("command", DRY)
def test_a_dry_run_leaves_the_clean_model_open(
    command: str, tmp_path: Path, docs: Path, tiny_model: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace with the model of a plan would refuse any other one."""
    monkeypatch.chdir(tmp_path)
    chat = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "At the harbour."}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    before = sorted(tmp_path.rglob("*"))
    line = [*command.format(other=tiny_llama).split(), "--dry-run", "--model", str(tiny_model)]
    shared = f"sqlite:///{tmp_path / 'shared.db'}"
    assert run(line) == 0
    assert run([*line, "--database", shared]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    with Session.open(tmp_path / "recovery-workspace", model=line[-1], display=Display(quiet=True)) as session:
        recorded = rows(session)
    assert run(line) == 0
    with Session.open(tmp_path / "recovery-workspace", display=Display(quiet=True)) as session:
        assert rows(session) == recorded, "nor does it record anything in a workspace that there is"


NEW = (
    ("train --method grpo --student one", "one"),
    ("train --divergence top_k --top-k 20 --teacher http://127.0.0.1:9 --student one", "one"),
    ("train --method opsd --student one", "one"),
    ("distill --student one --teacher two", "two"),
    ("distill --student one --recipe taught.toml", "two"),
    ("midtrain --docs corpus --student one", "one"),
    ("distill", None),
    ("distill --student latest", None),
    ("midtrain --docs corpus", None),
)


@pytest.mark.parametrize(("command", "clean"), NEW)
def test_a_new_workspace_is_about_the_models_that_are_named(
    command: str, clean: str | None, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean model was the miniature, and its prompts were trained on."""
    for name in ("one", "two", "corpus", "latest"):
        (tmp_path / name).mkdir()
    (tmp_path / "corpus" / "a.md").touch()
    (tmp_path / "taught.toml").write_text('[distill]\nteacher = "two"\n')
    opened: list[str | None] = []

    def noted(*_: Any, fallback: str | None = None, **__: Any) -> Session:
        opened.append(fallback)
        raise UsageError("enough")

    monkeypatch.setattr(Session, "open", noted)
    assert "enough" in refused(*command.split())
    assert opened == [clean]


MISSING = (
    "plan --model {}", "midtrain --docs docs --model {} --workspace new", "midtrain --docs docs --student {}",
    "midtrain --docs docs --model {}", "eval --model {}",
    "eval {}", "midtrain --docs docs --augment 2 --writer {} --dry-run", "distill --student {}", "distill --teacher {}",
    "distill --student base --teacher base=0.5,{}=0.5", "interpolate --student {}", "drift {}", "export {} out",
    "ask hello --checkpoint {}", "probes build --docs docs --writer {}",
)  # fmt: skip


def test_a_path_to_a_model_that_is_not_there(
    refused: Refused, tmp_path: Path, docs: Path, request: pytest.FixtureRequest
) -> None:
    """The hub was asked for it, and its library's own words were shown."""
    assert f"there is no folder ./nothere: it was looked for at {tmp_path}/nothere" in refused("eval", "./nothere")
    request.getfixturevalue("begun")
    for command in MISSING:
        line = refused(*command.format("./nothere").split())
        assert f"there is no folder ./nothere: it was looked for at {tmp_path}/nothere: correct" in line, command
    for name, place in (
        ("../nothere", tmp_path.parent / "nothere"),
        ("nothere/", tmp_path / "nothere"),
        ("a/b/c", tmp_path / "a" / "b" / "c"),
        ("~/nothere", Path.home() / "nothere"),
    ):
        assert f"there is no folder {name}: it was looked for at {place}" in refused("eval", name)
        assert f"there is no folder {name}: it was looked for at {place}" in refused("plan", "--model", name)
    assert "neither a folder nor a GGUF file: name the folder" in refused("eval", "./docs/a.md")
    line = refused("plan", "--model", "docs/a.md")  # it was to be downloaded again
    assert line.endswith(
        "neither a GGUF file nor a config.json: --model takes a folder, a GGUF file, a config.json or a hub id"
    )


NOT_YET = "there is no workspace in recovery-workspace yet"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("eval", f"latest: {NOT_YET}"),
        ("eval cycle-1/recovered --dry-run", f"cycle-1/recovered: {NOT_YET}"),
        ("interpolate", f"latest: {NOT_YET}"),
        ("interpolate --student one --origin base", f"one: {NOT_YET}"),
        ("drift one", f"one: {NOT_YET}"),
        ("probes build --docs docs --writer one", f"one: {NOT_YET}"),
        ("distill --student one", "--student one: a new workspace does not know the clean model"),
        ("train --method sequence-kd --student one", "--student one: a new workspace does not know the clean model"),
    ],
)
def test_a_new_workspace_asks_for_the_clean_model_that_teaches_or_that_others_are_compared_with(
    command: str, said: str, refused: Refused, tmp_path: Path, docs: Path
) -> None:
    """It was the miniature."""
    (tmp_path / "one").mkdir()
    line = refused(*command.split())
    assert f"error: {said}" in line and "--model" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "one"]


OWN = ("own/tracker.db", "sqlite:///own/tracker.db", "sqlite:///{0}/own/tracker.db", "SQLite:///own/tracker.db",
       "sqlite+pysqlite:///own/../own/tracker.db", "sqlite:///own/tracker%2Edb")  # fmt: skip


@pytest.mark.parametrize("address", OWN)
def test_the_address_of_a_workspaces_own_tracker_is_no_other_one(
    address: str, refused: Refused, tmp_path: Path, tiny_model: Path
) -> None:
    (tmp_path / "own").mkdir()
    with Session.open(tmp_path / "own", model=str(tiny_model), display=Display(quiet=True)):
        pass
    own = ("--workspace", "own", "--database", address.format(tmp_path))
    assert run(["status", *own]) == 0
    line = refused("status", *own[:-1], f"{own[-1]}?mode=ro" if ":" in address else "sqlite:own/tracker.db")
    assert "omit --database" in line or "must name a file and nothing else" in line, line


def rows(session: Session) -> dict[str, list[Any]]:
    """All rows of a session's tracker."""
    with session.tracker.database.reading() as connection:
        return {table.name: list(connection.execute(select(table))) for table in Base.metadata.sorted_tables}


def test_a_workspace_that_cannot_be_written(
    refused: Refused, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    start = ("midtrain", "--docs", tmp_path, "--model", tiny_model, "--workspace")
    assert "file/x cannot be written (Not a directory): check" in refused(*start, "file/x")

    def broken(path: Path, *_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", broken)
    assert "w/lock cannot be read or written (Read-only file system): check" in refused(*start, "w")


def test_a_gpu_whose_memory_is_full_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 192.00 MiB.\nMore lines.")

    monkeypatch.setattr(main.recover, "main", full)
    assert run(["midtrain"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "recover: error: the GPU's memory is full (CUDA out of memory. Tried to allocate 192.00 MiB.)"
    )
    assert "--token-budget" in line and "`recover resume`" in line


@pytest.mark.parametrize("name", ["harbour-base", "harbour-pt", "plain"])
def test_a_model_that_is_no_instruct_model_must_be_confirmed(
    tmp_path: Path, make_tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Port\n\nThe office of the harbour opens at seven.")
    model = make_tiny("llama", tmp_path / name, template=name != "plain")
    reason = "has no chat template" if name == "plain" else "is a base model by its name"
    for more in (["--dry-run"], []):
        common = ["midtrain", "--docs", str(docs), "--model", str(model), "--workspace", str(tmp_path / "workspace")]
        assert run([*common, *more]) != 0
        error = capsys.readouterr().err
        assert f"{model} {reason}" in error and "confirm it with --base-model" in error
        assert not (tmp_path / "workspace").exists()
    assert run([*common, "--dry-run", "--base-model", "--fewest-questions", "0"]) == 0
