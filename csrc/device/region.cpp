#include "device/region.h"

#include <algorithm>
#include <numeric>

namespace softnpu {

namespace {

constexpr uint64_t kMostRuns = uint64_t{1} << 20;  // that a comparison walks through

// Whether [from, to) meets a run of the lattice from dimension `d` on, which begins at `begin`.
bool meets(const Region& region, size_t d, uintptr_t begin, uintptr_t from, uintptr_t to) {
  if (region.dense() || d == region.lattice->size()) return from < begin + region.run && begin < to;
  uint64_t extent = region.run;
  for (size_t i = d + 1; i < region.lattice->size(); ++i) {
    extent += ((*region.lattice)[i].count - 1) * (*region.lattice)[i].stride;
  }
  const Region::Dim& dim = (*region.lattice)[d];
  if (to <= begin) return false;
  const uint64_t first = from >= begin + extent ? (from - begin - extent) / dim.stride + 1 : 0;
  const uint64_t last = std::min((to - 1 - begin) / dim.stride, dim.count - 1);
  for (uint64_t i = first; i <= last; ++i) {
    if (meets(region, d + 1, begin + i * dim.stride, from, to)) return true;
  }
  return false;
}

uint64_t runs_of(const Region& region) {
  if (region.dense()) return 1;
  uint64_t total = 1;
  for (const Region::Dim& dim : *region.lattice) total *= dim.count;
  return total;
}

// By the greatest common divisor of all strides: both regions, folded to one period, do not meet.
bool disjoint_by_period(const Region& a, const Region& b) {
  uint64_t period = 0;
  for (const Region* region : {&a, &b}) {
    if (region->dense()) continue;
    for (const Region::Dim& dim : *region->lattice) period = std::gcd(period, dim.stride);
  }
  const uint64_t run_a = a.dense() ? a.end - a.begin : a.run;
  const uint64_t run_b = b.dense() ? b.end - b.begin : b.run;
  if (period == 0 || run_a + run_b > period) return false;
  const uint64_t from_a_to_b = (b.begin % period + period - a.begin % period) % period;
  return from_a_to_b >= run_a && from_a_to_b + run_b <= period;
}

}  // namespace

bool Region::same(const Region& other) const {
  if (begin != other.begin || end != other.end || run != other.run || dense() != other.dense()) return false;
  return dense() || lattice == other.lattice || *lattice == *other.lattice;
}

bool Region::contains(uintptr_t address) const {
  if (address < begin || address >= end) return false;
  return dense() || meets(*this, 0, begin, address, address + 1);
}

Region dense_region(uintptr_t begin, size_t bytes) { return {begin, begin + bytes, bytes, nullptr}; }

Region strided_region(uintptr_t base, size_t item, int64_t offset, const int64_t* sizes, const int64_t* strides,
                      size_t dims) {
  const uintptr_t begin = base + static_cast<uintptr_t>(offset) * item;
  std::vector<Region::Dim> lattice;
  for (size_t i = 0; i < dims; ++i) {
    if (sizes[i] == 0) return {begin, begin, 0, nullptr};
    if (sizes[i] == 1 || strides[i] == 0) continue;
    lattice.push_back({static_cast<uint64_t>(sizes[i]), static_cast<uint64_t>(strides[i]) * item});
  }
  std::sort(lattice.begin(), lattice.end(), [](const auto& a, const auto& b) { return a.stride < b.stride; });
  uint64_t run = item, extent = 0;
  std::vector<Region::Dim> kept;  // smallest stride first
  for (const Region::Dim& dim : lattice) {
    if (kept.empty() && dim.stride <= run) {
      run += (dim.count - 1) * dim.stride;
    } else if (!kept.empty() && dim.stride == kept.back().stride * kept.back().count) {
      kept.back().count *= dim.count;
    } else {
      kept.push_back(dim);
    }
  }
  for (const Region::Dim& dim : kept) extent += (dim.count - 1) * dim.stride;
  if (kept.empty()) return {begin, begin + run, run, nullptr};
  std::reverse(kept.begin(), kept.end());
  return {begin, begin + extent + run, run, std::make_shared<const std::vector<Region::Dim>>(std::move(kept))};
}

bool overlap(const Region& a, const Region& b) {
  if (a.empty() || b.empty() || a.end <= b.begin || b.end <= a.begin) return false;
  if (a.dense() && b.dense()) return true;
  if (disjoint_by_period(a, b)) return false;
  const bool a_is_smaller = runs_of(a) <= runs_of(b);
  const Region& few = a_is_smaller ? a : b;
  const Region& many = a_is_smaller ? b : a;
  bool found = false;
  const bool walked = each_run(
      few, kMostRuns, [&](uintptr_t from, uintptr_t to) { found = found || meets(many, 0, many.begin, from, to); });
  return !walked || found;
}

bool covers(const Region& whole, const Region& part) {
  if (whole.dense()) return whole.begin <= part.begin && part.end <= whole.end;
  return whole.same(part);
}

}  // namespace softnpu
