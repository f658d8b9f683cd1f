// NPUGraph: a captured sequence of device tasks that is replayed as a whole.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "torch/graph/capture.h"

namespace softnpu {

// Memory from outside that a graph uses: whether the program still has it.
struct GraphInput {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* at;
  size_t bytes;
  size_t held;  // references by the graph
  bool pooled;  // in the graph's own pool, which keeps its bytes

  bool moved() const {  // no, if an update has put another tensor in its place
    if (storage.expired()) return false;
    const c10::StorageImpl& now = *storage._unsafe_get_target();
    return now.data() != at || now.nbytes() < bytes;
  }
  size_t others() const { return storage.expired() ? 0 : storage.use_count() - held; }  // references
};
std::vector<GraphInput> inputs_of(const std::vector<Step>& steps, PoolId pool);

// What was captured, with its memory; a replay that is still queued keeps it.
struct Program {
  Program(int device, StreamId origin, PoolId pool) : device(device), origin(origin), pool(pool) {}
  ~Program();
  Program(const Program&) = delete;
  const int device;
  const StreamId origin;  // its tasks run on the stream of the replay, those of other streams on their own
  const PoolId pool;
  std::vector<Step> steps;
  std::vector<std::shared_ptr<GraphRandom>> randoms;
  std::shared_ptr<sanitizer::Footprint> footprint;
  std::vector<GraphInput> inputs;  // with the sanitizer
  int64_t streams = 0;             // that it takes of the chip
};

class NpuGraph {
 public:
  ~NpuGraph();
  void capture_begin(PoolId pool, CaptureMode mode);
  void capture_end();
  void replay();
  void reset();
  PoolId pool() const;
  bool captured() const { return program_ != nullptr; }
  const Program* program() const { return program_.get(); }

 private:
  std::unique_ptr<Capture> capture_;
  std::shared_ptr<Program> program_;
};

PoolId new_pool(bool by_user);

void bind_graph(pybind11::module& m);

}  // namespace softnpu
