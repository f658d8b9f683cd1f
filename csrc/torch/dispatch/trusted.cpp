#include "torch/dispatch/trusted.h"

#include <ATen/ATen.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <algorithm>

#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/trusted_checks.h"

namespace softnpu {

const c10::IValue* CallArguments::find(const char* label) const {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == label) return first + i;
  }
  return nullptr;
}

at::Tensor CallArguments::tensor(const char* label) const {
  const c10::IValue* value = find(label);
  return value != nullptr && value->isTensor() ? value->toTensor() : at::Tensor();
}

// Distances, windows, transforms, factorizations, segments, quotients and quantizers.
namespace trusted {

// A tensor that was made by a quantized dtype alone (torch.empty, or torch.full inside of ldexp) has no scale and no
// zero point. PyTorch's kernels ask it for them, and fail with an assertion; three do not ask. A nested tensor of
// quantized ones has their dtype, and is no quantized tensor that could be asked.
void quantizers(const CallArguments& given) {
  const std::string& name = given.schema.name();
  const bool asks = name != "aten::view" && name != "aten::_reshape_alias" && name != "aten::int_repr";
  for (size_t i = 0; i < given.schema.arguments().size(); ++i) {
    each_tensor(given.first[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_quantized()) return;
      auto* impl = dynamic_cast<at::QTensorImpl*>(tensor.unsafeGetTensorImpl());
      const bool scaled = impl != nullptr && dynamic_cast<at::UnknownQuantizer*>(impl->quantizer().get()) == nullptr;
      TORCH_CHECK(scaled || (impl != nullptr && !asks), name, ": argument '", given.schema.arguments()[i].name(),
                  "' must be a quantized tensor with a scale and a zero point, as torch.quantize_per_tensor makes one, "
                  "but has only the dtype of one");
    });
  }
}

// Gradient of cdist: a distance for each pair of rows.
void cdist(const CallArguments& given) {
  const at::Tensor x1 = given.tensor("x1"), x2 = given.tensor("x2"), cdist = given.tensor("cdist");
  if (!x1.defined() || !x2.defined() || !cdist.defined() || x1.dim() < 2 || x2.dim() < 2) return;
  expect_sizes(given, "grad", cdist.sizes(), " of 'cdist'");
  TORCH_CHECK(cdist.dim() >= 2 && cdist.size(-2) == x1.size(-2) && cdist.size(-1) == x2.size(-2), given.schema.name(),
              ": argument 'cdist' must have a row for each of ", x1.size(-2), " rows of 'x1' and a column for each of ",
              x2.size(-2), " rows of 'x2', but has the sizes ", cdist.sizes());
}

// Gradient of unfold: windows of the size and the step that the input has room for.
// A number counts as one element along dimension 0, and has one window, which is all there is.
void unfold(const CallArguments& given) {
  const at::Tensor grad = given.tensor("grad_in");
  const c10::IValue* shape = given.find("input_sizes");
  if (!grad.defined() || shape == nullptr || !shape->isIntList()) return;
  std::vector<int64_t> sizes = shape->toIntVector();
  const int64_t size = number(given, "size"), step = number(given, "step");
  const bool scalar = sizes.empty();
  if (scalar) sizes.push_back(1);
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
  if (scalar) sizes.clear();
  sizes.push_back(size);
  expect_sizes(given, "grad_in", sizes, " that 'input_sizes', 'size' and 'step' say");
}

// Transforms: dimensions that there are, counted from the first one, and half of the frequencies.
void fft(const CallArguments& given) {
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
  const int64_t count = last->toInt(), given_size = self.size(dims.back());
  // The transform has the larger of both sizes: with another one it would write more than the result holds.
  TORCH_CHECK(count >= 1 && (given_size == count / 2 + 1 || given_size == count), given.schema.name(),
              ": argument 'last_dim_size' must be ", given_size, " or such that half of it and 1 are ", given_size,
              ", the size of 'self' in dimension ", dims.back(), ", but is ", count);
}

namespace {

// Pivots of a symmetric factorization: none is 0, and negative ones stand in pairs.
void blocks(const CallArguments& given, int64_t count) {
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

}  // namespace

// Pivots of a factorization: rows, counted from 1; negative ones belong to a block of two rows.
void pivot_values(const CallArguments& given) {
  const bool unpacked = given.find("LU_pivots") != nullptr, symmetric = given.find("LD") != nullptr;
  const at::Tensor factors = given.tensor(unpacked ? "LU_data" : (symmetric ? "LD" : "LU"));
  if (!factors.defined() || factors.dim() < 2) return;
  if (unpacked && !flag(given, "unpack_pivots", true)) return;
  const int64_t count = factors.size(-2);
  expect_range(given, unpacked ? "LU_pivots" : "pivots", symmetric ? -count : 1, count + 1);
  if (symmetric) blocks(given, count);
}

void pivot_sizes(const CallArguments& given) {
  const at::Tensor factors = given.tensor("LU_data");
  if (!factors.defined() || factors.dim() < 2 || !flag(given, "unpack_pivots", true)) return;
  std::vector<int64_t> sizes = factors.sizes().slice(0, static_cast<size_t>(factors.dim()) - 2).vec();
  sizes.push_back(std::min(factors.size(-2), factors.size(-1)));
  expect_sizes(given, "LU_pivots", sizes, " that 'LU_data' says");
}

// Segments of data: as many as there are results, and all of them inside.
void segment_sizes(const CallArguments& given) {
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

void segment_values(const CallArguments& given) {
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
void quotients(const CallArguments& given) {
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

// Gradient of pdist: a distance for each pair of rows.
void pdist(const CallArguments& given) {
  const at::Tensor self = given.tensor("self");
  if (!self.defined() || self.dim() != 2) return;
  const int64_t count = self.size(0) * (self.size(0) - 1) / 2;
  for (const char* label : {"grad", "pdist"}) expect_sizes(given, label, count, ", one for each pair of rows");
}

// Indexing: with at least one tensor. Python's own indexing never asks for less.
void index_tensors(const CallArguments& given) {
  const c10::IValue* indices = given.find("indices");
  if (indices == nullptr || !indices->isList()) return;
  for (const c10::IValue& index : indices->toListRef()) {
    if (index.isTensor() && index.toTensor().defined()) return;
  }
  TORCH_CHECK_INDEX(false, given.schema.name(), ": argument 'indices' must have at least one tensor");
}

}  // namespace trusted

}  // namespace softnpu
