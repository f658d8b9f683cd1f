"""Forward, backward, optimizer; and where a step ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from softnpu.plan.record.log import Log
from softnpu.plan.record.owners import Owners
from softnpu.plan.recording import BACKWARD, FORWARD, OPTIMIZER
from torch_npu._patch import Patches


class Phases:
    """Switches the log's phase. A step ends where an optimizer's does, or where the program says so to a profiler."""

    def __init__(
        self, log: Log, owners: Owners, patches: Patches, flush: Callable[[], None], step: Any
    ) -> None:
        self.backwards: list[tuple[int, int]] = []
        self._log, self._owners, self._flush, self._step = log, owners, flush, step
        self._run = patches.replace(torch.autograd, "_engine_run_backward", self._backward)
        before = register_optimizer_step_pre_hook(self._before)
        after = register_optimizer_step_post_hook(self._after)
        patches.on_undo(before.remove)
        patches.on_undo(after.remove)
        self._follow_profilers(patches)

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        log = self._log
        if log.phase == BACKWARD:  # inside another one: recomputation
            return self._run(*args, **kwargs)
        self._flush()  # what was launched so far belongs to the phase before
        log.backward_begins()
        begin, phase, log.phase = log.tick(), log.phase, BACKWARD
        self.backwards.append((begin, begin))
        try:
            return self._run(*args, **kwargs)
        finally:
            self._flush()
            log.phase = phase
            self.backwards[-1] = (begin, log.tick())

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._flush()
        self._owners.before_step(optimizer)
        self._log.phase = OPTIMIZER

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._flush()
        self._log.phase = FORWARD
        self._owners.after_step(optimizer)
        self._step(self._log.optimizer_ends)

    def _follow_profilers(self, patches: Patches) -> None:
        from torch_npu.profiler import profiler

        for owner in (torch.profiler.profile, profiler.profile):
            stepped = getattr(owner, "step")  # noqa: B009  (of a class, to be replaced)

            def step(profile: Any, *args: Any, _stepped: Any = stepped, **kwargs: Any) -> Any:
                self._step(self._log.profiler_steps)
                return _stepped(profile, *args, **kwargs)

            patches.replace(owner, "step", step)
