// Rows of tokens to experts and back: who goes where, gathering with holes, weighted sums and their gradients.
//
//   softnpu::route_pairs(Tensor experts, int top_k, int start, int end, int rows)
//       -> (Tensor source, Tensor order, Tensor place)
//   softnpu::take_rows(Tensor rows, Tensor index, Tensor? present) -> Tensor
//   softnpu::finalize_routing(Tensor rows, Tensor index, Tensor? scales, Tensor? bias, Tensor? expert,
//       Tensor? skip1, Tensor? skip2, bool stepwise=False) -> Tensor
//   softnpu::finalize_routing_backward(Tensor grad, Tensor index, int count, Tensor? scales, Tensor? rows)
//       -> (Tensor, Tensor)
//
// route_pairs: the (token, expert) pairs sorted by expert, ties as they stand, those below `start` last. source: the
// token of each of the first `rows` pairs, -1 where the expert is not in [start, end); order: which pair stands where;
// place: where each pair went, -1 outside the range. experts is int32 or int64, the results int64, int64 and int32.
//
// take_rows: rows[index], zeros where `present` (bool, or: the index lies inside) is False; any type, index int32 or
// int64.
//
// finalize_routing: out[i] = skip1[i] + skip2[i] + sum over j of scales[i, j] * (rows[index[i, j]] +
// bias[expert[i, j]]), summed in this order in fp32 and rounded once, or with `stepwise` rounded by each operation;
// index and expert are (N, K) int32, an index outside counts as zeros. Its gradients: of the `count` rows, sum of
// scales[i, j] * grad[i] over the pairs with index[i, j] == row; and, where `rows` are given, of scales in fp32,
// grad[i] . rows[index[i, j]].
#include <ATen/ops/zeros.h>

#include <limits>
#include <numeric>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

Tensor take_rows(const Tensor& rows, const Tensor& index, const MaybeTensor& present) {
  const Guard guard("take_rows");
  guard.least_rank(rows, "rows", 1);
  guard.dtype(index, "index", {at::kLong, at::kInt});
  if (given(present)) {
    guard.dtype(*present, "present", {at::kBool});
    guard.count(*present, "present", index.numel());
  }
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
        guard.index(at[r], count, "index");
        std::memcpy(to + r * bytes, source + at[r] * bytes, bytes);
      } else {
        std::memset(to + r * bytes, 0, bytes);
      }
    }
  });
  return out;
}

// Sorts pairs by key, stably: counted where the keys are few.
template <class T>
void sort_pairs(const T* experts, int64_t pairs, int64_t start, int64_t* order) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  const auto key = [&](int64_t i) { return experts[i] < start ? kLast : static_cast<int64_t>(experts[i]); };
  int64_t top = start;
  for (int64_t i = 0; i < pairs; ++i) top = std::max<int64_t>(top, experts[i]);
  int64_t span;
  const bool wide = __builtin_sub_overflow(top, start, &span) || span > 4 * pairs + 1024;
  if (wide) {
    std::iota(order, order + pairs, 0);
    std::stable_sort(order, order + pairs, [&](int64_t a, int64_t b) { return key(a) < key(b); });
    return;
  }
  ++span;
  const auto slot = [&](int64_t i) { return experts[i] < start ? span : experts[i] - start; };
  std::vector<int64_t> next(span + 2);
  for (int64_t i = 0; i < pairs; ++i) ++next[slot(i) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (int64_t i = 0; i < pairs; ++i) order[next[slot(i)]++] = i;
}

std::tuple<Tensor, Tensor, Tensor> route_pairs(const Tensor& experts, int64_t top_k, int64_t start, int64_t end,
                                               int64_t rows) {
  const Guard guard("route_pairs");
  guard.dtype(experts, "experts", {at::kInt, at::kLong});
  guard.hold(experts.numel() <= std::numeric_limits<int32_t>::max(), "experts", "fewer than 2^31 pairs",
             experts.sizes());
  guard.hold(top_k > 0, "top_k", "a positive number", top_k);
  guard.hold(rows >= 0, "rows", "no negative number", rows);
  const Tensor given = experts.contiguous();
  const int64_t pairs = given.numel();
  const at::TensorOptions integers = given.options().dtype(at::kLong);
  Tensor source = at::empty({rows}, integers), order = at::empty({pairs}, integers);
  Tensor place = at::empty({pairs}, given.options().dtype(at::kInt));
  int64_t *tokens = source.data_ptr<int64_t>(), *pair_at = order.data_ptr<int64_t>();
  int32_t* went = place.data_ptr<int32_t>();
  const auto run = [&](const auto* expert) {
    sort_pairs(expert, pairs, start, pair_at);
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t pair = pair_at[i];
      const bool inside = expert[pair] >= start && expert[pair] < end;
      went[pair] = inside ? static_cast<int32_t>(i) : -1;
      if (i < rows) tokens[i] = inside ? pair / top_k : -1;
    }
    std::fill(tokens + std::min(pairs, rows), tokens + rows, -1);
  };
  if (given.scalar_type() == at::kInt) {
    run(given.const_data_ptr<int32_t>());
  } else {
    run(given.const_data_ptr<int64_t>());
  }
  return {source, order, place};
}

