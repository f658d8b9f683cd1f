#include "device/pages.h"

#include <sys/mman.h>

namespace softnpu {

namespace {

constexpr size_t kTableEntries = size_t{1} << (47 - 21);

Segment** segment_table() {
  static auto** table = static_cast<Segment**>(lazy_pages(kTableEntries * sizeof(Segment*)));
  return table;
}

size_t table_index(const void* address) { return reinterpret_cast<uintptr_t>(address) >> 21; }

void fill_table(const Segment& segment, Segment* value) {
  const size_t last = table_index(segment.base + segment.reserved - 1);
  for (size_t i = table_index(segment.base); i <= last && i < kTableEntries; ++i) segment_table()[i] = value;
}

}  // namespace

void* lazy_pages(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

char* reserve_pages(size_t bytes) {
  auto* raw = static_cast<char*>(lazy_pages(bytes + kRoundLarge));
  if (raw == nullptr) return nullptr;
  const size_t skip = (kRoundLarge - reinterpret_cast<uintptr_t>(raw) % kRoundLarge) % kRoundLarge;
  const size_t page = 4096, end = round_up(skip + bytes, page);
  if (skip > 0) munmap(raw, skip);
  if (end < bytes + kRoundLarge) munmap(raw + end, bytes + kRoundLarge - end);
#ifdef MADV_HUGEPAGE
  // Large tensors fault in 2 MiB steps; the small pool stays in small pages.
  if (bytes > kSmallSegment) madvise(raw + skip, bytes, MADV_HUGEPAGE);
#endif
  return raw + skip;
}

void release_pages(void* at, size_t bytes) { munmap(at, bytes); }
void forget_pages(void* at, size_t bytes) { madvise(at, bytes, MADV_DONTNEED); }

void enter_segment(Segment& segment) { fill_table(segment, &segment); }
void leave_segment(Segment& segment) { fill_table(segment, nullptr); }

Segment* segment_at(const void* address) noexcept {
  const size_t index = table_index(address);
  return index < kTableEntries ? segment_table()[index] : nullptr;
}

}  // namespace softnpu
