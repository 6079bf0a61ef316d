"""Settings of every stage, how a model is loaded and sampled from, and of every stage that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from recovery.config.defaults import LARGEST_RATE_FACTOR, LORA_FACTOR, RATE_POWER, RATED_AT, USUAL_RATES
from recovery.engines import check_engine, is_server
from recovery.errors import UsageError
from recovery.settings import check_settings, setting, share


@dataclass(frozen=True)
class ModelConfig:
    """How a model is loaded and sampled from."""

    precision: str = setting(
        "auto",
        "Data type of matrix products; auto uses bfloat16 where it helps.",
        choices=("auto", "float32", "bfloat16"),
    )
    device: str = setting(
        "auto", "auto, cpu, cuda or cuda:N.", pattern=r"auto|cpu|cuda(:\d+)?", metavar="NAME", by_model=True
    )
    template_args: Mapping[str, Any] = setting(
        dict,
        "An argument of the chat template, e.g. enable_thinking=false; may be repeated.",
        flag="--template-arg",
        metavar="KEY=VALUE",
        by_model=True,
    )
    token_budget: int = setting(
        16384,
        "Padded tokens per micro-batch; a smaller value needs less memory and does not change results.",
        minimum=16,
    )
    rollout_tokens: int = setting(32768, "Tokens of prompts and completions held at once while sampling.", minimum=16)
    engine: str = setting(
        "transformers",
        "Sampling engine: transformers, vllm, or a vLLM server, http://... See docs/engines.md.",
        metavar="NAME",
        by_model=True,
    )
    engine_memory: float | None = setting(
        None,
        "GiB for vLLM's cache of keys and values.",
        above=0,
        shown="what --rollout-tokens need, at most 40% of free memory",
    )
    engine_sleep: bool = setting(False, "Release vLLM's memory while the student trains (GPUs).")
    engine_drift: float = setting(
        0.1,
        "Maximum mean difference of engine's and model's log-probabilities, in nats per token; above it a run stops.",
        above=0,
    )
    engine_folder: Path | None = setting(
        None,
        "Folder from which a server reads updated weights.",
        metavar="FOLDER",
        shown="a temporary folder",
    )
    server_wait: float = setting(600.0, "Seconds that a server may be unreachable before a run stops.", minimum=0)
    server_timeout: float = setting(600.0, "Timeout of one request to a server, in seconds.", above=0)
    seed: int = setting(0, "Seed of every random choice.", minimum=0, below=2**31)  # the tracker has 32 bits for it

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_engine()

    @property
    def served(self) -> bool:
        """Whether the rollout engine is a server."""
        return is_server(self.engine)

    def _check_engine(self) -> None:
        check_engine(self.engine)
        if self.engine_memory is not None and self.engine != "vllm":
            raise UsageError("--engine-memory needs --engine vllm")
        if self.engine_sleep and self.engine != "vllm":
            raise UsageError("--engine-sleep needs --engine vllm")
        if self.engine_folder is not None and not self.served:
            raise UsageError("--engine-folder needs the address of a server as --engine")


@dataclass(frozen=True)
class TrainingConfig(ModelConfig):
    """How a model is trained. ``shard`` and ``offload`` have no effect with one process."""

    tuning: str = setting(
        "auto",
        "Full fine-tuning, or a LoRA adapter; auto uses full if the optimizer fits in memory.",
        choices=("auto", "lora", "full"),
    )
    quantize: str = setting(
        "none",
        "Hold the frozen weights below a LoRA adapter in 4 bits: nf4, by bitsandbytes.",
        choices=("none", "nf4"),
    )
    quantized_teacher: bool = setting(
        False, "The quantised student with its adapter off is the teacher, which saves the memory of a separate one."
    )
    embeddings: str = setting(
        "all",
        "Rows of the input embedding and the output head that full fine-tuning trains. documents: those "
        "of tokens in the documents, in a recovery none. With all, words of no document drift.",
        choices=("all", "documents", "none"),
    )
    lora_rank: int = setting(32, "Rank of a new LoRA adapter.", minimum=1)
    lora_alpha: int = setting(64, "Scale of a new LoRA adapter.", minimum=1)
    gradient_checkpointing: bool = setting(False, "Recompute activations in the backward pass: less memory, more time.")
    compile: bool = setting(
        False,
        "Compile the layers with torch: faster steps after a minute or two; on a CPU it needs a C++ compiler.",
    )
    shard: str = setting(
        "none",
        "With several processes, what each holds. none: all models whole; student: a shard of its layers; "
        "full: shards of the student and its teachers (FSDP2).",
        choices=("none", "student", "full"),
    )
    offload: bool = setting(False, "Keep the shards in CPU memory.")
    gather: bool = setting(
        True,
        "Gather a sharded student in every process for sampling. Without it layers are gathered for each "
        "token: slower, for a student that does not fit.",
    )
    optimizer: str = setting("adamw", "AdamW, or Muon for the matrices.", choices=("adamw", "muon"))
    lr: float | None = setting(
        None, "Peak learning rate.", above=0, shown="by the model's size, ten times as high for LoRA"
    )
    full_lr: float | None = setting(
        None, "Peak learning rate of full fine-tuning, unless lr is set.", above=0, shown="by the model's size"
    )
    lora_lr: float | None = setting(
        None, "Peak learning rate of a LoRA adapter, unless lr is set.", above=0, shown="by the model's size"
    )
    warmup: float = share(0.05, "Share of the steps in which the learning rate rises.")
    schedule: str = setting("cosine", "Learning rate after warm-up.", choices=("constant", "linear", "cosine"))
    min_lr_ratio: float = share(
        0.1, "Share of the peak to which the learning rate falls; the last step is just above it.", most=1
    )
    weight_decay: float = setting(0.0, "Weight decay of the optimizer.", minimum=0)
    max_grad_norm: float = setting(1.0, "Norm to which larger gradients are scaled.", above=0)
    checkpoint_every: int = setting(
        50, "Steps between saved training states; slow runs also save one every ten minutes.", minimum=1
    )
    trial: bool = setting(
        False,
        "Size every stage for a first look in a quarter of an hour on this machine; its figures decide nothing.",
        by_model=False,
    )
    _usual_lr: ClassVar[float] = USUAL_RATES["midtrain"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offload and self.shard == "none":
            raise UsageError("--offload keeps the shards of a model in CPU memory: add --shard full")
        if not self.gather and self.shard == "none":
            raise UsageError("--no-gather is about the layers of a sharded student: add --shard full")
        if self.shard != "none" and self.optimizer == "muon":
            raise UsageError("--optimizer muon needs whole matrices: use --shard none, or --optimizer adamw")
        if self.shard != "none" and self.compile:
            raise UsageError("--compile does not work with sharded layers: use --shard none, or omit --compile")

        self._check_quantized()

    def _check_quantized(self) -> None:
        if self.quantize == "none":
            if self.quantized_teacher:
                raise UsageError("--quantized-teacher needs a quantised student: add --quantize nf4")
            return
        if self.tuning == "full":
            raise UsageError("--tuning full trains all weights, which cannot be quantised: use --tuning lora")
        if self.shard != "none":
            raise UsageError("--shard cannot shard 4-bit weights: use --shard none, or omit --quantize")
        if self.compile:
            raise UsageError("--compile is not supported with 4-bit weights: omit --compile or --quantize")
        if self.engine != "transformers":
            raise UsageError(
                f"--engine {self.engine} would sample from unquantised weights: use --engine transformers, "
                "or omit --quantize"
            )

    @property
    def trains_embeddings(self) -> bool:
        """Whether any row of the embeddings is trained in full fine-tuning."""
        return self.embeddings != "none"

    @property
    def clean_teacher(self) -> bool:
        """Whether a teacher must not share the student's base weights, since they are quantised."""
        return self.quantize != "none" and not self.quantized_teacher

    def rate(self, tuning: str, parameters: float) -> float:
        """Return the peak learning rate for ``tuning`` "full" or "lora" of a model with ``parameters`` parameters."""
        given = self.lr or (self.lora_lr if tuning == "lora" else self.full_lr)
        if given is not None:
            return given
        factor = min(LARGEST_RATE_FACTOR, max(1.0, (RATED_AT / parameters) ** RATE_POWER))
        full = self._usual_lr * factor
        return float(f"{full * (LORA_FACTOR if tuning == 'lora' else 1):.2g}")
