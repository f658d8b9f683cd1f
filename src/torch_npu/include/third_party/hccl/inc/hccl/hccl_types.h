// Types of HCCL that extensions name.
#pragma once

#include <cstdint>

using HcclComm = void*;
enum HcclResult { HCCL_SUCCESS = 0, HCCL_E_PARA = 1 };
enum HcclReduceOp { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3 };
