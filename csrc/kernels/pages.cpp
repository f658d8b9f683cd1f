// Tokens in caches of pages: into their slots, and out of the pages of a sequence. Bytes are moved, of whatever dtype.
//
//   softnpu::write_pages(Tensor(a!) cache, Tensor slots, Tensor rows, bool nz) -> ()
//   softnpu::read_pages(Tensor(a!) target, Tensor cache, Tensor table, int[] firsts, int[] lengths, int[] skipped,
//                       bool nz) -> ()
//
// A cache is (blocks, block, ...) or, with nz, (blocks, ..., block, c): a token is one piece of bytes, or pieces of c
// elements a block apart. The formula is torch_npu/ops/scatter/_pages.py. Threads share the bytes of a token, never the
// tokens: of two tokens with one slot the later one stays whole.
#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

struct Pages {
  char* data;
  int64_t blocks, block, pieces, bytes;  // a piece of a token has so many bytes

  Pages(const Guard& guard, const Tensor& cache, bool nz) {
    guard.least_rank(cache, "cache", nz ? 3 : 2);
    guard.hold(cache.is_contiguous(), "cache", "contiguous", cache.strides());
    data = static_cast<char*>(cache.data_ptr());
    blocks = cache.size(0);
    block = cache.size(nz ? cache.dim() - 2 : 1);
    const int64_t token = blocks * block == 0 ? 0 : cache.numel() / (blocks * block);
    bytes = (nz ? cache.size(-1) : token) * cache.element_size();
    pieces = nz ? (cache.size(-1) == 0 ? 0 : token / cache.size(-1)) : 1;
  }

  int64_t token_bytes() const { return pieces * bytes; }
  char* at(int64_t page, int64_t place) const { return data + (page * pieces * block + place) * bytes; }
  int64_t step() const { return block * bytes; }  // from one piece of a token to the next
};

// body(piece, last piece, first byte, last byte) in threads: they share the pieces, or the bytes of the only one.
template <class Body>
void share(const Pages& pages, int64_t tokens, const Body& body) {
  const int64_t line = 64, units = pages.pieces > 1 ? pages.pieces : (pages.bytes + line - 1) / line;
  const int64_t cost = std::max<int64_t>(1, tokens * pages.token_bytes() / std::max<int64_t>(1, units));
  parallel_for(0, units, std::max<int64_t>(1, 4 * kGrain / cost), [&](int64_t begin, int64_t end) {
    if (pages.pieces > 1) {
      body(begin, end, 0, pages.bytes);
    } else {
      body(0, 1, begin * line, std::min(end * line, pages.bytes));
    }
  });
}

// Copies bytes by whole vectors, and asks for the memory of `next`, which is written so far apart that no processor
// guesses it.
SOFTNPU_WALK void copy_ahead(char* to, const char* from, int64_t n, const char* next) {
  constexpr int64_t kLine = 64, kVectors = 4, kStep = kVectors * kLanes * sizeof(float);
  for (int64_t b = 0; b < n; b += kLine) __builtin_prefetch(next + b, 1);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Vec v[kVectors];
    for (int64_t k = 0; k < kVectors; ++k) v[k] = Vec::loadu(from + i + k * kLanes * sizeof(float));
    for (int64_t k = 0; k < kVectors; ++k) v[k].store(to + i + k * kLanes * sizeof(float));
  }
  std::memcpy(to + i, from + i, n - i);
}

