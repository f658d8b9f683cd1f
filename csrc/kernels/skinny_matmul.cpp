#include "kernels/skinny_matmul.h"

#include <type_traits>

#include "kernels/vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

namespace {

constexpr int64_t kWork = 1 << 17;             // products that are worth a thread
constexpr bool kManyRegisters = kLanes == 16;  // 32 vectors, elsewhere 16

// b's columns are contiguous (a transposed weight): M rows by C columns of dot products, whose sums stay in registers.
template <int M, int C, class T>
void tile(const float* a, const T* column, int64_t stride, int64_t depth, float* out, int64_t width) {
  const int64_t whole = depth - depth % kLanes;
  Vec sums[M][C];
  for (auto& row : sums) {
    for (Vec& sum : row) sum = Vec(0);
  }
  for (int64_t k = 0; k < whole; k += kLanes) {
    Vec right[C];
    for (int c = 0; c < C; ++c) right[c] = read(column + c * stride + k);
    for (int m = 0; m < M; ++m) {
      const Vec left = Vec::loadu(a + m * depth + k);
      for (int c = 0; c < C; ++c) sums[m][c] = at::vec::fmadd(left, right[c], sums[m][c]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int c = 0; c < C; ++c) {
      float sum = at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return x + y; }, sums[m][c]);
      for (int64_t k = whole; k < depth; ++k) sum += a[m * depth + k] * static_cast<float>(column[c * stride + k]);
      out[m * width + c] = sum;
    }
  }
}

// More than four rows go in two turns: the registers hold no more sums beside the columns.
template <int M, int C, class T>
void turns(const float* a, const T* column, int64_t stride, int64_t depth, float* out, int64_t width) {
  constexpr int kFirst = M > 4 ? 4 : M;
  tile<kFirst, C>(a, column, stride, depth, out, width);
  if constexpr (M > kFirst) {
    tile<M - kFirst, C>(a + kFirst * depth, column, stride, depth, out + kFirst * width, width);
  }
}

#if defined(CPU_CAPABILITY_AVX512)
// The same of bf16 with the processor's own products: eight rows by three columns at once.
template <int M, int C>
SOFTNPU_PAIRS void turns(const c10::BFloat16* a, const c10::BFloat16* column, int64_t stride, int64_t depth, float* out,
                         int64_t width) {
  const int64_t whole = depth - depth % kPairs;
  Vec sums[M][C];
  for (auto& row : sums) {
    for (Vec& sum : row) sum = Vec(0);
  }
  for (int64_t k = 0; k < whole; k += kPairs) {
    Pairs right[C];
    for (int c = 0; c < C; ++c) right[c] = read_pairs(column + c * stride + k);
    for (int m = 0; m < M; ++m) {
      const Pairs left = read_pairs(a + m * depth + k);
      for (int c = 0; c < C; ++c) sums[m][c] = add_pairs(sums[m][c], left, right[c]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int c = 0; c < C; ++c) {
      Vec sum = sums[m][c];
      if (whole < depth) {
        const Pairs left = read_pairs(a + m * depth + whole, depth - whole);
        sum = add_pairs(sum, left, read_pairs(column + c * stride + whole, depth - whole));
      }
      out[m * width + c] = at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return x + y; }, sum);
    }
  }
}
#endif

// Few rows leave registers for many columns, each of which is read in order: more of memory is under way at once.
template <int M, class A, class T>
void columns(const A* a, const T* b, int64_t stride, int64_t depth, int64_t from, int64_t to, float* out,
             int64_t width) {
  constexpr int kColumns = !kManyRegisters ? (M > 2 ? 3 : 4) : M > 4 ? 3 : M > 2 ? 4 : 8;
  int64_t n = from;
  for (; n + kColumns <= to; n += kColumns) turns<M, kColumns>(a, b + n * stride, stride, depth, out + n, width);
  for (; n < to; ++n) turns<M, 1>(a, b + n * stride, stride, depth, out + n, width);
}

