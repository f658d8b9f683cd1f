// Address space for segments: pages that cost nothing until touched, and the way from an address to its segment.
#pragma once

#include <cstddef>
#include <vector>

#include "device/memory.h"

namespace softnpu {

inline size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Lazily committed pages, zero when first read, or nullptr; the reserved ones are aligned to 2 MiB so that the kernel
// can use huge pages.
void* lazy_pages(size_t bytes);
char* reserve_pages(size_t bytes);
void release_pages(void* at, size_t bytes);  // address space and all
void forget_pages(void* at, size_t bytes);   // the contents only

// A part of memory, as bytes from its start.
struct ByteRange {
  size_t start = 0, size = 0;
};

// The parts of [at, at + bytes) whose pages were touched, in order. The others read as zero: bytes of a segment stand
// on private pages that the system makes when they are first used. Memory that is no segment's counts as touched.
std::vector<ByteRange> touched_ranges(const void* at, size_t bytes);

// The segment table: one entry for each 2 MiB of a 47-bit address space, itself committed lazily.
void enter_segment(Segment& segment);
void leave_segment(Segment& segment);
Segment* segment_at(const void* address) noexcept;

inline size_t slots_bytes(const Segment& segment) { return (segment.reserved / kMinBlock + 1) * sizeof(Block*); }

inline Block*& slot_of(Segment& segment, const char* start) {
  return segment.slots[static_cast<size_t>(start - segment.base) / kMinBlock];
}

}  // namespace softnpu
