// An extension as programs for the card write them; tests/cpp/test_extension.py builds and calls it.
#include <torch/extension.h>

#include "torch_npu/csrc/aten/NPUNativeFunctions.h"
#include "torch_npu/csrc/aten/common/from_blob.h"
#include "torch_npu/csrc/core/npu/DeviceUtils.h"
#include "torch_npu/csrc/core/npu/NPUCachingAllocator.h"
#include "torch_npu/csrc/core/npu/NPUEvent.h"
#include "torch_npu/csrc/core/npu/NPUFormat.h"
#include "torch_npu/csrc/core/npu/NPUGuard.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OpCommand.h"
#include "torch_npu/csrc/framework/interface/EnvVariables.h"
#include "torch_npu/csrc/framework/utils/CalcuOpUtil.h"
#include "torch_npu/csrc/framework/utils/OpAdapter.h"
#include "torch_npu/csrc/include/ops.h"
#include "torch_npu/csrc/libs/init_npu.h"
#include "torch_npu/csrc/npu/Module.h"

using at_npu::native::OpCommand;
using at_npu::native::OpPreparation;

// --- an operator by its aclnn name, on a stream of its own ---

std::tuple<at::Tensor, at::Tensor, bool> norm_on_stream(const at::Tensor& x, const at::Tensor& gamma, double epsilon) {
  at::Tensor y = OpPreparation::apply_tensor_without_format(x);
  at::Tensor rstd = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
  const auto before = c10_npu::getCurrentNPUStream();
  c10_npu::NPUStream side = c10_npu::getNPUStreamFromPool();
  c10_npu::NPUEvent ready, done;
  ready.record(before);
  bool changed = false;
  {
    c10_npu::NPUStreamGuard guard(side);
    changed = c10_npu::getCurrentNPUStream() == side && guard.original_stream() == before;
    ready.block(side);
    EXEC_NPU_CMD(aclnnRmsNorm, x, gamma, epsilon, y, rstd);
    done.record(side);
  }
  done.block(before);
  side.synchronize();
  return {y, rstd, changed && done.query() && c10_npu::getCurrentNPUStream() == before};
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b, double alpha) {
  at::Tensor out = OpPreparation::apply_tensor_without_format(a);
  const c10::Scalar scaled(alpha);
  EXEC_NPU_CMD(aclnnAdd, a, b, scaled, out);
  return out;
}

at::Tensor add_in_place(at::Tensor a, const at::Tensor& b) {
  const c10::Scalar one(1);
  EXEC_NPU_CMD(aclnnInplaceAdd, a, b, one);
  return a;
}

at::Tensor unknown(const at::Tensor& x) {
  EXEC_NPU_CMD(aclnnNoSuchThing, x, x);
  return x;
}

at::Tensor misfit(const at::Tensor& x) {
  EXEC_NPU_CMD(aclnnRmsNorm, x, "text");
  return x;
}

// --- an operator of CANN by its type ---

at::Tensor by_type(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = OpPreparation::apply_tensor_without_format(a);
  OpCommand cmd;
  cmd.Name("Maximum").Input(a).Input(b).Output(out).Run();
  return out;
}

at::Tensor by_type_in_other_words(const at::Tensor& a, double threshold) {
  at::Tensor out = OpPreparation::apply_tensor_without_format(a);
  OpCommand cmd;
  cmd.Name("Maximum").InputWithoutContiguous(a, "x", "float").InputScalarToNPUTensor(threshold, a.scalar_type());
  cmd.Attr("left_out", int64_t{3}, false).Output(out, "y").Sync().Run();
  c10::SmallVector<int64_t, 2> all{0};
  std::vector<at::Tensor> both{out, a};
  cmd.Name("Add").Inputs(both).Attr("alpha", 2.0).Output(out).Sync(all).Run();
  const c10::SmallVector<int64_t, at_npu::native::N> dims{0};
  cmd.Name("Flip").Input(out).Attr("dims", dims).Output(out).Run();
  return out;
}

