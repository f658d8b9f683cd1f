// npu_quantize with given scales, and npu_dequant_swiglu_quant: dequantize, gate, quantize, row by row.
//
//   softnpu::quantize(Tensor x, Tensor scales, Tensor? zero, int axis, bool divide, ScalarType dtype, bool int4)
//       -> Tensor
//   softnpu::dequant_swiglu_quant(Tensor x, Tensor? weight_scale, Tensor? activation_scale, Tensor? bias,
//       Tensor? quant_scale, Tensor? quant_offset, Tensor? group, int used, bool left, bool dynamic, int mode,
//       float limit, float alpha, float shift) -> (Tensor y, Tensor scale)
//
// quantize: scales and zero have one value or one for each index of `axis`. dtype is int8 or uint8; with `int4` the
// result is int32 with eight values each.
// dequant_swiglu_quant: x is (T, 2H), int32, fp16, bf16 or fp32; scales, offsets and a floating bias are rows of
// fp32, (groups, width) or (groups, 1), and `group` (int64) is each row's; rows from `used` on are zeros.
#include "quantize.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

// --- given scales -------------------------------------------------------------------------------------------------

struct Static {
  const float *scales, *zero;
  bool divide, int4;
  Limits limits;
};

// One scale for the whole row, or one for each element.
template <bool Each, class T>
SOFTNPU_WALK void quantize_given(const Static& job, const T* x, int64_t n, const float* scale, const float* zero,
                                 uint8_t* to) {
  quantize_row(to, n, job.int4, job.limits, [&](int64_t i, auto c) {
    const Vec v = read(x + i, c), s = Each ? read(scale + i, c) : Vec(*scale);
    const Vec y = job.divide ? v / s : rounded(v * s);
    return zero == nullptr ? y : y + (Each ? read(zero + i, c) : Vec(*zero));
  });
}

Tensor quantize(const Tensor& x, const Tensor& scales, const MaybeTensor& zero, int64_t axis, bool divide,
                at::ScalarType dtype, bool int4) {
  const Guard guard("quantize");
  guard.tensor(x, "x");
  guard.hold(int4 || dtype == at::kChar || dtype == at::kByte, "dtype", "int8 or uint8", dtype);
  guard.real(scales, "scales");
  if (int4) {
    guard.least_rank(x, "x", 1);
    guard.hold(x.size(-1) % 8 == 0, "x", "a multiple of 8 as last dimension", x.sizes());
  }
  if (scales.numel() != 1) {
    guard.hold(axis >= 0 && axis < x.dim(), "axis", c10::str("in [0, ", x.dim(), ")"), axis);
    guard.count(scales, "scales", x.size(axis));
  }
  if (given(zero)) {
    guard.real(*zero, "zero");
    guard.count(*zero, "zero", scales.numel());
  }
  const Tensor in = x.contiguous(), factors = as_float(scales), shifts = given(zero) ? as_float(*zero) : Tensor();
  at::DimVector shape(x.sizes());
  if (int4) shape.back() /= 8;
  Tensor y = at::empty(shape, x.options().dtype(int4 ? at::kInt : dtype));
  if (x.numel() == 0) return y;
  const Limits limits = int4 ? kInt4 : dtype == at::kByte ? kUint8 : kInt8;
  const Static job{factors.const_data_ptr<float>(), data_or_null(shifts), divide, int4, limits};
  const bool one = factors.numel() == 1;
  const int64_t size = one ? 1 : x.size(axis), inner = one ? 1 : c10::multiply_integers(x.sizes().slice(axis + 1));
  const bool each = !one && inner == 1;
  const int64_t width = each ? size : one ? (x.dim() == 0 ? 1 : x.size(-1)) : inner;
  uint8_t* out = static_cast<uint8_t*>(y.data_ptr());
  typed(x, "quantize", [&](auto type) {
    using T = decltype(type);
    const T* from = in.const_data_ptr<T>();
    parallel_rows(x.numel() / width, width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        uint8_t* to = out + (int4 ? r * width / 2 : r * width);
        if (each) {
          quantize_given<true>(job, from + r * width, width, job.scales, job.zero, to);
        } else {
          const int64_t index = r % size;
          quantize_given<false>(job, from + r * width, width, job.scales + index, job.zero ? job.zero + index : nullptr,
                                to);
        }
      }
    });
  });
  return y;
}

// --- dequantize, gate, quantize -----------------------------------------------------------------------------------

// Rows of fp32 factors, one for each group; a single column serves a whole row.
struct Factors {
  const float* data = nullptr;
  int64_t width = 0;
  bool single = false;

