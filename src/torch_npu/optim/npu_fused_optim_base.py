"""NpuFusedOptimizerBase: parameters, gradients and states of one dtype lie in one tensor each.

At the first step the optimizer moves them there (`torch_npu.utils.npu_combine_tensors`); each parameter
and gradient stays the object it is and becomes a window. A step then updates the flat tensors. Where
something has been moved out since (a gradient replaced, a state loaded, a parameter that has its first
gradient), everything is combined anew, states kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torch_npu.utils._error_code import ErrCode, pta_error
from torch_npu.utils.combine_tensors import get_part_combined_tensor, npu_combine_tensors

__all__ = ["NpuFusedOptimizerBase"]

#: the dtypes that are combined, in the order of the lists
DTYPES = (torch.float32, torch.float16)


def require(condition: bool, name: str, value: Any) -> None:
    """A hyperparameter outside its range is a ValueError, as in torch.optim."""
    if not condition:
        raise ValueError(f"Invalid {name}: {value}" + pta_error(ErrCode.VALUE))


def require_betas(betas: Sequence[float]) -> None:
    for index in (0, 1):
        require(0.0 <= betas[index] < 1.0, f"beta parameter at index {index}", betas[index])


class NpuFusedOptimizerBase(Optimizer):
    """The base of the fused optimizers; it has no update of its own.

    A subclass says in `_state_names(group)` which states a parameter has (name -> initial value) and in
    `_update(group, param, grad, state, params)` how the flat tensors of one dtype change: `state` maps
    the names to flat tensors and "step" to the number of steps done, `params` are the windows. Or it
    overrides, like upstream's subclasses, `_maybe_init_combined_states()` and `_group_step(group_index)`
    and works on the lists below.

    Args:
        params: parameters or groups of parameters, float32 or float16.
        default: the hyperparameters and their defaults.
    """

    def __init__(self, params: Any, default: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, default)

    def _forget(self) -> None:
        """As before the first step."""
        self.is_fused_optimizer = True
        self.is_params_grads_combined = False
        self.is_states_combined = False
        #: by group: lists of parameters, each of one dtype and one number of steps
        self.params_lists_indexed_by_group: list[list[list[torch.Tensor]]] = []
        #: by group, then by such list: the flat tensor, or None where the list is empty
        self.combined_params_indexed_by_group: list[list[torch.Tensor | None]] = []
        self.combined_grads_indexed_by_group: list[list[torch.Tensor | None]] = []
        self.combined_param_states_indexed_by_group: list[list[dict[str, Any]]] = []
        #: by dtype: everything
        self.params_all_group: list[list[torch.Tensor]] = [[] for _ in DTYPES]
        self.params_all_group_combined: list[torch.Tensor | None] = [None for _ in DTYPES]
        self.grads_all_group_combined: list[torch.Tensor | None] = [None for _ in DTYPES]
        self._places: list[tuple[Any, ...]] = []

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget()
        super().__setstate__(state)

    # --- what a subclass says ---------------------------------------------------------------------------

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        raise NotImplementedError(pta_error(ErrCode.NOT_SUPPORT))

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        raise NotImplementedError(pta_error(ErrCode.NOT_SUPPORT))

    # --- torch.optim's interface ------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._combine()
        self._before_groups()
        for index in range(len(self.param_groups)):
            self._group_step(index)
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zeroes the gradients where they lie; they cannot be set to None."""
        if set_to_none:
            raise ValueError(
                "set_to_none=True is not supported by fused optimizers: their gradients stay in "
                "one tensor" + pta_error(ErrCode.VALUE)
            )
        self._combine_params_and_grads()
        if not self.is_params_grads_combined:
            super().zero_grad(set_to_none)
        for grads in self.grads_all_group_combined:
            if grads is not None:
                grads.zero_()

    # --- the combined tensors ---------------------------------------------------------------------------

    def get_combined_params(self) -> list[torch.Tensor | None]:
        """The parameters of all groups in float32 and in float16, each flat, or None."""
        return self.params_all_group_combined

    def get_combined_grads(self) -> list[torch.Tensor | None]:
        """The gradients of all groups in float32 and in float16, each flat, or None."""
        return self.grads_all_group_combined

    @torch.no_grad()
    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scales all gradients so that their joint norm is at most `max_norm`; returns the norm."""
        self._combine_params_and_grads()
        grads = [g for g in self.grads_all_group_combined if g is not None]
        if not grads:
            return torch.tensor(0.0)
        norms = torch.stack([torch.linalg.vector_norm(g.float(), norm_type) for g in grads])
        total = torch.linalg.vector_norm(norms, norm_type)
        factor = (float(max_norm) / (total + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor)
        return total

    def _maybe_init_combined_params_and_grads(self) -> None:
        """Upstream's name of what the first step does to parameters and gradients."""
        if not self.is_params_grads_combined:
            self._combine_params_and_grads()

    def _maybe_init_combined_states(self) -> None:
        """Puts the states of each list of parameters into flat tensors."""
        if self.is_states_combined:
            return
        self.combined_param_states_indexed_by_group = [
            [self._combined_state(group, params) for params in lists]
            for group, lists in zip(
                self.param_groups, self.params_lists_indexed_by_group, strict=True
            )
        ]
        self.is_states_combined = True

    def _combined_state(self, group: dict[str, Any], params: Sequence[Any]) -> dict[str, Any]:
        params = [p for p in params if p.grad is not None]
        names = self._state_names(group)
        for param in params:
            self._init_param_state(param, **{k: v for k, v in group.items() if k != "params"})
        steps = [self.state[p]["step"] for p in params]
        combined: dict[str, Any] = {"step": steps[0] if steps else 0}
        for name in names:
            combined[name] = npu_combine_tensors([self.state[p][name] for p in params])
        return combined

    def _init_param_state(self, p: torch.Tensor, **group: Any) -> None:
        """The states of one parameter: new ones, or copies of what it has."""
        state = self.state[p]
        state["step"] = self._steps_done(p)
        for name, initial in self._state_names(group).items():
            fresh = torch.full_like(p, initial, memory_format=torch.contiguous_format).detach()
            state[name] = fresh if state.get(name) is None else fresh.copy_(state[name])

    def _steps_done(self, p: torch.Tensor) -> int:
        """How many updates a parameter has had; torch's optimizers store that as a tensor."""
        return int(self.state[p].get("step", 0)) if p in self.state else 0

    def _combine(self) -> None:
        self._combine_params_and_grads()
        self._maybe_init_combined_states()

    def _combine_params_and_grads(self) -> None:
        if self.is_params_grads_combined and self._places == list(self._where()):
            return
        self.is_params_grads_combined = self.is_states_combined = False
        lists = [self._lists(group) for group in self.param_groups]
        for index in range(len(DTYPES)):
            of_dtype = [p for group in lists for params in group[index] for p in params]
            self.params_all_group[index] = of_dtype
            self.params_all_group_combined[index] = npu_combine_tensors(of_dtype)
            grads = [p.grad for p in of_dtype]
            self.grads_all_group_combined[index] = npu_combine_tensors(grads)  # type: ignore[arg-type]
        self.params_lists_indexed_by_group = [
            [params for of_dtype in group for params in of_dtype] for group in lists
        ]
        self.combined_params_indexed_by_group = self._parts(lists, self.params_all_group_combined)
        self.combined_grads_indexed_by_group = self._parts(lists, self.grads_all_group_combined)
        self.is_params_grads_combined = any(
            combined is not None for combined in self.params_all_group_combined
        )
        self._places = list(self._where())

    def _where(self) -> Iterator[tuple[Any, ...]]:
        """Where every parameter, gradient and state lies: when this changes, combine anew."""
        for index, group in enumerate(self.param_groups):
            for param in group["params"]:
                if param.grad is not None:
                    yield index, id(param), param.data_ptr(), param.grad.data_ptr()

    def _lists(self, group: dict[str, Any]) -> list[list[list[torch.Tensor]]]:
        """By dtype: the group's parameters with a gradient, in lists of the same number of steps."""
        found: list[dict[Any, list[torch.Tensor]]] = [{} for _ in DTYPES]
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.dtype not in DTYPES:
                raise TypeError(
                    "the parameters of a fused optimizer must be float32 or float16, but received "
                    f"{param.dtype}" + pta_error(ErrCode.TYPE)
                )
            if param.grad.is_sparse:
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients"
                    + pta_error(ErrCode.NOT_SUPPORT)
                )
            if not param.grad.is_contiguous():
                param.grad = param.grad.contiguous()
            if not param.is_contiguous():
                param.data = param.data.contiguous()
            of_dtype = found[DTYPES.index(param.dtype)]
            of_dtype.setdefault(self._steps_done(param), []).append(param)
        return [list(of_dtype.values()) or [[]] for of_dtype in found]

    def _parts(
        self, lists: list[list[list[list[torch.Tensor]]]], combined: list[torch.Tensor | None]
    ) -> list[list[torch.Tensor | None]]:
        """The windows of the flat tensors that belong to each list of parameters."""
        offsets, parts = [0 for _ in DTYPES], []
        for group in lists:
            of_group = []
            for index, of_dtype in enumerate(group):
                for params in of_dtype:
                    size = sum(p.numel() for p in params)
                    of_group.append(get_part_combined_tensor(combined[index], offsets[index], size))
                    offsets[index] += size
            parts.append(of_group)
        return parts

    # --- a step -----------------------------------------------------------------------------------------

    def _before_groups(self) -> None:
        """What a subclass does once a step, with everything combined."""

    def _group_step(self, group_index: int) -> None:
        group = self.param_groups[group_index]
        pieces = zip(
            self.combined_params_indexed_by_group[group_index],
            self.combined_grads_indexed_by_group[group_index],
            self.combined_param_states_indexed_by_group[group_index],
            self.params_lists_indexed_by_group[group_index],
            strict=True,
        )
        for param, grad, state, params in pieces:
            if param is None or grad is None:
                continue
            self._update(group, param, grad, state, params)
            state["step"] += 1
            for each in params:
                self.state[each]["step"] = state["step"]


def corrections(betas: tuple[float, float], step: int) -> tuple[float, float]:
    """Adam's bias corrections at a step: of the first moment, and the root of the second's."""
    return 1 - betas[0] ** step, math.sqrt(1 - betas[1] ** step)
