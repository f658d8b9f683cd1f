// Tokens in caches of pages: into their slots, and out of the pages of a sequence. Bytes are moved, of whatever dtype.
//
//   softnpu::write_pages(Tensor(a!) cache, Tensor slots, Tensor rows, bool nz, Tensor(b!)? second=None,
//                        Tensor? second_rows=None) -> ()
//   softnpu::read_pages(Tensor(a!) target, Tensor cache, Tensor table, int[] firsts, int[] lengths, int[] skipped,
//                       bool nz, Tensor(b!)? second=None, Tensor? second_cache=None) -> ()
//
// A cache is (blocks, block, ...) or, with nz, (blocks, ..., block, c): a token is one piece of bytes, or pieces of c
// elements a block apart. The formula is torch_npu/ops/_shared/_pages.py. Threads share the tokens of
// both caches; where two of them have one place, one thread takes all, so that the later one stays.
#include "lanes.h"
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

// How many tokens are worth a thread.
int64_t grain(const Pages& pages) {
  return std::max<int64_t>(1, 4 * kGrain / std::max<int64_t>(1, pages.token_bytes()));
}

// Whether no slot occurs twice. Negative ones are none.
bool distinct(const int64_t* slot, int64_t tokens, int64_t slots) {
  std::vector<bool> seen(slots);
  for (int64_t t = 0; t < tokens; ++t) {
    if (slot[t] < 0) continue;
    if (seen[slot[t]]) return false;
    seen[slot[t]] = true;
  }
  return true;
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

// From so many bytes on, tokens of some size go past the caches, which would not keep them all.
constexpr int64_t kLarge = 1 << 20, kLeast = 256;

// The tokens of one cache, which lie in their order.
struct Tokens {
  Pages pages;
  Tensor rows;

  Tokens(const Guard& guard, const Tensor& cache, const Tensor& given, int64_t tokens, bool nz)
      : pages(guard, cache, nz) {
    guard.same_dtype(given, "rows", cache);
    guard.least_rank(given, "rows", 1);
    guard.hold(given.size(0) == tokens, "rows", tokens, given.size(0));
    if (given.numel() == 0 || cache.numel() == 0) return;
    guard.count(given, "rows", tokens * (pages.token_bytes() / cache.element_size()));
    rows = given.contiguous();
  }

  bool empty() const { return !rows.defined(); }
  char* end() const { return pages.at(pages.blocks, 0); }
  bool meets(const Tokens& other) const { return pages.data < other.end() && other.pages.data < end(); }

  int64_t bytes() const { return rows.nbytes(); }

  void write(const int64_t* slot, int64_t first, int64_t last, bool past) const {
    const char* from = static_cast<const char*>(rows.const_data_ptr());
    const auto place = [&](int64_t t) { return pages.at(slot[t] / pages.block, slot[t] % pages.block); };
    for (int64_t t = first; t < last; ++t) {
      if (slot[t] < 0) continue;
      char* to = place(t);
      const char* row = from + t * pages.token_bytes();
      if (past && pages.bytes >= kLeast) {
        for (int64_t p = 0; p < pages.pieces; ++p) {
          stream_bytes(to + p * pages.step(), row + p * pages.bytes, pages.bytes);
        }
        continue;
      }
      const char* next = t + 1 < last && slot[t + 1] >= 0 ? place(t + 1) : to;
      for (int64_t p = 0; p < pages.pieces; ++p) {
        copy_ahead(to + p * pages.step(), row + p * pages.bytes, pages.bytes, next + p * pages.step());
      }
    }
    if (past) streamed();
  }
};

void write_pages(const Tensor& cache, const Tensor& given_slots, const Tensor& rows, bool nz,
                 const std::optional<Tensor>& second, const std::optional<Tensor>& second_rows) {
  const Guard guard("write_pages");
  guard.dtype(given_slots, "slots", {at::kInt, at::kLong});
  guard.rank(given_slots, "slots", 1);
  const int64_t tokens = given_slots.numel();
  const Tensor slots = given_slots.to(at::kLong).contiguous();
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  std::vector<Tokens> all;
  int64_t least = tokens, bytes = 0;  // tokens that are worth a thread; bytes that are written
  bool apart = true;                  // no bytes are written twice
  const auto add = [&](const Tensor& into, const Tensor& from) {
    Tokens own(guard, into, from, tokens, nz);
    if (own.empty()) return;
    for (int64_t t = 0; t < tokens; ++t) {
      if (slot[t] >= 0) guard.index(slot[t], own.pages.blocks * own.pages.block, "slots");
    }
    for (const Tokens& other : all) apart = apart && !own.meets(other);
    least = std::min(least, grain(own.pages));
    bytes += own.bytes();
    all.push_back(std::move(own));
  };
  add(cache, rows);
  if (second.has_value()) add(*second, second_rows.value_or(Tensor()));
  const int64_t work = static_cast<int64_t>(all.size()) * tokens;
  if (work > least) apart = apart && distinct(slot, tokens, all[0].pages.blocks * all[0].pages.block);
  parallel_for(0, work, apart ? least : work, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin / tokens; c * tokens < end; ++c) {
      const int64_t first = std::max<int64_t>(0, begin - c * tokens), last = std::min(tokens, end - c * tokens);
      all[c].write(slot, first, last, bytes >= kLarge);
    }
  });
}

