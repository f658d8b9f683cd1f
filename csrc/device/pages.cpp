#include "device/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

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

// What Linux says of the pages of this process: one word a page. Opened for each question, since a fork has other
// pages.
class PageMap {
 public:
  PageMap() : file_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  ~PageMap() {
    if (file_ >= 0) close(file_);
  }
  PageMap(const PageMap&) = delete;

  // Whether each page from `first` on was touched; false: the system does not tell.
  bool read(size_t first, std::vector<uint64_t>& words) const {
    const size_t bytes = words.size() * sizeof(uint64_t);
    const auto offset = static_cast<off_t>(first * sizeof(uint64_t));
    return file_ >= 0 && pread(file_, words.data(), bytes, offset) == static_cast<ssize_t>(bytes);
  }
  static bool touched(uint64_t word) { return (word >> 62) != 0; }  // in memory, or swapped out

 private:
  const int file_;
};

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

std::vector<ByteRange> touched_ranges(const void* at, size_t bytes) {
  const Segment* segment = segment_at(at);
  const auto begin = reinterpret_cast<uintptr_t>(at), end = begin + bytes;
  const std::vector<ByteRange> all{{0, bytes}};
  if (segment == nullptr || end > reinterpret_cast<uintptr_t>(segment->base) + segment->reserved) return all;
  const PageMap map;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<ByteRange> found;
  std::vector<uint64_t> words(4096);
  for (size_t first = begin / page; first * page < end; first += words.size()) {
    words.resize(std::min(words.size(), (end - first * page + page - 1) / page));
    if (!map.read(first, words)) return all;
    for (size_t i = 0; i < words.size(); ++i) {
      if (!PageMap::touched(words[i])) continue;
      const size_t start = std::max((first + i) * page, begin) - begin;
      const size_t size = std::min((first + i + 1) * page, end) - begin - start;
      if (!found.empty() && found.back().start + found.back().size == start) {
        found.back().size += size;
      } else {
        found.push_back({start, size});
      }
    }
  }
  return found;
}

void enter_segment(Segment& segment) { fill_table(segment, &segment); }
void leave_segment(Segment& segment) { fill_table(segment, nullptr); }

Segment* segment_at(const void* address) noexcept {
  const size_t index = table_index(address);
  return index < kTableEntries ? segment_table()[index] : nullptr;
}

}  // namespace softnpu
