"""A GGUF file as the model, and as what is exported: it works like a folder, and errors are one line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelines.cli.main import run
from pipelines.plan import model_text
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.models.gguf_files import read_header, sha256_of
from recovery.models.gguf_files.conversion import converted
from recovery.models.gguf_files.writing import TYPES as TYPES_OF_FILES
from recovery.models.loading import load_model
from tests.gguf_writing import TYPES, write_gguf

Run = Callable[..., tuple[int, str, str]]
NAME = "Tiny-Instruct.F16.gguf"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``say("plan", ...)``: status, standard output and errors of a command in a folder with documents and a file."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return start


@pytest.fixture
def file(tmp_path: Path, tiny_qwen3: Path) -> Path:
    """A model's file next to a folder of documents."""
    (tmp_path / "docs").mkdir()
    for number in range(3):
        (tmp_path / "docs" / f"ferry-{number}.md").write_text(
            f"# Ferry {number}\n\nFerry number {number} is kept by Anna Berg and carries {40 + number} people.\n"
        )
    return write_gguf(tiny_qwen3, tmp_path / NAME)


def found(say: Run, *arguments: str | Path) -> Any:
    """A command's JSON output."""
    status, out, _ = say(*arguments, "--json")
    assert status == 0
    return json.loads(out)


def test_a_plan_reads_no_weights(say: Run, file: Path, tiny_qwen3: Path, tmp_path: Path) -> None:
    planned = found(say, "plan", "--model", file.name, "--gpus", "24")
    assert planned["parameters"] == sum(
        weight.numel() for weight in load_file(tiny_qwen3 / "model.safetensors").values()
    )
    ours, theirs = (json.loads(model_text(str(model))) for model in (file, tiny_qwen3))
    for same in ("model_type", "head_dim", "vocab_size", "tie_word_embeddings", "rope_parameters", "hidden_size"):
        assert ours[same] == theirs[same], same
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(("docs", NAME))


def test_a_file_is_the_clean_model_of_a_workspace(say: Run, file: Path, tiny_qwen3: Path) -> None:
    status, out, err = say("midtrain", "--model", NAME, "--docs", "docs", "--fewest-questions", "0", "--dry-run")
    assert status == 0
    assert "is converted once, to" in err and "mid-train base" in out
    (kept,) = (path for path in Path("recovery-workspace/models").iterdir() if path.is_dir())
    assert [*Path("recovery-workspace").iterdir()] == [kept.parent], "a plan keeps nothing else"
    at = kept.stat().st_mtime_ns
    with Session.open(Path("recovery-workspace"), model=NAME, display=Display(quiet=True)):
        pass
    (base,) = found(say, "checkpoints")
    assert base["name"] == "base"
    assert (Path(base["path"]), kept.stat().st_mtime_ns) == (kept.resolve(), at), "it was not converted again"
    assert base["origin"].startswith(f"{NAME} (sha256 ") and base["origin"].endswith("F32) of Tiny of the tests")
    status, _, err = say("midtrain", "--model", NAME, "--docs", "docs", "--fewest-questions", "0", "--dry-run")
    assert (status, "is converted" in err) == (0, False)
    file.rename("moved.gguf")
    assert say("midtrain", "--model", "moved.gguf", "--docs", "docs", "--fewest-questions", "0", "--dry-run")[0] == 0
    replies = found(say, "ask", "Where?", "--checkpoint", "moved.gguf", "--max-new-tokens", "2")
    assert [reply["checkpoint"] for reply in replies] == ["base"], "the same file is the same checkpoint"
    write_gguf(tiny_qwen3, Path("other.gguf"), TYPES.Q8_0)
    replies = found(say, "ask", "Where?", "--checkpoint", "other.gguf", "--max-new-tokens", "2")
    assert replies[0]["checkpoint"].startswith("external/other-")
    status, out, _ = say("distill", "--student", "other.gguf", "--teacher", "base", "--dry-run", "--steps", "1")
    assert status == 0 and "external/other-" in out
    write_gguf(tiny_qwen3, Path(NAME), TYPES.Q8_0)
    status, _, err = say("midtrain", "--model", NAME, "--docs", "docs", "--fewest-questions", "0", "--dry-run")
    assert status == 1 and "has changed since this workspace" in err
    status, _, err = say("ask", "Where?", "--checkpoint", "nowhere.gguf")
    assert status == 1 and "there is no file nowhere.gguf" in err


