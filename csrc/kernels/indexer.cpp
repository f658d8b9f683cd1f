// The lightning indexer: which keys matter most to each query.
//
//   softnpu::indexer(Tensor query, Tensor weights, Tensor key, Tensor seen, int count) -> (Tensor, Tensor)
//
// query is (rows, N, D), weights (rows, N), key (columns, D), seen (rows), int64: row r looks at the first seen[r]
// keys, whose scores are sum_h w_h ReLU(q_h k). Returns the positions of the `count` best ones, int32, and their
// scores, fp32, both (rows, count): best first, of equal ones the first; -1 and 0 where there are less or where a score
// is NaN or -infinity.
//
// A panel of keys is widened and turned once, so that a vector holds one channel of several keys, and stays in the
// first-level cache while all heads of some queries pass over it. Scores need no products in memory. Heads are
// added in the order of PyTorch's sum; which of two keys comes first whose scores differ by a rounding is open.
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "ranks.h"
#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

constexpr int64_t kPanel = 2 * kLanes;            // keys at a time
constexpr int64_t kHeads = kLanes >= 16 ? 8 : 4;  // heads at a time: two accumulators each
constexpr int64_t kSum = 16;                      // heads that are added up by themselves, as PyTorch's sum does
constexpr int64_t kQueryFloats = 1 << 17;         // of a block of queries: half a second-level cache
constexpr int64_t kScoreFloats = 1 << 22;         // of a block of scores

// Keys [first, first + kPanel) as (D, kPanel); keys past the last one are zeros. `rows` has room for them in fp32.
template <class T>
void turn(const T* key, int64_t width, int64_t first, int64_t columns, float* rows, float* panel) {
  const int64_t count = std::min(kPanel, columns - first);
  if (count < kPanel) std::fill(panel, panel + width * kPanel, 0.0f);
  const T* from = key + first * width;
  sweep(count * width, [&](int64_t i, auto c) { write(rows + i, read(from + i, c), c); });
  for (int64_t j = 0; j < count; j += kLanes) {
    const int tall = static_cast<int>(std::min(kLanes, count - j));
    for (int64_t d = 0; d < width; d += kLanes) {
      const int wide = static_cast<int>(std::min(kLanes, width - d));
      const float* tile = rows + j * width + d;
      float* to = panel + d * kPanel + j;
      if (tall == kLanes && wide == kLanes) {
        at::vec::transpose_mxn<float, kLanes, kLanes>(tile, width, to, kPanel);
      } else {
        at::vec::transpose_mxn<float>(tile, width, to, kPanel, tall, wide);
      }
    }
  }
}

// Adds what kCount heads of one query contribute to the scores of a panel. Their sums must stay in registers: indices
// that the compiler knows from the start keep it from giving the arrays memory.
template <size_t... kHead>
SOFTNPU_WALK void score(const float* query, const float* weights, int64_t width, const float* panel, float* scores,
                        std::index_sequence<kHead...>) {
  Vec low[] = {((void)kHead, Vec(0.0f))...}, high[] = {((void)kHead, Vec(0.0f))...};
  for (int64_t d = 0; d < width; ++d) {
    const Vec a = Vec::loadu(panel + d * kPanel), b = Vec::loadu(panel + d * kPanel + kLanes);
    const auto step = [&](Vec& left, Vec& right, float channel) __attribute__((always_inline)) {
      const Vec q(channel);
      left = at::vec::fmadd(q, a, left);
      right = at::vec::fmadd(q, b, right);
    };
    (step(low[kHead], high[kHead], query[kHead * width + d]), ...);
  }
  Vec left = Vec::loadu(scores), right = Vec::loadu(scores + kLanes);
  const Vec zero(0.0f);
  const auto add = [&](const Vec& of_left, const Vec& of_right, float weight) __attribute__((always_inline)) {
    left = left + rounded(at::vec::maximum(of_left, zero) * Vec(weight));
    right = right + rounded(at::vec::maximum(of_right, zero) * Vec(weight));
  };
  (add(low[kHead], high[kHead], weights[kHead]), ...);
  left.store(scores);
  right.store(scores + kLanes);
}

struct Problem {
  int64_t rows, heads, width, columns;
  const int64_t* seen;
};

