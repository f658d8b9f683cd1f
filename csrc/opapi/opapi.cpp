// libopapi.so: CANN's library of operators, on the emulated device.
//
// Extensions look for it by name (dlopen, dlsym) and call aclnn functions through their addresses. torch_npu loads it
// at import, so that its name is known to the process. An argument is kept as the value that PyTorch's dispatcher
// takes.
#include "opapi/opapi.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <Python.h>
#include <c10/core/Scalar.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "acl/acl_rt.h"
#include "torch_npu/csrc/framework/OperatorCall.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct aclTensor {
  at::Tensor value;
};
struct aclScalar {
  c10::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> value;
};
struct aclFloatArray {
  std::vector<double> value;
};
struct aclBoolArray {
  std::vector<bool> value;
};
struct aclTensorList {
  std::vector<std::unique_ptr<const aclTensor>> value;
};
struct aclScalarList {
  std::vector<std::unique_ptr<const aclScalar>> value;
};
struct aclOpExecutor {
  std::string name;
  std::vector<c10::IValue> given;
  bool repeatable = false;
};

namespace softnpu::opapi {
namespace {

constexpr aclnnStatus kOk = 0;
constexpr aclnnStatus kNullPointer = 161001;
constexpr aclnnStatus kInvalid = 161002;
constexpr aclnnStatus kInner = 561000;

std::string& recent() {
  thread_local std::string message;
  return message;
}

aclnnStatus failed(aclnnStatus code, std::string message) {
  recent() = std::move(message);
  return code;
}

// What went wrong, with the name in front and without the stack that pybind11 adds to an error of Python.
std::string described(const std::string& name, std::string message) {
  message = message.substr(0, message.find("\n\nAt:\n"));
  return message.rfind(name, 0) == 0 ? message : name + ": " + message;
}

// The result of `body`; what it throws becomes a code and a message, since the callers are functions of C.
template <class Body>
aclnnStatus guarded(aclnnStatus code, const std::string& name, Body body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return failed(code, described(name, error.what_without_backtrace()));
  } catch (python_error& error) {  // its text is empty until it is asked for
    error.persist();
    error.build_message();
    return failed(code, described(name, error.what()));
  } catch (const std::exception& error) {
    return failed(code, described(name, error.what()));
  }
}

// The types of both sides; what PyTorch has no type for (ACL_INT4, ACL_STRING, ...) is not among them.
constexpr std::pair<aclDataType, at::ScalarType> kTypes[] = {
    {ACL_FLOAT, at::kFloat},
    {ACL_FLOAT16, at::kHalf},
    {ACL_INT8, at::kChar},
    {ACL_INT32, at::kInt},
    {ACL_UINT8, at::kByte},
    {ACL_INT16, at::kShort},
    {ACL_UINT16, at::kUInt16},
    {ACL_UINT32, at::kUInt32},
    {ACL_INT64, at::kLong},
    {ACL_UINT64, at::kUInt64},
    {ACL_DOUBLE, at::kDouble},
    {ACL_BOOL, at::kBool},
    {ACL_COMPLEX64, at::kComplexFloat},
    {ACL_COMPLEX128, at::kComplexDouble},
    {ACL_BF16, at::kBFloat16},
    {ACL_COMPLEX32, at::kComplexHalf},
    {ACL_FLOAT8_E5M2, at::kFloat8_e5m2},
    {ACL_FLOAT8_E4M3FN, at::kFloat8_e4m3fn},
};

at::ScalarType scalar_type(aclDataType type) {
  for (const auto& [acl, torch] : kTypes) {
    if (acl == type) return torch;
  }
  TORCH_CHECK(false, "expected an aclDataType that PyTorch has a type for, received ", static_cast<int>(type));
}

aclDataType acl_type(at::ScalarType type) {
  for (const auto& [acl, torch] : kTypes) {
    if (torch == type) return acl;
  }
  return ACL_DT_UNDEFINED;
}

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Callers are C programs: a null pointer and a size that is none have to be told from a list before it is read.
template <class T>
c10::ArrayRef<T> listed(const char* label, const T* values, uint64_t size, uint64_t most = 1ULL << 32) {
  TORCH_CHECK(size <= most, "expected at most ", most, " elements of '", label, "', received ", size);
  TORCH_CHECK(values != nullptr || size == 0, "expected '", label, "' with ", size,
              " elements, received a null pointer");
  return c10::ArrayRef<T>(values, static_cast<size_t>(size));
}

c10::Scalar scalar(const void* value, aclDataType type) {
  TORCH_CHECK(value != nullptr, "expected the address of a value, received a null pointer");
  switch (scalar_type(type)) {
    case at::kFloat:
      return read<float>(value);
    case at::kHalf:
      return static_cast<float>(read<c10::Half>(value));
    case at::kBFloat16:
      return static_cast<float>(read<c10::BFloat16>(value));
    case at::kDouble:
      return read<double>(value);
    case at::kChar:
      return read<int8_t>(value);
    case at::kByte:
      return read<uint8_t>(value);
    case at::kShort:
      return read<int16_t>(value);
    case at::kUInt16:
      return static_cast<int64_t>(read<uint16_t>(value));
    case at::kInt:
      return read<int32_t>(value);
    case at::kUInt32:
      return static_cast<int64_t>(read<uint32_t>(value));
    case at::kLong:
      return read<int64_t>(value);
    case at::kUInt64:
      return read<uint64_t>(value);
    case at::kBool:
      return read<bool>(value);
    case at::kComplexFloat:
      return read<c10::complex<float>>(value);
    case at::kComplexDouble:
      return read<c10::complex<double>>(value);
    default:
      TORCH_CHECK(false, "a scalar cannot be of type ", scalar_type(type));
  }
}

constexpr uint64_t kMostDimensions = 64;  // of PyTorch's loops

// The bytes that the elements reach to from the first one on; refuses what 64 bits do not hold.
void check_extent(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset, int64_t width) {
  int64_t last = offset, elements = 1;
  TORCH_CHECK(offset >= 0, "expected an 'offset' of 0 or more, received ", offset);
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0, "expected sizes of 0 or more in 'viewDims', received ", sizes);
    TORCH_CHECK(strides.empty() || strides[i] >= 0, "expected steps of 0 or more in 'stride', received ", strides);
  }
  bool overflow = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(elements, sizes[i], &elements);
    if (strides.empty() || sizes[i] == 0) continue;
    overflow |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last);
  }
  int64_t bytes = 0;
  overflow |= __builtin_add_overflow(last, elements, &last) || __builtin_mul_overflow(last, width, &bytes);
  TORCH_CHECK(!overflow, "expected a tensor whose bytes 64 bits can count, received 'viewDims' ", sizes, ", 'stride' ",
              strides, " and 'offset' ", offset);
}

