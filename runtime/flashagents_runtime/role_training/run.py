"""All roles, one after the other, in a folder that a run which was cut off goes on from."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .._extras import find_missing, missing_message
from .._version import __version__
from ..chat_tokenizer import HFChatTokenizer
from ..errors import TrainingError
from ..types import Progress, ProgressCallback
from .losses import plot_losses
from .pairs import Pair, end_token, examples, read_pairs
from .recipe import SHARED_MODULE, Recipe
from .shared_a import WEIGHTS, share
from .trainer import check_installed, train_role

RECORD = "training.json"
_WORK = ".unfinished"


class TrainedRole(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an adapter; written beside it as `training.json`.

    Attributes:
        role: its name.
        recipe: how it was trained.
        pairs: how many it was trained on.
        digest: SHA-256 of model configuration, tokenizer and pairs.
        shared_a: SHA-256 of the adapter whose `v_proj.lora_A` it has; None where it has its own.
        losses: of each step, nats a token.
        version: of this package.
    """

    role: str
    recipe: Recipe
    pairs: int
    digest: str
    shared_a: str | None = None
    losses: list[float] = []
    version: str = __version__

    def same_training(self, other: TrainedRole) -> bool:
        """Whether the same would come of both."""
        return (self.recipe, self.digest, self.shared_a) == (other.recipe, other.digest, other.shared_a)


