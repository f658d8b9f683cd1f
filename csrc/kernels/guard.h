// What keeps a kernel inside its tensors.
//
// The operators' documented constraints are checked in Python and can be switched off (SOFTNPU_STRICT=0), and anybody
// may call torch.ops.softnpu. So a kernel trusts nobody:
//
// - Before it takes an address, it states what its loops rely on: ranks, sizes, dtypes, positive divisors. These
//   checks run once a call, always.
// - Indices that come from data are compared with the size that they index, each time. Outside of it they are refused
//   with an IndexError, or mean "none" where the kernel's description says so. They are never used unseen.
// - Arithmetic on numbers that the caller chose (starts, lengths, sizes) must not overflow.
//
// Errors name operator and argument, and say what is expected and what was received.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <initializer_list>
#include <optional>

namespace softnpu::kernels::inline CPU_CAPABILITY {

class Guard {
 public:
  explicit Guard(const char* op, const char* library = "softnpu::") : library_(library), op_(op) {}

  // Raises unless the condition holds.
  template <class Expected, class Received>
  void hold(bool condition, const char* argument, const Expected& expected, const Received& received) const {
    if (!condition) [[unlikely]]
      fail(argument, c10::str(expected), c10::str(received));
  }

  // A tensor: from Python, None arrives as an undefined one.
  void tensor(const at::Tensor& t, const char* argument) const {
    if (!t.defined()) [[unlikely]]
      fail(argument, "a tensor", "None");
  }

  void dtype(const at::Tensor& t, const char* argument, std::initializer_list<at::ScalarType> allowed) const {
    tensor(t, argument);
    for (const at::ScalarType type : allowed) {
      if (t.scalar_type() == type) return;
    }
    fail(argument, c10::str("one of the dtypes ", at::ArrayRef<at::ScalarType>(allowed)), c10::str(t.scalar_type()));
  }

  // Something that `as_float` can read: a real number.
  void real(const at::Tensor& t, const char* argument) const {
    tensor(t, argument);
    hold(!t.is_complex(), argument, "a real dtype", t.scalar_type());
  }

  void same_dtype(const at::Tensor& t, const char* argument, const at::Tensor& other) const {
    tensor(t, argument);
    hold(t.scalar_type() == other.scalar_type(), argument, other.scalar_type(), t.scalar_type());
  }

  void rank(const at::Tensor& t, const char* argument, int64_t rank) const {
    tensor(t, argument);
    if (t.dim() != rank) [[unlikely]]
      fail(argument, c10::str(rank, " dimensions"), c10::str(t.sizes()));
  }

  void least_rank(const at::Tensor& t, const char* argument, int64_t rank) const {
    tensor(t, argument);
    if (t.dim() < rank) [[unlikely]]
      fail(argument, c10::str("at least ", rank, " dimensions"), c10::str(t.sizes()));
  }

  void sizes(const at::Tensor& t, const char* argument, at::IntArrayRef expected) const {
    tensor(t, argument);
    if (t.sizes() != expected) [[unlikely]]
      fail(argument, c10::str("shape ", expected), c10::str(t.sizes()));
  }

  // As many elements as a loop reads, in whatever shape.
  void count(const at::Tensor& t, const char* argument, int64_t expected) const {
    tensor(t, argument);
    if (t.numel() != expected) [[unlikely]]
      fail(argument, c10::str(expected, " elements"), c10::str(t.sizes()));
  }

  // The size and dtype of another argument.
  void like(const at::Tensor& t, const char* argument, const at::Tensor& other) const {
    sizes(t, argument, other.sizes());
    same_dtype(t, argument, other);
  }

  // A shape that broadcasts to another one.
  void expands(const at::Tensor& t, const char* argument, at::IntArrayRef to) const {
    tensor(t, argument);
    const int64_t extra = static_cast<int64_t>(to.size()) - t.dim();
    bool fits = extra >= 0;
    for (int64_t d = 0; fits && d < t.dim(); ++d) fits = t.size(d) == 1 || t.size(d) == to[d + extra];
    if (!fits) [[unlikely]]
      fail(argument, c10::str("a shape that broadcasts to ", to), c10::str(t.sizes()));
  }

  // An index that comes from data.
  void index(int64_t value, int64_t size, const char* argument) const {
    if (value < 0 || value >= size) [[unlikely]] {
      TORCH_CHECK_INDEX(false, library_, op_, ": argument '", argument, "': expected indices in [0, ", size,
                        "), received ", value);
    }
  }

  int64_t sum(int64_t a, int64_t b, const char* argument) const {
    int64_t result;
    hold(!__builtin_add_overflow(a, b, &result), argument, "a sum within 64 bits", a);
    return result;
  }

  int64_t product(int64_t a, int64_t b, const char* argument) const {
    int64_t result;
    hold(!__builtin_mul_overflow(a, b, &result), argument, "a product within 64 bits", a);
    return result;
  }

 private:
  [[noreturn]] __attribute__((noinline, cold)) void fail(const char* argument, const std::string& expected,
                                                         const std::string& received) const {
    TORCH_CHECK(false, library_, op_, ": argument '", argument, "': expected ", expected, ", received ", received);
  }

  const char *library_, *op_;
};

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
