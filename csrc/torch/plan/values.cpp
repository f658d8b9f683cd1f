#include "torch/plan/values.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "device/memory.h"
#include "torch/graph/capture.h"
#include "torch/memory/allocator.h"
#include "torch/plan/plan.h"
#include "torch/sanitizer/stacks.h"

namespace softnpu::plan {

namespace {

using at::Tensor;
using torch::jit::Stack;

std::mutex mutex;  // of what follows
Routing routing;
std::vector<std::string>& packages() {
  static auto* folders = new std::vector<std::string>;
  return *folders;
}
std::set<std::string>& warned() {
  static auto* lines = new std::set<std::string>;
  return *lines;
}

Block* block_under(const Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? block_at(base_of(tensor)) : nullptr;
}

const char* kind_of(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? "boolean" : is_float(tensor) ? "floating" : "integer";
}

// The element that `row` takes at `place` out of `count`, of `of` that it takes in all.
int64_t chosen(int64_t row, int64_t place, int64_t of, int64_t count, double skew) {
  if (skew <= 1 || of >= count) return (row * of + place) % count;
  const double often = std::min(1.0, skew * static_cast<double>(of) / static_cast<double>(count));
  const auto so_far = [&](int64_t rows) { return static_cast<int64_t>(static_cast<double>(rows) * often); };
  const bool favored = so_far(row + 1) > so_far(row);
  if (favored && place == 0) return 0;
  const int64_t before = row * of - so_far(row), rank = place - (favored ? 1 : 0);  // choices among the others
  return 1 + (before + rank) % (count - 1);
}

}  // namespace

uint8_t data_of(const Tensor& tensor) {
  const Block* block = block_under(tensor);
  return block == nullptr ? kReal : block->data;
}

void set_data(const Tensor& tensor, uint8_t data) {
  Block* block = block_under(tensor);
  if (block == nullptr) return;
  if ((data & kAbsent) != 0 && is_float(tensor)) data |= kFloating;
  const bool whole = tensor.nbytes() >= block->requested && tensor.is_non_overlapping_and_dense();
  block->data = whole ? data : static_cast<uint8_t>(block->data | data);
}

bool keep_data(const void* from, const void* to) {
  const Block* before = from == nullptr ? nullptr : block_at(from);
  Block* after = to == nullptr ? nullptr : block_at(to);
  if (before == nullptr || after == nullptr) return false;
  after->data = before->data;
  return (before->data & kAbsent) != 0;
}

bool is_float(const Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

bool computes(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes()) <= kSmall && (!is_float(tensor) || tensor.numel() <= 1);
}

// --- routing -------------------------------------------------------------------------------------------------------

void set_routing(const Routing& asked) {
  const std::lock_guard<std::mutex> lock(mutex);
  routing = asked;
}

void choose(const std::string& name, const c10::FunctionSchema& schema, const Stack& arguments, const Tensor& indices) {
  double skew = 1;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    skew = routing.skew;
  }
  const Tensor& from = arguments[0].toTensor();
  const std::optional<int> named = schema.argumentIndexWithName("dim");
  int64_t dim = from.dim() - 1;
  if (named.has_value() && arguments[static_cast<size_t>(*named)].isInt()) {
    dim = arguments[static_cast<size_t>(*named)].toInt();
    if (dim < 0) dim += from.dim();
  } else if (named.has_value()) {
    dim = -1;  // over all elements
  }
  const bool keeps = dim >= 0 && indices.dim() == from.dim();
  const bool sorts = name == "aten::sort";
  const int64_t count = dim < 0 || from.dim() == 0 ? std::max<int64_t>(1, from.numel()) : from.size(dim);
  const int64_t of = keeps && indices.dim() > 0 ? indices.size(dim) : 1;
  const HostScope host;
  at::DimVector shape(indices.sizes());
  if (keeps && !shape.empty()) {
    shape.erase(shape.begin() + dim);
    shape.push_back(of);
  }
  Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kLong));
  auto* to = values.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const int64_t row = i / std::max<int64_t>(1, of), place = i % std::max<int64_t>(1, of);
    to[i] = sorts ? place : chosen(row, place, of, count, skew);
  }
  Tensor target = indices;
  target.copy_(keeps && !shape.empty() ? values.movedim(-1, dim) : values);
}

// --- reads of the host ---------------------------------------------------------------------------------------------

void set_packages(std::vector<std::string> folders) {
  const std::lock_guard<std::mutex> lock(mutex);
  packages() = std::move(folders);
}

std::string line() {
  const uint32_t stack = capture_python_stack();
  if (stack == 0) return "";
  const pybind11::gil_scoped_acquire gil;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const StackFrame& frame : python_stack(stack)) {
    bool inside = frame.file.rfind("<frozen", 0) == 0;
    for (const std::string& folder : packages()) inside |= frame.file.rfind(folder, 0) == 0;
    if (!inside) return frame.file + ":" + std::to_string(frame.line);
  }
  return "";
}

void warn_guessed(const char* by) {
  const std::string at = line();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!warned().insert(at).second) return;
  }
  TORCH_WARN("softnpu plan: ", at.empty() ? "the program" : at, " reads a value (", by,
             ") that a run for shapes alone does not compute. Floating values read as 1.0, choices by them are "
             "balanced; see docs/plan-runs.md.");
}

void raise_absent(const char* by, const Tensor& tensor) {
  const std::string at = line();
  TORCH_CHECK(false, "softnpu plan: ", at.empty() ? std::string("the program") : at, " needs the values of a tensor",
              tensor.defined() ? c10::str(" (", kind_of(tensor), ", shape ", tensor.sizes(), ")") : std::string(),
              " in ", by, ", which a run for shapes alone does not compute: it is larger than ", kSmall >> 20,
              " MiB or comes from values that are not computed. See docs/plan-runs.md.");
}

c10::Scalar read_scalar(const Tensor& cpu) {
  const uint8_t data = data_of(cpu);
  if ((data & kAbsent) != 0) {
    if (!is_float(cpu)) raise_absent("item", cpu);
    warn_guessed("item");
    return 1.0;
  }
  if (data != kReal) warn_guessed("item");
  return at::_local_scalar_dense(cpu);
}

void check_readable(const Tensor& cpu, const char* by) {
  const uint8_t data = data_of(cpu);
  const bool fits = is_float(cpu) && static_cast<int64_t>(cpu.nbytes()) <= kSmall;
  if ((data & kAbsent) != 0 && !fits) raise_absent(by, cpu);
  if (data != kReal) warn_guessed(by);
  if ((data & kAbsent) != 0) {
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
    cpu.fill_(1);
  }
}

}  // namespace softnpu::plan
