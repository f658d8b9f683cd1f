"""ScheduleContextHolder: makes a schedule context on the device and keeps the memory that it points to."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode, pta_error
from torch_npu.ops._shared import _schedule_context as contexts

__all__ = ["ScheduleContextHolder"]

_ALIGN = 512
_UINT32, _UINT64 = 2**32 - 1, 2**64 - 1
_EMPTY = 2**31 - 1  # an expert number of nobody
_COMMON = (
    "schedule_mode", "session_num", "micro_batch_num", "micro_batch_size", "selected_expert_num",
    "expert_num", "attn_to_ffn_token_size", "ffn_to_attn_token_size", "run_flag",
)  # fmt: skip


def _up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class ScheduleContextHolder:
    """One schedule context; `init` checks the parameters and makes it."""

    def __init__(
        self,
        schedule_mode: int,
        session_num: int,
        micro_batch_num: int,
        micro_batch_size: int,
        selected_expert_num: int,
        expert_num: int,
        attn_to_ffn_token_size: int,
        ffn_to_attn_token_size: int,
        ffn_window: int = 0,
        ffn_window_size: int = 0,
        attention_window: int = 0,
        attention_window_size: int = 0,
    ) -> None:
        self._sizes = {
            "session_num": session_num,
            "micro_batch_num": micro_batch_num,
            "micro_batch_size": micro_batch_size,
            "selected_expert_num": selected_expert_num,
            "expert_num": expert_num,
            "attn_to_ffn_token_size": attn_to_ffn_token_size,
            "ffn_to_attn_token_size": ffn_to_attn_token_size,
        }
        self._mode = schedule_mode
        self._windows = {
            "ffn": (ffn_window, ffn_window_size),
            "attention": (attention_window, attention_window_size),
        }
        self._context: torch.Tensor | None = None
        self._lists: torch.Tensor | None = None

    def init(self) -> None:
        """Checks the parameters, clears the tables in the window and writes the context to the device."""
        if self._context is not None:
            return
        self._check()
        part = "ffn" if self._mode == contexts.FFN else "attention"
        table = self._table(part)
        window, size = self._windows[part]
        _require(size > _up(table), f"{part}_window_size", f"greater than {_up(table)}", size)
        host = torch.zeros(contexts.SIZE, dtype=torch.int8)
        fields = contexts.Context("create_schedule_context_holder", f"{part}_window", host)
        for name, value in {**self._sizes, "schedule_mode": self._mode}.items():
            fields[name] = value
        fields[f"{part}.token_info_buf"], fields[f"{part}.token_info_buf_size"] = window, table
        fields[f"{part}.token_data_buf"] = window + _up(table)
        fields[f"{part}.token_data_buf_size"] = size - _up(table)
        flags = fields.memory(f"{part}.token_info_buf", (table // 4,), torch.int32)
        flags.zero_()
        if part == "ffn":
            experts = self._sizes["micro_batch_size"] * self._sizes["selected_expert_num"]
            flags.view(-1, 2 + experts)[:, 2:] = _EMPTY
            self._place_lists(fields)
        else:
            fields["attention.micro_batch_id"] = self._sizes["micro_batch_num"] - 1
        fields["run_flag"] = contexts.RUNNING
        self._context = host.to("npu")

    def _check(self) -> None:
        for name, value in self._sizes.items():
            _require(0 <= value <= _UINT32, name, "of 32 bits without a sign", value)
            if name.endswith("token_size"):
                _require(value % _ALIGN == 0, name, f"a multiple of {_ALIGN}", value)
            else:
                _require(value > 0, name, "greater than 0", value)
        modes = (contexts.FFN, contexts.ATTENTION)
        _require(self._mode in modes, "schedule_mode", "0 (FFN) or 1 (attention)", self._mode)
        part = "ffn" if self._mode == contexts.FFN else "attention"
        for name, value in zip(
            (f"{part}_window", f"{part}_window_size"), self._windows[part], strict=True
        ):
            _require(0 < value <= _UINT64, name, "greater than 0", value)

    def _table(self, part: str) -> int:
        """Bytes of the table at the beginning of the window."""
        experts = self._sizes["micro_batch_size"] * self._sizes["selected_expert_num"]
        if part == "attention":
            return 4 * experts * self._sizes["micro_batch_num"]
        return 4 * (2 + experts) * self._sizes["micro_batch_num"] * self._sizes["session_num"]

    def _place_lists(self, fields: contexts.Context) -> None:
        """Device memory for what ffn_worker_scheduler lists."""
        short = 4 * self._sizes["session_num"]
        experts = short * self._sizes["micro_batch_size"] * self._sizes["selected_expert_num"]
        self._lists = torch.empty(3 * _up(short) + _up(experts), dtype=torch.int8, device="npu")
        at = self._lists.data_ptr()
        for name in ("layer_ids", "session_ids", "micro_batch_ids"):
            fields[f"ffn.{name}_buf"], fields[f"ffn.{name}_buf_size"] = at, short
            at += _up(short)
        fields["ffn.expert_ids_buf"], fields["ffn.expert_ids_buf_size"] = at, experts

    def get_schedule_context_tensor(self) -> torch.Tensor:
        """The context: int8, (1024,), on the device."""
        if self._context is None:
            raise RuntimeError(
                "the schedule context is not initialized" + pta_error(ErrCode.INTERNAL)
            )
        return self._context

    def stop_schedule(self) -> None:
        """Sets run_flag to 0, which ends the waits of schedulers."""
        at, _ = contexts.FIELDS["run_flag"]
        self.get_schedule_context_tensor()[at : at + 4] = contexts.STOPPED

    def get_schedule_context_info(self) -> str:
        """The fields of the context as text."""
        if self._context is None:
            return "Error: schedule context is not inited!"
        fields = contexts.Context("get_schedule_context_info", "context", self._context.cpu())
        part = "ffn" if self._mode == contexts.FFN else "attention"
        common = ", ".join(f"{name}={fields[name]}" for name in _COMMON)
        own = [n for n in contexts.FIELDS if n.startswith(f"{part}.")]
        rest = ", ".join(f"{name.partition('.')[2]}={fields[name]}" for name in own)
        return f"schedule context: {common}, {part} info: {rest};"


def _require(holds: bool, name: str, expected: str, received: int) -> None:
    if not holds:
        raise RuntimeError(
            f"create_schedule_context_holder: argument '{name}' must be {expected}, but received {received}"
            + pta_error(ErrCode.PARAM)
        )
