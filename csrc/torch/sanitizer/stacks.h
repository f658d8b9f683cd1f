// Where the program is: the stack of Python, cheap to take and turned into text only when somebody reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace softnpu {

struct StackFrame {
  std::string file, function;
  int line = 0;
};

// Of the calling thread; of the main thread where the calling one runs no Python (autograd's). 0: there is none.
uint32_t capture_python_stack();

std::vector<StackFrame> python_stack(uint32_t id);  // innermost first; needs the GIL

}  // namespace softnpu
