#include "hccl/wire.h"

#include <ATen/ATen.h>

#include "hccl/errors.h"
#include "torch/dispatch/cpu_alias.h"

namespace softnpu::hccl {

namespace {

using c10d::ReduceOp;

// A CPU tensor on the bytes of an NPU tensor (inside a kernel: the tensor, which is one), that may be viewed.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!on_npu(tensor)) {
    return at::Tensor::wrap_tensor_impl(
        tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  }
  at::Tensor alias = cpu_alias(tensor);
  if (!alias.is_inference()) alias.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  return alias;
}

}  // namespace

// The tensor's memory as one row of a CPU tensor, in its own dtype or as bytes.
at::Tensor flat(const at::Tensor& tensor, bool as_bytes) {
  at::Tensor host = on_host(tensor);
  c10::TensorImpl& impl = *host.unsafeGetTensorImpl();
  const int64_t unit = as_bytes ? static_cast<int64_t>(impl.itemsize()) : 1;
  const int64_t offset = impl.storage_offset() * unit, count = impl.numel() * unit;
  if (as_bytes) impl.set_storage_and_dtype(impl.storage(), caffe2::TypeMeta::Make<uint8_t>());
  impl.set_storage_offset(offset);
  impl.set_sizes_contiguous({count});
  return host;
}

at::Tensor bytes(const at::Tensor& tensor) { return flat(tensor, true); }

Tensors bytes(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(bytes(tensor));
  return all;
}

Splits sizes_of(const Tensors& rows) {
  Splits sizes;
  for (const auto& row : rows) sizes.push_back(row.numel());
  return sizes;
}

// Splits of dimension 0 (equal ones where none are given), in units of `unit` a row.
Splits splits_of(Splits splits, const at::Tensor& tensor, int ranks, int64_t unit) {
  HCCL_CHECK(tensor.dim() >= 1, NotSupport, "Scalar tensors (0-dim tensors) cannot be split across a group");
  if (splits.empty()) {
    HCCL_CHECK(tensor.size(0) % ranks == 0, Param, "Tensor's dim 0 does not divide equally across group size");
    splits.assign(static_cast<size_t>(ranks), tensor.size(0) / ranks);
  }
  HCCL_CHECK(splits.size() == static_cast<size_t>(ranks), Type, "Number of tensor splits not equal to group size");
  int64_t sum = 0;
  for (auto& split : splits) sum += std::exchange(split, split * unit);
  HCCL_CHECK(sum == tensor.size(0), Type, "Split sizes doesn't match total dim 0 size");
  return splits;
}

int64_t row_of(const at::Tensor& tensor) {  // elements of one row
  int64_t row = 1;
  for (int64_t d = 1; d < tensor.dim(); ++d) row *= tensor.size(d);
  return row;
}

const char* name_of(ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  const auto number = static_cast<size_t>(op);
  return number < std::size(kNames) ? kNames[number] : "an unknown reduction";
}

void premultiply(at::Tensor& tensor, const ReduceOp& op) {
  const auto* by = reinterpret_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (by->tensor_factor.defined()) {
    const auto factor = by->tensor_factor;
    tensor.mul_(on_host(factor));
  } else {
    tensor.mul_(by->double_factor);
  }
}

void average(const at::Tensor& sum, int ranks) {
  if (at::isIntegralType(sum.scalar_type(), true)) {
    sum.div_(ranks, "trunc");
  } else {
    sum.div_(ranks);
  }
}

// Row after row: sums over so few rows are slower as one reduction.
at::Tensor reduce_rows(const at::Tensor& rows, const ReduceOp& op, int ranks) {
  const auto type = rows.scalar_type();
  // The sum or product of two rows is rounded once as it is.
  const bool half = (type == at::kHalf || type == at::kBFloat16) && (rows.size(0) > 2 || op == ReduceOp::AVG);
  const auto row = [&](int64_t r) { return half ? rows.select(0, r).to(at::kFloat) : rows.select(0, r); };
  const bool least = op == ReduceOp::MIN || (type == at::kBool && op == ReduceOp::PRODUCT);
  const bool most = op == ReduceOp::MAX || type == at::kBool;
  at::Tensor result = row(0);
  for (int64_t r = 1; r < rows.size(0); ++r) {
    const at::Tensor next = row(r);
    if (least) {
      result = at::minimum(result, next);
    } else if (most) {
      result = at::maximum(result, next);
    } else if (r == 1) {  // the first row is not written to
      result = op == ReduceOp::PRODUCT ? at::mul(result, next) : at::add(result, next);
    } else {
      op == ReduceOp::PRODUCT ? result.mul_(next) : result.add_(next);
    }
  }
  if (op == ReduceOp::AVG) average(result = rows.size(0) == 1 ? result.clone() : result, ranks);
  return result;
}

}  // namespace softnpu::hccl
