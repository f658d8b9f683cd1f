// One allocator statistic as Python's dictionary; c10's and our own have the same fields.
#pragma once

#include <pybind11/pybind11.h>

namespace softnpu {

template <class Stat>
pybind11::dict stat_dict(const Stat& stat) {
  pybind11::dict d;
  d["current"] = stat.current;
  d["peak"] = stat.peak;
  d["allocated"] = stat.allocated;
  d["freed"] = stat.freed;
  return d;
}

}  // namespace softnpu