at::Tensor tensor(const int64_t* dims, uint64_t count, aclDataType type, const int64_t* strides, int64_t offset,
                  void* data) {
  const c10::IntArrayRef sizes = listed("viewDims", dims, count, kMostDimensions);
  const c10::IntArrayRef steps(strides, strides == nullptr ? 0 : static_cast<size_t>(count));
  check_extent(sizes, steps, offset, static_cast<int64_t>(c10::elementSize(scalar_type(type))));
  const c10::Device device = softnpu_headers::guard().getDevice();
  const auto options = at::TensorOptions(scalar_type(type)).device(device);
  auto maker = at::for_blob(data, sizes);
  if (strides != nullptr) maker.strides(steps);
  return maker.storage_offset(offset).options(options).target_device(device).make_tensor();
}

template <class T>
const T* given(const Argument& argument) {
  return static_cast<const T*>(argument.pointer);
}

// A tensor may be made without an address, but not used so.
const at::Tensor& usable(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.numel() == 0 || tensor.storage().data() != nullptr,
              "expected a tensor with memory, received one of ", tensor.sizes(), " without an address");
  return tensor;
}

c10::IValue values(const aclTensorList& list) {
  c10::List<at::Tensor> made;
  for (const auto& member : list.value) made.push_back(member ? usable(member->value) : at::Tensor());
  return made;
}

