// Rows of tokens to experts and back: gathering with holes, and the weighted sum of npu_moe_finalize_routing.
//
//   softnpu::take_rows(Tensor rows, Tensor index, Tensor? present) -> Tensor
//   softnpu::finalize_routing(Tensor rows, Tensor index, Tensor? scales, Tensor? bias, Tensor? expert,
//       Tensor? skip1, Tensor? skip2) -> Tensor
//
// take_rows: rows[index], zeros where `present` (bool, or: the index lies inside) is False; any type, index int32 or
// int64. finalize_routing: out[i] = skip1[i] + skip2[i] + sum over j of scales[i, j] * (rows[index[i, j]] +
// bias[expert[i, j]]), summed in fp32; index and expert are (N, K) int32, an index outside counts as zeros.
#include <torch/library.h>

#include "vec.h"

namespace softnpu::kernels {
namespace {

using at::Tensor;
using at::vec::fmadd;

Tensor take_rows(const Tensor& rows, const Tensor& index, const MaybeTensor& present) {
  const Tensor from = rows.contiguous(), where = index.to(at::kLong).contiguous();
  const Tensor mask = given(present) ? present->contiguous() : Tensor();
  at::DimVector shape(index.sizes());
  for (int64_t d = 1; d < rows.dim(); ++d) shape.push_back(rows.size(d));
  Tensor out = at::empty(shape, rows.options());
  const int64_t count = rows.size(0), wanted = where.numel();
  const int64_t width = wanted == 0 ? 0 : out.numel() / wanted, bytes = width * rows.element_size();
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* to = static_cast<char*>(out.data_ptr());
  const int64_t* at = where.const_data_ptr<int64_t>();
  const bool* taken = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  parallel_rows(wanted, width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bool inside = at[r] >= 0 && at[r] < count;
      if (taken ? taken[r] && count > 0 : inside) {
        TORCH_CHECK_INDEX(inside, "index ", at[r], " is out of bounds for ", count, " rows");
        std::memcpy(to + r * bytes, source + at[r] * bytes, bytes);
      } else {
        std::memset(to + r * bytes, 0, bytes);
      }
    }
  });
  return out;
}

// sum += scale * (row + bias); without a row, its bias alone.
template <class T>
SOFTNPU_WALK void add_row(const T* row, const T* bias, float scale, int64_t n, bool only, float* sum) {
  const Vec factor(scale);
  sweep(n, [&](int64_t i, auto c) {
    Vec v = row == nullptr ? Vec(0.0f) : read(row + i, c);
    if (bias != nullptr) v = v + read(bias + i, c);
    v = rounded(v * factor);
    write(sum + i, only ? v : read(sum + i, c) + v, c);
  });
}

template <class T>
SOFTNPU_WALK void round_row(const float* sum, const T* skip1, const T* skip2, int64_t n, T* out) {
  sweep(n, [&](int64_t i, auto c) {
    Vec v = read(sum + i, c);
    if (skip1 != nullptr) v = v + read(skip1 + i, c);
    if (skip2 != nullptr) v = v + read(skip2 + i, c);
    write(out + i, v, c);
  });
}

Tensor finalize_routing(const Tensor& rows, const Tensor& index, const MaybeTensor& scales, const MaybeTensor& bias,
                        const MaybeTensor& expert, const MaybeTensor& skip1, const MaybeTensor& skip2) {
  const auto flat = [](const MaybeTensor& t) { return given(t) ? t->contiguous() : Tensor(); };
  const Tensor from = rows.contiguous(), where = index.contiguous(), experts = flat(expert);
  const Tensor factors = given(scales) ? as_float(*scales) : Tensor();
  const Tensor added = flat(bias), first = flat(skip1), second = flat(skip2);
  const int64_t tokens = index.size(0), top_k = index.size(1), count = rows.size(0), n = rows.size(1);
  Tensor out = at::empty({tokens, n}, rows.options());
  const int32_t* at = where.const_data_ptr<int32_t>();
  const float* scale = data_or_null(factors);
  typed(rows, "finalize_routing", [&](auto type) {
    using T = decltype(type);
    const auto data = [](const Tensor& t) { return t.defined() ? t.const_data_ptr<T>() : nullptr; };
    const T *source = data(from), *biases = data(added), *skips[] = {data(first), data(second)};
    parallel_rows(tokens, n * top_k, [&](int64_t begin, int64_t end) {
      std::vector<float> sum(n);
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < top_k; ++j) {
          const int64_t pair = i * top_k + j, place = at[pair];
          const T* row = place >= 0 && place < count ? source + place * n : nullptr;
          const T* extra = biases ? biases + experts.const_data_ptr<int32_t>()[pair] * n : nullptr;
          add_row(row, extra, scale ? scale[pair] : 1.0f, n, j == 0, sum.data());
        }
        round_row(sum.data(), skips[0] ? skips[0] + i * n : nullptr, skips[1] ? skips[1] + i * n : nullptr, n,
                  out.data_ptr<T>() + i * n);
      }
    });
  });
  return out;
}

}  // namespace
}  // namespace softnpu::kernels

TORCH_LIBRARY_FRAGMENT(softnpu, m) {
  m.def("take_rows(Tensor rows, Tensor index, Tensor? present) -> Tensor");
  m.def(
      "finalize_routing(Tensor rows, Tensor index, Tensor? scales, Tensor? bias, Tensor? expert, Tensor? skip1, "
      "Tensor? skip2) -> Tensor");
}

TORCH_LIBRARY_IMPL(softnpu, CPU, m) {
  m.impl("take_rows", TORCH_FN(softnpu::kernels::take_rows));
  m.impl("finalize_routing", TORCH_FN(softnpu::kernels::finalize_routing));
}