// What a token adds up: scale * (row + bias).
template <class T>
struct Term {
  const T *row, *bias;
  float scale;
};

// The value in type T, where every operation rounds to it.
template <class T, bool kStepwise>
SOFTNPU_INLINE Vec step(const Vec& v) {
  if constexpr (!kStepwise || std::is_same_v<T, float>) return rounded(v);
  T narrow[kLanes];
  write(narrow, v);
  return read(narrow);
}

template <class T, bool kBiased, bool kStepwise, class Count>
SOFTNPU_INLINE Vec value_of(const Term<T>& term, int64_t i, Count c) {
  Vec v = read(term.row + i, c);
  if constexpr (kBiased) v = step<T, kStepwise>(v + read(term.bias + i, c));
  return step<T, kStepwise>(v * Vec(term.scale));
}

// out = skips + sum of the terms, in registers, a few vectors of columns at a time.
template <class T, bool kBiased, bool kStepwise>
SOFTNPU_WALK void add_up(const std::vector<Term<T>>& terms, int64_t n, const T* skip1, const T* skip2, T* out) {
  constexpr int kWide = 4;
  const Term<T>*first = terms.data(), *last = first + terms.size();
  const auto sum = [](const Vec& a, const Vec& b) { return kStepwise ? step<T, kStepwise>(a + b) : a + b; };
  const auto begin = [&](int64_t i, auto c) {
    const Vec v = value_of<T, kBiased, kStepwise>(*first, i, c);
    if (skip1 == nullptr && skip2 == nullptr) return v;
    Vec skip = read((skip1 != nullptr ? skip1 : skip2) + i, c);
    if (skip1 != nullptr && skip2 != nullptr) skip = sum(skip, read(skip2 + i, c));
    return sum(skip, v);
  };
  int64_t i = 0;
  for (; i + kWide * kLanes <= n; i += kWide * kLanes) {
    Vec sums[kWide];
    for (int k = 0; k < kWide; ++k) sums[k] = begin(i + k * kLanes, Full{});
    for (const Term<T>* term = first + 1; term < last; ++term) {
      for (int k = 0; k < kWide; ++k) {
        sums[k] = sum(sums[k], value_of<T, kBiased, kStepwise>(*term, i + k * kLanes, Full{}));
      }
    }
    for (int k = 0; k < kWide; ++k) write(out + i + k * kLanes, sums[k], Full{});
  }
  sweep(n - i, [&](int64_t rest, auto c) {
    Vec v = begin(i + rest, c);
    for (const Term<T>* term = first + 1; term < last; ++term) {
      v = sum(v, value_of<T, kBiased, kStepwise>(*term, i + rest, c));
    }
    write(out + i + rest, v, c);
  });
}

// index is (N, K), and there is one scale a pair.
void check_pairs(const Guard& guard, const Tensor& index, const MaybeTensor& scales) {
  guard.rank(index, "index", 2);
  guard.dtype(index, "index", {at::kInt});
  if (!given(scales)) return;
  guard.count(*scales, "scales", index.numel());
  guard.real(*scales, "scales");
}

Tensor finalize_routing(const Tensor& rows, const Tensor& index, const MaybeTensor& scales, const MaybeTensor& bias,
                        const MaybeTensor& expert, const MaybeTensor& skip1, const MaybeTensor& skip2, bool stepwise) {
  const Guard guard("finalize_routing");
  guard.rank(rows, "rows", 2);
  check_pairs(guard, index, scales);
  if (given(bias)) {
    guard.rank(*bias, "bias", 2);
    guard.sizes(*bias, "bias", {bias->size(0), rows.size(1)});
    guard.same_dtype(*bias, "bias", rows);
    guard.hold(given(expert), "expert", "the experts of the pairs, beside 'bias'", "None");
    guard.dtype(*expert, "expert", {at::kInt});
    guard.count(*expert, "expert", index.numel());
  }
  for (const auto& [t, name] : {std::pair{&skip1, "skip1"}, {&skip2, "skip2"}}) {
    if (!given(*t)) continue;
    guard.sizes(**t, name, {index.size(0), rows.size(1)});
    guard.same_dtype(**t, name, rows);
  }
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
    const std::vector<T> zeros(n);
    parallel_rows(tokens, n * top_k, [&](int64_t begin, int64_t end) {
      std::vector<Term<T>> terms(std::max<int64_t>(1, top_k), {zeros.data(), zeros.data(), 0.0f});
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < top_k; ++j) {
          const int64_t pair = i * top_k + j, place = at[pair];
          const T* row = place >= 0 && place < count ? source + place * n : zeros.data();
          const T* extra = nullptr;
          if (biases != nullptr) {
            const int64_t owner = experts.const_data_ptr<int32_t>()[pair];
            guard.index(owner, added.size(0), "expert");
            extra = biases + owner * n;
          }
          terms[j] = {row, extra, scale ? scale[pair] : 1.0f};
        }
        const T *skip1 = skips[0] ? skips[0] + i * n : nullptr, *skip2 = skips[1] ? skips[1] + i * n : nullptr;
        T* to = out.data_ptr<T>() + i * n;
        if (stepwise) {
          (biases ? add_up<T, true, true> : add_up<T, false, true>)(terms, n, skip1, skip2, to);
        } else {
          (biases ? add_up<T, true, false> : add_up<T, false, false>)(terms, n, skip1, skip2, to);
        }
      }
    });
  });
  return out;
}

