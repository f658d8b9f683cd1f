// Memory that the ranks of a group on one host share: for each rank a slot to which it writes what others read, and a
// count of its turns, by which they wait for each other.
//
// An operation goes in rounds. A rank writes to its slot, meets the others, and reads theirs. There are two sets of
// slots, which take turns: nobody writes to a slot before all have met once more since they read it.
#pragma once

#include <ATen/core/ScalarType.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace softnpu::hccl {

class Segment {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What a rank is about to do: all must say the same.
  struct Operation {
    int64_t kind = 0, dtype = 0, reduction = 0, root = 0, bytes = 0;
    bool operator==(const Operation&) const = default;
  };

  // All ranks together; null if one of them cannot map it. `lost` says whether there is no more use in waiting for a
  // rank.
  static std::unique_ptr<Segment> share(c10d::Store& store, int rank, int size, std::function<bool(int)> lost);
  ~Segment();
  Segment(const Segment&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  // Of the round that has begun.
  uint8_t* slot(int rank) const;
  Operation& said(int rank) const;
  int64_t* counts(int rank) const;  // one for each rank

  void begin_round() { ++round_; }
  // Returns when all ranks have come here as often as this one; raises if one of them cannot come any more.
  void meet(Time deadline);
  // This rank takes no part any more: whoever waits for it is told. Waits of its own end too.
  void leave();

 private:
  struct Member;
  Segment(void* memory, int rank, int size, std::function<bool(int)> lost);
  void await(int rank, uint32_t turn, Time deadline);
  size_t side() const { return round_ % 2; }

  const int rank_, size_;
  const size_t slot_bytes_;
  const std::function<bool(int)> lost_;
  const int process_;  // the child of a fork takes no part
  uint8_t* const memory_;
  Member* const members_;
  std::atomic<bool> left_{false};
  uint64_t round_ = 0;
  uint32_t turn_ = 0;
};

}  // namespace softnpu::hccl
