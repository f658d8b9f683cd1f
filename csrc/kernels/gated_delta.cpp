// The gated delta rule of linear attention, token by token.
//
//   softnpu::gated_delta_rule(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor? g, Tensor? gk, float scale,
//                             int[] lengths, Tensor(a!) state, int[] first, int[] last, bool every) -> Tensor
//
// query and key are (T, Nk, Dk), value (T, Nv, Dv), beta and g (T, Nv), gk (T, Nv, Dk), state (blocks, Nv, Dv, Dk);
// head h of the values reads head h / (Nv / Nk). Sequence i starts from state[first[i]]. With `every` token t leaves
// its state in state[last[t]], otherwise sequence i its last one in state[last[i]]. Sequences see the states that
// earlier ones left.
//
// A row of the state (of one value channel) depends on no other: s' = decay s, u = beta (v - s' k), s = s' + u k,
// o = scale s q. So a few rows stay in the first-level cache while a block of tokens passes over them.
#include <ATen/ops/zeros.h>

#include <cmath>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 64;  // whose keys and queries are widened at a time
constexpr int64_t kRows = 8;     // of the state, with an accumulator each

struct Shape {
  int64_t tokens, key_heads, heads, key_width, width, padded;  // padded: key_width in whole vectors
};

// What the tokens of a block bring for one head, in fp32; rows are `padded` wide and end in zeros.
struct Block {
  std::vector<float> q, k, channels, decay, beta;
  Block(const Shape& s, bool by_channel)
      : q(kTokens * s.padded, 0.0f),
        k(kTokens * s.padded, 0.0f),
        channels(by_channel ? kTokens * s.padded : 0, 0.0f),
        decay(kTokens),
        beta(kTokens) {}
};

template <class T>
SOFTNPU_WALK void widen_row(const T* from, int64_t n, float factor, float* to) {
  const Vec f(factor);
  sweep(n, [&](int64_t i, auto c) { write(to + i, read(from + i, c) * f, c); });
}

SOFTNPU_WALK void exponentials(const float* from, int64_t n, float factor, float* to) {
  const Vec f(factor);
  sweep(n, [&](int64_t i, auto c) { write(to + i, exp(read(from + i, c)) * f, c); });
}

// One token looks at kRows rows: seen[r] = decayed s[r] . k.
template <bool kByChannel>
SOFTNPU_WALK void look(const float* s, int64_t n, const float* k, const float* channels, float decay, float* seen) {
  Vec sum_of[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum_of[r] = Vec(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec keys = Vec::loadu(k + i);
    if constexpr (kByChannel) keys = keys * Vec::loadu(channels + i);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) sum_of[r] = at::vec::fmadd(Vec::loadu(s + r * n + i), keys, sum_of[r]);
  }
  for (int64_t r = 0; r < kRows; ++r) seen[r] = sum(sum_of[r]) * decay;
}

