// The largest elements of rows: for the gates of mixtures of experts, and for top-k and top-p sampling.
//
//   softnpu::top_k_rows(Tensor x, int k) -> Tensor
//   softnpu::top_k_top_p(Tensor x, Tensor? p, Tensor? k) -> Tensor
//
// top_k_rows: the indices (int64) of the k largest of each row of fp32, largest first, of equal ones the first; NaN is
// the largest. top_k_top_p: as the operator's page has it; x is (batch, V), p and k are (batch).
#include <array>
#include <cmath>

#include "ranks.h"
#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// --- the k largest ------------------------------------------------------------------------------------------------

constexpr int64_t kInsertion = 32;  // up to so many are kept sorted while the row passes

SOFTNPU_WALK void insert_best(const float* x, int64_t n, int64_t k, int64_t* out) {
  uint64_t best[kInsertion];
  int64_t have = 0;
  float bar = kMinusInfinity;  // what the last of the best is worth
  const auto offer = [&](int64_t index) {
    const uint64_t mine = rank(x[index], index);
    if (have == k && mine < best[k - 1]) return;
    int64_t at = have < k ? have++ : k - 1;
    for (; at > 0 && best[at - 1] < mine; --at) best[at] = best[at - 1];
    best[at] = mine;
    if (have == k) bar = x[index_of(best[k - 1])];
  };
  int64_t i = 0;
  for (; i < std::min(k, n); ++i) offer(i);
  for (; i + kLanes <= n; i += kLanes) {
    const Vec passed = (read(x + i) <= Vec(bar)) == Vec(0.0f);  // larger, or one of the two is NaN
    if (passed.zero_mask() == (1 << kLanes) - 1) continue;
    for (int64_t j = i; j < i + kLanes; ++j) {
      if (!(x[j] <= bar)) offer(j);
    }
  }
  for (; i < n; ++i) offer(i);
  for (int64_t j = 0; j < k; ++j) out[j] = index_of(best[j]);
}

// Indices within a row are kept in 32 bits.
void check_rows(const Guard& guard, const Tensor& x) {
  guard.least_rank(x, "x", 1);
  guard.hold(x.size(-1) <= std::numeric_limits<uint32_t>::max(), "x", "rows shorter than 2^32", x.sizes());
}

Tensor top_k_rows(const Tensor& x, int64_t k) {
  const Guard guard("top_k_rows");
  check_rows(guard, x);
  guard.dtype(x, "x", {at::kFloat});
  guard.hold(k >= 0, "k", "no negative number", k);
  const Rows from(x, 1);
  const int64_t n = from.width;
  at::DimVector shape(x.sizes());
  shape.back() = k = std::min(k, n);
  Tensor indices = at::empty(shape, x.options().dtype(at::kLong));
  if (k == 0) return indices;
  int64_t* out = indices.data_ptr<int64_t>();
  parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> ranks;
    Cursor at(from, begin);
    for (int64_t r = begin; r < end; ++r, at.next()) {
      if (k <= kInsertion) {
        insert_best(at.row<float>(), n, k, out + r * k);
      } else {
        select_best(at.row<float>(), n, k, ranks);
        std::transform(ranks.begin(), ranks.begin() + k, out + r * k, index_of);
      }
    }
  });
  return indices;
}

// --- top-k and top-p ----------------------------------------------------------------------------------------------

struct Entry {
  uint32_t key, index;
};

// Stable, by key; `spare` is as long as `entries`.
void radix_sort(std::vector<Entry>& entries, std::vector<Entry>& spare) {
  if (entries.size() < 512) {
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
    return;
  }
  spare.resize(entries.size());
  std::array<std::array<uint32_t, 256>, 4> counts{};
  for (const Entry& e : entries) {
    for (int digit = 0; digit < 4; ++digit) ++counts[digit][e.key >> (8 * digit) & 0xFF];
  }
  for (int digit = 0; digit < 4; ++digit) {
    auto& count = counts[digit];
    if (count[entries[0].key >> (8 * digit) & 0xFF] == entries.size()) continue;  // all alike
    uint32_t place = 0;
    for (uint32_t& c : count) place += std::exchange(c, place);
    for (const Entry& e : entries) spare[count[e.key >> (8 * digit) & 0xFF]++] = e;
    entries.swap(spare);
  }
}

