// What custom operators include: OpCommand, OpPreparation, and the launch of aclnn functions.
#pragma once

#include <string>
#include <vector>

#include "op_plugin/utils/op_api_common.h"
#include "torch_npu/csrc/core/npu/npu_log.h"
#include "torch_npu/csrc/framework/OpCommand.h"
#include "torch_npu/csrc/framework/utils/OpPreparation.h"

// Upstream's headers have these two at file scope, and extensions write `string` because of it.
using std::string;
using std::vector;
