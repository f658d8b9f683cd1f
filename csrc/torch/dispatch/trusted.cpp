#include "torch/dispatch/trusted.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

#include "torch/dispatch/trusted_checks.h"

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

// Batch norm: an element for each channel, and statistics where nothing is computed from the batch.
void channels(const Given& given) {
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
void rows(const Given& given) {
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
void groups(const Given& given) {
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

// Gradients of pooling: a position in its plane for each element.
int64_t planar(const Given& given) { return given.schema.name().find("3d") == std::string::npos ? 2 : 3; }

// The gradient has the batch and the channels of the input.
void planes(const Given& given) {
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

void pooled_sizes(const Given& given) {
  planes(given);
  const at::Tensor grad = given.tensor("grad_output");
  expect_sizes(given, "indices", grad.sizes(), " of 'grad_output'");
  const c10::IValue* output = given.find("output_size");
  if (output == nullptr || !output->isIntList()) return;
  const auto sizes = output->toIntVector();
  TORCH_CHECK(grad.sizes().slice(grad.dim() - planar(given)).equals(sizes), given.schema.name(),
              ": argument 'output_size' must be the last sizes of 'grad_output' (", grad.sizes(), "), but is ",
              c10::IntArrayRef(sizes));
}

void pooled_values(const Given& given) {
  const at::Tensor self = given.tensor("self");
  const int64_t dims = planar(given);
  int64_t plane = 1;
  for (int64_t i = 1; i <= dims; ++i) plane *= self.size(-i);
  const bool empty_windows = given.schema.name().find("with_indices") != std::string::npos;  // they have -1
  expect_range(given, "indices", empty_windows ? -1 : 0, plane);
}

// Gradients of sampling: an element for each channel of the input and each point of the grid.
void sampled(const Given& given) {
  const at::Tensor input = given.tensor("input"), grid = given.tensor("grid");
  const int64_t dims = planar(given);
  if (!input.defined() || !grid.defined() || input.dim() != dims + 2 || grid.dim() != dims + 2) return;
  std::vector<int64_t> sizes = grid.sizes().slice(0, static_cast<size_t>(dims) + 1).vec();
  sizes.insert(sizes.begin() + 1, input.size(1));
  expect_sizes(given, "grad_output", sizes, " that 'input' and 'grid' say");
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

// Gradient of unfold: windows of the size and the step that the input has room for.
void unfolded(const Given& given) {
  const at::Tensor grad = given.tensor("grad_in");
  const c10::IValue* shape = given.find("input_sizes");
  if (!grad.defined() || shape == nullptr || !shape->isIntList()) return;
  std::vector<int64_t> sizes = shape->toIntVector();
  const int64_t size = number(given, "size"), step = number(given, "step");
  const auto rank = static_cast<int64_t>(sizes.size());
  int64_t dim = number(given, "dim");
  if (dim < 0) dim += rank;
  TORCH_CHECK(dim >= 0 && dim < rank, given.schema.name(), ": argument 'dim' must be a dimension of 'input_sizes' (",
              c10::IntArrayRef(sizes), "), but is ", number(given, "dim"));
  int64_t& along = sizes[static_cast<size_t>(dim)];
  TORCH_CHECK(size >= 0 && size <= along && step > 0, given.schema.name(),
              ": arguments 'size' and 'step' must be from 0 to ", along, " and positive, but are ", size, " and ",
              step);
  along = (along - size) / step + 1;
  sizes.push_back(size);
  expect_sizes(given, "grad_in", sizes, " that 'input_sizes', 'size' and 'step' say");
}

// Gradients of padding: two numbers for each dimension.
void padding(const Given& given) {
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
void resampled(const Given& given) {
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

// Transforms: dimensions that there are, counted from the first one, and half of the frequencies.
void transformed(const Given& given) {
  const at::Tensor self = given.tensor("self");
  const c10::IValue* value = given.find("dim");
  if (!self.defined() || value == nullptr || !value->isIntList()) return;
  const auto dims = value->toIntVector();
  for (const int64_t dim : dims) {
    TORCH_CHECK(dim >= 0 && dim < self.dim(), given.schema.name(), ": argument 'dim' must hold dimensions from 0 to ",
                self.dim() - 1, ", but holds ", dim);
    TORCH_CHECK(std::count(dims.begin(), dims.end(), dim) == 1, given.schema.name(),
                ": argument 'dim' must hold each dimension once, but is ", c10::IntArrayRef(dims));
  }
  const c10::IValue* last = given.find("last_dim_size");
  if (last == nullptr || !last->isInt() || dims.empty()) return;
  TORCH_CHECK(last->toInt() >= 1 && self.size(dims.back()) >= last->toInt() / 2 + 1, given.schema.name(),
              ": argument 'last_dim_size' must be from 1 to ", 2 * self.size(dims.back()) - 1, " for ",
              self.size(dims.back()), " frequencies, but is ", last->toInt());
}

// Pivots of a symmetric factorization: none is 0, and negative ones stand in pairs.
void blocks(const Given& given, int64_t count) {
  const at::Tensor rows = given.tensor("pivots");
  if (!rows.defined() || rows.scalar_type() != at::kInt || rows.numel() == 0 || rows.size(-1) != count) return;
  const at::Tensor plain = rows.contiguous();
  const int32_t* row = plain.const_data_ptr<int32_t>();
  for (int64_t first = 0; first < plain.numel(); first += count) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t pivot = row[first + i];
      const bool paired = pivot < 0 && i + 1 < count && row[first + i + 1] < 0;
      TORCH_CHECK(pivot > 0 || paired, given.schema.name(), ": argument 'pivots' must hold rows from 1 to ", count,
                  ", negative ones in pairs, but holds ", pivot, " at ", i);
      i += paired;
    }
  }
}

// Pivots of a factorization: rows, counted from 1; negative ones belong to a block of two rows.
void pivots(const Given& given) {
  const bool unpacked = given.find("LU_pivots") != nullptr, symmetric = given.find("LD") != nullptr;
  const at::Tensor factors = given.tensor(unpacked ? "LU_data" : (symmetric ? "LD" : "LU"));
  if (!factors.defined() || factors.dim() < 2) return;
  if (unpacked && !flag(given, "unpack_pivots", true)) return;
  const int64_t count = factors.size(-2);
  expect_range(given, unpacked ? "LU_pivots" : "pivots", symmetric ? -count : 1, count + 1);
  if (symmetric) blocks(given, count);
}

void pivot_sizes(const Given& given) {
  const at::Tensor factors = given.tensor("LU_data");
  if (!factors.defined() || factors.dim() < 2 || !flag(given, "unpack_pivots", true)) return;
  std::vector<int64_t> sizes = factors.sizes().slice(0, static_cast<size_t>(factors.dim()) - 2).vec();
  sizes.push_back(std::min(factors.size(-2), factors.size(-1)));
  expect_sizes(given, "LU_pivots", sizes, " that 'LU_data' says");
}

// Segments of data: as many as there are results, and all of them inside.
void segment_sizes(const Given& given) {
  const at::Tensor data = given.tensor("data"), output = given.tensor("output");
  const at::Tensor lengths = given.tensor("lengths"), offsets = given.tensor("offsets");
  const at::Tensor parts = lengths.defined() ? lengths : offsets;
  if (!parts.defined() || !data.defined()) return;
  const int64_t axis = parts.dim() - 1;
  bool fits = axis >= 0 && axis < data.dim();
  for (int64_t i = 0; fits && i < axis; ++i) fits = parts.size(i) == data.size(i);
  TORCH_CHECK(fits, given.schema.name(), ": argument '", lengths.defined() ? "lengths" : "offsets",
              "' must have the first sizes of 'data' (", data.sizes(), ") before its last one, but has ",
              parts.sizes());
  if (!output.defined()) return;
  std::vector<int64_t> sizes = data.sizes().vec();
  sizes[static_cast<size_t>(axis)] = std::max<int64_t>(parts.size(-1) - (lengths.defined() ? 0 : 1), 0);
  expect_sizes(given, "output", sizes, " that 'data' and its segments say");
  expect_sizes(given, "grad", sizes, " of 'output'");
}

void segment_values(const Given& given) {
  const at::Tensor data = given.tensor("data"), lengths = given.tensor("lengths");
  const at::Tensor parts = lengths.defined() ? lengths : given.tensor("offsets");
  if (!parts.defined() || parts.numel() == 0) return;
  const int64_t size = data.size(parts.dim() - 1);
  expect_range(given, lengths.defined() ? "lengths" : "offsets", 0, size + 1);
  if (!lengths.defined()) return;
  const at::Tensor wide = lengths.to(at::kLong).contiguous();
  const int64_t count = wide.size(-1);
  for (int64_t row = 0; row < wide.numel() / count; ++row) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += wide.const_data_ptr<int64_t>()[row * count + i];
    TORCH_CHECK(sum <= size, given.schema.name(), ": argument 'lengths' must sum up to at most ", size,
                ", the size of 'data', but sums up to ", sum);
  }
}

// The processor's division of the least integer by -1 ends the program.
void quotients(const Given& given) {
  const at::Tensor self = given.tensor("self"), other = given.tensor("other");
  const bool multiple = given.schema.name().rfind("aten::lcm", 0) == 0;
  const c10::IValue* mode = given.find("rounding_mode");
  if (!multiple && (mode == nullptr || !mode->isString() || mode->toStringRef() != "trunc")) return;
  if (!other.defined() || !at::isIntegralType(other.scalar_type(), true) || !holds_least(self)) return;
  const at::Tensor least = self.eq(self.min()), divisor = multiple ? at::gcd(self, other) : other;
  TORCH_CHECK(!least.logical_and(divisor.eq(-1)).any().item<bool>(), given.schema.name(),
              ": argument 'self' must not hold the least ", self.scalar_type(), " where ",
              multiple ? "the multiple" : "the quotient", " has none of its size");
}

// Optimizers: states of the sizes of their parameters.
void states(const Given& given) {
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

// Gradient of an embedding that counts how often each row is asked for.
void counted(const Given& given) {
  if (flag(given, "scale_grad_by_freq", false)) expect_range(given, "indices", 0, number(given, "num_weights"));
}

// Gradient of pdist: a distance for each pair of rows.
void pairs(const Given& given) {
  const at::Tensor self = given.tensor("self");
  if (!self.defined() || self.dim() != 2) return;
  const int64_t count = self.size(0) * (self.size(0) - 1) / 2;
  for (const char* label : {"grad", "pdist"}) expect_sizes(given, label, count, ", one for each pair of rows");
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
  for (const char* name :
       {"_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward"}) {
    table[name] = {planes, nullptr};
  }
  for (const char* dims : {"1d", "2d", "3d"}) {
    for (const char* kind : {"reflection_pad", "replication_pad"}) {
      table[std::string(kind) + dims + "_backward"] = {padding, nullptr};
    }
  }
  for (const char* name : {"_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"}) {
    table[name] = {resampled, nullptr};
  }
  for (const char* name : {"_fft_c2c", "_fft_r2c", "_fft_c2r"}) table[name] = {transformed, nullptr};
  for (const char* name : {"linalg_lu_solve", "linalg_ldl_solve", "lu_unpack"}) table[name] = {nullptr, pivots};
  for (const char* name : {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"})
    table[name] = {states, nullptr};
  table["lu_unpack"].sizes = pivot_sizes;
  table["unfold_backward"] = {unfolded, nullptr};
  for (const char* name : {"div", "div_", "lcm", "lcm_"}) table[name] = {nullptr, quotients};
  table["segment_reduce"] = table["_segment_reduce_backward"] = {segment_sizes, segment_values};
  table["native_layer_norm_backward"] = {rows, nullptr};
  table["native_group_norm"] = table["native_group_norm_backward"] = {groups, nullptr};
  table["grid_sampler_2d_backward"] = table["grid_sampler_3d_backward"] = {sampled, nullptr};
  table["embedding_dense_backward"] = {nullptr, counted};
  table["_pdist_backward"] = {pairs, nullptr};
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