c10::IValue values(const aclScalarList& list) {
  c10::List<c10::Scalar> made;
  for (const auto& member : list.value) {
    TORCH_CHECK(member != nullptr, "expected a scalar for each member of an aclScalarList, received a null pointer");
    made.push_back(member->value);
  }
  return c10::IValue(made);
}

c10::IValue value(const Argument& argument) {
  const auto kind = argument.kind;
  if (kind == Argument::number) return argument.integer;
  if (kind == Argument::real) return argument.floating;
  if (kind == Argument::flag) return argument.integer != 0;
  if (kind == Argument::dtype) {
    return static_cast<int64_t>(scalar_type(static_cast<aclDataType>(argument.integer)));
  }
  if (argument.pointer == nullptr) return {};
  switch (kind) {
    case Argument::tensor:
      return usable(given<aclTensor>(argument)->value);
    case Argument::tensor_list:
      return values(*given<aclTensorList>(argument));
    case Argument::int_array:
      return given<aclIntArray>(argument)->value;
    case Argument::float_array:
      return given<aclFloatArray>(argument)->value;
    case Argument::bool_array:
      return given<aclBoolArray>(argument)->value;
    case Argument::scalar:
      return given<aclScalar>(argument)->value;
    case Argument::scalar_list:
      return values(*given<aclScalarList>(argument));
    default:
      return std::string(given<char>(argument));
  }
}

template <class T>
aclnnStatus destroy(const T* made) {
  if (made == nullptr) return failed(kNullPointer, "expected an object, received a null pointer");
  delete made;
  return kOk;
}

template <class T>
aclnnStatus count(const T* list, uint64_t* size) {
  if (list == nullptr || size == nullptr) return failed(kNullPointer, "expected a list and a size, received null");
  *size = list->value.size();
  return kOk;
}

aclnnStatus copy(c10::IntArrayRef numbers, int64_t** out, uint64_t* size) {
  if (out == nullptr || size == nullptr) return failed(kNullPointer, "expected places for the result, received null");
  *out = new int64_t[numbers.size()];
  std::copy(numbers.begin(), numbers.end(), *out);
  *size = numbers.size();
  return kOk;
}

// What a function that creates something returns: it, or null and a message.
template <class Body>
auto created(const char* name, Body body) -> decltype(body()) {
  decltype(body()) made = nullptr;
  guarded(kInvalid, name, [&] {
    made = body();
    return kOk;
  });
  return made;
}

template <class Made, class T>
Made* array_of(const char* name, const T* values, uint64_t size) {
  return created(name, [&] {
    const auto given = listed("value", values, size);
    decltype(Made::value) copied(given.begin(), given.end());  // not in braces: a list of two bools
    return new Made{std::move(copied)};
  });
}

template <class List, class Member>
List* list_of(const char* name, const Member* const* members, uint64_t size) {
  return created(name, [&] {
    auto made = std::make_unique<List>();
    for (const Member* member : listed("value", members, size)) made->value.emplace_back(member);
    return made.release();
  });
}

}  // namespace

aclnnStatus prepare(const char* name, std::vector<Argument> arguments, uint64_t* workspace, aclOpExecutor** executor) {
  if (workspace == nullptr || executor == nullptr) {
    return failed(kNullPointer, std::string(name) + "GetWorkspaceSize: expected workspaceSize and executor, not null");
  }
  return guarded(kInvalid, name, [&] {
    auto made = std::make_unique<aclOpExecutor>();
    made->name = name;
    for (const Argument& argument : arguments) made->given.push_back(value(argument));
    *workspace = 0;
    *executor = made.release();
    return kOk;
  });
}

aclnnStatus run(aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr) return failed(kNullPointer, "expected an executor, received a null pointer");
  const aclnnStatus status = guarded(kInner, executor->name, [&] {
    const c10::StreamGuard on(softnpu_headers::stream_of(stream));
    const at::NoGradGuard without_gradients;
    softnpu_headers::call_by_name(executor->name, executor->given);
    return kOk;
  });
  if (!executor->repeatable) delete executor;
  return status;
}

}  // namespace softnpu::opapi

using namespace softnpu::opapi;