void write_pages(Tensor cache, const Tensor& given_slots, const Tensor& given_rows, bool nz) {
  const Guard guard("write_pages");
  const Pages pages(guard, cache, nz);
  guard.dtype(given_slots, "slots", {at::kInt, at::kLong});
  guard.rank(given_slots, "slots", 1);
  guard.same_dtype(given_rows, "rows", cache);
  guard.least_rank(given_rows, "rows", 1);
  const int64_t tokens = given_slots.numel();
  guard.hold(given_rows.size(0) == tokens, "rows", tokens, given_rows.size(0));
  if (given_rows.numel() == 0 || cache.numel() == 0) return;
  guard.count(given_rows, "rows", tokens * (pages.token_bytes() / cache.element_size()));
  const Tensor rows = given_rows.contiguous(), slots = given_slots.to(at::kLong).contiguous();
  const char* from = static_cast<const char*>(rows.const_data_ptr());
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    if (slot[t] >= 0) guard.index(slot[t], pages.blocks * pages.block, "slots");
  }
  share(pages, tokens, [&](int64_t piece, int64_t last, int64_t begin, int64_t end) {
    const auto place = [&](int64_t t) { return pages.at(slot[t] / pages.block, slot[t] % pages.block); };
    for (int64_t t = 0; t < tokens; ++t) {
      if (slot[t] < 0) continue;
      char* to = place(t);
      const char *row = from + t * pages.token_bytes(), *next = t + 1 < tokens && slot[t + 1] >= 0 ? place(t + 1) : to;
      for (int64_t p = piece; p < last; ++p) {
        const int64_t piece_at = p * pages.step() + begin;
        copy_ahead(to + piece_at, row + p * pages.bytes + begin, end - begin, next + piece_at);
      }
    }
  });
}

void read_pages(Tensor target, const Tensor& cache, const Tensor& given_table, at::IntArrayRef firsts,
                at::IntArrayRef lengths, at::IntArrayRef skipped, bool nz) {
  const Guard guard("read_pages");
  const Pages pages(guard, cache, nz);
  guard.dtype(given_table, "table", {at::kInt, at::kLong});
  guard.rank(given_table, "table", 2);
  guard.same_dtype(target, "target", cache);
  guard.least_rank(target, "target", 1);
  guard.hold(target.is_contiguous(), "target", "contiguous", target.strides());
  const int64_t count = given_table.size(0), width = given_table.size(1), rows = target.size(0);
  guard.hold(static_cast<int64_t>(firsts.size()) == count, "firsts", count, firsts.size());
  guard.hold(static_cast<int64_t>(lengths.size()) == count, "lengths", count, lengths.size());
  guard.hold(static_cast<int64_t>(skipped.size()) == count, "skipped", count, skipped.size());
  if (target.numel() == 0) return;
  guard.hold(cache.numel() > 0, "cache", "not empty", cache.sizes());
  const int64_t row_bytes = target.numel() / rows * target.element_size();
  guard.hold(row_bytes == pages.token_bytes(), "target", "rows of a token's size", target.sizes());
  for (int64_t i = 0; i < count; ++i) {
    guard.hold(firsts[i] >= 0 && firsts[i] <= rows, "firsts", "rows of the target", firsts[i]);
    guard.hold(lengths[i] <= rows - firsts[i], "lengths", "within the target", lengths[i]);
    guard.hold(skipped[i] >= 0, "skipped", "not negative", skipped[i]);
  }
  const Tensor table = given_table.to(at::kLong).contiguous();
  const int64_t* ids = table.const_data_ptr<int64_t>();
  char* into = static_cast<char*>(target.data_ptr());
  share(pages, rows, [&](int64_t piece, int64_t last, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < count; ++i) {
      int64_t run = 1;
      for (int64_t j = 0; j < lengths[i]; j += run) {
        char* row = into + (firsts[i] + j) * row_bytes;
        const int64_t column = j / pages.block + std::min(skipped[i], width);
        const int64_t page = column < width ? ids[i * width + column] : -1;
        // whole tokens of one page lie together, there and here
        const bool whole = pages.pieces == 1 && begin == 0 && end == pages.bytes;
        run = whole ? std::min(pages.block - j % pages.block, lengths[i] - j) : 1;
        const int64_t n = (run - 1) * pages.bytes + end - begin;
        for (int64_t p = piece; p < last; ++p) {
          char* to = row + p * pages.bytes + begin;
          if (page < 0 || page >= pages.blocks) {
            std::memset(to, 0, n);
          } else {
            std::memcpy(to, pages.at(page, j % pages.block) + p * pages.step() + begin, n);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("write_pages(Tensor(a!) cache, Tensor slots, Tensor rows, bool nz) -> ()");
  m.def(
      "read_pages(Tensor(a!) target, Tensor cache, Tensor table, int[] firsts, int[] lengths, int[] skipped, bool nz) "
      "-> ()");
}
SOFTNPU_KERNELS(pages, m) {
  m.impl("write_pages", softnpu::kernels::write_pages);
  m.impl("read_pages", softnpu::kernels::read_pages);
}
