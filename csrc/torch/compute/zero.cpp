#include "torch/compute/zero.h"

#include <ATen/CPUFunctions.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>

#include "device/pages.h"

namespace softnpu {

namespace {

constexpr size_t kLarge = size_t{4} << 20;  // below this, asking for the pages costs more than writing them
constexpr int64_t kGrain = int64_t{1} << 20;

bool all_bits_zero(const c10::Scalar& value) {
  if (value.isComplex()) return false;
  return value.isFloatingPoint() ? value.toDouble() == 0 && !std::signbit(value.toDouble()) : value.equal(0);
}

// Whether the tensor is zero now; small and strided ones are left to PyTorch's kernel.
bool zero_large(const at::Tensor& alias) {
  if (alias.nbytes() < kLarge || !alias.is_non_overlapping_and_dense()) return false;
  auto* at = static_cast<char*>(alias.data_ptr());
  const std::vector<ByteRange> touched = touched_ranges(at, alias.nbytes());
  for (const ByteRange& range : touched) {
    at::parallel_for(0, static_cast<int64_t>(range.size), kGrain, [&](int64_t begin, int64_t end) {
      std::memset(at + range.start + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  return true;
}

}  // namespace

at::Tensor& zero_(at::Tensor& alias) { return zero_large(alias) ? alias : at::cpu::zero_(alias); }

at::Tensor& fill_(at::Tensor& alias, const c10::Scalar& value) {
  return all_bits_zero(value) && zero_large(alias) ? alias : at::cpu::fill_(alias, value);
}

}  // namespace softnpu
