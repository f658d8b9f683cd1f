#include "torch/dispatch/card_fallback.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_set>

#include "torch/dispatch/operator_traits.h"

namespace softnpu {

namespace {

// Whether the card has no kernel for the overload of an operator.
bool lacks(const std::string& name, const std::string& overload) {
  const std::vector<std::string>& lacking = traits_of(name).lacking;
  return std::find(lacking.begin(), lacking.end(), overload) != lacking.end();
}

bool disabled() {
  const char* value = std::getenv("TORCH_NPU_FALLBACK_CPU_DISABLE");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

std::string card_fallback(const c10::OperatorHandle& op) {
  const c10::OperatorName& called = op.operator_name();
  std::string name = called.name;
  if (!lacks(name, called.overload_name)) return {};
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {  // it calls its out form
    if (name.back() == '_') name.pop_back();
    for (const std::string& overload : {called.overload_name + "_out", std::string("out"), std::string("output"),
                                        std::string("result"), std::string("sign"), std::string("eigenvalues"),
                                        std::string("inverse"), std::string("L"), std::string("grad_input")}) {
      if (lacks(name, overload)) return name + "." + overload;
    }
  }
  return called.overload_name.empty() ? name : name + "." + called.overload_name;
}

void tell_of_fallback(const std::string& op) {
  static const bool refuses = disabled();
  TORCH_CHECK_NOT_IMPLEMENTED(!refuses, "'", op, "' has no kernel on the card, which would run it on the CPU; ",
                              "TORCH_NPU_FALLBACK_CPU_DISABLE=1 forbids that.");
  static std::mutex mutex;
  static auto* told = new std::unordered_set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!told->insert(op).second) return;
  }
  TORCH_WARN("The operator '", op,
             "' has no kernel on the card and will fall back to CPU there, with copies to the host ",
             "and back. (upstream: will fall back to run on the CPU)");
}

}  // namespace softnpu