// s[r] = decayed s[r] + update[r] k, found[r] = s[r] . q
template <bool kByChannel>
SOFTNPU_WALK void learn(float* s, int64_t n, const float* k, const float* q, const float* channels, float decay,
                        const float* update, float* found) {
  Vec sum_of[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum_of[r] = Vec(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec keys = Vec::loadu(k + i), queries = Vec::loadu(q + i);
    const Vec fade = kByChannel ? Vec::loadu(channels + i) : Vec(decay);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const Vec row = at::vec::fmadd(Vec(update[r]), keys, Vec::loadu(s + r * n + i) * fade);
      row.store(s + r * n + i);
      sum_of[r] = at::vec::fmadd(row, queries, sum_of[r]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) found[r] = sum(sum_of[r]);
}

// The numbers of a row in the order of `read_halves`.
SOFTNPU_WALK void take_apart(const c10::BFloat16* from, int64_t n, float factor, float* to) {
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    const Halves v = read_halves(from + i);
    (v.even * Vec(factor)).store(to + i);
    (v.odd * Vec(factor)).store(to + i + kLanes);
  }
}

// A single token for kRows rows of a state in bf16, which may stay where it is: both passes read bf16, since nothing is
// read once more. k and q are taken apart.
SOFTNPU_WALK void single(const c10::BFloat16* from, c10::BFloat16* to, int64_t n, const float* k, const float* q,
                         float decay, float beta, const c10::BFloat16* value, c10::BFloat16* out) {
  Vec sum_of[kRows], update[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum_of[r] = Vec(0.0f);
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    const Vec even = Vec::loadu(k + i), odd = Vec::loadu(k + i + kLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const Halves s = read_halves(from + r * n + i);
      sum_of[r] = at::vec::fmadd(s.odd, odd, at::vec::fmadd(s.even, even, sum_of[r]));
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    update[r] = Vec((static_cast<float>(value[r]) - sum(sum_of[r]) * decay) * beta);
    sum_of[r] = Vec(0.0f);
  }
  const Vec fade(decay);
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    const Vec even = Vec::loadu(k + i), odd = Vec::loadu(k + i + kLanes);
    const Vec q_even = Vec::loadu(q + i), q_odd = Vec::loadu(q + i + kLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const Halves s = read_halves(from + r * n + i);
      const Halves next = {at::vec::fmadd(update[r], even, s.even * fade),
                           at::vec::fmadd(update[r], odd, s.odd * fade)};
      sum_of[r] = at::vec::fmadd(next.odd, q_odd, at::vec::fmadd(next.even, q_even, sum_of[r]));
      write_halves(to + r * n + i, next);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) out[r] = static_cast<c10::BFloat16>(sum(sum_of[r]));
}

template <class S>
struct DeltaRule {
  Shape shape;
  const c10::BFloat16 *query, *key, *value;
  const float *beta, *g, *gk;
  float scale;
  S* state;
  c10::BFloat16* out;
  bool every;

  S* state_of(int64_t block, int64_t head) const {
    return state + (block * shape.heads + head) * shape.width * shape.key_width;
  }

  void fill(int64_t head, int64_t start, int64_t count, Block& block) const {
    const Shape& s = shape;
    const int64_t from = head / (s.heads / s.key_heads);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t at = ((start + t) * s.key_heads + from) * s.key_width, own = (start + t) * s.heads + head;
      widen_row(query + at, s.key_width, scale, block.q.data() + t * s.padded);
      widen_row(key + at, s.key_width, 1.0f, block.k.data() + t * s.padded);
      block.decay[t] = g == nullptr ? 1.0f : std::exp(g[own]);
      block.beta[t] = beta[own];
      if (gk != nullptr) {
        exponentials(gk + own * s.key_width, s.key_width, block.decay[t], block.channels.data() + t * s.padded);
      }
    }
  }

  // The rows [row, row + rows) of a head while `count` tokens pass; `s` holds them. Rows beyond are zeros.
  void pass(int64_t head, int64_t row, int64_t rows, int64_t start, int64_t count, const Block& block, float* s,
            const int64_t* last) const {
    const int64_t n = shape.padded;
    for (int64_t t = 0; t < count; ++t) {
      const float *k = block.k.data() + t * n, *q = block.q.data() + t * n;
      const float* channels = gk == nullptr ? nullptr : block.channels.data() + t * n;
      const float decay = block.decay[t];
      float seen[kRows], update[kRows] = {}, found[kRows];
      if (channels != nullptr) {
        look<true>(s, n, k, channels, 1.0f, seen);
      } else {
        look<false>(s, n, k, nullptr, decay, seen);
      }
      const int64_t at = ((start + t) * shape.heads + head) * shape.width + row;
      for (int64_t r = 0; r < rows; ++r) {
        update[r] = (static_cast<float>(value[at + r]) - seen[r]) * block.beta[t];
      }
      if (channels != nullptr) {
        learn<true>(s, n, k, q, channels, 1.0f, update, found);
      } else {
        learn<false>(s, n, k, q, nullptr, decay, update, found);
      }
      for (int64_t r = 0; r < rows; ++r) out[at + r] = static_cast<c10::BFloat16>(found[r]);
      if (every) leave(head, row, rows, s, last[start + t]);
    }
  }

  // Rows of a state in fp32; those beyond are zeros.
  void take(const S* from, int64_t row, int64_t rows, float* s) const {
    if (rows < kRows || shape.padded > shape.key_width) std::fill_n(s, kRows * shape.padded, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      widen_row(from + (row + r) * shape.key_width, shape.key_width, 1.0f, s + r * shape.padded);
    }
  }

  void leave(int64_t head, int64_t row, int64_t rows, const float* s, int64_t to) const {
    S* target = state_of(to, head) + row * shape.key_width;
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = s + r * shape.padded;
      S* next = target + r * shape.key_width;
      sweep(shape.key_width, [&](int64_t i, auto c) { write(next + i, read(from + i, c), c); });
    }
  }

  void sequence(int64_t head, int64_t start, int64_t length, int64_t index, int64_t first, const int64_t* last,
                Block& block, std::vector<float>& rows_of) const {
    const int64_t width = shape.width, each = kRows * shape.padded;
    const S* from = state_of(first, head);
    if constexpr (kHasHalves && std::is_same_v<S, c10::BFloat16>) {
      const int64_t n = shape.key_width;
      if (length == 1 && gk == nullptr && n % (2 * kLanes) == 0 && width % kRows == 0) {
        const int64_t at = (start * shape.key_heads + head / (shape.heads / shape.key_heads)) * n;
        const int64_t own = start * shape.heads + head;
        take_apart(query + at, n, scale, block.q.data());
        take_apart(key + at, n, 1.0f, block.k.data());
        S* to = state_of(last[every ? start : index], head);
        for (int64_t row = 0; row < width; row += kRows) {
          single(from + row * n, to + row * n, n, block.k.data(), block.q.data(),
                 g == nullptr ? 1.0f : std::exp(g[own]), beta[own], value + own * width + row, out + own * width + row);
        }
        return;
      }
    }
    const auto rows_from = [&](int64_t row) { return std::min(kRows, width - row); };
    if (length <= kTokens) {  // all tokens pass over a few rows before the next ones are read
      fill(head, start, length, block);
      float* s = rows_of.data();
      for (int64_t row = 0; row < width; row += kRows) {
        take(from, row, rows_from(row), s);
        pass(head, row, rows_from(row), start, length, block, s, last);
        if (!every) leave(head, row, rows_from(row), s, last[index]);
      }
      return;
    }
    for (int64_t row = 0; row < width; row += kRows)
      take(from, row, rows_from(row), rows_of.data() + row / kRows * each);
    for (int64_t t = 0; t < length; t += kTokens) {
      const int64_t count = std::min(kTokens, length - t);
      fill(head, start + t, count, block);
      for (int64_t row = 0; row < width; row += kRows) {
        pass(head, row, rows_from(row), start + t, count, block, rows_of.data() + row / kRows * each, last);
      }
    }
    if (every) return;
    for (int64_t row = 0; row < width; row += kRows) {
      leave(head, row, rows_from(row), rows_of.data() + row / kRows * each, last[index]);
    }
  }
};

