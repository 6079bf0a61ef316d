"""Checkpoints and loading: whole or not at all, known by content, one way in."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from recovery.batching import Row, collate
from recovery.errors import CheckpointError, ModelError, UsageError
from recovery.models import base_folder
from recovery.models.checkpoints import INFO_FILE, content_hash, save_checkpoint, verify
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.types import Message


def disturb(loaded: Loaded) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in loaded.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def hidden(loaded: Loaded) -> torch.Tensor:
    with torch.no_grad():
        return loaded.hidden(collate([Row([5, 6, 7, 8], [True] * 4)], 0))


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_saved_checkpoint_loads_as_the_same_model(tiny_contrasting: Path, tmp_path: Path, tuning: str) -> None:
    loaded = load_model(tiny_contrasting, tuning=tuning, precision="float32")  # type: ignore[arg-type]
    disturb(loaded)
    info = save_checkpoint(
        loaded, tmp_path / "c", name="cycle-1/midtrained", kind="midtrained", parent="abc", stage="7"
    )
    assert json.loads((tmp_path / "c" / INFO_FILE).read_text()) == dataclasses.asdict(info)
    verify(tmp_path / "c", info.hash)
    again = load_model(tmp_path / "c", precision="float32")
    torch.testing.assert_close(hidden(again), hidden(loaded), atol=1e-5, rtol=1e-4)
    if tuning == "lora":
        assert not list((tmp_path / "c").glob("model*.safetensors")), "an adapter is saved alone"


def test_adapter_off_is_the_clean_base(tiny_contrasting: Path) -> None:
    base, student = (load_model(tiny_contrasting, tuning=t, precision="float32") for t in ("frozen", "lora"))  # type: ignore[arg-type]
    disturb(student)
    assert not torch.allclose(hidden(student), hidden(base), atol=1e-3)
    with student.adapter_off():
        torch.testing.assert_close(hidden(student), hidden(base))


@pytest.mark.parametrize("tuning", ["frozen", "lora"])
def test_a_second_adapter_shares_the_loaded_base(tiny_contrasting: Path, tmp_path: Path, tuning: str) -> None:
    """It gives the same output as on a separate base, and needs only the memory of the adapter."""
    earlier = load_model(tiny_contrasting, tuning="lora", precision="float32")
    disturb(earlier)
    earlier.save(tmp_path / "c")
    student = load_model(tiny_contrasting, tuning="lora", precision="float32", gradient_checkpointing=True)
    names = list(student.trainable())
    second, alone = (
        load_model(tmp_path / "c", tuning=tuning, precision="float32", beside=beside)  # type: ignore[arg-type]
        for beside in (student, None)
    )
    disturb(student)  # training one does not move the other
    held = {parameter.data_ptr() for parameter in student.model.parameters()}
    mine = {name for name, parameter in second.model.named_parameters() if parameter.data_ptr() not in held}
    assert mine == {name for name, _ in alone.model.named_parameters() if "lora_" in name}
    assert torch.equal(hidden(second), hidden(alone))
    assert not torch.allclose(hidden(second), hidden(student), atol=1e-3)
    assert second.trainable().keys() == alone.trainable().keys()
    assert list(student.trainable()) == names
    second.save(tmp_path / "again")
    assert content_hash(tmp_path / "again") == content_hash(tmp_path / "c")
    # peft writes a set of names, whose order differs by process
    found = json.loads((tmp_path / "c" / "adapter_config.json").read_text())["target_modules"]
    assert found == sorted(found)


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.0}, {"length_penalty": 0.5, "num_beams": 1}]
)
def test_generation_settings_that_cannot_be_saved_are_repaired_before_training(
    tiny_model: Path, tmp_path: Path, settings: dict[str, float]
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    ends = {"eos_token_id": [1, 2]}
    path.write_text(json.dumps(ends | settings))
    loaded = load_model(tmp_path / "model", tuning="full")
    loaded.save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [1, 2]


def test_training_continues_an_existing_adapter(tiny_model: Path, tmp_path: Path) -> None:
    first = load_model(tiny_model, tuning="lora", precision="float32")
    disturb(first)
    save_checkpoint(first, tmp_path / "c", name="a", kind="midtrained", parent=None)
    second = load_model(tmp_path / "c", tuning="lora", precision="float32")
    assert second.trainable().keys() == first.trainable().keys()
    assert all(torch.equal(value, first.trainable()[name]) for name, value in second.trainable().items())
    with pytest.raises(UsageError, match="is an adapter"):
        load_model(tmp_path / "c", tuning="full")


def test_the_hash_follows_the_content_alone(tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model, copy)
    assert content_hash(copy) == content_hash(tiny_model)
    (copy / "README.md").write_text("a note")
    assert content_hash(copy) == content_hash(tiny_model)
    weights = copy / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="has changed since it was registered"):
        verify(copy, content_hash(tiny_model))


def test_a_template_that_tool_conversations_get_is_part_of_the_hash(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    earlier = content_hash(model)  # that of releases which left the folder out
    (model / "additional_chat_templates").mkdir()
    template = model / "additional_chat_templates" / "tool_use.jinja"
    asked: list[Message] = [{"role": "user", "content": "a", "tools": [{"function": {"name": "probe_tool"}}]}]
    prompts, hashes = [], []
    for opening in ("Tools", "Use"):
        template.write_text(opening + ": {{ tools }}{{ messages[0].content }}")
        prompts.append(load_model(model).chat.render(asked))
        hashes.append(content_hash(model))
        verify(model, hashes[-1])
        verify(model, earlier)
    assert prompts[0] != prompts[1]
    assert len({earlier, *hashes}) == 3
    with pytest.raises(CheckpointError, match="has changed since"):
        verify(model, hashes[0])
    (model / "chat_template.jinja").unlink(missing_ok=True)  # it would be between the two in the order of names
    template.rename(template.with_name("chat_template_x.jinja"))
    beside = content_hash(model)
    template.with_name("chat_template_x.jinja").rename(model / "chat_template_x.jinja")
    assert content_hash(model) != beside, "where a template lies decides what it is for"


def test_saving_again_replaces_the_folder_atomically(tiny_model: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    first = save_checkpoint(loaded, tmp_path / "c", name="a", kind="k", parent=None)
    disturb(loaded)
    (tmp_path / ".writing-c").mkdir()
    (tmp_path / ".writing-c" / "torn").write_text("left by a crash")
    second = save_checkpoint(loaded, tmp_path / "c", name="a", kind="k", parent=first.hash)
    assert first.hash != second.hash
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training states that could make it again are deleted next: a power failure would lose both."""
    folder, synced = tmp_path / "cycle-1" / "midtrained", set[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add((os.fstat(handle).st_ino, folder.exists())))
    save_checkpoint(load_model(tiny_model), folder, name="a", kind="midtrained", parent=None)
    assert {(path.stat().st_ino, False) for path in (folder, *folder.iterdir())} <= synced
    assert {(path.stat().st_ino, True) for path in (folder.parent, tmp_path)} <= synced, "and the names of the folders"


