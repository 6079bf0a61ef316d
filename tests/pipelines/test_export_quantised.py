"""Quantised GGUF files, by llama.cpp's own quantiser, and Ollama's Modelfile beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GenerationConfig

from pipelines.export import export_gguf, modelfile, quantise, types_text
from pipelines.runtime.session import Session
from recovery.errors import ModelError
from recovery.models.chat_loading import load_chat
from recovery.models.gguf_files import read_header
from recovery.models.gguf_files.header import CHECKPOINT, CONTENT_HASH
from tests.models import make_tiny


def test_a_file_is_quantised_and_says_which_types_its_tensors_have(session: Session, tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", hidden_size=256)
    written = export_gguf(session, str(model), tmp_path / "out" / "m.gguf", "q4_k_m")
    header = read_header(written["path"])
    assert header.types == {"Q4_K": 12, "F32": 5, "Q6_K": 2, "Q5_0": 1, "Q8_0": 1}
    said = types_text(header, "q4_k_m")
    assert "the rows of 2 of 16 matrices are no multiple of 256 wide" in said and "q4_k_m" in said
    assert header.metadata[CHECKPOINT] == written["name"]
    assert header.metadata[CONTENT_HASH] == session.resolve(str(model)).hash
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["m.Modelfile", "m.gguf"]
    assert (tmp_path / "out" / "m.Modelfile").read_text().startswith("FROM ./m.gguf\nTEMPLATE ")


def test_what_llama_cpp_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF but nothing else")
    with pytest.raises(ModelError, match="llama.cpp cannot write q6_k: .*failed") as raised:
        quantise(tmp_path / "a.gguf", tmp_path / "b.gguf", "q6_k")
    assert "\n" not in str(raised.value)


def test_rows_that_no_type_fits_are_named_with_what_can_be_written(session: Session, tmp_path: Path) -> None:
    model = str(make_tiny("llama", tmp_path / "model", hidden_size=48))
    with pytest.raises(ModelError, match="not divisible by 32 .*; f16 and q8_0 are written without it") as raised:
        export_gguf(session, model, tmp_path / "out" / "m.gguf", "q6_k")
    assert "\n" not in str(raised.value) and ".quantised-" not in str(raised.value)
    assert not [*(tmp_path / "out").iterdir()]
    assert export_gguf(session, model, tmp_path / "out" / "m.gguf", "q8_0")["types"]["f16"] > 0


def test_a_family_that_no_file_is_written_for_is_one_line(session: Session, tiny_gemma2: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a gemma2 model, and GGUF files are written for llama, qwen2, qwen3 only"):
        export_gguf(session, str(tiny_gemma2), tmp_path / "m.gguf", "q4_k_m")
    assert not [*tmp_path.glob("*.gguf")]


def test_a_modelfile_has_the_template_the_ends_and_the_sampling(tiny_llama: Path, tiny_gemma2: Path) -> None:
    chat = load_chat(str(tiny_llama))
    text, templated = modelfile(Path("m.gguf"), chat, GenerationConfig(do_sample=True, temperature=0.6), 1024)
    assert templated
    assert '{{ if eq $m.Role "system" }}<|start_header_id|>system' in text and "<|begin_of_text|>" not in text
    assert text.count("PARAMETER stop") == len(chat.end_ids) and 'PARAMETER stop "<|eot_id|>"' in text
    assert "PARAMETER temperature 0.6\n" in text and "PARAMETER num_ctx 1024\n" in text
    without, templated = modelfile(Path("m.gguf"), load_chat(str(tiny_gemma2)), GenerationConfig(), 1024)
    assert not templated and "TEMPLATE" not in without, "it has no turn of the system"
