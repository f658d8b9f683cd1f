// What a run for shapes alone knows of values (docs/plan-runs.md).
//
// Integers and booleans of a small tensor, and one floating value, are computed if what they come from was. Everything
// else is absent: its bytes were never written. A floating value that is absent reads as 1.0. What is worked out from
// such a value is guessed: it is there, and a warning names the line that reads it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace softnpu::plan {

// kFloating: what is absent are floating values (bytes of a storage do not tell).
enum Data : uint8_t { kReal = 0, kAbsent = 1, kGuessed = 2, kFloating = 4 };

constexpr int64_t kSmall = int64_t{16} << 20;  // bytes of a tensor that is computed

uint8_t data_of(const at::Tensor& tensor);
void set_data(const at::Tensor& tensor, uint8_t data);

// Memory moves to another address, and with it what is known of it. Whether its bytes are absent.
bool keep_data(const void* from, const void* to);

bool is_float(const at::Tensor& tensor);
// Whether its values are computed at all, by its size and dtype.
bool computes(const at::Tensor& tensor);

// How routing and the like choose among experts: row i takes the next ones in turn, or favors the first by a factor.
struct Routing {
  double skew = 1;  // how often the most wanted is chosen, relative to the average
};
void set_routing(const Routing& routing);

// Of an operator that chooses indices by the size of floating values: the choice for a result that holds indices.
void choose(const std::string& name, const c10::FunctionSchema& schema, const torch::jit::Stack& arguments,
            const at::Tensor& indices);

// The host reads: a warning or an error that names the line.
c10::Scalar read_scalar(const at::Tensor& cpu);
void check_readable(const at::Tensor& cpu, const char* by);  // its bytes, by a method that passes no dispatch
void warn_guessed(const char* by);
[[noreturn]] void raise_absent(const char* by, const at::Tensor& tensor);
std::string line();                                   // "file:line" of the program; empty: not known
void set_packages(std::vector<std::string> folders);  // whose lines are not the program's

}  // namespace softnpu::plan