struct Scratch {
  std::vector<Entry> entries, spare;
  std::vector<uint32_t> keys;
  std::vector<float> masses;
};

// The key of the k-th largest element, below which top-k cuts; 0 where it cuts nothing.
uint32_t cut_of(Scratch& s, int64_t n, int64_t k) {
  if (k <= 0 || k >= n) return 0;
  auto at = s.keys.begin() + (n - k);
  std::nth_element(s.keys.begin(), at, s.keys.end());
  return *at == ~0u ? 0 : *at;  // nothing is smaller than NaN
}

// How many of the sorted entries top-p leaves out; the last one always stays.
template <class T>
int64_t outside(const T* x, Scratch& s, float p) {
  const auto& entries = s.entries;
  const int64_t n = static_cast<int64_t>(entries.size());
  const float top = static_cast<float>(x[entries.back().index]);
  if (!std::isfinite(top)) return 0;  // the softmax is NaN
  s.masses.resize(n);
  for (int64_t i = 0; i < n; ++i) s.masses[i] = static_cast<float>(x[entries[i].index]);
  float* mass = s.masses.data();
  const float total = row_sum(n, [&](int64_t i, auto c) {
    const Vec e = (read(mass + i, c) - Vec(top)).exp();
    write(mass + i, e, c);
    return e;
  });
  double sum = 0;
  int64_t out = 0;
  for (; out + 1 < n; ++out) {
    sum += mass[out] / total;
    if (!(static_cast<float>(sum) <= 1.0f - p)) break;
  }
  return out;
}

template <class T>
void filter(const T* x, int64_t n, const T* p, const int32_t* k, Scratch& s, T* y) {
  s.keys.resize(n);
  for (int64_t i = 0; i < n; ++i) s.keys[i] = key_of(static_cast<float>(x[i]));
  const uint32_t cut = k == nullptr ? 0 : cut_of(s, n, *k);
  if (p == nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = key_of(static_cast<float>(x[i])) < cut ? T(kMinusInfinity) : x[i];
    return;
  }
  std::fill(y, y + n, T(kMinusInfinity));
  s.entries.clear();
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = key_of(static_cast<float>(x[i]));
    if (key >= cut) s.entries.push_back({key, static_cast<uint32_t>(i)});
  }
  radix_sort(s.entries, s.spare);
  for (size_t i = outside(x, s, static_cast<float>(*p)); i < s.entries.size(); ++i) {
    y[s.entries[i].index] = x[s.entries[i].index];
  }
}

Tensor top_k_top_p(const Tensor& x, const MaybeTensor& p, const MaybeTensor& k) {
  const Guard guard("top_k_top_p");
  check_rows(guard, x);
  const Rows from(x, 1);
  if (given(p)) {
    guard.same_dtype(*p, "p", x);
    guard.count(*p, "p", from.count);
  }
  if (given(k)) {
    guard.dtype(*k, "k", {at::kInt});
    guard.count(*k, "k", from.count);
  }
  Result y(x, 1);
  if (x.numel() == 0) return y.tensor();
  const Tensor masses = given(p) ? p->contiguous() : Tensor(), counts = given(k) ? k->contiguous() : Tensor();
  const int64_t n = from.width;
  typed(x, "top_k_top_p", [&](auto type) {
    using T = decltype(type);
    const T* ps = masses.defined() ? masses.const_data_ptr<T>() : nullptr;
    const int32_t* ks = counts.defined() ? counts.const_data_ptr<int32_t>() : nullptr;
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      Scratch scratch;
      Cursor v(from, begin), to(y.rows, begin);
      for (int64_t r = begin; r < end; ++r, v.next(), to.next()) {
        filter(v.row<T>(), n, ps ? ps + r : nullptr, ks ? ks + r : nullptr, scratch, to.row<T>());
      }
    });
  });
  return y.tensor();
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("top_k_rows(Tensor x, int k) -> Tensor");
  m.def("top_k_top_p(Tensor x, Tensor? p, Tensor? k) -> Tensor");
}

SOFTNPU_KERNELS(top_k, m) {
  m.impl("top_k_rows", softnpu::kernels::top_k_rows);
  m.impl("top_k_top_p", softnpu::kernels::top_k_top_p);
}
