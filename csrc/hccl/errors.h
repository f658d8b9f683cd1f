// Errors of the hccl backend: our sentence, upstream's code line. The line is written by torch_npu/_errors.py.
#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <string>

namespace softnpu::hccl {

// The last digits of upstream's codes, as in torch_npu/_errors.py.
enum class Code {
  Param = 1,
  Type = 2,
  Value = 3,
  Internal = 5,
  NotSupport = 7,
  NotFound = 8,
  Timeout = 11,
  Hccl = 200
};

// Set from Python: the line "[ERROR] ... ERR02xxx DIST ..." for a code.
extern std::function<std::string(int)> code_line;

inline std::string code_text(Code code) { return code_line ? code_line(static_cast<int>(code)) : std::string(); }

}  // namespace softnpu::hccl

#define HCCL_CHECK(condition, code, ...) \
  TORCH_CHECK(condition, __VA_ARGS__, ::softnpu::hccl::code_text(::softnpu::hccl::Code::code))
