"""torch_npu.profiler.dynamic_profile: profiles that are switched on from outside, in a program that runs.

`init` writes a template of profiler_config.json; each `step` looks whether the file was changed since, and an edit with a
`start_step` makes a profile.

Differs from upstream: the file is looked at in every step instead of every two seconds by a second process, so that
there is no shared memory and no such process.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
from logging.handlers import RotatingFileHandler
from typing import Any

from torch_npu.npu.mstx import mstx as _mstx
from torch_npu.profiler import _dynamic_config as _config
from torch_npu.profiler import _rank
from torch_npu.profiler._dynamic_config import DynamicConfig
from torch_npu.profiler._messages import error, info, tolerant, warn
from torch_npu.profiler.profiler import profile, tensorboard_trace_handler
from torch_npu.profiler.scheduler import Schedule
from torch_npu.utils._path_manager import PathManager

__all__ = ["init", "set_state", "start", "step"]

_LOG_BYTES = 200 * 1024


class _DynamicProfile:
    """The state of a process; `_state` is the only one."""

    def __init__(self) -> None:
        self.directory: str | None = None
        self.cur_step = 0
        self.prof: profile | None = None
        self._pending: DynamicConfig | None = None
        self._left = 0  # steps until the profile ends
        self._seen: tuple[int, int] | None = None  # the file's time and size when it was last read
        self._mark = 0
        self._log = self._monitor = logging.getLogger("torch_npu.dynamic_profile")

    @property
    def _file(self) -> str:
        return os.path.join(self.directory or ".", _config.FILE)

    def init(self, path: str) -> None:
        if self.directory is not None:
            warn("dynamic_profile is initialized already.")
            return
        if not isinstance(path, str):
            error(
                f"The path of dynamic_profile must be a str, but is {path!r}: nothing is profiled."
            )
            return
        PathManager.check_input_directory_path(path)
        directory = os.path.abspath(path)
        PathManager.make_dir_safety(directory)
        self.directory = directory
        self._log = _logger(directory, "dp")
        self._monitor = _logger(directory, "monitor_dp")
        _config.write_template(self._file)
        self._seen = self._look()
        self._log.info("Initialized with %s", self._file)
        atexit.register(self._finish)

    def _finish(self) -> None:
        if self.prof is not None:
            warn(
                "The program ends before the dynamic profile: it has fewer steps than `active` asks for."
            )
            self._end()
        self._monitor.info("The program ends")

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _edited(self) -> DynamicConfig | None:
        """The settings in the file, if it was changed since the last look and concerns this rank."""
        now = self._look()
        if now is None or now == self._seen:
            return None
        self._seen = now
        try:
            config = _config.load(self._file)
        except (OSError, RuntimeError) as wrong:
            self._monitor.error("%s", wrong)
            error(f"{_config.FILE} cannot be used: {wrong}")
            return None
        self._monitor.info("Loaded %s", self._file)
        rank = _rank.current()
        if not config.concerns(rank):
            self._log.warning("Rank %s is not in rank_list %s", rank, config.rank_list)
            return None
        return config

    def step(self) -> None:
        if self.directory is None:
            warn("dynamic_profile.step has no effect before dynamic_profile.init.")
            return
        self.cur_step += 1
        edited = self._edited()
        if edited is not None:
            self._pending = edited
        self._next_mark()
        if self.prof is not None:
            self.prof.step()
            self._left -= 1
            if self._left == 0:
                self._end()
        elif self._pending is not None:
            self._maybe_begin(self._pending)

    def _maybe_begin(self, config: DynamicConfig) -> None:
        if config.start_step in (_config.NOW, self.cur_step):
            self._pending = None
            self._begin(config)
        elif config.start_step < self.cur_step:
            self._pending = None
            if config.start_step:  # 0 means that nothing is asked for
                warn(
                    f"start_step is {config.start_step}, but step {self.cur_step} has come: nothing is profiled."
                )

    def _begin(self, config: DynamicConfig) -> None:
        self._left = config.active + config.warmup
        handler = tensorboard_trace_handler(
            config.prof_dir, analyse_flag=config.analyse, async_mode=config.async_mode
        )
        self.prof = profile(
            activities=config.activities,
            schedule=Schedule(wait=0, active=config.active, warmup=config.warmup, repeat=1),
            on_trace_ready=handler,
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            with_modules=config.with_modules,
            experimental_config=config.experimental_config,
        )
        self.prof._set_step_num_offset_for_dynamic_prof(self.cur_step)
        self.prof.start()
        for key, value in config.metadata.items():
            self.prof.add_metadata_json(str(key), json.dumps(value))
        self._log.info("Start at step %d", self.cur_step)

    def _end(self) -> None:
        if self.prof is not None:
            self.prof.stop()
            self.prof = None
            self._log.info("Stop at step %d", self.cur_step)

    def _next_mark(self) -> None:
        """Each step is a range for who collects mstx marks."""
        if self._mark:
            _mstx.range_end(self._mark)
        self._mark = _mstx.range_start(f"step {self.cur_step}")

    def start(self, config_path: str | None) -> None:
        if self.prof is not None:
            error("dynamic_profile.start has no effect while a profile is collected.")
            return
        chosen = self._usable(config_path)
        if chosen is None:
            if self.directory is None:
                error("dynamic_profile.start needs a file, or dynamic_profile.init before it.")
                return
            chosen = self._file
        info(f"dynamic_profile.start uses {chosen}.")
        try:
            config = _config.load(chosen)
        except (OSError, RuntimeError) as wrong:
            error(f"{chosen} cannot be used: {wrong}")
            return
        self._begin(config)

    @staticmethod
    def _usable(path: str | None) -> str | None:
        if not path:
            return None
        try:
            PathManager.check_input_file_path(path)
            PathManager.check_directory_path_readable(path)
        except RuntimeError as wrong:
            error(f"config_path cannot be used: {wrong}")
            return None
        return path

    def set_state(self, state_step: Any) -> None:
        if not isinstance(state_step, dict):
            error(f"state_step must be a dict, but is {state_step!r}.")
            return
        step = state_step.get("cur_step", 0)
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            error(f"cur_step must be an integer of at least 0, but is {step!r}.")
            return
        self.cur_step = step


def _logger(directory: str, prefix: str) -> logging.Logger:
    path = os.path.join(directory, "log")
    PathManager.make_dir_safety(path)
    rank = _rank.current()
    name = f"{prefix}_{socket.gethostname()}_{os.getpid()}_rank_{-1 if rank is None else rank}.log"
    logger = logging.getLogger(f"torch_npu.dynamic_profile.{prefix}.{directory}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = RotatingFileHandler(os.path.join(path, name), maxBytes=_LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] [%(process)d] %(message)s"))
    logger.addHandler(handler)
    return logger


_state = _DynamicProfile()


def _reset() -> None:
    """A new state, for tests."""
    global _state
    if _state.prof is not None:
        _state._end()
    atexit.unregister(_state._finish)
    for logger in (_state._log, _state._monitor):
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
    _state = _DynamicProfile()


@tolerant
def init(path: str) -> None:
    """Makes `path`/profiler_config.json, whose edits start profiles."""
    _state.init(path)


@tolerant
def step() -> None:
    """A step of the program ended."""
    _state.step()


@tolerant
def start(config_path: str | None = None) -> None:
    """Starts a profile at once, with the settings of `config_path`, or of the file of `init`."""
    _state.start(config_path)


@tolerant
def set_state(state_step: dict[str, int]) -> None:
    """Sets the number of the step, `{"cur_step": n}`, in a run that goes on after a break."""
    _state.set_state(state_step)
