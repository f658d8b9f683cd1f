// Layers of networks, their gradients and optimizers.
#include <ATen/ATen.h>

#include "torch/dispatch/trusted_checks.h"

namespace softnpu::trusted {

// Batch norm: an element for each channel, and statistics where nothing is computed from the batch.
void batch_norm(const CallArguments& given) {
  const at::Tensor input = given.tensor("input");
  if (!input.defined() || input.dim() < 2) return;
  for (const char* label : {"weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var"}) {
    const at::Tensor vector = given.tensor(label);
    const bool saved = std::string(label).rfind("save", 0) == 0;
    if (!vector.defined() || (saved && vector.numel() == 0)) continue;  // without training nothing is saved
    if (saved && given.schema.arguments()[given.find(label) - given.first].alias_info() != nullptr)
      continue;  // a result
    expect_elements(given, label, input.size(1), "one for each channel of 'input'");
  }
  if (!flag(given, "training", true)) {
    expect_tensor(given, "running_mean", "without training");
    expect_tensor(given, "running_var", "without training");
  }
  if (given.find("grad_out") == nullptr) return;
  expect_sizes(given, "grad_out", input.sizes(), " of 'input'");
  const bool trained = flag(given, "train", flag(given, "update", true));
  const bool saves_variance = given.find("save_var") != nullptr;
  for (const char* label : {trained ? "save_mean" : "running_mean",
                            !trained ? "running_var" : (saves_variance ? "save_var" : "save_invstd")}) {
    expect_tensor(given, label, trained ? "after training" : "without training");
    expect_elements(given, label, input.size(1), "one for each channel of 'input'");
  }
}

// Layer norm: a mean for each row, a weight for each column.
void layer_norm(const CallArguments& given) {
  const at::Tensor input = given.tensor("input");
  const c10::IValue* shape = given.find("normalized_shape");
  if (!input.defined() || shape == nullptr || !shape->isIntList()) return;
  const std::vector<int64_t> normalized = shape->toIntVector();
  const auto count = static_cast<int64_t>(normalized.size());
  TORCH_CHECK(count > 0 && input.dim() >= count && input.sizes().slice(input.dim() - count).equals(normalized),
              given.schema.name(), ": argument 'normalized_shape' must be the last sizes of 'input' (", input.sizes(),
              "), but is ", c10::IntArrayRef(normalized));
  int64_t columns = 1;
  for (const int64_t size : normalized) columns *= size;
  const int64_t means = columns == 0 ? 0 : input.numel() / columns;
  expect_sizes(given, "grad_out", input.sizes(), " of 'input'");
  if (columns != 0) {
    for (const char* label : {"mean", "rstd"}) expect_elements(given, label, means, "one for each row of 'input'");
  }
  for (const char* label : {"weight", "bias"}) expect_elements(given, label, columns, "as 'normalized_shape' says");
}

// Group norm: numbers that say how the input is laid out.
void group_norm(const CallArguments& given) {
  const at::Tensor input = given.tensor("input");
  const int64_t batch = number(given, "N"), channel = number(given, "C"), plane = number(given, "HxW");
  const int64_t group = number(given, "group");
  int64_t elements = 0;
  const bool overflow =
      __builtin_mul_overflow(batch, channel, &elements) || __builtin_mul_overflow(elements, plane, &elements);
  TORCH_CHECK(input.defined() && batch >= 0 && channel >= 0 && plane >= 0 && !overflow && elements == input.numel(),
              given.schema.name(), ": arguments 'N', 'C' and 'HxW' must be the sizes of 'input' (",
              input.defined() ? input.sizes() : c10::IntArrayRef(), "), but are ", batch, ", ", channel, " and ",
              plane);
  TORCH_CHECK(group > 0 && channel % group == 0, given.schema.name(), ": argument 'group' must divide 'C' (", channel,
              "), but is ", group);
  for (const char* label : {"weight", "bias"}) expect_elements(given, label, channel, "one for each channel");
  for (const char* label : {"mean", "rstd"}) expect_elements(given, label, batch * group, "one for each group");
  if (given.find("grad_out") != nullptr) expect_elements(given, "grad_out", elements, "as 'input' has");
}

namespace {

// Gradients of pooling: a position in its plane for each element.
int64_t planar(const CallArguments& given) { return given.schema.name().find("3d") == std::string::npos ? 2 : 3; }

}  // namespace

// The gradient has the batch and the channels of the input.
void pool_planes(const CallArguments& given) {
  const at::Tensor self = given.tensor("self"), grad = given.tensor("grad_output");
  const int64_t dims = planar(given);
  TORCH_CHECK(self.defined() && (self.dim() == dims + 1 || self.dim() == dims + 2), given.schema.name(),
              ": argument 'self' must have ", dims + 1, " or ", dims + 2, " dimensions, but has ",
              self.defined() ? self.dim() : 0);
  bool same = grad.defined() && grad.dim() == self.dim();
  for (int64_t i = 0; same && i < self.dim() - dims; ++i) same = grad.size(i) == self.size(i);
  TORCH_CHECK(same, given.schema.name(), ": argument 'grad_output' must have the batch and the channels of 'self' (",
              self.sizes(), "), but has the sizes ", grad.defined() ? grad.sizes() : c10::IntArrayRef());
}

void pool_sizes(const CallArguments& given) {
  pool_planes(given);
  const at::Tensor grad = given.tensor("grad_output");
  expect_sizes(given, "indices", grad.sizes(), " of 'grad_output'");
  const c10::IValue* output = given.find("output_size");
  if (output == nullptr || !output->isIntList()) return;
  const auto sizes = output->toIntVector();
  TORCH_CHECK(grad.sizes().slice(grad.dim() - planar(given)).equals(sizes), given.schema.name(),
              ": argument 'output_size' must be the last sizes of 'grad_output' (", grad.sizes(), "), but is ",
              c10::IntArrayRef(sizes));
}

void pool_indices(const CallArguments& given) {
  const at::Tensor self = given.tensor("self");
  const int64_t dims = planar(given);
  int64_t plane = 1;
  for (int64_t i = 1; i <= dims; ++i) plane *= self.size(-i);
  const bool empty_windows = given.schema.name().find("with_indices") != std::string::npos;  // they have -1
  expect_range(given, "indices", empty_windows ? -1 : 0, plane);
}

// Gradients of sampling: an element for each channel of the input and each point of the grid.
void grid_sampler(const CallArguments& given) {
  const at::Tensor input = given.tensor("input"), grid = given.tensor("grid");
  const int64_t dims = planar(given);
  if (!input.defined() || !grid.defined() || input.dim() != dims + 2 || grid.dim() != dims + 2) return;
  std::vector<int64_t> sizes = grid.sizes().slice(0, static_cast<size_t>(dims) + 1).vec();
  sizes.insert(sizes.begin() + 1, input.size(1));
  expect_sizes(given, "grad_output", sizes, " that 'input' and 'grid' say");
}

// Gradients of embedding bags: a bag for each index, a row of the gradient for each bag.
void embedding_bag_sizes(const CallArguments& given) {
  const at::Tensor indices = given.tensor("indices"), grad = given.tensor("grad");
  if (!indices.defined() || !grad.defined()) return;
  TORCH_CHECK(grad.dim() == 2, given.schema.name(), ": argument 'grad' must have 2 dimensions, but has ", grad.dim());
  const at::Tensor bags = given.tensor("offset2bag");
  if (bags.defined() && bags.numel() != 0) expect_elements(given, "offset2bag", indices.numel(), "one for each index");
  expect_elements(given, "per_sample_weights", indices.numel(), "one for each index");
}

void embedding_bag_values(const CallArguments& given) {
  const at::Tensor grad = given.tensor("grad"), weight = given.tensor("weight");
  const c10::IValue* rows = given.find("num_weights");
  expect_range(given, "offset2bag", 0, grad.size(0));
  const at::Tensor indices = given.tensor("indices"), offsets = given.tensor("offsets");
  if (offsets.defined() && given.tensor("offset2bag").numel() == 0) {  // the kernel makes it of the offsets
    expect_range(given, "offsets", 0, indices.numel() + 1);
    const int64_t bags = offsets.lt(indices.numel()).sum().item<int64_t>();
    TORCH_CHECK(bags <= grad.size(0), given.schema.name(), ": argument 'offsets' must begin at most ", grad.size(0),
                " bags, as many as 'grad' has rows, but begins ", bags);
  }
  if (rows != nullptr && rows->isInt()) expect_range(given, "indices", 0, rows->toInt());
  if (rows != nullptr && rows->isInt()) expect_range(given, "maximum_indices", -1, rows->toInt());
  if (weight.defined()) expect_range(given, "indices", 0, weight.size(0));
}

// Gradient of an embedding that counts how often each row is asked for.
void embedding_counts(const CallArguments& given) {
  if (flag(given, "scale_grad_by_freq", false)) expect_range(given, "indices", 0, number(given, "num_weights"));
}

// Gradients of padding: two numbers for each dimension.
void padding(const CallArguments& given) {
  const c10::IValue* value = given.find("padding");
  const std::string& name = given.schema.name();
  const size_t wanted = 2 * static_cast<size_t>(name[name.find("pad") + 3] - '0');
  const size_t count = value != nullptr && value->isIntList() ? value->toIntVector().size() : 0;
  TORCH_CHECK(count == wanted, name, ": argument 'padding' must have ", wanted, " numbers, but has ", count);
  const at::Tensor self = given.tensor("self");
  if (!self.defined() || self.dim() < static_cast<int64_t>(wanted / 2)) return;
  const auto around = value->toIntVector();
  std::vector<int64_t> sizes = self.sizes().vec();
  for (size_t i = 0; i < wanted / 2; ++i) sizes[sizes.size() - 1 - i] += around[2 * i] + around[2 * i + 1];
  expect_sizes(given, "grad_output", sizes, " that 'self' and 'padding' say");
}

// Resampling with a filter: no more points than the scales, which need not fit the sizes, give for the input.
void antialiased_sizes(const CallArguments& given) {
  const at::Tensor self = given.tensor("self");
  const c10::IValue* sizes = given.find("output_size");
  if (!self.defined() || self.dim() != 4 || sizes == nullptr || !sizes->isIntList() ||
      flag(given, "align_corners", false))
    return;
  const auto wanted = sizes->toIntVector();
  for (size_t i = 0; i < 2 && wanted.size() == 2; ++i) {
    const c10::IValue* scale = given.find(i == 0 ? "scales_h" : "scales_w");
    if (scale == nullptr || !scale->isDouble() || !(scale->toDouble() > 0)) continue;
    const int64_t size = self.size(static_cast<int64_t>(2 + i));
    TORCH_CHECK(static_cast<double>(wanted[i]) <= static_cast<double>(size) * scale->toDouble() + 1,
                given.schema.name(), ": argument 'output_size' must hold at most ", size, " times ", scale->toDouble(),
                ", but holds ", wanted[i]);
  }
}

// Optimizers: states of the sizes of their parameters.
void optimizer_states(const CallArguments& given) {
  const c10::IValue* params = given.find("self");
  if (params == nullptr || !params->isTensorList()) return;
  const auto self = params->toTensorVector();
  const auto compare = [&](const char* label) {
    const c10::IValue* value = given.find(label);
    if (value == nullptr || !value->isTensorList()) return;
    const auto members = value->toTensorVector();
    TORCH_CHECK(members.size() == self.size(), given.schema.name(), ": argument '", label, "' must have ", self.size(),
                " tensors, as many as 'self', but has ", members.size());
    for (size_t i = 0; i < self.size(); ++i) {
      TORCH_CHECK(self[i].defined() && members[i].defined() && members[i].numel() == self[i].numel(),
                  given.schema.name(), ": tensor ", i, " of argument '", label, "' must have the elements of tensor ",
                  i, " of 'self'");
    }
  };
  for (const char* label : {"grads", "exp_avgs", "exp_avg_sqs", "state_sums"}) compare(label);
  if (flag(given, "amsgrad", false)) compare("max_exp_avg_sqs");
  const c10::IValue* momentum = given.find("momentum");
  if (momentum != nullptr && momentum->isDouble() && momentum->toDouble() != 0) compare("momentum_buffer_list");
}

// Gradient of the CTC loss: a loss and a gradient for each sequence, and what the loss kept of each.
void ctc_sizes(const CallArguments& given) {
  const at::Tensor inputs = given.tensor("log_probs"), alpha = given.tensor("log_alpha");
  if (given.find("log_alpha") == nullptr || !inputs.defined() || inputs.dim() != 3) return;
  const int64_t steps = inputs.size(0), batch = inputs.size(1);
  for (const char* label : {"grad", "neg_log_likelihood"}) expect_sizes(given, label, batch, ", one for each sequence");
  TORCH_CHECK(alpha.defined() && alpha.dim() == 3 && alpha.size(0) == batch && alpha.size(1) == steps,
              given.schema.name(), ": argument 'log_alpha' must have the sizes [", batch, ", ", steps,
              ", *] that 'log_probs' says, but has ", alpha.defined() ? alpha.sizes() : c10::IntArrayRef());
}

namespace {

// As many numbers as there are sequences, from 0 to `most`.
std::vector<int64_t> lengths(const CallArguments& given, const char* label, int64_t batch, int64_t most) {
  std::vector<int64_t> found;
  const c10::IValue* value = given.find(label);
  if (value != nullptr && value->isIntList()) found = value->toIntVector();
  if (const at::Tensor data = given.tensor(label); data.defined()) {
    const at::Tensor plain = data.to(at::kLong).contiguous();
    found.assign(plain.const_data_ptr<int64_t>(), plain.const_data_ptr<int64_t>() + plain.numel());
  }
  TORCH_CHECK(static_cast<int64_t>(found.size()) == batch, given.schema.name(), ": argument '", label,
              "' must have a length for each of ", batch, " sequences, but has ", found.size());
  for (const int64_t length : found) {
    TORCH_CHECK(length >= 0 && length <= most, given.schema.name(), ": argument '", label,
                "' must hold lengths from 0 to ", most, ", but holds ", length);
  }
  return found;
}

}  // namespace

// The CTC loss: classes that there are, in the part of the targets that the lengths say.
void ctc_values(const CallArguments& given) {
  const at::Tensor inputs = given.tensor("log_probs"), targets = given.tensor("targets");
  if (!inputs.defined() || inputs.dim() != 3 || !targets.defined() || targets.dim() < 1 || targets.dim() > 2) return;
  const auto type = targets.scalar_type();
  if (type != at::kLong && type != at::kInt) return;  // the kernel refuses it
  const int64_t batch = inputs.size(1), classes = inputs.size(2);
  const bool joined = targets.dim() == 1;
  lengths(given, "input_lengths", batch, inputs.size(0));
  const auto counts = lengths(given, "target_lengths", batch, targets.size(-1));
  const at::Tensor alpha = given.tensor("log_alpha"), plain = targets.to(at::kLong).contiguous();
  const int64_t blank = number(given, "blank"), row = joined ? 0 : plain.size(1);
  TORCH_CHECK(joined || plain.size(0) == batch, given.schema.name(), ": argument 'targets' must have ", batch,
              " rows, one for each sequence, but has ", plain.size(0));
  TORCH_CHECK(blank >= 0 && blank < classes, given.schema.name(), ": argument 'blank' must be a class from 0 to ",
              classes - 1, ", but is ", blank);
  int64_t first = 0;
  for (size_t b = 0; b < counts.size(); ++b) {
    TORCH_CHECK(!alpha.defined() || 2 * counts[b] < alpha.size(-1), given.schema.name(),
                ": argument 'log_alpha' must have two columns for each of ", counts[b],
                " targets and one more, but has ", alpha.size(-1));
    TORCH_CHECK(first + counts[b] <= plain.numel(), given.schema.name(), ": argument 'targets' must have the ",
                first + counts[b], " elements that 'target_lengths' says, but has ", plain.numel());
    for (int64_t i = first; i < first + counts[b]; ++i) {
      const int64_t target = plain.const_data_ptr<int64_t>()[i];
      TORCH_CHECK(target >= 0 && target < classes, given.schema.name(),
                  ": argument 'targets' must hold classes from 0 to ", classes - 1, ", but holds ", target);
    }
    first += joined ? counts[b] : row;
  }
}

}  // namespace softnpu::trusted
