// The log of device tasks: who ran where and when. Off unless someone profiles.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/memory.h"
#include "device/stages.h"

namespace softnpu {

struct TensorNote {
  std::vector<int64_t> shape;
  int type;  // c10::ScalarType
};

struct TaskRecord {
  std::string name;
  uint64_t id = 0;  // in the order of launches
  int device = 0;
  StreamId stream = 0;
  int64_t thread = 0, start_ns = 0, end_ns = 0;  // wall clock, as PyTorch's profiler
  std::vector<TensorNote> inputs, outputs;
  std::shared_ptr<const std::vector<int64_t>> ranks;  // of a collective: its group
};

class Trace {
 public:
  static Trace& all();
  bool shapes() const { return shapes_.load(std::memory_order_relaxed); }
  void start(bool shapes, size_t most);
  void stop() { Stages::set(kTraceStage, false); }
  void add(TaskRecord record);  // dropped, and counted, beyond the most
  std::vector<TaskRecord> take();
  uint64_t dropped() const { return dropped_; }
  uint64_t next_id() { return next_id_++; }

 private:
  std::atomic<bool> shapes_{false};
  std::atomic<uint64_t> next_id_{1}, dropped_{0};
  std::mutex mutex_;
  size_t most_ = 0;
  std::vector<TaskRecord> records_;
};

int64_t thread_number();  // the operating system's

}  // namespace softnpu
