// CANN's runtime, as far as extensions call it.
#pragma once

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

inline aclError aclInit(const char* /*config*/) { return ACL_SUCCESS; }
inline aclError aclFinalize() { return ACL_SUCCESS; }
inline const char* aclGetRecentErrMsg() { return ""; }
