// at_npu::native::CalcuOpUtil: PyTorch's types, scalars and copies as CANN's calls take them.
#pragma once

#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <utility>

#include "torch_npu/csrc/aten/mirror/NPUMemoryOverlap.h"
#include "torch_npu/csrc/core/npu/DeviceUtils.h"
#include "torch_npu/csrc/core/npu/NPUFormat.h"
#include "torch_npu/csrc/core/npu/NPUFunctions.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/utils/NpuUtils.h"

#define ASCEND_ALWAYS_INLINE __attribute__((__always_inline__)) inline

#define ACL_REQUIRE_OK_OP(expr, opstr)                                                         \
  do {                                                                                         \
    const aclError softnpu_code = (expr);                                                      \
    TORCH_CHECK(softnpu_code == ACL_SUCCESS, opstr, ": " #expr " failed with ", softnpu_code); \
  } while (false)

using StorageAndOffsetMemSizePair = std::pair<const c10::StorageImpl*, int64_t>;

namespace at_npu::native {

class CalcuOpUtil {
 public:
  static aclDataType ConvertToAclDataType(const at::ScalarType& type) {
    for (const auto& [torch_type, acl_type] : types()) {
      if (torch_type == type) return acl_type;
    }
    TORCH_CHECK(false, "ConvertToAclDataType: CANN has no type for ", type);
  }
  // `real_type` is the type that the bytes have, where PyTorch has no name for it.
  static aclDataType ConvertToAclDataType(const at::ScalarType& type, const std::string& real_type) {
    if (real_type.empty()) return ConvertToAclDataType(type);
    for (const auto& [name, acl_type] : {std::pair("uint16", ACL_UINT16), std::pair("uint8", ACL_UINT8),
                                         std::pair("uint64", ACL_UINT64), std::pair("string", ACL_STRING)}) {
      if (real_type == name) return acl_type;
    }
    TORCH_CHECK(false, "ConvertToAclDataType: expected a real type of uint8, uint16, uint64 or string, received ",
                real_type);
  }
  static at::ScalarType ConvertToScalarType(aclDataType type) {
    for (const auto& [torch_type, acl_type] : types()) {
      if (acl_type == type) return torch_type;
    }
    // Types that PyTorch lacks are stored in bytes.
    for (const aclDataType bytes : {ACL_HIFLOAT8, ACL_FLOAT6_E3M2, ACL_FLOAT6_E2M3, ACL_FLOAT4_E1M2}) {
      if (bytes == type) return at::kByte;
    }
    for (const aclDataType none : {ACL_DT_UNDEFINED, ACL_STRING, ACL_INT4, ACL_UINT1}) {
      if (none == type) return at::ScalarType::Undefined;
    }
    TORCH_CHECK(false, "ConvertToScalarType: unknown aclDataType ", static_cast<int>(type));
  }

  static c10::Scalar ConvertTensorToScalar(const at::Tensor& tensor) { return tensor.item(); }
  static at::Tensor CopyScalarToDevice(const c10::Scalar& scalar, at::ScalarType type) {
    return CopyTensorHostToDevice(c10::scalar_to_tensor(scalar).to(type));
  }
  static at::Tensor CopyTensorHostToDevice(const at::Tensor& tensor) {
    return tensor.to(c10::Device(c10::DeviceType::PrivateUse1, c10_npu::current_device()), tensor.scalar_type(),
                     /*non_blocking=*/true, /*copy=*/true);
  }

  // The second of a pair is an offset: in elements of a tensor, in bytes of a storage.
  static aclError AclrtMemcpyAsync(const std::pair<at::Tensor, int64_t>& to, size_t room,
                                   const std::pair<at::Tensor, int64_t>& from, size_t size, aclrtMemcpyKind kind) {
    return aclrtMemcpyAsync(address(to), room, address(from), size, kind, c10_npu::getCurrentNPUStream().stream());
  }
  static aclError AclrtMemcpyWithModeSwitch(const StorageAndOffsetMemSizePair& to, size_t room,
                                            const StorageAndOffsetMemSizePair& from, size_t size,
                                            aclrtMemcpyKind kind) {
    return aclrtMemcpy(address(to), room, address(from), size, kind);
  }
  static aclError AclrtMemcpyWithModeSwitch(const StorageAndOffsetMemSizePair& to, size_t room, const void* from,
                                            size_t size, aclrtMemcpyKind kind) {
    return aclrtMemcpy(address(to), room, from, size, kind);
  }
  static aclError AclrtMemcpyWithModeSwitch(void* to, size_t room, const StorageAndOffsetMemSizePair& from, size_t size,
                                            aclrtMemcpyKind kind) {
    return aclrtMemcpy(to, room, address(from), size, kind);
  }
  static aclError LaunchAsyncCopyTaskWithModeSwitch(const at::Tensor& to, size_t room, const at::Tensor& from,
                                                    size_t size, aclrtMemcpyKind kind) {
    return AclrtMemcpyAsync({to, 0}, room, {from, 0}, size, kind);
  }
  static aclError LaunchAsyncCopyTaskWithModeSwitch(const c10::StorageImpl& to, size_t room, void* from, size_t size,
                                                    aclrtMemcpyKind kind) {
    return aclrtMemcpyAsync(address({&to, 0}), room, from, size, kind, c10_npu::getCurrentNPUStream().stream());
  }

  // An output may be an input as a whole, but not share a part of its memory.
  static void CheckMemoryOverLaps(c10::ArrayRef<at::Tensor> inputs, c10::ArrayRef<at::Tensor> outputs) {
    for (const at::Tensor& output : outputs) {
      if (!output.defined()) continue;
      assert_no_internal_overlap(output);
      for (const at::Tensor& input : inputs) assert_no_partial_overlap(output, input);
    }
  }

  static bool IsScalarWrappedToTensor(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() && !torch_npu::utils::is_npu(tensor);
  }
  static float GetScalarFloatValue(const c10::Scalar& scalar) {
    return scalar.isFloatingPoint() ? scalar.toFloat() : static_cast<float>(scalar.toInt());
  }
  static int64_t GetTensorNpuFormat(const at::Tensor& tensor) { return get_npu_format(tensor); }
  static c10::SmallVector<int64_t, SHAPE_SIZE> ConvertIntArrayRefToSmallVector(c10::IntArrayRef numbers) {
    return {numbers.begin(), numbers.end()};
  }

 private:
  using Pair = std::pair<at::ScalarType, aclDataType>;
  static c10::ArrayRef<Pair> types() {
    static const Pair all[] = {
        {at::kByte, ACL_UINT8},
        {at::kChar, ACL_INT8},
        {at::kShort, ACL_INT16},
        {at::kInt, ACL_INT32},
        {at::kLong, ACL_INT64},
        {at::kHalf, ACL_FLOAT16},
        {at::kFloat, ACL_FLOAT},
        {at::kDouble, ACL_DOUBLE},
        {at::kComplexHalf, ACL_COMPLEX32},
        {at::kComplexFloat, ACL_COMPLEX64},
        {at::kComplexDouble, ACL_COMPLEX128},
        {at::kBool, ACL_BOOL},
        {at::kBFloat16, ACL_BF16},
        {at::kUInt16, ACL_UINT16},
        {at::kUInt32, ACL_UINT32},
        {at::kUInt64, ACL_UINT64},
        {at::kFloat8_e5m2, ACL_FLOAT8_E5M2},
        {at::kFloat8_e4m3fn, ACL_FLOAT8_E4M3FN},
        {at::ScalarType::Float8_e8m0fnu, ACL_FLOAT8_E8M0},
    };
    return all;
  }

  static void* address(const std::pair<at::Tensor, int64_t>& place) {
    return static_cast<char*>(place.first.data_ptr()) + place.second * static_cast<int64_t>(place.first.itemsize());
  }
  static void* address(const StorageAndOffsetMemSizePair& place) {
    return static_cast<char*>(const_cast<void*>(place.first->data())) + place.second;
  }
};

}  // namespace at_npu::native