// The tokens of a page: where they go to, how many, and where they are, or null for zeros.
struct Run {
  const Pages* pages;
  char* to;
  int64_t tokens;
  const char* from;

  void read() const {
    const int64_t row = pages->token_bytes();
    if (from == nullptr) {
      std::memset(to, 0, tokens * row);
    } else if (pages->pieces == 1) {  // they lie together, there and here
      std::memcpy(to, from, tokens * row);
    } else {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t p = 0; p < pages->pieces; ++p) {
          std::memcpy(to + t * row + p * pages->bytes, from + t * pages->bytes + p * pages->step(), pages->bytes);
        }
      }
    }
  }
};

void read_pages(const Tensor& target, const Tensor& cache, const Tensor& given_table, at::IntArrayRef firsts,
                at::IntArrayRef lengths, at::IntArrayRef skipped, bool nz, const std::optional<Tensor>& second,
                const std::optional<Tensor>& second_cache) {
  const Guard guard("read_pages");
  guard.dtype(given_table, "table", {at::kInt, at::kLong});
  guard.rank(given_table, "table", 2);
  const int64_t count = given_table.size(0), width = given_table.size(1);
  guard.hold(static_cast<int64_t>(firsts.size()) == count, "firsts", count, firsts.size());
  guard.hold(static_cast<int64_t>(lengths.size()) == count, "lengths", count, lengths.size());
  guard.hold(static_cast<int64_t>(skipped.size()) == count, "skipped", count, skipped.size());
  bool apart = true;  // no row has two sequences, of which the later one would have to stay
  for (int64_t i = 0, reached = 0; i < count; ++i) {
    guard.hold(firsts[i] >= 0, "firsts", "rows of the target", firsts[i]);
    guard.hold(skipped[i] >= 0, "skipped", "not negative", skipped[i]);
    if (lengths[i] <= 0) continue;
    apart = apart && firsts[i] >= reached;
    reached = guard.sum(firsts[i], lengths[i], "lengths");
  }
  const Tensor table = given_table.to(at::kLong).contiguous();
  const int64_t* ids = table.const_data_ptr<int64_t>();
  std::array<std::optional<Pages>, 2> pages;
  std::vector<Run> runs;
  const auto add = [&](const Tensor& into, const Tensor& from, std::optional<Pages>& own) {
    own.emplace(guard, from, nz);
    guard.same_dtype(into, "target", from);
    guard.least_rank(into, "target", 1);
    guard.hold(into.is_contiguous(), "target", "contiguous", into.strides());
    if (into.numel() == 0) return;
    guard.hold(from.numel() > 0, "cache", "not empty", from.sizes());
    const int64_t rows = into.size(0), row = into.numel() / rows * into.element_size();
    guard.hold(row == own->token_bytes(), "target", "rows of a token's size", into.sizes());
    char* data = static_cast<char*>(into.data_ptr());
    for (int64_t i = 0; i < count; ++i) {
      guard.hold(firsts[i] <= rows, "firsts", "rows of the target", firsts[i]);
      guard.hold(lengths[i] <= rows - firsts[i], "lengths", "within the target", lengths[i]);
      for (int64_t j = 0, n = 0; j < lengths[i]; j += n) {
        n = std::min(own->block - j % own->block, lengths[i] - j);
        const int64_t column = j / own->block + std::min(skipped[i], width);
        const int64_t page = column < width ? ids[i * width + column] : -1;
        const char* at = page < 0 || page >= own->blocks ? nullptr : own->at(page, j % own->block);
        runs.push_back({&*own, data + (firsts[i] + j) * row, n, at});
      }
    }
  };
  add(target, cache, pages[0]);
  if (second.has_value()) {
    add(*second, second_cache.value_or(Tensor()), pages[1]);
    apart = apart && !second->is_alias_of(target);
  }
  const int64_t number = static_cast<int64_t>(runs.size());
  const int64_t together = std::max<int64_t>(1, grain(*pages[0]) / std::max<int64_t>(1, pages[0]->block));
  parallel_for(0, number, apart ? together : number, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) runs[r].read();
  });
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "write_pages(Tensor(a!) cache, Tensor slots, Tensor rows, bool nz, Tensor(b!)? second=None, "
      "Tensor? second_rows=None) -> ()");
  m.def(
      "read_pages(Tensor(a!) target, Tensor cache, Tensor table, int[] firsts, int[] lengths, int[] skipped, bool nz, "
      "Tensor(b!)? second=None, Tensor? second_cache=None) -> ()");
}
SOFTNPU_KERNELS(pages, m) {
  m.impl("write_pages", softnpu::kernels::write_pages);
  m.impl("read_pages", softnpu::kernels::read_pages);
}
