"""An exported checkpoint loads anywhere, also quantised by llama.cpp; an export that fails leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from huggingface_hub import metadata_load
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from pipelines.export import export, export_gguf, modelfile, quantise, types_text
from pipelines.runtime.session import Session
from recovery.errors import ModelError, UsageError
from recovery.models.chat_loading import load_chat
from recovery.models.checkpoints import content_hash
from recovery.models.gguf_files import read_header
from recovery.models.gguf_files.header import CHECKPOINT, CONTENT_HASH
from recovery.models.loading import load_model
from tests.models import make_tiny


def test_weights_in_several_files_are_exported_with_their_index(
    session: Session, tiny_model: Path, tmp_path: Path
) -> None:
    loaded = load_model(tiny_model, precision="float32")
    loaded.model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    loaded.tokenizer.save_pretrained(tmp_path / "shards")
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 1
    written = export(session, str(tmp_path / "shards"), tmp_path / "out", merge=False)
    assert written["hash"] == content_hash(tmp_path / "shards")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    assert all(torch.equal(again[name], value) for name, value in loaded.model.state_dict().items())


def test_all_of_a_tokenizers_templates_are_exported(session: Session, tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    loaded = load_model(tiny_model, precision="float32")
    loaded.model.save_pretrained(model)
    loaded.tokenizer.chat_template = {"default": loaded.tokenizer.chat_template, "tool_use": "{{ messages }}"}
    loaded.tokenizer.save_pretrained(model)
    written = export(session, str(model), tmp_path / "out", merge=False)
    assert written["hash"] == content_hash(model)
    templates = AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert templates == loaded.tokenizer.chat_template


def test_a_merged_model_is_stored_as_its_base(session: Session, tiny_model: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(base)
    load_model(base, tuning="lora", precision="float32").save(tmp_path / "adapter")
    export(session, str(tmp_path / "adapter"), tmp_path / "out", merge=True)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_merging_adapts_an_embedding_and_not_the_head_that_is_tied_to_it(
    session: Session, tiny_model: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    settings = LoraConfig(
        r=4, target_modules=["embed_tokens", "q_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(model, settings).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    ids_BT = torch.arange(8, 40)[None]
    expected_BTV = adapted(ids_BT).logits
    export(session, str(tmp_path / "adapter"), tmp_path / "out", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.allclose(merged(ids_BT).logits, expected_BTV, atol=1e-4)
    assert not merged.config.tie_word_embeddings, "other programs go by this, and would use the embedding as the head"


def test_an_adapter_names_its_base_where_it_is_now(
    session: Session, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(tiny_model, tuning="lora", precision="float32").save(tmp_path / "adapter")
    found = session.resolve(str(tmp_path / "adapter"))
    moved = tmp_path / "moved"
    shutil.copytree(tiny_model, moved)
    monkeypatch.setattr(session, "verified", lambda _: replace(found, weights=moved))
    export(session, str(tmp_path / "adapter"), tmp_path / "out", merge=False)
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(moved)


@pytest.mark.parametrize("merge", [False, True])
def test_an_export_that_does_not_fit_leaves_nothing(
    session: Session, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: bool
) -> None:
    load_model(tiny_model, tuning="lora", precision="float32").save(tmp_path / "adapter")

    def full(_source: object, target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half")
        if merge:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(*((safetensors.torch, "serialize_file") if merge else (shutil, "copy2")), full)
    with pytest.raises(UsageError, match=r"exports/out cannot be written \(.*No space left.*\): check"):
        export(session, str(tmp_path / "adapter"), tmp_path / "exports" / "out", merge=merge)
    assert not [*(tmp_path / "exports").iterdir()]


def test_a_model_card_keeps_what_stood_in_the_bases(session: Session, tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model-\N{GRINNING FACE}"
    shutil.copytree(tiny_model, model)
    (model / "README.md").write_text("---\nlanguage: [en, no]\nlicense: mit\nlicense_name: 2024-01-01\n---\n")
    export(session, str(model), tmp_path / "out", merge=False)
    card = metadata_load(tmp_path / "out" / "README.md")
    assert card is not None and card["language"] == ["en", "no"] and card["license_name"] == "2024-01-01"
    assert model.name in card["base_model"]


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
    assert (tmp_path / "out" / "m.Modelfile").read_text().startswith("FROM ./m.gguf\n#")


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
    assert "\n# The chat template removes spaces around a message. Ollama's cannot: send none.\nTEMPLATE" in text
    assert text.count("PARAMETER stop") == len(chat.end_ids) and 'PARAMETER stop "<|eot_id|>"' in text
    assert "PARAMETER temperature 0.6\n" in text and "PARAMETER num_ctx 1024\n" in text
    without, templated = modelfile(Path("m.gguf"), load_chat(str(tiny_gemma2)), GenerationConfig(), 1024)
    assert not templated and "TEMPLATE" not in without, "it has no turn of the system"