// b's rows are contiguous: rows added up, two vectors of columns at a time.
template <int M, class T>
void rows(const float* a, const T* b, int64_t stride, int64_t depth, int64_t from, int64_t to, float* out,
          int64_t width) {
  int64_t n = from;
  for (; n + 2 * kLanes <= to; n += 2 * kLanes) {
    Vec left[M], right[M];
    for (int m = 0; m < M; ++m) left[m] = right[m] = Vec(0);
    for (int64_t k = 0; k < depth; ++k) {
      const T* row = b + k * stride + n;
      const Vec first = read(row), second = read(row + kLanes);
      for (int m = 0; m < M; ++m) {
        const Vec factor(a[m * depth + k]);
        left[m] = at::vec::fmadd(factor, first, left[m]);
        right[m] = at::vec::fmadd(factor, second, right[m]);
      }
    }
    for (int m = 0; m < M; ++m) {
      left[m].store(out + m * width + n);
      right[m].store(out + m * width + n + kLanes);
    }
  }
  for (; n < to; ++n) {
    for (int m = 0; m < M; ++m) {
      float sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a[m * depth + k] * static_cast<float>(b[k * stride + n]);
      out[m * width + n] = sum;
    }
  }
}

template <int M, class T>
void product(const at::Tensor& a, const at::Tensor& b, float* out) {
  const int64_t depth = b.size(0), width = b.size(1);
  const T* data = b.const_data_ptr<T>();
  const bool by_column = b.stride(0) == 1;
  const int64_t grain = std::max<int64_t>(2 * kLanes, kWork / std::max<int64_t>(1, depth * M));
  parallel_for(0, width, grain, [&](int64_t from, int64_t to) {
    if (a.scalar_type() != at::kFloat) {
      if constexpr (kHasPairs && std::is_same_v<T, c10::BFloat16>) {
        columns<M>(a.const_data_ptr<T>(), data, b.stride(1), depth, from, to, out, width);
      }
    } else if (by_column) {
      columns<M>(a.const_data_ptr<float>(), data, b.stride(1), depth, from, to, out, width);
    } else {
      rows<M, T>(a.const_data_ptr<float>(), data, b.stride(0), depth, from, to, out, width);
    }
  });
}

template <class T>
void product(const at::Tensor& a, const at::Tensor& b, float* out) {
  using Run = void (*)(const at::Tensor&, const at::Tensor&, float*);
  static constexpr Run runs[kSkinnyRows] = {&product<1, T>, &product<2, T>, &product<3, T>, &product<4, T>,
                                            &product<5, T>, &product<6, T>, &product<7, T>, &product<8, T>};
  runs[a.size(0) - 1](a, b, out);
}

// sums[M, N] = a[M, K] @ b[K, N], b in half precision, a in fp32 or, where the processor has products of pairs and b's
// columns are contiguous, in bf16.
void sum_few(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums) {
  if (b.scalar_type() == at::kBFloat16) {
    product<c10::BFloat16>(a, b, sums.mutable_data_ptr<float>());
  } else {
    product<c10::Half>(a, b, sums.mutable_data_ptr<float>());
  }
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_CHOICE(skinny_matmul, softnpu::kernels::sum_few)

#ifdef CPU_CAPABILITY_DEFAULT

namespace softnpu::kernels {

bool takes_skinny_matmul(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 && a.size(0) >= 1 && a.size(0) <= kSkinnyRows && a.size(1) == b.size(0) &&
         b.numel() > 0 && a.scalar_type() == b.scalar_type() && (b.stride(0) == 1 || b.stride(1) == 1) &&
         (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf);
}

at::Tensor skinny_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  static const auto sum = choice_of_skinny_matmul();
  const bool pairs = has_pairs() && a.scalar_type() == at::kBFloat16 && b.stride(0) == 1;
  const at::Tensor left = (pairs ? a : a.to(at::kFloat)).contiguous();
  const at::Tensor sums = at::empty({a.size(0), b.size(1)}, left.options().dtype(at::kFloat));
  sum(left, b, sums);
  if (bias.defined()) sums.add_(bias);
  return sums.to(a.scalar_type());
}

}  // namespace softnpu::kernels

#endif
