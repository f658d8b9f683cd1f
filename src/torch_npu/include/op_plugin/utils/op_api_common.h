// EXEC_NPU_CMD: what launches an aclnn function on the card calls the operator of that name here.
#pragma once

#include "torch_npu/csrc/framework/OperatorCall.h"

#define EXEC_NPU_CMD(aclnn_api, ...) ::softnpu_headers::call(#aclnn_api, __VA_ARGS__)
#define EXEC_NPU_CMD_EXT(aclnn_api, ...) ::softnpu_headers::call(#aclnn_api, __VA_ARGS__)
#define EXEC_UPDATE_NPU_NO_FORMAT_CHECK_CMD(aclnn_api, ...) ::softnpu_headers::call(#aclnn_api, __VA_ARGS__)