def test_a_report_says_where_the_model_comes_from(say: Run, file: Path) -> None:
    assert say("midtrain", "--model", NAME, "--docs", "docs", "--fewest-questions", "0", "--steps", "1")[0] == 0
    assert say("report", "1", "--out", "reports", "--no-figures")[0] == 0
    (page,) = Path("reports").glob("*.md")
    text = page.read_text()
    assert f"converted from {NAME} (sha256 " in text


def test_what_is_wrong_with_a_file_costs_one_line(
    say: Run, file: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(name: str) -> str:
        lines = set()
        for command in (("plan",), ("midtrain", "--docs", "docs", "--fewest-questions", "0", "--dry-run"), ("eval",)):
            status, out, err = say(*command, "--model", name)
            assert (status, out) == (1, "")
            (line,) = err.splitlines()
            lines.add(line)
        assert not (tmp_path / "recovery-workspace").exists()
        (line,) = lines
        return line

    data = file.read_bytes()
    Path("half.gguf").write_bytes(data[: len(data) // 2])
    assert "half.gguf is truncated" in refused("half.gguf")
    Path("page.gguf").write_text("<html>not found</html>")
    assert "is not a GGUF file" in refused("page.gguf")
    assert "there is no file nowhere.gguf" in refused("nowhere.gguf")
    write_gguf(tiny_llama, Path("base.gguf"), without=("template",))
    assert "has no chat template" in refused("base.gguf")
    write_gguf(tiny_llama, Path("mute.gguf"), without=("tokenizer",))
    assert "has no tokenizer" in refused("mute.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'recovery[gguf]'" in refused(NAME)


def test_an_architecture_that_transformers_cannot_read(say: Run, file: Path, tiny_llama: Path) -> None:
    write_gguf(tiny_llama, Path("strange.gguf"), architecture="rwkv6")
    for command in (("plan",), ("eval",)):
        status, _, err = say(*command, "--model", "strange.gguf")
        assert status == 1
        assert "architecture 'rwkv6' is not one that transformers" in err.splitlines()[-1]


@pytest.fixture
def adapted(say: Run, file: Path, tiny_llama: Path) -> None:
    """A workspace whose latest checkpoint is an adapter on a tiny Llama with a licence."""
    shutil.copytree(tiny_llama, "tiny-llama")
    Path("tiny-llama/README.md").write_text("---\nlicense: llama3.2\nlanguage: [en, de]\n---\n# Tiny\n")
    small = ("--docs", "docs", "--fewest-questions", "0", "--tuning", "lora", "--steps", "2", "--lr", "0.01")
    assert say("midtrain", "--model", "./tiny-llama", *small)[0] == 0


def test_a_checkpoint_goes_out_as_a_file_and_as_a_folder(say: Run, adapted: None, tmp_path: Path) -> None:
    written = found(say, "export", "latest", "out/tiny.gguf", "--type", "f32")
    path = Path("out/tiny.gguf")
    assert written["path"] == str(path.resolve()) and written["bytes"] == path.stat().st_size
    assert written["sha256"] == sha256_of(path)
    assert say("export", "latest", "merged", "--merge")[0] == 0
    merged, back = (
        load_model(path, device="cpu", precision="float32") for path in ("merged", converted(path, tmp_path))
    )
    ours, theirs = merged.weights(), back.weights()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    base = load_file("tiny-llama/model.safetensors")
    assert any(not torch.equal(ours[name], base[name]) for name in ours), "the adapter is in them"
    header = read_header(path)
    assert header.name == "tiny-llama cycle-1/midtrained"
    assert header.metadata["general.license"] == "llama3.2"
    assert header.metadata["general.base_model.0.name"] == "Tiny Llama"
    assert "mid-trained" in header.metadata["general.description"]
    card = Path("merged/README.md").read_text()
    assert 'base_model: "tiny-llama"' in card and 'license: "llama3.2"' in card
    assert str(tmp_path) not in card and str(tmp_path).encode() not in path.read_bytes(), "no place of this machine"
    replies = found(say, "ask", "Where?", "--checkpoint", "out/tiny.gguf", "--max-new-tokens", "2")
    assert replies[0]["checkpoint"].startswith("external/tiny-")
    assert found(say, "export", "base", "base.gguf", "--type", "q8_0")["kind"] == "GGUF, q8_0"
    assert read_header("base.gguf").name == "tiny-llama"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["tiny.Modelfile", "tiny.gguf"]


def test_what_cannot_go_out_costs_one_line(
    say: Run, adapted: None, tiny_gemma2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str) -> str:
        status, out, err = say("export", *arguments)
        assert (status, out) == (1, "")
        return err.splitlines()[-1]

    Path("mine.gguf").write_text("mine")
    Path("folder.gguf").mkdir()
    assert "mine.gguf exists: name a new file" in refused("latest", "mine.gguf")
    assert Path("mine.gguf").read_text() == "mine"
    assert "folder.gguf exists: name a new file" in refused("latest", "folder.gguf")
    assert "mine.gguf/a.gguf cannot be written: " in refused("latest", "mine.gguf/a.gguf")
    assert "--type is for GGUF files: name out.gguf" in refused("latest", "out", "--type", "f16")
    assert say("export", "latest", "a.gguf", "--type", "q2_k")[0] == 2
    for kind in TYPES_OF_FILES:
        assert say("export", "latest", "mine.gguf", "--type", kind)[0] == 1, "the option knows every type"
    assert "is a gemma2 model, and GGUF files are written for llama, qwen2, qwen3 only" in refused(
        str(tiny_gemma2), "a.gguf"
    )
    assert "no checkpoint 'cycle-9/recovered'" in refused("cycle-9/recovered", "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'recovery[gguf]'" in refused("base", "a.gguf")
    assert not list(Path().glob("*a.gguf"))


def test_what_is_served_is_measured_judged_and_put_in_service(say: Run, adapted: None) -> None:
    few = ("--limit", "3", "--max-new-tokens", "4", "--question-tokens", "4")
    assert say("eval", "latest", *few)[0] == 0
    assert found(say, "export", "latest", "m.gguf", "--type", "f32")["modelfile"].endswith("m.Modelfile")
    serving = ("eval", "m.gguf", "--runtime", "llama.cpp", *few)
    status, out, err = say(*serving)
    assert (status, out) == (1, "") and "differs: one turn: ' 26 Jul 20' is read as " in err, "llama.cpp gives the date"
    measured = found(say, *serving, "--despite-differences")
    assert measured["checkpoint"] == "artifact/m@llama.cpp" and "instruction_following" in measured["scores"]
    status, out, _ = say("gate", "1", "--artifact", "m.gguf", "--rule", "instruction_following >= source - 3", "--json")
    judged = json.loads(out)
    assert status == 4 and judged["decision"] == "undecided" and judged["artifact"] == "artifact/m@llama.cpp"
    assert say("gate", "1", "--rule", "domain >= source - 3")[0] == 1
    status, out, _ = say("accept", "1", "--artifact", "m", "--why", "even so")
    assert status == 0 and out.startswith(f"in service: {Path('m.gguf').resolve()} (sha256 ")
    assert "artifact/m@llama.cpp is no longer in service, and no artifact" in say("rollback", "1", "--why", "no")[1]
    status, _, err = say("gate", "1", "--artifact", "m", "--enter")
    assert status == 1 and "which was rolled back: accept the cycle first" in err
    assert say("eval", "latest", "--runtime", "llama.cpp")[2].endswith("and latest is none: export one\n")
    assert say("checkpoints")[0] == 0
