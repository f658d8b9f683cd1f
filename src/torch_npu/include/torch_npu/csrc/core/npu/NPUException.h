// Errors of runtime calls.
#pragma once

#include <c10/util/Exception.h>

#include "third_party/acl/inc/acl/acl.h"

#define NPU_CHECK_ERROR(call)                                                             \
  do {                                                                                    \
    const aclError softnpu_code = (call);                                                 \
    TORCH_CHECK(softnpu_code == ACL_SUCCESS, #call, " failed with error ", softnpu_code); \
  } while (false)

namespace c10_npu {

inline const char* c10_npu_get_error_message() { return aclGetRecentErrMsg(); }

}  // namespace c10_npu
