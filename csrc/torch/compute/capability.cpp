// Which build of the kernels runs.
#include "kernels/capability.h"

#include <ATen/Version.h>
#include <c10/util/Exception.h>

#include <string>

#include "kernels/skinny_matmul.h"
#include "torch/compat.h"

namespace softnpu::kernels {

namespace {

enum class Build { Default, Avx2, Avx512 };

Build choose() {
#if defined(__x86_64__) && !defined(SOFTNPU_ONE_BUILD)
  const std::string torch = at::get_cpu_capability();  // AVX512, AVX512_VNNI and the like are one for us
  if (torch.starts_with("AVX512") || torch == "AMX") return Build::Avx512;
  if (torch.starts_with("AVX2")) return Build::Avx2;
#endif
  return Build::Default;
}

Build build() {
  static const Build once = choose();
  return once;
}

}  // namespace

const char* capability() {
  static constexpr const char* names[] = {"DEFAULT", "AVX2", "AVX512"};
  return names[static_cast<int>(build())];
}

List chosen(List avx2, List avx512) {
  switch (build()) {
    case Build::Avx512:
      return avx512;
    case Build::Avx2:
      return avx2;
    default:
      return nullptr;
  }
}

bool has_pairs() {
  static const bool once = build() == Build::Avx512 && compat::cpu_has("avx512_bf16");
  return once;
}

void Listed::add(const char* name, void (*function)()) {
  TORCH_INTERNAL_ASSERT(count_ < kMost, "too many operators in one file");
  names_[count_] = name;
  functions_[count_++] = function;
}

void (*Listed::find(const char* name) const)() {
  for (int i = 0; i < count_; ++i) {
    if (std::strcmp(names_[i], name) == 0) return functions_[i];
  }
  TORCH_INTERNAL_ASSERT(false, "no build for ", capability(), " has ", name);
}

}  // namespace softnpu::kernels