int64_t handled() {
  int64_t runs = 0;
  OpCommand cmd;
  cmd.Name("Mine").SetCustomHandler([&runs]() -> int {
    ++runs;
    ASCEND_LOGI("run %ld", static_cast<long>(runs));
    return 0;
  });
  cmd.Run();
  cmd.Name("Bad").SetCustomHandler([]() -> int { return 507015; });
  try {
    cmd.Run();
  } catch (const c10::Error& error) {
    const string text = error.what();
    if (text.find("Bad failed with error 507015") != string::npos) runs += 10;
  }
  return runs;
}

std::vector<int64_t> documented_names(const at::Tensor& x) {
  c10::DeviceIndex index = -1;
  c10_npu::GetDevice(&index);
  torch_npu::init_npu(std::string("npu:1"));
  const int64_t started = c10::npu::current_device();
  torch_npu::init_npu(static_cast<c10::DeviceIndex>(index));
  auto stream = c10_npu::getCurrentNPUStream();
  stream.setDataPreprocessStream(true);
  c10_npu::NPUEvent event;
  event.record(stream);
  aclrtEvent handle = event;
  const at::Tensor swapped = at_npu::native::empty_with_swapped_memory({3, 5}, at::kInt);
  return {index,
          started,
          stream.isDataPreprocessStream(),
          handle != nullptr,
          at_npu::native::get_npu_storage_sizes(x).front(),
          swapped.numel(),
          torch_npu::utils::is_npu(swapped)};
}

// --- types, scalars and copies ---

using at_npu::native::CalcuOpUtil;

std::tuple<std::vector<int64_t>, at::Tensor, at::Tensor, int64_t, std::vector<int64_t>> calculated(
    const at::Tensor& x) {
  std::vector<int64_t> types;
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::ScalarType::Float8_e8m0fnu}) {
    types.push_back(CalcuOpUtil::ConvertToAclDataType(type));
    TORCH_CHECK(CalcuOpUtil::ConvertToScalarType(static_cast<aclDataType>(types.back())) == type, "not the inverse");
  }
  types.push_back(CalcuOpUtil::ConvertToAclDataType(at::kShort, "uint16"));
  TORCH_CHECK(CalcuOpUtil::ConvertToScalarType(ACL_HIFLOAT8) == at::kByte, "HiFloat8 is stored in bytes");
  types.push_back(CalcuOpUtil::ConvertToAclDataType(CalcuOpUtil::ConvertToScalarType(ACL_HIFLOAT8)));
  at::Tensor copied = at::zeros({3}, x.options());
  ACL_REQUIRE_OK_OP(CalcuOpUtil::AclrtMemcpyAsync({copied, 0}, 12, {x, 2}, 8, ACL_MEMCPY_DEVICE_TO_DEVICE), "copy");
  THNPModule_setDevice(0);
  const auto sizes = CalcuOpUtil::ConvertIntArrayRefToSmallVector({3, 5});
  return {types, CalcuOpUtil::CopyScalarToDevice(2.5, at::kHalf), copied, CalcuOpUtil::GetTensorNpuFormat(x),
          std::vector<int64_t>(sizes.begin(), sizes.end())};
}

void unknown_type() { CalcuOpUtil::ConvertToAclDataType(at::kQInt8); }
void overlapping(const at::Tensor& x) {
  CalcuOpUtil::CheckMemoryOverLaps({x}, {x});  // as a whole
  CalcuOpUtil::CheckMemoryOverLaps({x.slice(0, 0, 4)}, {x.slice(0, 2, 6)});
}

// --- a launch of the program's own on raw addresses, and an operator that uses it ---