  Factors() = default;
  // Rows of `columns` values or of one, for `groups` groups.
  Factors(const Guard& guard, const Tensor& t, const char* argument, int64_t columns, int64_t groups) {
    if (!t.defined()) return;
    data = t.const_data_ptr<float>();
    single = t.dim() > 0 && t.size(-1) == 1;
    width = single ? 1 : columns;
    guard.least_rank(t, argument, 1);
    guard.hold(single || t.size(-1) == columns, argument, c10::str(columns, " or 1 as last dimension"), t.sizes());
    guard.hold(t.numel() >= guard.product(groups, width, argument), argument, c10::str("rows for ", groups, " groups"),
               t.sizes());
  }

  template <class Count>
  SOFTNPU_INLINE Vec get(int64_t group, int64_t i, Count count) const {
    return single ? Vec(data[group]) : read(data + group * width + i, count);
  }
};

struct Unit {
  Factors weight, quant, offset;
  const float *activation, *bias;
  const int32_t* whole_bias;
  bool left, dynamic;
  int64_t mode;
  float limit, alpha, shift;
};

// As PyTorch computes it, so that the integers are the same.
SOFTNPU_INLINE Vec plain_sigmoid(const Vec& x) { return Vec(1.0f) / (Vec(1.0f) + x.neg().exp()); }

template <class T>
SOFTNPU_WALK void dequantize(const Unit& job, const T* x, int64_t n, int64_t row, int64_t group, float* d) {
  const Vec activation(job.activation == nullptr ? 1.0f : job.activation[row]);
  sweep(n, [&](int64_t i, auto c) {
    Vec v;
    if (job.whole_bias == nullptr) {
      v = read(x + i, c);
    } else {
      int32_t sums[kLanes] = {};  // in int32, as wide as the accumulators that they belong to
      for (int64_t k = 0; k < c; ++k) {
        sums[k] = static_cast<int32_t>(static_cast<uint32_t>(x[i + k]) + static_cast<uint32_t>(job.whole_bias[i + k]));
      }
      v = read(sums);
    }
    if (job.weight.data != nullptr) v = v * job.weight.get(group, i, c);
    if (job.activation != nullptr) v = v * activation;
    if (job.bias != nullptr) v = rounded(v) + read(job.bias + i, c);
    write(d + i, v, c);
  });
}

// The gated half times the other one, into g; n is the width of the result.
SOFTNPU_WALK void activate(const Unit& job, const float* d, int64_t n, int64_t group, float* g) {
  const Vec limit(job.limit), alpha(job.alpha), shift(job.shift);
  const float *a = job.left ? d : d + n, *b = job.left ? d + n : d;
  sweep(n, [&](int64_t i, auto c) {
    Vec x, y;
    if (job.mode == 1) {
      float pairs[2 * kLanes] = {};
      std::memcpy(pairs, d + 2 * i, 2 * c * sizeof(float));
      std::tie(x, y) = at::vec::deinterleave2(read(pairs), read(pairs + kLanes));
    } else {
      x = read(a + i, c);
      y = read(b + i, c);
    }
    Vec v;
    if (job.mode == 0) {
      v = x * plain_sigmoid(x) * y;
    } else {
      x = at::vec::clamp_max(x, limit);
      y = at::vec::clamp_max(at::vec::clamp_min(y, limit.neg()), limit);
      v = x * plain_sigmoid(rounded(alpha * x)) * (y + shift);
    }
    if (job.quant.data != nullptr) {
      const Vec factor = job.quant.get(group, i, c);
      v = job.dynamic ? v * factor : v / factor;
    }
    if (job.offset.data != nullptr) v = rounded(v) + job.offset.get(group, i, c);
    write(g + i, v, c);
  });
}

SOFTNPU_WALK float finish(const Unit& job, const float* g, int64_t n, uint8_t* to) {
  float scale = 0.0f, divisor = 1.0f;
  if (job.dynamic) {
    scale = largest_magnitude(g, n) / kInt8.high;
    divisor = scale == 0 ? 1.0f : scale;
  }
  quantize_row(to, n, false, kInt8, [&](int64_t i, auto c) { return read(g + i, c) / Vec(divisor); });
  return scale;
}

