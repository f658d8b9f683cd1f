// npu_dynamic_quant and npu_dynamic_quant_asymmetric by rows: the extremes of a row, then its integers.
//
//   softnpu::dynamic_quant(Tensor x, Tensor? smooth, Tensor? ends, bool int4, bool asymmetric, int order=0)
//       -> (Tensor y, Tensor scale, Tensor offset)
//
// `order` says how scale and quotient come about; the chips' kernels differ in the last place (top: 127 or 7):
//   0 scale = max / top, x / scale    1 scale = max * (1 / top), x * (top / max)    2 scale = max * (1 / top), x /
//   scale
// and of asymmetric rows (range: 255 or 15):
//   0 (max - min) / range, x / scale    1 the same, at least 1e-12, x * (1 / scale)    2 (max - min) * (1 / range)
// x is fp32, bf16 or fp16; smooth is (width) or, with `ends` (int32, the end of each group of rows), (groups, width).
// y is int8, or int32 with eight int4 each. Without `asymmetric`, offset is empty.
#include "quantize.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

struct Job {
  Rows x;
  const float* smooth;
  const int32_t* ends;
  int64_t groups;
  Limits limits;
  bool int4, asymmetric;
  int64_t order;
  uint8_t* y;
  float *scale, *offset;

  int64_t group_of(int64_t row) const {
    return std::min<int64_t>(std::upper_bound(ends, ends + groups, row) - ends, groups - 1);
  }
};

// The scale of a row whose largest magnitude is `top`.
float scale_of(const Job& job, float top) {
  return job.order == 0 ? top / job.limits.high : top * (1.0f / job.limits.high);
}

// Rows without smoothing to int8, the common case. A scale of 0, NaN or infinity makes the row 0: no quotient rounds
// to another integer, or none is a number.
template <class T>
SOFTNPU_WALK void quantize_plain(const Job& job, int64_t r, int64_t n, const T* x) {
  uint8_t* to = job.y + r * n;
  const float top = largest_magnitude(x, n), scale = job.scale[r] = scale_of(job, top);
  if (!(top > 0) || std::isinf(top)) {
    std::memset(to, 0, n);
    return;
  }
  if (job.order == 1) {
    const float factor = job.limits.high / top;
    const int64_t done = std::isfinite(factor) ? multiply_blocks(to, x, n, factor) : 0;
    const T* rest = x + done;
    quantize_row(to + done, n - done, false, job.limits,
                 [&](int64_t i, auto c) { return read(rest + i, c) * Vec(factor); });
    return;
  }
  const int64_t done = std::isnormal(scale) && std::isnormal(1 / scale) ? quantize_blocks(to, x, n, scale) : 0;
  const T* rest = x + done;
  quantize_row(to + done, n - done, false, job.limits,
               [&](int64_t i, auto c) { return read(rest + i, c) / Vec(scale); });
}

// The largest and the smallest of value(i, count) over a row; NaN if any is.
template <class Value>
SOFTNPU_INLINE std::pair<float, float> edges(int64_t n, const Value& value) {
  constexpr float kFar = std::numeric_limits<float>::infinity();
  Vec high(-kFar), low(kFar);
  sweep(n, [&](int64_t i, auto c) {
    const Vec v = value(i, c);
    high = at::vec::maximum(high, first(v, c, high));
    low = at::vec::minimum(low, first(v, c, low));
  });
  return {max(high), min(low)};
}

// A product that is rounded before it is added to, as the card's two instructions do: the compiler may not fuse them.
inline Vec rounded(Vec product) {
  __asm__("" : "+m"(product));
  return product;
}

