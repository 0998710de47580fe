"""One role: PEFT's LoRA on the backbone, trained by transformers' Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import cpu_shims
from .._extras import find_missing, missing_message
from .batches import collate, rows
from .modules import check_modules
from .pairs import Example
from .recipe import Recipe
from .shared_a import copy_and_freeze

Tell = Callable[[float], None]


def check_installed() -> None:
    """Raise an ImportError that names the extra where it is missing. Imports nothing of it."""
    missing = find_missing(["accelerate", "peft", "torch"])
    if missing:
        raise ImportError(missing_message(missing, "train"), name=missing[0])


def train_role(
    model: Path,
    found: Sequence[Example],
    recipe: Recipe,
    *,
    role: str,
    checkpoints: Path,
    out: Path,
    shared_from: Path | None = None,
    device: str | None = None,
    checkpoint_steps: int = 20,
    tell: Tell = lambda fraction: None,
    callbacks: Sequence[Any] = (),
) -> list[float]:
    """Train one adapter and write it to the folder `out`; the loss of each step, nats a token.

    Args:
        model: a checked Hugging Face folder.
        found: what to learn.
        role: its name, which seeds it.
        checkpoints: a folder for the Trainer's checkpoints; training goes on from the last one there.
        shared_from: an adapter whose `v_proj.lora_A` is copied and frozen.
        device: "cpu" for a CPU though there is a GPU; None is the Trainer's choice.
        checkpoint_steps: steps between two checkpoints.
        tell: told which share of the steps is done.
        callbacks: further `transformers.TrainerCallback`s.
    """
    check_installed()
    cpu_shims.mend_torchvision()
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback
    from transformers.trainer_utils import get_last_checkpoint

    cpu = device == "cpu" or not torch.cuda.is_available()
    dtype = ("float32" if cpu else "bfloat16") if recipe.dtype == "auto" else recipe.dtype
    seed = recipe.role_seed(role)
    set_seed(seed)
    with _without_bar():
        backbone = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    check_modules(backbone, recipe.targets)
    backbone.config.use_cache = False
    adapted = get_peft_model(
        backbone,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=recipe.rank,
            lora_alpha=recipe.alpha,
            target_modules=list(recipe.targets),
            lora_dropout=recipe.dropout,
        ),
    )
    if shared_from is not None:
        copy_and_freeze(adapted, shared_from)
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        per_device_train_batch_size=recipe.micro_batch,
        gradient_accumulation_steps=recipe.batch_size // recipe.micro_batch,
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=recipe.warmup,  # below 1 it is a share
        logging_steps=1,
        save_strategy="steps",
        save_steps=checkpoint_steps,
        save_total_limit=1,
        remove_unused_columns=False,
        dataloader_pin_memory=not cpu,
        use_cpu=cpu,
        seed=seed,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = _by_length(Trainer)(
        model=adapted,
        args=arguments,
        train_dataset=rows(found),
        data_collator=collate,
        callbacks=[_reporter(tell), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints))
    adapted.save_pretrained(out)
    return [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]


@contextlib.contextmanager
def _without_bar() -> Iterator[None]:
    """No bar of transformers' own for the weights: it would be drawn across ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _by_length(base: Any) -> Any:
    """A Trainer whose micro-batches hold examples of like length, in an order that the epoch decides.

    Its own grouping draws the order from the global generator, so a run that goes on would have another one.
    """
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    class Sampler(LengthGroupedSampler):  # type: ignore[misc]  # transformers is untyped here
        seed = 0

        def set_epoch(self, epoch: int) -> None:
            """Called by the data loader before each epoch."""
            self.generator = torch.Generator().manual_seed(self.seed + int(epoch))

    class ByLength(base):  # type: ignore[misc]
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
            sampler = Sampler(batch, dataset=self.train_dataset)
            sampler.seed = self.args.seed
            sampler.set_epoch(0)
            return sampler

    return ByLength


def _reporter(tell: Tell) -> Any:
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        """Hands the progress on."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tell(state.global_step / max(state.max_steps, 1))

    return Reporter()


__all__ = ["check_installed", "train_role"]
