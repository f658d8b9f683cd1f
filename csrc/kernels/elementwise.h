// Elementwise kernels over TensorIterator: any strides, broadcasting, several inputs and outputs of one type.
#pragma once

#include <ATen/TensorIterator.h>

#include <array>

#include "vec.h"

namespace softnpu::kernels {

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
  sweep(n, [&](int64_t i, auto count) {
    std::array<Vec, Ins> x;
    for (size_t k = 0; k < Ins; ++k) x[k] = read(at[Outs + k] + i, count);
    const std::array<Vec, Outs> y = f(x);
    for (size_t k = 0; k < Outs; ++k) write(at[k] + i, y[k], count);
  });
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

// y = f(x, ...) in the shape and with the strides that PyTorch's own elementwise operators give; into `out` if given.
template <size_t Ins, class F>
at::Tensor map(const char* op, const std::array<at::Tensor, Ins>& inputs, const F& f, const at::Tensor& out = {}) {
  at::TensorIteratorConfig config;
  config.add_output(out);
  for (const at::Tensor& t : inputs) config.add_const_input(t);
  at::TensorIterator iterator = config.set_check_mem_overlap(false).build();
  typed(inputs[0], op, [&](auto type) {
    elementwise<decltype(type), 1, Ins>(iterator, [&](const auto& x) { return std::array<Vec, 1>{f(x)}; });
  });
  return iterator.output();
}

}  // namespace softnpu::kernels