// value(i, count) are the smoothed elements of one row.
template <class Value>
SOFTNPU_WALK void quantize(const Job& job, int64_t r, int64_t n, const Value& value) {
  uint8_t* to = job.y + (job.int4 ? r * n / 2 : r * n);
  if (!job.asymmetric) {
    const float top = row_max(n, [&](int64_t i, auto c) { return value(i, c).abs(); }, 0.0f);
    const float scale = job.scale[r] = scale_of(job, top);
    if (job.order == 1) {
      const Vec factor(top == 0 ? 0.0f : job.limits.high / top);
      quantize_row(to, n, job.int4, job.limits, [&](int64_t i, auto c) { return value(i, c) * factor; });
      return;
    }
    const Vec divisor(scale == 0 ? 1.0f : scale);
    quantize_row(to, n, job.int4, job.limits, [&](int64_t i, auto c) { return value(i, c) / divisor; });
    return;
  }
  const auto [high, low] = n == 0 ? std::pair(0.0f, 0.0f) : edges(n, value);
  const float range = job.limits.high - job.limits.low;
  float scale = job.order == 2 ? (high - low) * (1.0f / range) : (high - low) / range;
  if (job.order == 1 && !(scale > 1e-12f)) scale = 1e-12f;
  job.scale[r] = scale;
  const float offset = job.offset[r] = job.limits.high - high / scale;
  const Vec shift(offset);
  if (job.order == 1) {
    const Vec factor(1.0f / scale);
    quantize_row(to, n, job.int4, job.limits, [&](int64_t i, auto c) { return rounded(value(i, c) * factor) + shift; });
    return;
  }
  const Vec divisor(scale);
  quantize_row(to, n, job.int4, job.limits, [&](int64_t i, auto c) { return value(i, c) / divisor + shift; });
}

template <class T>
void run(const Job& job) {
  const int64_t n = job.x.width;
  parallel_rows(job.x.count, n, [&](int64_t begin, int64_t end) {
    Cursor at(job.x, begin);
    for (int64_t r = begin; r < end; ++r, at.next()) {
      const T* x = at.row<T>();
      if (job.smooth == nullptr) {
        if (!job.int4 && !job.asymmetric) {
          quantize_plain(job, r, n, x);
        } else {
          quantize(job, r, n, [&](int64_t i, auto c) { return read(x + i, c); });
        }
        continue;
      }
      const float* smooth = job.smooth + (job.ends ? job.group_of(r) * n : 0);
      quantize(job, r, n, [&](int64_t i, auto c) { return read(x + i, c) * read(smooth + i, c); });
    }
  });
}

std::tuple<Tensor, Tensor, Tensor> dynamic_quant(const Tensor& x, const MaybeTensor& smooth, const MaybeTensor& ends,
                                                 bool int4, bool asymmetric, int64_t order) {
  const Guard guard("dynamic_quant");
  guard.hold(order >= 0 && order <= 2, "order", "0, 1 or 2", order);
  guard.least_rank(x, "x", 1);
  guard.hold(!int4 || x.size(-1) % 8 == 0, "x", "a multiple of 8 as last dimension", x.sizes());
  if (given(ends)) {
    guard.dtype(*ends, "ends", {at::kInt});
    guard.hold(ends->numel() > 0, "ends", "at least one group", ends->sizes());
  }
  if (given(smooth)) {
    guard.real(*smooth, "smooth");
    guard.count(*smooth, "smooth", guard.product(given(ends) ? ends->numel() : 1, x.size(-1), "smooth"));
  }
  Job job{.x = Rows(x, 1),
          .smooth = nullptr,
          .ends = nullptr,
          .groups = 0,
          .limits = int4 ? kInt4 : kInt8,
          .int4 = int4,
          .asymmetric = asymmetric,
          .order = order,
          .y = nullptr,
          .scale = nullptr,
          .offset = nullptr};
  Tensor factors, limits;
  if (given(smooth)) {
    factors = as_float(*smooth);
    job.smooth = factors.const_data_ptr<float>();
  }
  if (given(ends)) {
    limits = ends->contiguous();
    job.ends = limits.const_data_ptr<int32_t>();
    job.groups = limits.numel();
  }
  at::DimVector shape(x.sizes()), rows(x.sizes().begin(), x.sizes().end() - 1);
  if (int4) shape.back() /= 8;
  Tensor y = at::empty(shape, x.options().dtype(int4 ? at::kInt : at::kChar));
  Tensor scale = at::empty(rows, x.options().dtype(at::kFloat));
  Tensor offset = at::empty(asymmetric ? at::IntArrayRef(rows) : at::IntArrayRef({0}), scale.options());
  job.y = static_cast<uint8_t*>(y.data_ptr());
  job.scale = scale.data_ptr<float>();
  job.offset = offset.data_ptr<float>();
  typed(x, "dynamic_quant", [&](auto type) { run<decltype(type)>(job); });
  return {y, scale, offset};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "dynamic_quant(Tensor x, Tensor? smooth, Tensor? ends, bool int4, bool asymmetric, int order=0) "
      "-> (Tensor, Tensor, Tensor)");
}
SOFTNPU_KERNELS(dynamic_quant, m) { m.impl("dynamic_quant", softnpu::kernels::dynamic_quant); }