at::Tensor triple(const at::Tensor& x) {
  TORCH_CHECK(torch_npu::utils::is_npu(x), "triple: expected an npu tensor");
  const at::Tensor in = x.contiguous();
  at::Tensor out = OpPreparation::apply_tensor_without_format(in);
  const float* from = in.data_ptr<float>();
  float* to = out.data_ptr<float>();
  const int64_t count = in.numel();
  OpCommand::RunOpApiV2("Triple", [=]() -> int {
    for (int64_t i = 0; i < count; ++i) to[i] = 3 * from[i];
    return 0;
  });
  return out;
}

void failing() {
  OpCommand::RunOpApiV2("Failing", []() -> int { return 507015; });
}

TORCH_LIBRARY(softnpu_cpp_test, m) { m.def("triple(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(softnpu_cpp_test, PrivateUse1, m) { m.impl("triple", &triple); }

// --- devices, memory, formats, generators ---

std::vector<int64_t> devices() {
  const int64_t before = c10_npu::current_device();
  int64_t inside = -1;
  {
    c10_npu::NPUGuard guard(1);
    inside = c10_npu::current_device();
  }
  int32_t asked = -1;
  c10_npu::GetDevice(&asked);
  return {c10_npu::device_count(), before, inside, asked, c10_npu::SetDevice(99)};
}

int64_t memory() {
  namespace allocator = c10_npu::NPUCachingAllocator;
  void* block = allocator::raw_alloc(1 << 20);
  std::vector<float> host(8, 2.5F), back(8);
  const size_t size = host.size() * sizeof(float);
  NPU_CHECK_ERROR(aclrtMemcpy(block, size, host.data(), size, ACL_MEMCPY_HOST_TO_DEVICE));
  NPU_CHECK_ERROR(aclrtMemcpyAsync(back.data(), size, block, size, ACL_MEMCPY_DEVICE_TO_HOST,
                                   c10_npu::getCurrentNPUStream().stream()));
  at::Tensor seen = at_npu::native::from_blob(block, {8}, at::TensorOptions(at::kFloat));
  const bool same = back == host && seen.sum().item<float>() == 20.0F && torch_npu::utils::is_npu(seen);
  allocator::raw_delete(block);
  c10_npu::stream_synchronize(nullptr);
  torch::npu::synchronize();
  return same ? aclrtMemcpy(block, 4, host.data(), size, ACL_MEMCPY_HOST_TO_DEVICE) : -1;
}

std::vector<int64_t> formats(const at::Tensor& x) {
  const at::Tensor nz = at_npu::native::npu_format_cast(x, ACL_FORMAT_FRACTAL_NZ);
  const at::Tensor empty = at_npu::native::empty_with_format({32, 32}, x.options(), ACL_FORMAT_FRACTAL_NZ);
  return {at_npu::native::get_npu_format(x), at_npu::native::get_npu_format(nz), at_npu::native::get_npu_format(empty)};
}

at::Tensor swiglu(const at::Tensor& x) { return at_npu::native::call("npu_swiglu", x).front().toTensor(); }

uint64_t seed() {
  auto own = at_npu::detail::createNPUGenerator(0);
  own.set_current_seed(7);
  return own.current_seed() + (at_npu::detail::getDefaultNPUGenerator(0).defined() ? 0 : 1);
}

double elapsed() {
  c10_npu::NPUEvent start(1), end(1);
  start.record();
  end.record();
  end.synchronize();
  return start.elapsed_time(end);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("norm_on_stream", &norm_on_stream);
  m.def("add", &add);
  m.def("add_in_place", &add_in_place);
  m.def("unknown", &unknown);
  m.def("misfit", &misfit);
  m.def("by_type", &by_type);
  m.def("by_type_in_other_words", &by_type_in_other_words);
  m.def("handled", &handled);
  m.def("documented_names", &documented_names);
  m.def("failing", &failing);
  m.def("calculated", &calculated);
  m.def("unknown_type", &unknown_type);
  m.def("overlapping", &overlapping);
  m.def("devices", &devices);
  m.def("memory", &memory);
  m.def("formats", &formats);
  m.def("swiglu", &swiglu);
  m.def("seed", &seed);
  m.def("elapsed", &elapsed);
}