// The pairs of each row, in order: those of row r are pairs[first[r]] to pairs[first[r + 1]]; others belong to none.
struct PairsOfRows {
  PairsOfRows(const int32_t* index, int64_t count, int64_t rows) : first(rows + 2), pairs(count) {
    const auto inside = [&](int64_t p) { return index[p] >= 0 && index[p] < rows; };
    for (int64_t p = 0; p < count; ++p) {
      if (inside(p)) ++first[index[p] + 2];
    }
    std::partial_sum(first.begin(), first.end(), first.begin());
    for (int64_t p = 0; p < count; ++p) {
      if (inside(p)) pairs[first[index[p] + 1]++] = p;
    }
  }

  std::vector<int64_t> first, pairs;
};

template <class T>
SOFTNPU_WALK float dot(const T* a, const T* b, int64_t n) {
  return row_sum(n, [&](int64_t i, auto c) { return read(a + i, c) * read(b + i, c); });
}

std::tuple<Tensor, Tensor> finalize_routing_backward(const Tensor& grad, const Tensor& index, int64_t count,
                                                     const MaybeTensor& scales, const MaybeTensor& rows) {
  const Guard guard("finalize_routing_backward");
  guard.rank(grad, "grad", 2);
  check_pairs(guard, index, scales);
  guard.hold(index.size(0) == grad.size(0), "index", c10::str(grad.size(0), " rows, as 'grad' has"), index.sizes());
  guard.hold(count >= 0, "count", "no negative number", count);
  if (given(rows)) {
    guard.sizes(*rows, "rows", {count, grad.size(1)});
    guard.same_dtype(*rows, "rows", grad);
  }
  const Tensor grads = grad.contiguous(), where = index.contiguous();
  const Tensor factors = given(scales) ? as_float(*scales) : Tensor();
  const Tensor values = given(rows) ? rows->contiguous() : Tensor();
  const int64_t top_k = index.size(1), n = grad.size(1);
  Tensor d_rows = at::empty({count, n}, grad.options());
  Tensor d_scales =
      at::zeros(values.defined() ? index.sizes() : at::IntArrayRef({0}), grad.options().dtype(at::kFloat));
  const PairsOfRows of(where.const_data_ptr<int32_t>(), where.numel(), count);
  const float* scale = data_or_null(factors);
  float* slope = values.defined() ? d_scales.data_ptr<float>() : nullptr;
  typed(grad, "finalize_routing_backward", [&](auto type) {
    using T = decltype(type);
    const T *from = grads.const_data_ptr<T>(), *value = values.defined() ? values.const_data_ptr<T>() : nullptr;
    T* to = d_rows.data_ptr<T>();
    const std::vector<T> zeros(n);
    parallel_rows(count, 2 * n, [&](int64_t begin, int64_t end) {
      std::vector<Term<T>> terms;
      for (int64_t r = begin; r < end; ++r) {
        terms.clear();
        for (int64_t k = of.first[r]; k < of.first[r + 1]; ++k) {
          const int64_t pair = of.pairs[k];
          const T* row = from + pair / top_k * n;
          terms.push_back({row, nullptr, scale ? scale[pair] : 1.0f});
          if (slope != nullptr) slope[pair] = dot(row, value + r * n, n);
        }
        if (terms.empty()) terms.push_back({zeros.data(), nullptr, 1.0f});
        add_up<T, false, false>(terms, n, nullptr, nullptr, to + r * n);
      }
    });
  });
  return {d_rows, d_scales};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "route_pairs(Tensor experts, int top_k, int start, int end, int rows) -> (Tensor source, Tensor order, "
      "Tensor place)");
  m.def("take_rows(Tensor rows, Tensor index, Tensor? present) -> Tensor");
  m.def(
      "finalize_routing(Tensor rows, Tensor index, Tensor? scales, Tensor? bias, Tensor? expert, Tensor? skip1, "
      "Tensor? skip2, bool stepwise=False) -> Tensor");
  m.def(
      "finalize_routing_backward(Tensor grad, Tensor index, int count, Tensor? scales, Tensor? rows) "
      "-> (Tensor, Tensor)");
}

SOFTNPU_KERNELS(routing, m) {
  using namespace softnpu::kernels;
  m.impl("route_pairs", route_pairs);
  m.impl("take_rows", take_rows);
  m.impl("finalize_routing", finalize_routing);
  m.impl("finalize_routing_backward", finalize_routing_backward);
}