// Scores (rows, padded) of queries [top, top + rows), whose values are fp32; `padded` is columns in whole panels.
template <class T>
void score_block(const Problem& p, int64_t top, int64_t rows, const float* query, const float* weights, const T* key,
                 int64_t padded, float* scores) {
  const int64_t most = *std::max_element(p.seen + top, p.seen + top + rows);
  const int64_t panels = (most + kPanel - 1) / kPanel;
  parallel_for(0, panels, std::max<int64_t>(1, kGrain / (p.width * p.heads * kPanel)), [&](int64_t begin, int64_t end) {
    std::vector<float> widened(p.width * kPanel), panel(p.width * kPanel);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kPanel;
      turn(key, p.width, first, p.columns, widened.data(), panel.data());
      for (int64_t r = 0; r < rows; ++r) {
        if (p.seen[top + r] <= first) continue;
        float *to = scores + r * padded + first, part[kPanel] = {};
        std::fill(to, to + kPanel, 0.0f);
        const auto flush = [&] {
          for (int64_t j = 0; j < kPanel; ++j) to[j] += std::exchange(part[j], 0.0f);
        };
        const float *q = query + r * p.heads * p.width, *w = weights + r * p.heads;
        for (int64_t h = 0; h < p.heads;) {
          if (h % kSum == 0) flush();
          const float *q_at = q + h * p.width, *w_at = w + h;
          if (h + kHeads <= p.heads) {
            score(q_at, w_at, p.width, panel.data(), part, std::make_index_sequence<kHeads>());
            h += kHeads;
          } else {
            score(q_at, w_at, p.width, panel.data(), part, std::make_index_sequence<1>());
            ++h;
          }
        }
        flush();
      }
    }
  });
}

template <class T>
void widen(const T* from, int64_t n, float* to) {
  sweep(n, [&](int64_t i, auto c) { write(to + i, read(from + i, c), c); });
}

template <class T>
void search(const Problem& p, const T* query, const float* weights, const T* key, int64_t count, int32_t* indices,
            float* values) {
  const int64_t padded = (p.columns + kPanel - 1) / kPanel * kPanel, size = p.heads * p.width;
  const int64_t step = std::clamp<int64_t>(std::min(kQueryFloats / size, kScoreFloats / padded), 1, p.rows);
  std::vector<float> wide(step * size), scores(step * padded);
  for (int64_t top = 0; top < p.rows; top += step) {
    const int64_t rows = std::min(step, p.rows - top);
    widen(query + top * size, rows * size, wide.data());
    score_block(p, top, rows, wide.data(), weights + top * p.heads, key, padded, scores.data());
    parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<uint64_t> ranks;
      for (int64_t r = begin; r < end; ++r) {
        const float* own = scores.data() + r * padded;
        const int64_t seen = p.seen[top + r], kept = std::min(count, seen);
        select_best(own, seen, kept, ranks);
        int32_t* place = indices + (top + r) * count;
        float* value = values + (top + r) * count;
        for (int64_t i = 0; i < count; ++i) {
          const float found = i < kept ? own[index_of(ranks[i])] : -std::numeric_limits<float>::infinity();
          const bool counts = found > -std::numeric_limits<float>::infinity();
          place[i] = counts ? static_cast<int32_t>(index_of(ranks[i])) : -1;
          value[i] = counts ? found : 0.0f;
        }
      }
    });
  }
}

std::tuple<Tensor, Tensor> indexer(const Tensor& query, const Tensor& weights, const Tensor& key, const Tensor& seen,
                                   int64_t count) {
  const Guard guard("indexer");
  guard.rank(query, "query", 3);
  guard.rank(key, "key", 2);
  guard.same_dtype(key, "key", query);
  const Problem sizes{query.size(0), query.size(1), query.size(2), key.size(0), nullptr};
  guard.hold(key.size(1) == sizes.width, "key", c10::str("rows of ", sizes.width), key.sizes());
  guard.hold(sizes.columns < std::numeric_limits<int32_t>::max() - kPanel, "key", "fewer than 2^31 rows", key.sizes());
  guard.sizes(weights, "weights", {sizes.rows, sizes.heads});
  guard.dtype(seen, "seen", {at::kLong});
  guard.sizes(seen, "seen", {sizes.rows});
  guard.hold(count >= 0, "count", "no negative number", count);
  const Tensor edges = seen.contiguous();
  const int64_t* edge = edges.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < sizes.rows; ++r) guard.index(edge[r], sizes.columns + 1, "seen");
  const Tensor factors = as_float(weights), q = query.contiguous(), k = key.contiguous();
  Tensor indices = at::empty({sizes.rows, count}, query.options().dtype(at::kInt));
  Tensor values = at::empty({sizes.rows, count}, query.options().dtype(at::kFloat));
  if (indices.numel() == 0) return {indices, values};
  if (sizes.heads * sizes.width == 0 || sizes.columns == 0) {  // all scores are 0, or there are none
    return indexer(at::zeros({sizes.rows, 1, 1}, query.options()), at::zeros({sizes.rows, 1}, factors.options()),
                   at::zeros({std::max<int64_t>(sizes.columns, 1), 1}, key.options()), seen, count);
  }
  const Problem p{sizes.rows, sizes.heads, sizes.width, sizes.columns, edge};
  typed(query, "indexer", [&](auto type) {
    using T = decltype(type);
    search(p, q.const_data_ptr<T>(), factors.const_data_ptr<float>(), k.const_data_ptr<T>(), count,
           indices.data_ptr<int32_t>(), values.data_ptr<float>());
  });
  return {indices, values};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("indexer(Tensor query, Tensor weights, Tensor key, Tensor seen, int count) -> (Tensor, Tensor)");
}
SOFTNPU_KERNELS(indexer, m) { m.impl("indexer", softnpu::kernels::indexer); }
