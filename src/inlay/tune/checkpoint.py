"""Checkpoints of a run: `checkpoint-N` after N steps, with all that the next step depends on."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inlay.core.errors import ConfigError, ModelError, ModelFileError
from inlay.core.model_shape import ModelShape
from inlay.core.text_files import read_json_object
from inlay.models.adapter import read_adapter
from inlay.tune.adapter import load_into
from inlay.tune.adapter_files import save_tensors, write_adapter
from inlay.tune.config import TuneConfig
from inlay.tune.folders import check_folder, whole_folder
from inlay.tune.lora import Lora
from inlay.tune.optimizer import AdamW
from inlay.tune.steps import CONSTANT

STATE = "trainer_state.json"
STEPS, WARMUP = "steps", "warmup"
"""In the identity of a run, what its length may change."""

_OPTIMIZER = "optimizer.safetensors"
_NAME = re.compile(r"checkpoint-(\d+)")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        step: steps that are done.
        tokens: tokens that were read.
        log: entries of the log so far.
        open_losses: of steps since the last entry.
    """

    step: int = 0
    tokens: int = 0
    log: tuple[Mapping[str, Any], ...] = ()
    open_losses: tuple[float, ...] = ()


class Checkpoints:
    """Those of one output directory.

    Args:
        identity: what losses depend on; a run goes on from checkpoints with the same alone.
        say: takes what a user should know, a line each time.
    """

    def __init__(
        self,
        directory: Path,
        config: TuneConfig,
        shape: ModelShape,
        identity: Mapping[str, Any],
        say: Say = lambda line: None,
    ) -> None:
        self._directory, self._config, self._shape = directory, config, shape
        self._identity, self._say = dict(identity), say

    def save(
        self, lora: Lora, optimizer: AdamW, progress: Progress, state: Mapping[str, Any], card: str
    ) -> Path:
        """Write all of it, then remove the oldest above the limit.

        Raises:
            ResourceError: the disk is full; older ones stay.
        """
        folder = self._directory / f"checkpoint-{progress.step}"
        with whole_folder(folder) as growing:
            write_adapter(growing, lora, self._config, card)
            if not self._config.save_only_model:
                states = {name: state.cpu() for name, state in optimizer.states()}
                save_tensors(growing / _OPTIMIZER, states)
            own = {
                "identity": self._identity,
                "tokens": progress.tokens,
                "open_losses": progress.open_losses,
            }
            text = json.dumps({**state, "log_history": progress.log, "inlay": own}, indent=2)
            (growing / STATE).write_text(text, "utf-8")
        if limit := self._config.save_total_limit:
            for old in self.found()[limit:]:
                shutil.rmtree(old)
        return folder

    def found(self) -> list[Path]:
        """All, newest first, good or not."""
        if not self._directory.is_dir():
            return []
        numbered = [
            (int(match[1]), folder)
            for folder in self._directory.iterdir()
            if (match := _NAME.fullmatch(folder.name)) and folder.is_dir()
        ]
        return [folder for _, folder in sorted(numbered, reverse=True)]

    def check(self) -> Path | None:
        """The one that the run goes on from, as far as their state tells; None: it begins anew.

        Raises:
            ModelError, ConfigError: as `resume`.

        Cost: reads no matrices and compares no checksums.
        """
        for folder in self._candidates():
            try:
                self._state(folder)
            except ModelError:
                if self._is_named:
                    raise
                continue
            return folder
        return None

    def resume(self, lora: Lora, optimizer: AdamW) -> Progress:
        """Load the one that is named, or the newest good one; what is damaged is left out with a
        line. Where the run is to begin anew, those of another run are removed.

        Raises:
            ConfigError: it is another run's; the message has what differs. Or there is no folder
                of that name.
            ModelError: the one that is named is damaged, or has no moments.
        """
        folders = self._candidates()
        if not folders:
            self._clear()
        for folder in folders:
            try:
                progress = self._load(folder, lora, optimizer)
            except ModelError as error:
                if self._is_named:
                    raise
                self._say(f"{folder.name} is left out: {error}")
                continue
            self._say(f"going on from {folder.name}")
            return progress
        return Progress()

    @property
    def _is_named(self) -> bool:
        """Whether `resume_from_checkpoint` names one, so that no other will do."""
        named = self._config.resume_from_checkpoint
        return named is not None and named.lower() not in ("true", "false")

    def _candidates(self) -> list[Path]:
        """Those that the run may go on from, the first good one.

        As in LLaMA-Factory a run goes on by itself where `output_dir` has its checkpoints, unless
        `overwrite_output_dir` says otherwise.
        """
        named = self._config.resume_from_checkpoint
        if named is None:
            return [] if self._config.overwrite_output_dir else self.found()
        if not self._is_named:
            return self.found() if named.lower() == "true" else []
        folder = Path(named).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"resume_from_checkpoint={named}: there is no such folder: name a checkpoint-N of "
                "an earlier run, or true for the newest one in output_dir"
            )
        return [folder]

    def _clear(self) -> None:
        for folder in self.found():
            shutil.rmtree(folder)

    def _load(self, folder: Path, lora: Lora, optimizer: AdamW) -> Progress:
        """Take matrices, moments and place from one."""
        check_folder(folder)
        state = self._state(folder)
        load_into(lora, read_adapter(folder, self._shape), folder)
        _load_moments(folder / _OPTIMIZER, optimizer)
        optimizer.steps = state["global_step"]
        own = state["inlay"]
        return Progress(
            state["global_step"],
            own["tokens"],
            tuple(state["log_history"]),
            tuple(own["open_losses"]),
        )

    def _is_longer(self, step: int) -> bool:
        """Whether the run goes on after a step as any other of the same settings would."""
        is_constant = self._identity["lr_scheduler_type"] in CONSTANT
        return is_constant and step <= self._identity[STEPS]

    def _state(self, folder: Path) -> dict[str, Any]:
        """What one says of itself, which must be of this run, and have moments."""
        try:
            state = read_json_object(folder / STATE)
            identity = dict(state["inlay"]["identity"])
        except (ModelFileError, OSError, ValueError, LookupError, TypeError) as error:
            raise ModelFileError(
                f"{folder} is no checkpoint of inlay tune, or damaged ({STATE}: {error}): name a "
                "checkpoint-N that a run has written"
            ) from None
        differing = {
            name: f"{name} (was {identity.get(name)}, is {value})"
            for name, value in self._identity.items()
            if identity.get(name) != value
            and not (name == STEPS and self._is_longer(state["global_step"]))
        }
        if differing:
            longer = (
                f"; to go on from its adapter with a schedule of its own set adapter_name_or_path="
                f"{folder} and another output_dir"
                if differing.keys() <= {STEPS, WARMUP}
                else ""
            )
            raise ConfigError(
                f"{folder} is of a run with other settings: {', '.join(differing.values())}; to "
                f"begin anew set overwrite_output_dir=true, or name another output_dir{longer}"
            )
        if not (folder / _OPTIMIZER).is_file():
            raise ModelFileError(
                f"{folder} has no moments of the optimizer, as save_only_model=true leaves it: a "
                "run cannot go on from it; adapter_name_or_path takes its adapter for a new one"
            )
        return state


@torch.no_grad()
def _load_moments(file: Path, optimizer: AdamW) -> None:
    try:
        with safe_open(file, framework="pt") as opened:
            for name, state in optimizer.states():
                state.copy_(opened.get_tensor(name))
    except (SafetensorError, RuntimeError) as error:
        raise ModelFileError(f"{file} does not hold this run's moments ({error})") from error
