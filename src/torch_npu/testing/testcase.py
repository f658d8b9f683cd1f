"""TestCase with comparisons for host and device, and run_tests. Importing it starts no device."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Number
from typing import Any

import numpy as np
import torch

from torch_npu.testing.common_utils import is_iterable, iter_indices, set_npu_device

if importlib.util.find_spec("expecttest") is not None:
    from expecttest import TestCase as _Base
else:
    _Base = unittest.TestCase  # type: ignore[misc,assignment]

_KINDS = "biuf"
_SMALLEST = {np.dtype(np.float16): 6e-8}


def run_tests() -> None:
    """Runs the tests of the calling file."""
    unittest.main(argv=sys.argv)


def _host(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    return np.asarray(value)


def _halves_within(a: np.ndarray, b: np.ndarray, tolerance: float) -> tuple[Any, ...]:
    """Where a and b are NaN, the difference, and where that is within the absolute and the relative tolerance."""
    x, y = torch.from_numpy(np.ascontiguousarray(a)), torch.from_numpy(np.ascontiguousarray(b))
    nan, limit = x.isnan(), float(np.float16(tolerance))
    error = (y - x).abs().masked_fill_(nan | (x == y), 0)
    scale = (
        torch.maximum(x.abs(), y.abs()).add_(_SMALLEST[np.dtype(np.float16)]).masked_fill_(nan, 1)
    )
    within = (error <= limit).numpy(), (error / scale <= limit).numpy()
    return nan.numpy(), y.isnan().numpy(), error.numpy(), within


class TestCase(_Base):  # type: ignore[misc,valid-type]
    """A test on the current npu, with fixed seeds."""

    _precision = 1e-5
    maxDiff = None
    exact_dtype = False
    npu_device: str

    @property
    def precision(self) -> float:
        return self._precision

    @precision.setter
    def precision(self, value: float) -> None:
        self._precision = value

    @classmethod
    def setUpClass(cls) -> None:
        cls.npu_device = set_npu_device()

    def setUp(self) -> None:
        seed = int(os.environ.get("SEED", "666"))
        torch.manual_seed(seed)
        random.seed(seed)

    # --- relative comparison -----------------------------------------------------------------------------

    def assertRtolEqual(
        self,
        x: Any,
        y: Any,
        prec: float = 1.0e-4,
        prec16: float = 1.0e-3,
        auto_trans_dtype: bool = False,
        message: str | None = None,
    ) -> None:
        """Equal shapes and dtypes, and values within a relative or absolute error of `prec` (`prec16` for half
        precision), but for a share of `prec` of the elements."""
        if isinstance(x, Sequence) and isinstance(y, Sequence):
            for a, b in zip(x, y, strict=False):
                self.assertRtolEqual(a, b, prec, prec16, auto_trans_dtype, message)
            return
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if auto_trans_dtype:
                x = x.to(y.dtype)
            if x.dtype == y.dtype == torch.bfloat16:
                self._close_bfloat16(x, y, prec16, message)
                return
        a, b = _host(x), _host(y)
        if a.shape != b.shape:
            self.fail(message or f"shape error: {a.shape} and {b.shape}")
        if a.dtype != b.dtype:
            self.fail(message or f"dtype error: {a.dtype} and {b.dtype}")
        if a.dtype.kind not in _KINDS:
            self.fail(message or f"dtype error: {a.dtype} cannot be compared")
        if a.dtype == np.bool_:
            if not np.array_equal(a, b):
                self.fail(message or "result error")
            return
        self._close(a, b, prec16 if a.dtype == np.float16 else prec, message)

    def _close_bfloat16(self, x: Any, y: Any, tolerance: float, message: str | None) -> None:
        if x.shape != y.shape:
            self.fail(message or f"shape error: {tuple(x.shape)} and {tuple(y.shape)}")
        if not torch.allclose(x.cpu(), y.cpu(), rtol=tolerance, atol=tolerance):
            self.fail(message or "result error")

    def _close(self, a: np.ndarray, b: np.ndarray, tolerance: float, message: str | None) -> None:
        if a.dtype == np.float16:
            # The same rounding as numpy's, whose arithmetic of half precision takes a hundred times as long.
            nan, other, error, within = _halves_within(a, b, tolerance)
        else:
            nan, other = np.isnan(a), np.isnan(b)
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.where(nan | (a == b), 0, np.abs(b - a))
                scale = np.maximum(np.abs(a), np.abs(b)) + _SMALLEST.get(a.dtype, 1e-9)
                within = (error <= tolerance), (error / np.where(nan, 1, scale) <= tolerance)
        if not np.array_equal(nan, other):
            self.fail(message or "result error: NaN in other places")
        if all(np.sum(~ok) > a.size * tolerance for ok in within):
            self.fail(message or f"result error: largest difference {np.max(error)}")

    # --- absolute comparison -----------------------------------------------------------------------------

    def assertEqual(  # type: ignore[override]
        self,
        x: Any,
        y: Any,
        prec: Any = None,
        message: str = "",
        allow_inf: bool = False,
        exact_dtype: bool | None = None,
    ) -> None:
        """Equal within `prec`: numbers, tensors, and both in containers; anything else by `==`."""
        if isinstance(prec, str) and not message:
            prec, message = None, prec
        prec = self.precision if prec is None else prec
        exact_dtype = self.exact_dtype if exact_dtype is None else exact_dtype
        rest: dict[str, Any] = {
            "message": message,
            "allow_inf": allow_inf,
            "exact_dtype": exact_dtype,
        }
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            self._tensors_equal(x, y, prec, message, allow_inf, exact_dtype)
        elif isinstance(x, Number) or isinstance(y, Number):
            self._numbers_equal(x, y, prec, message, allow_inf)
        elif isinstance(x, dict) and isinstance(y, dict):
            super().assertEqual(set(x), set(y), message)
            for key in x:
                self.assertEqual(x[key], y[key], prec, **rest)
        elif isinstance(x, (str, bytes, set)) or isinstance(y, (str, bytes, set)):
            super().assertEqual(x, y, message)
        elif is_iterable(x) and is_iterable(y):
            x, y = list(x), list(y)
            super().assertEqual(len(x), len(y), message)
            for a, b in zip(x, y, strict=True):
                self.assertEqual(a, b, prec, **rest)
        else:
            super().assertEqual(x, y, message)

    def _numbers_equal(self, x: Any, y: Any, prec: float, message: str, allow_inf: bool) -> None:
        x = x.item() if isinstance(x, torch.Tensor) else x
        y = y.item() if isinstance(y, torch.Tensor) else y
        if abs(x) == float("inf") or abs(y) == float("inf"):
            if not allow_inf:
                self.fail(f"Expected finite numeric values - x={x}, y={y}")
            super().assertEqual(x, y, message)
            return
        super().assertLessEqual(abs(x - y), prec, message)

    def _tensors_equal(
        self, x: Any, y: Any, prec: float, message: str, allow_inf: bool, exact_dtype: bool
    ) -> None:
        super().assertEqual(x.layout, y.layout, message)
        super().assertEqual(tuple(x.shape), tuple(y.shape), message)
        if exact_dtype:
            super().assertEqual(x.dtype, y.dtype, message)
        a, b = (t.detach().cpu() for t in (x, y))
        if a.is_sparse:
            a, b = a.to_dense(), b.to_dense()
        if a.is_quantized:
            a, b = a.dequantize(), b.dequantize()
        if (a.dtype == torch.bool) != (b.dtype == torch.bool):
            raise TypeError("Was expecting both tensors to be bool type.")
        if a.dtype == b.dtype and torch.equal(a, b) and a.isfinite().all():
            return
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        a, b = a.to(wide), b.to(wide)
        if a.numel() == 0:
            return
        self.assertTrue(torch.equal(a.isnan(), b.isnan()), message)
        difference = (a - b).abs()
        difference[a.isnan()] = 0
        if allow_inf:
            self.assertTrue(torch.equal(a.isinf(), b.isinf()), message)
            difference[a.isinf() & (a == b)] = 0
        self.assertLessEqual(difference.max().item(), prec, message)

    def assertNotEqual(self, x: Any, y: Any, prec: Any = None, message: str = "") -> None:  # type: ignore[override]
        """Some element differs by at least `prec`."""
        if isinstance(prec, str) and not message:
            prec, message = None, prec
        prec = self.precision if prec is None else prec
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if x.shape != y.shape:
                return
            self.assertGreater(x.numel(), 0)
            largest = (x.detach().cpu().double() - y.detach().cpu().double()).abs().max().item()
            self.assertGreaterEqual(largest, prec, message)
        elif isinstance(x, Number) and isinstance(y, Number):
            self.assertGreaterEqual(abs(x - y), prec, message)  # type: ignore[operator]
        else:
            super().assertNotEqual(x, y, message)

    def assertAlmostEqual(  # type: ignore[override]
        self,
        x: Any,
        y: Any,
        places: int | None = None,
        msg: str | None = None,
        delta: float | None = None,
        allow_inf: bool = False,
    ) -> None:
        prec = 10.0 ** (-places) if places else delta
        self.assertEqual(x, y, prec, msg or "", allow_inf)

    def assertTensorsSlowEqual(self, x: Any, y: Any, prec: float = 0, message: str = "") -> None:
        """Element by element, with equal shapes and dtypes."""
        super().assertEqual(x.size(), y.size())
        super().assertEqual(x.dtype, y.dtype)
        if x.dtype == torch.bool:
            x, y = x.int(), y.int()
        largest = max((abs(x[i] - y[i]).item() for i in iter_indices(x)), default=0)
        self.assertLessEqual(largest, prec, message)

    def assertObjectIn(self, obj: Any, iterable: Any) -> None:
        """The object itself, not an equal one, is in the iterable."""
        if not any(obj is item for item in iterable):
            raise AssertionError("object not found in iterable")

    # --- warnings ----------------------------------------------------------------------------------------

    @contextmanager
    def _recorded(self) -> Iterator[list[Any]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield seen

    def assertNotWarn(self, call_fn: Callable[[], Any], msg: str = "") -> None:
        """The function warns of nothing."""
        with self._recorded() as seen:
            call_fn()
        self.assertFalse(seen, msg)

    def assertWarns(self, call_fn: Any, msg: Any = "", *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """The function warns; or unittest's own form, with a warning class first."""
        if isinstance(call_fn, (type, tuple)):
            return super().assertWarns(call_fn, *((msg, *args) if callable(msg) else ()), **kwargs)
        with self._recorded() as seen:
            call_fn()
        self.assertTrue(seen, msg)
        return None

    @contextmanager
    def maybeWarnsRegex(self, category: type[Warning], regex: str = "") -> Iterator[None]:
        """The block may warn like this, and of nothing else."""
        with self._recorded() as seen:
            warnings.filterwarnings("ignore", message=regex, category=category)
            yield
        self.assertFalse(seen, f"Caught unexpected warnings: {[str(w.message) for w in seen]}")

    def genSparseTensor(
        self, size: Any, sparse_dim: int, nnz: int, is_uncoalesced: bool, device: Any = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A random sparse tensor of `nnz` entries (each twice if uncoalesced), its indices and its values."""
        if nnz and not all(size[d] > 0 for d in range(sparse_dim)):
            raise RuntimeError("invalid arguments")
        values = torch.randn(nnz, *size[sparse_dim:], device=device)
        most = torch.tensor(size[:sparse_dim], device=device).unsqueeze(1)
        indices = (torch.rand(sparse_dim, nnz, device=device) * most).long()
        if is_uncoalesced:
            values = torch.cat([values, torch.randn_like(values)])
            indices = torch.cat([indices, indices], 1)
        x = torch.sparse_coo_tensor(indices, values, torch.Size(size))
        x = x.detach().clone() if is_uncoalesced else x.coalesce()
        return x, x._indices().clone(), x._values().clone()

    def safeCoalesce(self, t: torch.Tensor) -> torch.Tensor:
        """`t.coalesce()`, compared with the sums of the values that share an index."""
        tc = t.coalesce()
        self.assertEqual(tc.to_dense(), t.to_dense())
        self.assertTrue(tc.is_coalesced())
        sums: dict[tuple[int, ...], torch.Tensor] = {}
        for index, value in zip(t._indices().t(), t._values(), strict=True):
            place = tuple(index.tolist())
            sums[place] = sums[place] + value if place in sums else value.clone()
        if not sums:
            self.assertEqual(t._indices(), tc._indices())
            self.assertEqual(t._values(), tc._values())
            return tc
        order = sorted(sums)
        self.assertEqual(tc._indices(), torch.tensor(order, device=t.device).t())
        self.assertEqual(tc._values(), torch.stack([sums[place] for place in order]))
        return tc

    def safeToDense(self, t: torch.Tensor) -> torch.Tensor:
        return self.safeCoalesce(t).to_dense()
