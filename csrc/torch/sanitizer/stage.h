// The stage of a launch that tells the sanitizer (device/sanitizer.h) what a task reads and writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

#include "device/sanitizer.h"

namespace softnpu {

class Task;
class Capture;

// The allocation that a tensor stands on, if it is one that the sanitizer follows.
sanitizer::Memory memory_of(const at::Tensor& tensor);
Region region_of(const at::Tensor& tensor);
sanitizer::Name shape_of(const at::Tensor& tensor);

// References to memory of a graph's pool that do not keep it (pool_ref): which graph wrote it.
struct WeakReference {
  PoolId pool;
  uint32_t graph;
};
void note_weak_reference(c10::StorageImpl& storage, const Block& block);
std::optional<WeakReference> weak_reference(const at::Tensor& tensor);

// The footprint of the capture that the stream is part of, or nullptr.
sanitizer::Footprint* footprint_of(int device, StreamId stream);

// Around the run of one task.
class SanitizedRun {
 public:
  explicit SanitizedRun(const Task& task);
  void finish();  // it has run: the results exist
  SanitizedRun(const SanitizedRun&) = delete;

 private:
  void join_others(sanitizer::Footprint* capture);

  const Task& task_;
  const int device_;
  const StreamId stream_;
  // Devices that it reads besides its own, with their current streams: the arguments are gone when it has run.
  std::vector<std::pair<int, StreamId>> others_;
  sanitizer::Launch launch_;
  std::optional<sanitizer::AtStack> stack_;
};

// A collective on the stream of its communicator: what it reads and writes, and the order that its work carries. The
// first list are its results, of which `use` says what is done to them; the others are read.
struct CollectiveUse {
  bool reads = false, writes = true;
};
sanitizer::Order sanitize_collective(const char* name, int device, int communicator,
                                     const std::vector<std::vector<at::Tensor>>& lists, CollectiveUse use);

void bind_sanitizer(pybind11::module& m);

}  // namespace softnpu
