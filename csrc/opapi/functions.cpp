// The exported functions, two for each line of functions.inc.
#include "opapi/opapi.h"

namespace {

using Tensor = const aclTensor*;
using TensorList = const aclTensorList*;
using IntArray = const aclIntArray*;
using FloatArray = const aclFloatArray*;
using BoolArray = const aclBoolArray*;
using Scalar = const aclScalar*;
using ScalarList = const aclScalarList*;
using String = const char*;

// How the products of the cube unit may round. They accumulate in fp32 here whatever it says.
enum CubeMathType : int8_t {};

void add(std::vector<softnpu::opapi::Argument>& /*made*/, CubeMathType /*given*/) {}
template <class T>
void add(std::vector<softnpu::opapi::Argument>& made, T given) {
  made.push_back(softnpu::opapi::argument(given));
}

template <class... Given>
std::vector<softnpu::opapi::Argument> arguments(Given... given) {
  std::vector<softnpu::opapi::Argument> made;
  made.reserve(sizeof...(given));
  (add(made, given), ...);
  return made;
}

}  // namespace

// The pairs of a type and a name, one after the other: PARAMETERS(A, a, B, b) is `A a, B b,`, NAMES is `a, b`.
#define PARENTHESES ()
#define EXPAND(...) EXPAND_3(EXPAND_3(EXPAND_3(EXPAND_3(__VA_ARGS__))))
#define EXPAND_3(...) EXPAND_2(EXPAND_2(EXPAND_2(EXPAND_2(__VA_ARGS__))))
#define EXPAND_2(...) EXPAND_1(EXPAND_1(EXPAND_1(EXPAND_1(__VA_ARGS__))))
#define EXPAND_1(...) __VA_ARGS__
#define PARAMETERS(...) __VA_OPT__(EXPAND(PARAMETER(__VA_ARGS__)))
#define PARAMETER(type, name, ...) type name, __VA_OPT__(PARAMETER_AGAIN PARENTHESES(__VA_ARGS__))
#define PARAMETER_AGAIN() PARAMETER
#define NAMES(...) __VA_OPT__(EXPAND(NAME(__VA_ARGS__)))
#define NAME(type, name, ...) name __VA_OPT__(, NAME_AGAIN PARENTHESES(__VA_ARGS__))
#define NAME_AGAIN() NAME

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define ACLNN(function, ...)                                                                                           \
  EXPORTED aclnnStatus function##GetWorkspaceSize(PARAMETERS(__VA_ARGS__) uint64_t* workspaceSize,                     \
                                                  aclOpExecutor** executor) {                                          \
    return softnpu::opapi::prepare(#function, arguments(NAMES(__VA_ARGS__)), workspaceSize, executor);                 \
  }                                                                                                                    \
  EXPORTED aclnnStatus function(void* /*workspace*/, uint64_t /*size*/, aclOpExecutor* executor, aclrtStream stream) { \
    return softnpu::opapi::run(executor, stream);                                                                      \
  }

#include "opapi/functions.inc"
