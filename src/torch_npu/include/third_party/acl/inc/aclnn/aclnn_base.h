// The name under which programs include the arguments of aclnn functions.
#pragma once

#include "aclnn/acl_meta.h"
