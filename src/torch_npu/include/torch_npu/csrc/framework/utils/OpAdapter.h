// What custom operators include: OpCommand, OpPreparation, and the launch of aclnn functions.
#pragma once

#include "op_plugin/utils/op_api_common.h"
#include "torch_npu/csrc/core/npu/npu_log.h"
#include "torch_npu/csrc/framework/OpCommand.h"
#include "torch_npu/csrc/framework/utils/NpuUtils.h"
#include "torch_npu/csrc/framework/utils/OpPreparation.h"