Tensor gated_delta_rule(const Tensor& given_query, const Tensor& given_key, const Tensor& given_value,
                        const Tensor& given_beta, const MaybeTensor& given_g, const MaybeTensor& given_gk, double scale,
                        at::IntArrayRef lengths, Tensor state, at::IntArrayRef first, at::IntArrayRef last,
                        bool every) {
  const Guard guard("gated_delta_rule");
  guard.dtype(given_query, "query", {at::kBFloat16});
  guard.rank(given_query, "query", 3);
  guard.like(given_key, "key", given_query);
  guard.same_dtype(given_value, "value", given_query);
  guard.rank(given_value, "value", 3);
  Shape s{given_query.size(0), given_query.size(1), given_value.size(1), given_query.size(2), given_value.size(2), 0};
  s.padded = (s.key_width + kLanes - 1) / kLanes * kLanes;
  guard.hold(given_value.size(0) == s.tokens, "value", s.tokens, given_value.size(0));
  guard.hold(s.key_heads > 0 && s.heads % s.key_heads == 0, "value", c10::str("heads divided by ", s.key_heads),
             given_value.sizes());
  guard.real(given_beta, "beta");
  guard.sizes(given_beta, "beta", {s.tokens, s.heads});
  guard.dtype(state, "state", {at::kBFloat16, at::kFloat});
  guard.rank(state, "state", 4);
  guard.sizes(state, "state", {state.size(0), s.heads, s.width, s.key_width});
  guard.hold(state.is_contiguous(), "state", "contiguous", state.strides());
  const Tensor query = given_query.contiguous(), key = given_key.contiguous(), value = given_value.contiguous();
  const Tensor beta = as_float(given_beta);
  Tensor g, gk;
  if (given(given_g)) {
    guard.real(*given_g, "g");
    guard.sizes(*given_g, "g", {s.tokens, s.heads});
    g = as_float(*given_g);
  }
  if (given(given_gk)) {
    guard.real(*given_gk, "gk");
    guard.sizes(*given_gk, "gk", {s.tokens, s.heads, s.key_width});
    gk = as_float(*given_gk);
  }
  const int64_t count = static_cast<int64_t>(lengths.size());
  guard.hold(static_cast<int64_t>(first.size()) == count, "first", count, first.size());
  int64_t total = 0;
  for (const int64_t length : lengths) {
    guard.hold(length >= 0 && length <= s.tokens - total, "lengths", c10::str("at most ", s.tokens, " tokens"),
               lengths);
    total += length;
  }
  const int64_t places = every ? total : count;
  guard.hold(static_cast<int64_t>(last.size()) >= places, "last", c10::str(places, " numbers"), last.size());
  for (int64_t i = 0; i < count; ++i) {
    if (lengths[i] > 0 || !every) guard.index(first[i], state.size(0), "first");
  }
  for (int64_t i = 0; i < places; ++i) guard.index(last[i], state.size(0), "last");
  Tensor out = at::zeros(value.sizes(), value.options());
  if (value.numel() == 0) return out;
  const auto run = [&](auto type) {
    using S = decltype(type);
    const DeltaRule<S> rule{s,
                            query.const_data_ptr<c10::BFloat16>(),
                            key.const_data_ptr<c10::BFloat16>(),
                            value.const_data_ptr<c10::BFloat16>(),
                            beta.const_data_ptr<float>(),
                            data_or_null(g),
                            data_or_null(gk),
                            static_cast<float>(scale),
                            state.data_ptr<S>(),
                            out.data_ptr<c10::BFloat16>(),
                            every};
    parallel_for(0, s.heads, 1, [&](int64_t begin, int64_t end) {
      Block block(s, gk.defined());
      std::vector<float> rows_of((s.width + kRows - 1) / kRows * kRows * s.padded);
      for (int64_t head = begin; head < end; ++head) {
        int64_t start = 0;
        for (int64_t i = 0; i < count; start += lengths[i++]) {
          if (lengths[i] == 0 && every) continue;
          rule.sequence(head, start, lengths[i], i, first[i], last.data(), block, rows_of);
        }
      }
    });
  };
  if (state.scalar_type() == at::kFloat) {
    run(float{});
  } else {
    run(c10::BFloat16{});
  }
  return out;
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "gated_delta_rule(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor? g, Tensor? gk, float scale, "
      "int[] lengths, Tensor(a!) state, int[] first, int[] last, bool every) -> Tensor");
}
SOFTNPU_KERNELS(gated_delta, m) { m.impl("gated_delta_rule", softnpu::kernels::gated_delta_rule); }
