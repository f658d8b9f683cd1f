// Whether tensors share memory: ATen's functions under upstream's names.
#pragma once

#include <ATen/MemoryOverlap.h>

namespace at_npu::native {

using at::MemOverlap;
using at::MemOverlapStatus;

using at::assert_no_internal_overlap;
using at::assert_no_overlap;
using at::assert_no_partial_overlap;
using at::get_overlap_status;
using at::has_internal_overlap;

}  // namespace at_npu::native
