#include "torch/dispatch/trusted.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace softnpu {

const c10::IValue* Given::find(const char* label) const {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == label) return first + i;
  }
  return nullptr;
}

at::Tensor Given::tensor(const char* label) const {
  const c10::IValue* value = find(label);
  return value != nullptr && value->isTensor() ? value->toTensor() : at::Tensor();
}

namespace {

void expect_sizes(const Given& given, const char* label, c10::IntArrayRef sizes, const char* of) {
  const at::Tensor tensor = given.tensor(label);
  TORCH_CHECK(tensor.defined() && tensor.sizes() == sizes, given.schema.name(), ": argument '", label,
              "' must have the sizes ", sizes, of, ", but has ",
              tensor.defined() ? tensor.sizes() : c10::IntArrayRef());
}

void expect_elements(const Given& given, const char* label, int64_t count, const char* of) {
  const at::Tensor tensor = given.tensor(label);
  TORCH_CHECK(!tensor.defined() || tensor.numel() == count, given.schema.name(), ": argument '", label, "' must have ",
              count, " elements, ", of, ", but has ", tensor.numel());
}

// The least and the greatest element. Without an allocation: a plan of the program's memory makes none here.
template <class T>
void extremes(const T* data, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t& least, int64_t& most) {
  if (sizes.empty()) {
    least = std::min(least, static_cast<int64_t>(*data));
    most = std::max(most, static_cast<int64_t>(*data));
    return;
  }
  if (sizes.size() > 1 || strides[0] != 1) {
    for (int64_t i = 0; i < sizes[0]; ++i)
      extremes(data + i * strides[0], sizes.slice(1), strides.slice(1), least, most);
    return;
  }
  T low = *data, high = *data;
  for (int64_t i = 0; i < sizes[0]; ++i) {
    low = std::min(low, data[i]);
    high = std::max(high, data[i]);
  }
  least = std::min(least, static_cast<int64_t>(low));
  most = std::max(most, static_cast<int64_t>(high));
}

// Every element in [low, high).
void expect_range(const Given& given, const char* label, int64_t low, int64_t high) {
  const at::Tensor indices = given.tensor(label);
  if (!indices.defined() || indices.numel() == 0) return;
  const auto type = indices.scalar_type();
  if (type != at::kLong && type != at::kInt) return;  // the kernel refuses it
  const int64_t count = indices.numel(), one = 1;
  const bool flat = indices.is_non_overlapping_and_dense();
  const c10::IntArrayRef sizes = flat ? c10::IntArrayRef(count) : indices.sizes();
  const c10::IntArrayRef strides = flat ? c10::IntArrayRef(one) : indices.strides();
  int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min();
  if (type == at::kLong) {
    extremes(indices.const_data_ptr<int64_t>(), sizes, strides, least, most);
  } else {
    extremes(indices.const_data_ptr<int32_t>(), sizes, strides, least, most);
  }
  TORCH_CHECK(least >= low && most < high, given.schema.name(), ": argument '", label, "' must hold indices from ", low,
              " to ", high - 1, ", but holds ", least < low ? least : most);
}

// Batch norm: an element for each channel.
void channels(const Given& given) {
  at::Tensor input = given.tensor("input");
  if (!input.defined() || input.dim() < 2) return;
  for (const char* label : {"weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd"}) {
    const at::Tensor vector = given.tensor(label);
    if (!vector.defined()) continue;
    if (vector.numel() == 0 && std::string(label).rfind("save", 0) == 0) continue;  // without training nothing is saved
    expect_elements(given, label, input.size(1), "one for each channel of 'input'");
  }
}

// Gradients of pooling: a position in its plane for each element.
int64_t planar(const Given& given) { return given.schema.name().find("3d") == std::string::npos ? 2 : 3; }

void pooled_sizes(const Given& given) {
  const at::Tensor self = given.tensor("self"), grad = given.tensor("grad_output");
  const int64_t dims = planar(given);
  TORCH_CHECK(self.defined() && (self.dim() == dims + 1 || self.dim() == dims + 2), given.schema.name(),
              ": argument 'self' must have ", dims + 1, " or ", dims + 2, " dimensions, but has ",
              self.defined() ? self.dim() : 0);
  expect_sizes(given, "indices", grad.sizes(), " of 'grad_output'");
  bool planes = grad.dim() == self.dim();
  for (int64_t i = 0; planes && i < self.dim() - dims; ++i) planes = grad.size(i) == self.size(i);
  TORCH_CHECK(planes, given.schema.name(), ": argument 'grad_output' must have the batch and the channels of 'self' (",
              self.sizes(), "), but has the sizes ", grad.sizes());
}

void pooled_values(const Given& given) {
  const at::Tensor self = given.tensor("self");
  const int64_t dims = planar(given);
  int64_t plane = 1;
  for (int64_t i = 1; i <= dims; ++i) plane *= self.size(-i);
  const bool empty_windows = given.schema.name().find("with_indices") != std::string::npos;  // they have -1
  expect_range(given, "indices", empty_windows ? -1 : 0, plane);
}

// Gradient of cdist: a distance for each pair of rows.
void distances(const Given& given) {
  const at::Tensor x1 = given.tensor("x1"), x2 = given.tensor("x2"), cdist = given.tensor("cdist");
  if (!x1.defined() || !x2.defined() || !cdist.defined() || x1.dim() < 2 || x2.dim() < 2) return;
  expect_sizes(given, "grad", cdist.sizes(), " of 'cdist'");
  TORCH_CHECK(cdist.dim() >= 2 && cdist.size(-2) == x1.size(-2) && cdist.size(-1) == x2.size(-2), given.schema.name(),
              ": argument 'cdist' must have a row for each of ", x1.size(-2), " rows of 'x1' and a column for each of ",
              x2.size(-2), " rows of 'x2', but has the sizes ", cdist.sizes());
}

// Gradients of embedding bags: a bag for each index, a row of the gradient for each bag.
void bags_sizes(const Given& given) {
  const at::Tensor indices = given.tensor("indices"), grad = given.tensor("grad");
  if (!indices.defined() || !grad.defined()) return;
  TORCH_CHECK(grad.dim() == 2, given.schema.name(), ": argument 'grad' must have 2 dimensions, but has ", grad.dim());
  const at::Tensor bags = given.tensor("offset2bag");
  if (bags.defined() && bags.numel() != 0) expect_elements(given, "offset2bag", indices.numel(), "one for each index");
  expect_elements(given, "per_sample_weights", indices.numel(), "one for each index");
}

void bags_values(const Given& given) {
  const at::Tensor grad = given.tensor("grad"), weight = given.tensor("weight");
  const c10::IValue* rows = given.find("num_weights");
  expect_range(given, "offset2bag", 0, grad.size(0));
  if (rows != nullptr && rows->isInt()) expect_range(given, "indices", 0, rows->toInt());
  if (rows != nullptr && rows->isInt()) expect_range(given, "maximum_indices", -1, rows->toInt());
  if (weight.defined()) expect_range(given, "indices", 0, weight.size(0));
}

std::unordered_map<std::string, Trusted> rules() {
  std::unordered_map<std::string, Trusted> table;
  for (const char* name : {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
                           "_native_batch_norm_legit_no_training", "native_batch_norm_backward",
                           "_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update",
                           "batch_norm_backward", "cudnn_batch_norm", "miopen_batch_norm"}) {
    table[name] = {channels, nullptr};
  }
  for (const char* name :
       {"max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward"}) {
    table[name] = {pooled_sizes, pooled_values};
  }
  table["_cdist_backward"] = {distances, nullptr};
  for (const char* name :
       {"_embedding_bag_backward", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward"}) {
    table[name] = {bags_sizes, bags_values};
  }
  return table;
}

}  // namespace

Trusted trusted(const std::string& name) {
  static const auto* table = new std::unordered_map<std::string, Trusted>(rules());
  if (name.rfind("aten::", 0) != 0) return {};
  const auto found = table->find(name.substr(6));
  return found == table->end() ? Trusted{} : found->second;
}

}  // namespace softnpu
