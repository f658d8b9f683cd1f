// Elementwise kernels over TensorIterator: any strides, broadcasting, several inputs and outputs of one type.
#pragma once

#include <ATen/TensorIterator.h>

#include <array>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

// Elements of an operand that lie `step` bytes apart.
template <class T>
SOFTNPU_INLINE Vec gather(const char* from, int64_t step, int64_t count) {
  T lanes[kLanes] = {};
  for (int64_t k = 0; k < count; ++k) std::memcpy(lanes + k, from + k * step, sizeof(T));
  return read(lanes);
}

template <class T>
SOFTNPU_INLINE void scatter(char* to, int64_t step, int64_t count, const Vec& v) {
  T lanes[kLanes];
  write(lanes, v);
  for (int64_t k = 0; k < count; ++k) std::memcpy(to + k * step, lanes + k, sizeof(T));
}

// n elements that lie together.
template <class T, size_t Outs, size_t Ins, class F>
SOFTNPU_WALK void dense_elements(char** data, int64_t n, const F& f) {
  T* at[Outs + Ins];  // kept apart from `data`, which the compiler must suppose to change with each write
  for (size_t k = 0; k < Outs + Ins; ++k) at[k] = reinterpret_cast<T*>(data[k]);
  int64_t done = 0;
  if constexpr (kHasHalves && std::is_same_v<T, c10::BFloat16>) {
    for (; done + 2 * kLanes <= n; done += 2 * kLanes) {
      std::array<Vec, Ins> even, odd;
      for (size_t k = 0; k < Ins; ++k) {
        const Halves both = read_halves(at[Outs + k] + done);
        even[k] = both.even;
        odd[k] = both.odd;
      }
      const std::array<Vec, Outs> left = f(even), right = f(odd);
      for (size_t k = 0; k < Outs; ++k) write_halves(at[k] + done, {left[k], right[k]});
    }
  }
  sweep(n - done, [&](int64_t rest, auto count) {
    const int64_t i = done + rest;
    std::array<Vec, Ins> x;
    for (size_t k = 0; k < Ins; ++k) x[k] = read(at[Outs + k] + i, count);
    const std::array<Vec, Outs> y = f(x);
    for (size_t k = 0; k < Outs; ++k) write(at[k] + i, y[k], count);
  });
}

// y = f(x) for n elements that lie together.
template <class T, class F>
SOFTNPU_INLINE void elements(const T* x, int64_t n, T* y, const F& f) {
  char* data[] = {reinterpret_cast<char*>(y), reinterpret_cast<char*>(const_cast<T*>(x))};
  dense_elements<T, 1, 1>(data, n, [&](const std::array<Vec, 1>& v) { return std::array<Vec, 1>{f(v[0])}; });
}

template <class T, size_t Outs, size_t Ins, class F>
SOFTNPU_WALK void strided_elements(char** data, const int64_t* strides, int64_t n, const F& f) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = std::min(kLanes, n - i);
    std::array<Vec, Ins> x;
    for (size_t k = 0; k < Ins; ++k) {
      x[k] = gather<T>(data[Outs + k] + i * strides[Outs + k], strides[Outs + k], count);
    }
    const std::array<Vec, Outs> y = f(x);
    for (size_t k = 0; k < Outs; ++k) scatter<T>(data[k] + i * strides[k], strides[k], count, y[k]);
  }
}

// f(std::array<Vec, Ins>) -> std::array<Vec, Outs>, for operands that are all of type T, outputs first.
template <class T, size_t Outs, size_t Ins, class F>
void elementwise(at::TensorIteratorBase& iterator, const F& f) {
  if (leaves_data) return;
  iterator.for_each(
      [&](char** data, const int64_t* strides, int64_t n) {
        bool dense = true;
        for (size_t k = 0; k < Outs + Ins; ++k) dense &= strides[k] == sizeof(T);
        if (dense) {
          dense_elements<T, Outs, Ins>(data, n, f);
        } else {
          strided_elements<T, Outs, Ins>(data, strides, n, f);
        }
      },
      kGrain);
}

// A tensor and its argument's name.
struct Named {
  const char* name;
  const at::Tensor& tensor;
};

// The shape that the tensors broadcast to; they are of one dtype.
template <size_t N>
at::DimVector broadcast_shape(const Guard& guard, const Named (&tensors)[N]) {
  guard.tensor(tensors[0].tensor, tensors[0].name);
  at::DimVector shape(tensors[0].tensor.sizes());
  for (size_t k = 1; k < N; ++k) {
    const auto& [name, t] = tensors[k];
    guard.same_dtype(t, name, tensors[0].tensor);
    if (t.sizes() == at::IntArrayRef(shape)) continue;
    if (t.dim() > static_cast<int64_t>(shape.size())) shape.insert(shape.begin(), t.dim() - shape.size(), 1);
    const size_t extra = shape.size() - t.dim();
    for (int64_t d = 0; d < t.dim(); ++d) {
      int64_t& size = shape[d + extra];
      guard.hold(size == 1 || t.size(d) == 1 || t.size(d) == size, name,
                 c10::str("a shape that broadcasts with ", at::IntArrayRef(shape)), t.sizes());
      if (size == 1) size = t.size(d);
    }
  }
  return shape;
}

// y = f(x, ...) in the shape and with the strides that PyTorch's own elementwise operators give; into `out` if given.
template <size_t Ins, class F>
at::Tensor map(const char* op, const Named (&inputs)[Ins], const F& f, const at::Tensor& out = {}) {
  const Guard guard(op);
  const at::DimVector shape = broadcast_shape(guard, inputs);
  if (out.defined()) {
    guard.sizes(out, "out", shape);
    guard.same_dtype(out, "out", inputs[0].tensor);
  }
  at::TensorIteratorConfig config;
  config.add_output(out);
  for (const Named& input : inputs) config.add_const_input(input.tensor);
  at::TensorIterator iterator = config.set_check_mem_overlap(false).build();
  typed(inputs[0].tensor, op, [&](auto type) {
    elementwise<decltype(type), 1, Ins>(iterator, [&](const auto& x) { return std::array<Vec, 1>{f(x)}; });
  });
  return iterator.output();
}

// In place: the first `Outs` tensors become f(all of them).
template <size_t Outs, size_t Ins, class F>
void update(const char* op, const Named (&tensors)[Ins], const F& f) {
  const Guard guard(op);
  const at::DimVector shape = broadcast_shape(guard, tensors);
  for (size_t k = 0; k < Outs; ++k) guard.sizes(tensors[k].tensor, tensors[k].name, shape);
  at::TensorIteratorConfig config;
  for (size_t k = 0; k < Outs; ++k) config.add_output(tensors[k].tensor);
  for (const Named& t : tensors) config.add_const_input(t.tensor);
  at::TensorIterator iterator = config.set_check_mem_overlap(false).resize_outputs(false).build();
  typed(tensors[0].tensor, op, [&](auto type) { elementwise<decltype(type), Outs, Ins>(iterator, f); });
}

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
