// NPUGraph: a captured sequence of device tasks that is replayed as a whole.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "torch/graph/capture.h"

namespace softnpu {

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