template <class T>
void run(const Unit& job, const Rows& x, const int64_t* groups, int64_t used, uint8_t* y, float* scale) {
  const int64_t n = x.width / 2;
  parallel_rows(x.count, x.width, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(3 * n);
    Cursor at(x, begin);
    for (int64_t r = begin; r < end; ++r, at.next()) {
      const int64_t group = groups == nullptr ? 0 : groups[r];
      if (r >= used) {
        std::memset(y + r * n, 0, n);
        scale[r] = 0;
        continue;
      }
      dequantize(job, at.row<T>(), x.width, r, group, buffer.data());
      activate(job, buffer.data(), n, group, buffer.data() + 2 * n);
      scale[r] = finish(job, buffer.data() + 2 * n, n, y + r * n);
    }
  });
}

std::tuple<Tensor, Tensor> dequant_swiglu_quant(const Tensor& x, const MaybeTensor& weight_scale,
                                                const MaybeTensor& activation_scale, const MaybeTensor& bias,
                                                const MaybeTensor& quant_scale, const MaybeTensor& quant_offset,
                                                const MaybeTensor& group, int64_t used, bool left, bool dynamic,
                                                int64_t mode, double limit, double alpha, double shift) {
  const Guard guard("dequant_swiglu_quant");
  guard.least_rank(x, "x", 1);
  guard.hold(x.size(-1) % 2 == 0, "x", "an even last dimension", x.sizes());
  const Rows from(x, 1);
  const auto plain = [&](const MaybeTensor& t, const char* argument) {
    if (!given(t)) return Tensor();
    guard.real(*t, argument);
    return as_float(*t);
  };
  const Tensor weights = plain(weight_scale, "weight_scale"), activations = plain(activation_scale, "activation_scale");
  const Tensor scales = plain(quant_scale, "quant_scale"), offsets = plain(quant_offset, "quant_offset");
  if (activations.defined()) guard.count(activations, "activation_scale", from.count);
  const bool integers = given(bias) && bias->scalar_type() == at::kInt;
  guard.hold(!integers || x.scalar_type() == at::kInt, "bias", "int32 beside int32 alone", x.scalar_type());
  const Tensor added = integers ? bias->contiguous() : plain(bias, "bias");
  if (added.defined()) guard.count(added, "bias", from.width);
  const Tensor groups = given(group) ? group->contiguous() : Tensor();
  int64_t count = 1;  // groups that rows name
  if (groups.defined()) {
    guard.dtype(groups, "group", {at::kLong});
    guard.count(groups, "group", from.count);
    const int64_t* named = groups.const_data_ptr<int64_t>();
    for (int64_t r = 0; r < std::min(used, from.count); ++r) {
      guard.index(named[r], std::numeric_limits<int64_t>::max(), "group");
      count = std::max(count, named[r] + 1);
    }
  }
  if (from.count == 0 || used <= 0) count = 0;
  const Unit job{Factors(guard, weights, "weight_scale", from.width, count),
                 Factors(guard, scales, "quant_scale", from.width / 2, count),
                 Factors(guard, offsets, "quant_offset", from.width / 2, count),
                 data_or_null(activations),
                 integers ? nullptr : data_or_null(added),
                 integers ? added.const_data_ptr<int32_t>() : nullptr,
                 left,
                 dynamic,
                 mode,
                 static_cast<float>(limit),
                 static_cast<float>(alpha),
                 static_cast<float>(shift)};
  at::DimVector shape(x.sizes()), rows(x.sizes().begin(), x.sizes().end() - 1);
  shape.back() /= 2;
  Tensor y = at::empty(shape, x.options().dtype(at::kChar)), scale = at::empty(rows, x.options().dtype(at::kFloat));
  uint8_t* to = static_cast<uint8_t*>(y.data_ptr());
  const int64_t* which = groups.defined() ? groups.const_data_ptr<int64_t>() : nullptr;
  if (x.scalar_type() == at::kInt) {
    run<int32_t>(job, from, which, used, to, scale.data_ptr<float>());
  } else {
    typed(x, "dequant_swiglu_quant",
          [&](auto type) { run<decltype(type)>(job, from, which, used, to, scale.data_ptr<float>()); });
  }
  return {y, scale};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "quantize(Tensor x, Tensor scales, Tensor? zero, int axis, bool divide, ScalarType dtype, bool int4) -> Tensor");
  m.def(
      "dequant_swiglu_quant(Tensor x, Tensor? weight_scale, Tensor? activation_scale, Tensor? bias, "
      "Tensor? quant_scale, Tensor? quant_offset, Tensor? group, int used, bool left, bool dynamic, int mode, "
      "float limit, float alpha, float shift) -> (Tensor, Tensor)");
}

SOFTNPU_KERNELS(quantize, m) {
  m.impl("quantize", softnpu::kernels::quantize);
  m.impl("dequant_swiglu_quant", softnpu::kernels::dequant_swiglu_quant);
}
