// The bytes that a strided tensor covers, and whether two such sets meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace softnpu {

// Runs of bytes at the points of a lattice. A dense region is one run.
struct Region {
  struct Dim {
    uint64_t count, stride;  // stride in bytes
    bool operator==(const Dim&) const = default;
  };
  uintptr_t begin = 0, end = 0;                     // the first byte, and one past the last
  uint64_t run = 0;                                 // bytes of one run
  std::shared_ptr<const std::vector<Dim>> lattice;  // largest stride first; none: dense

  bool empty() const noexcept { return begin >= end; }
  bool dense() const noexcept { return lattice == nullptr; }
  bool same(const Region& other) const;
  bool contains(uintptr_t address) const;
};

Region dense_region(uintptr_t begin, size_t bytes);

// Of a tensor: sizes and strides in elements. A size of 0 gives an empty region.
Region strided_region(uintptr_t base, size_t item, int64_t offset, const int64_t* sizes, const int64_t* strides,
                      size_t dims);

bool overlap(const Region& a, const Region& b);
bool covers(const Region& whole, const Region& part);  // false where it is not seen at once

// Calls `each(begin, end)` for every run; false, and no call, if there are more than `most`.
template <class Each>
bool each_run(const Region& region, uint64_t most, Each each) {
  if (region.dense()) {
    each(region.begin, region.end);
    return true;
  }
  uint64_t total = 1;
  for (const Region::Dim& dim : *region.lattice) {
    if (total > most / dim.count) return false;
    total *= dim.count;
  }
  std::vector<uint64_t> index(region.lattice->size(), 0);
  for (uint64_t n = 0; n < total; ++n) {
    uintptr_t at = region.begin;
    for (size_t i = 0; i < index.size(); ++i) at += index[i] * (*region.lattice)[i].stride;
    each(at, at + region.run);
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < (*region.lattice)[i].count) break;
      index[i] = 0;
    }
  }
  return true;
}

}  // namespace softnpu