// The functions whose arguments differ from those of an operator are written in Python, in torch_npu.aclnn; they are
// imported when the first aclnn function is called.
EXPORTED void softnpu_load_aclnn() {
  static std::atomic<bool> loaded{false};
  if (loaded || Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* module = PyImport_ImportModule("torch_npu.aclnn");
  if (module == nullptr) PyErr_Print();
  Py_XDECREF(module);
  PyGILState_Release(state);
  loaded = true;
}

EXPORTED const char* aclGetRecentErrMsg() { return recent().c_str(); }

EXPORTED aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                                    const int64_t* stride, int64_t offset, aclFormat /*format*/,
                                    const int64_t* /*storageDims*/, uint64_t /*storageDimsNum*/, void* tensorData) {
  return created("aclCreateTensor",
                 [&] { return new aclTensor{tensor(viewDims, viewDimsNum, dataType, stride, offset, tensorData)}; });
}

EXPORTED aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  return created("aclCreateScalar", [&] { return new aclScalar{scalar(value, dataType)}; });
}

EXPORTED aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return array_of<aclIntArray>("aclCreateIntArray", value, size);
}
EXPORTED aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return array_of<aclFloatArray>("aclCreateFloatArray", value, size);
}
EXPORTED aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return array_of<aclBoolArray>("aclCreateBoolArray", value, size);
}
EXPORTED aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return list_of<aclTensorList>("aclCreateTensorList", value, size);
}
EXPORTED aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return list_of<aclScalarList>("aclCreateScalarList", value, size);
}

EXPORTED aclnnStatus aclDestroyTensor(const aclTensor* tensor) { return destroy(tensor); }
EXPORTED aclnnStatus aclDestroyScalar(const aclScalar* scalar) { return destroy(scalar); }
EXPORTED aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return destroy(array); }
EXPORTED aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) { return destroy(array); }
EXPORTED aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return destroy(array); }
EXPORTED aclnnStatus aclDestroyTensorList(const aclTensorList* array) { return destroy(array); }
EXPORTED aclnnStatus aclDestroyScalarList(const aclScalarList* array) { return destroy(array); }

EXPORTED aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return tensor == nullptr ? failed(kNullPointer, "aclGetViewShape: expected a tensor, received null")
                           : copy(tensor->value.sizes(), viewDims, viewDimsNum);
}
EXPORTED aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return tensor == nullptr ? failed(kNullPointer, "aclGetViewStrides: expected a tensor, received null")
                           : copy(tensor->value.strides(), stridesValue, stridesNum);
}
EXPORTED aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  if (tensor == nullptr || offset == nullptr) return failed(kNullPointer, "aclGetViewOffset: received null");
  *offset = tensor->value.storage_offset();
  return kOk;
}
EXPORTED aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  if (tensor == nullptr || dataType == nullptr) return failed(kNullPointer, "aclGetDataType: received null");
  *dataType = acl_type(tensor->value.scalar_type());
  return kOk;
}
EXPORTED aclnnStatus aclGetIntArraySize(const aclIntArray* array, uint64_t* size) { return count(array, size); }
EXPORTED aclnnStatus aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) { return count(array, size); }
EXPORTED aclnnStatus aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) { return count(array, size); }
EXPORTED aclnnStatus aclGetTensorListSize(const aclTensorList* list, uint64_t* size) { return count(list, size); }
EXPORTED aclnnStatus aclGetScalarListSize(const aclScalarList* list, uint64_t* size) { return count(list, size); }

EXPORTED aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  if (executor == nullptr) return failed(kNullPointer, "aclSetAclOpExecutorRepeatable: received null");
  executor->repeatable = true;
  return kOk;
}
EXPORTED aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) { return destroy(executor); }

EXPORTED aclnnStatus aclnnInit(const char* /*configPath*/) { return kOk; }
EXPORTED aclnnStatus aclnnFinalize() { return kOk; }

// Memory that the card's library keeps for a thread between two calls; there is none here.
EXPORTED int InitHugeMemThreadLocal(void* /*context*/, bool /*copied*/) { return kOk; }
EXPORTED void UnInitHugeMemThreadLocal(void* /*context*/, bool /*copied*/) {}
EXPORTED void ReleaseHugeMem(void* /*context*/, bool /*copied*/) {}
