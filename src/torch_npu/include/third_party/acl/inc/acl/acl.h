// CANN's runtime, as far as extensions call it.
#pragma once

#include "acl/acl_base.h"
#include "acl/acl_rt.h"
#include "acl/softnpu_opapi.h"

inline aclError aclInit(const char* /*config*/) { return ACL_SUCCESS; }
inline aclError aclFinalize() { return ACL_SUCCESS; }
// What the last aclnn function that failed on this thread says.
inline const char* aclGetRecentErrMsg() {
  static const auto message = softnpu_headers::opapi_function<const char*()>("aclGetRecentErrMsg");
  return message == nullptr ? "" : message();
}
