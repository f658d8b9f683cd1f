// Numbers in the place of dtypes, layouts, memory formats and reductions of losses: PyTorch takes any, and reads its
// tables with them. What reaches our kernels is looked at first; what PyTorch makes of a number before is not ours.
#pragma once

#include <ATen/core/Reduction.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <optional>

namespace softnpu {

inline constexpr int64_t kDtypes = static_cast<int64_t>(c10::ScalarType::NumOptions);
inline constexpr int64_t kLayouts = static_cast<int64_t>(c10::Layout::NumOptions);
inline constexpr int64_t kMemoryFormats = static_cast<int64_t>(c10::MemoryFormat::NumOptions);

inline constexpr int64_t kReductions = at::Reduction::END;

inline bool is_dtype(const std::optional<c10::ScalarType>& dtype) {
  return !dtype.has_value() || (static_cast<int64_t>(*dtype) >= 0 && static_cast<int64_t>(*dtype) < kDtypes);
}

inline void check_dtype(const char* op, const std::optional<c10::ScalarType>& dtype) {
  TORCH_CHECK(is_dtype(dtype), op, ": argument 'dtype' must be a torch.dtype, but received a number that is none (",
              static_cast<int64_t>(*dtype), ")");
}

}  // namespace softnpu