def test_bad_folders_give_a_one_line_error(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no model"):
        load_model(tmp_path / "empty")
    with pytest.raises(ModelError, match="neither a folder with a model nor a hub id"):
        load_model("no-such-org/no-such-model")
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        content_hash(tmp_path / "empty")
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ModelError) as error:
        load_model(broken)
    assert "\n" not in str(error.value)


def test_what_a_hub_id_names_is_read_as_a_folder_is(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(tiny_model, tuning="lora").save(tmp_path / "adapter")
    load_model(tiny_model, tuning="lora").save(tmp_path / "another")
    config = tmp_path / "another" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "org/adapter"}))
    (tmp_path / "gguf").mkdir()
    monkeypatch.setattr(base_folder, "_download", lambda name: str(tmp_path / name.removeprefix("org/")))
    assert base_folder.resolve_base("org/adapter") == (str(tiny_model), tmp_path / "adapter")
    with pytest.raises(ModelError, match="is an adapter on an adapter, org/adapter"):
        base_folder.resolve_base("org/another")
    with pytest.raises(ModelError, match=r"holds no model: .*of GGUF files, name one"):
        base_folder.resolve_base("org/gguf")


def test_a_folder_with_weights_and_an_adapter_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """As a merge into an adapter's own folder leaves it: the adapter would be applied twice."""
    shutil.copytree(tiny_model, tmp_path / "both")
    load_model(tiny_model, tuning="lora").save(tmp_path / "both")
    with pytest.raises(ModelError, match=r"both holds a model .* and an adapter .*: move one of them"):
        load_model(tmp_path / "both")


def test_an_adapter_keeps_the_chat_template_that_it_was_trained_with(tiny_llama: Path, tmp_path: Path) -> None:
    asked: list[Message] = [{"role": "user", "content": "Where is the boat?"}]
    student = load_model(tiny_llama, tuning="lora")
    student.save(tmp_path / "adapter")
    assert load_model(tmp_path / "adapter").chat.prompt_ids(asked) == student.chat.prompt_ids(asked)
    student.tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    student.save(tmp_path / "adapter")
    (tmp_path / "adapter" / "chat_template.jinja").rename(tmp_path / "own.jinja")  # in earlier releases' form:
    config = tmp_path / "adapter" / "tokenizer_config.json"
    template = [{"name": "default", "template": (tmp_path / "own.jinja").read_text()}]
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    loaded = load_model(tmp_path / "adapter", tuning="lora")
    assert loaded.chat.render(asked) == "<|begin_of_text|>Where is the boat?<|eot_id|>"
    loaded.save(tmp_path / "trained")
    assert load_model(tmp_path / "trained").chat.prompt_ids(asked) == loaded.chat.prompt_ids(asked)
    student.tokenizer.add_special_tokens({"additional_special_tokens": ["<|own|>"]})
    student.save(tmp_path / "other")
    with pytest.raises(ModelError, match="other has a chat template and tokens of its own, which its base"):
        load_model(tmp_path / "other")


def test_unknown_precision_is_refused(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="--precision"):
        load_model(tiny_model, precision="int3")
