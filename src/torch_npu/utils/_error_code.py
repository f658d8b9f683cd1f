"""Upstream's path of the error codes."""

from torch_npu._errors import ErrCode, dist_error, ops_error, prof_error, pta_error

__all__ = ["ErrCode", "dist_error", "ops_error", "prof_error", "pta_error"]