def train_roles(
    model: Path,
    roles: Mapping[str, Path | Sequence[Pair]],
    out: Path,
    recipe: Recipe | None = None,
    *,
    shared_a: bool = False,
    device: str | None = None,
    checkpoint_steps: int = 20,
    plot: bool = True,
    progress: ProgressCallback = lambda progress: None,
    callbacks: Sequence[Any] = (),
) -> list[TrainedRole]:
    """Train an adapter for each role: PEFT folders `out/<role>`, and a figure `out/losses.svg`.

    A role that is there already, from the same recipe, model and pairs, is passed over, and one that was cut
    off goes on from its last checkpoint. The folders load in SGLang and, where their targets can be shared,
    in a sharing group.

    Args:
        model: a checked Hugging Face folder (`resolve_model`).
        roles: pairs, or a file of them (`read_pairs`), by the role's name; trained in this order.
        out: a folder, made if it is not there.
        recipe: None is `Recipe()`.
        shared_a: all roles after the first get its `v_proj.lora_A`, copied and frozen.
        device: "cpu" for a CPU though there is a GPU.
        checkpoint_steps: steps between two checkpoints.
        plot: draw the losses.
        progress: told what is done.
        callbacks: further `transformers.TrainerCallback`s, for each role.

    Raises:
        TrainingError: pairs or recipe are unusable, or `out` holds another training.
        ImportError: the extra `train` is missing; the message names it.
    """
    recipe = recipe or Recipe()
    check_installed()
    if plot and find_missing(["matplotlib"]):  # said before hours of training, not after
        raise ImportError(missing_message(["matplotlib"], "train"), name="matplotlib")
    if shared_a and SHARED_MODULE not in recipe.targets:
        raise TrainingError(
            f"shared_a needs {SHARED_MODULE} among the targets, which are {list(recipe.targets)}"
        )
    if not roles:
        raise TrainingError("name at least one role and its pairs")
    for role in roles:
        if not role or role != Path(role).name or role.startswith("."):
            raise TrainingError(f"a role's name is a folder's name, which {role!r} cannot be")
    found = {
        role: _take(read_pairs(source) if isinstance(source, Path) else list(source), recipe)
        for role, source in roles.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    done: list[TrainedRole] = []
    first: Path | None = None
    for role, pairs in found.items():
        plan = TrainedRole(
            role=role,
            recipe=recipe,
            pairs=len(pairs),
            digest=_digest(model, pairs),
            shared_a=_file_digest(first / WEIGHTS) if first is not None else None,
        )
        stage = f"Training {role}"
        progress(Progress(stage, 0.0))

        def tell(fraction: float, stage: str = stage) -> None:
            progress(Progress(stage, fraction))

        done.append(
            _known(out / role, plan)
            or _train(model, pairs, plan, out, first, device, checkpoint_steps, tell, callbacks)
        )
        progress(Progress(stage, 1.0))
        if first is not None and not share(first, out / role):
            raise TrainingError(f"{out / role} does not have the {SHARED_MODULE}.lora_A of {first}")
        if shared_a and first is None:
            first = out / role
    if plot:
        plot_losses({trained.role: trained.losses for trained in done}, out / "losses.svg")
    return done


def _take(pairs: list[Pair], recipe: Recipe) -> list[Pair]:
    return pairs[: recipe.max_pairs]


def _known(folder: Path, plan: TrainedRole) -> TrainedRole | None:
    """What is in a role's folder, if it is the adapter that is wanted; None if there is none."""
    if not folder.exists():
        return None
    try:
        known = msgspec.json.decode((folder / RECORD).read_bytes(), type=TrainedRole)
    except (OSError, msgspec.DecodeError):
        raise TrainingError(
            f"{folder} is there already and was not made by train-roles: move it away"
        ) from None
    if not known.same_training(plan):
        raise TrainingError(
            f"{folder} was trained otherwise ({_difference(known, plan)}): "
            "choose another folder, or remove it"
        )
    return known


def _difference(known: TrainedRole, plan: TrainedRole) -> str:
    if known.recipe != plan.recipe:
        was, now = msgspec.structs.asdict(known.recipe), msgspec.structs.asdict(plan.recipe)
        return ", ".join(f"{name} {was[name]}, now {now[name]}" for name in was if was[name] != now[name])
    if known.digest != plan.digest:
        return "with other pairs, or on another model"
    return "with another v_proj.lora_A" if known.shared_a and plan.shared_a else "with or without a shared A"


def _train(
    model: Path,
    pairs: list[Pair],
    plan: TrainedRole,
    out: Path,
    shared_from: Path | None,
    device: str | None,
    checkpoint_steps: int,
    tell: Any,
    callbacks: Sequence[Any],
) -> TrainedRole:
    """One role, in a hidden folder until it is whole."""
    work = out / _WORK / plan.role
    begun = work / RECORD
    if begun.exists():
        other = msgspec.json.decode(begun.read_bytes(), type=TrainedRole)
        if not other.same_training(plan):
            shutil.rmtree(work)  # nobody has asked for what was begun here
    work.mkdir(parents=True, exist_ok=True)
    begun.write_bytes(msgspec.json.encode(plan))
    # A model without a chat template can be trained too, where none is asked for.
    tokenizer = HFChatTokenizer(model, chat_template=None if plan.recipe.chat else " ")
    end = end_token(model, tokenizer.backend_tokenizer)
    checkpoints, adapter = work / "checkpoints", work / "adapter"
    checkpoints.mkdir(exist_ok=True)
    losses = train_role(
        model,
        examples(pairs, tokenizer, end, max_tokens=plan.recipe.max_tokens, chat=plan.recipe.chat),
        plan.recipe,
        role=plan.role,
        checkpoints=checkpoints,
        out=adapter,
        shared_from=shared_from,
        device=device,
        checkpoint_steps=checkpoint_steps,
        tell=tell,
        callbacks=callbacks,
    )
    trained = msgspec.structs.replace(plan, losses=losses)
    (adapter / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(trained)))
    adapter.rename(out / plan.role)
    shutil.rmtree(work)
    if not any((out / _WORK).iterdir()):
        (out / _WORK).rmdir()
    return trained


def _digest(model: Path, pairs: Sequence[Pair]) -> str:
    total = hashlib.sha256(msgspec.json.encode(list(pairs)))
    for name in ("config.json", "tokenizer.json"):
        file = model / name
        total.update(file.read_bytes() if file.is_file() else b"")
    return total.hexdigest()


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


__all__ = ["RECORD", "TrainedRole", "train_roles"]
