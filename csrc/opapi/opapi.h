// What the functions of libopapi.so hand over: the parameters of one call, by type.
//
// CANN launches an operator in two steps. aclnnXxxGetWorkspaceSize takes the arguments and gives an executor, aclnnXxx
// runs it. Here the first keeps the arguments as PyTorch's values, the second calls the operator of that name.
#pragma once

#include <cstdint>
#include <vector>

#include "acl/acl_base.h"
#include "aclnn/acl_meta.h"

namespace softnpu::opapi {

// One argument. The pointers are null where an optional argument is not given.
struct Argument {
  enum Kind {
    tensor,
    tensor_list,
    int_array,
    float_array,
    bool_array,
    scalar,
    scalar_list,
    text,
    number,
    real,
    flag,
    dtype
  };
  Kind kind;
  union {
    const void* pointer;
    int64_t integer;
    double floating;
  };
};

inline Argument of(Argument::Kind kind, const void* pointer) {
  Argument made{kind, {}};
  made.pointer = pointer;
  return made;
}
inline Argument of(Argument::Kind kind, int64_t integer) {
  Argument made{kind, {}};
  made.integer = integer;
  return made;
}

inline Argument argument(const aclTensor* given) { return of(Argument::tensor, given); }
inline Argument argument(const aclTensorList* given) { return of(Argument::tensor_list, given); }
inline Argument argument(const aclIntArray* given) { return of(Argument::int_array, given); }
inline Argument argument(const aclFloatArray* given) { return of(Argument::float_array, given); }
inline Argument argument(const aclBoolArray* given) { return of(Argument::bool_array, given); }
inline Argument argument(const aclScalar* given) { return of(Argument::scalar, given); }
inline Argument argument(const aclScalarList* given) { return of(Argument::scalar_list, given); }
inline Argument argument(const char* given) { return of(Argument::text, given); }
inline Argument argument(bool given) { return of(Argument::flag, static_cast<int64_t>(given)); }
inline Argument argument(aclDataType given) { return of(Argument::dtype, static_cast<int64_t>(given)); }
inline Argument argument(int64_t given) { return of(Argument::number, given); }
inline Argument argument(uint64_t given) { return of(Argument::number, static_cast<int64_t>(given)); }
inline Argument argument(int32_t given) { return of(Argument::number, static_cast<int64_t>(given)); }
inline Argument argument(uint32_t given) { return of(Argument::number, static_cast<int64_t>(given)); }
inline Argument argument(double given) {
  Argument made{Argument::real, {}};
  made.floating = given;
  return made;
}
inline Argument argument(float given) { return argument(static_cast<double>(given)); }

// The two steps; both return a code of CANN and keep the message for aclGetRecentErrMsg.
aclnnStatus prepare(const char* name, std::vector<Argument> arguments, uint64_t* workspace, aclOpExecutor** executor);
aclnnStatus run(aclOpExecutor* executor, aclrtStream stream);

}  // namespace softnpu::opapi
