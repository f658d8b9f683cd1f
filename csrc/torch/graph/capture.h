// What a graph captures: the device tasks launched on some streams, as calls that can be made again.
//
// A task is recorded below its operator: as the CPU kernels it calls, with tensors that stand on the same bytes and
// the addresses that it allocated. Replaying a call therefore writes where the first one did, and runs no Python.
// The kernels do run while they are recorded; what they wrote outside the graph's pool is put back at the end, since
// a capture computes nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "device/sanitizer.h"
#include "device/stages.h"
#include "device/stream.h"
#include "torch/memory/allocator.h"
#include "torch/runtime/generator.h"

namespace softnpu {

using Stack = torch::jit::Stack;

struct Operation;

// Raises upstream's form of a failed runtime call: its name, the error code, and what to do.
[[noreturn]] void raise_acl(const std::string& call, int code, const std::string& text);

namespace acl {
constexpr int kDependency = 107024, kUnjoined = 107025, kStreamCaptured = 107027, kEventCaptured = 107028,
              kNotCaptured = 107029, kModeForbids = 107030, kDefaultStream = 107031, kConflict = 107032,
              kGroupStatus = 107033, kGroupInterrupted = 107034, kUnmatched = 107036;
}

// --- what a task does --------------------------------------------------------------------------------------------

struct KernelCall {  // one CPU kernel
  std::string name;
  std::function<void(Stack*)> call;
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> results;  // where they were; a result elsewhere is copied there
  Allocations allocations;
  void run() const;
};

// A generator in a graph: the graph's offsets count from where the generator stands when a replay begins.
struct GraphRandom {
  at::Generator npu;
  uint64_t start = 0;      // offset at the begin of the capture
  uint64_t increment = 0;  // how far the whole graph moves it
  std::atomic<uint64_t> base{0};
  void begin_replay();
};

struct Reseed {  // a random operator takes new numbers
  std::shared_ptr<const GraphRandom> random;
  uint64_t offset;  // from the begin of the graph
  at::Generator cpu;
  void run() const { reseed(random->npu, random->base + offset, cpu); }
};

struct PythonCall {  // a kernel in Python that reads its data on the host, so that its calls may differ next time
  std::shared_ptr<void> body;  // holds (function, args, kwargs)
  std::vector<at::Tensor> results;
  std::shared_ptr<const GraphRandom> random;  // set if it draws random numbers, from this offset on
  uint64_t offset = 0;
  void run() const;
};

struct HostWork {  // a user's function
  std::function<void()> work;
  void run() const { work(); }
};

using Action = std::variant<KernelCall, Reseed, PythonCall, HostWork>;

// --- steps -------------------------------------------------------------------------------------------------------

struct TaskStep {
  std::string name;
  std::vector<Action> actions;
  // In a task group: the operator and its arguments, which an update replaces.
  struct Update {
    std::function<void(Stack*)> kernel;
    std::vector<c10::IValue> arguments;
  };
  struct Operator {
    std::string name;
    const Operation* operation = nullptr;
    std::vector<at::Tensor> results;        // NPU tensors on the recorded bytes
    std::shared_ptr<const Update> updated;  // guarded by the mutex
    std::mutex mutex;
    size_t steps = 0;
  };
  std::shared_ptr<Operator> op;
  bool follows = false;  // not the first step of its operator
};
struct ExternalWait {
  SignalPtr signal;
};
struct ExternalReset {
  SignalPtr signal;
};
struct ExternalRecord {
  SignalPtr signal;
};
struct Mark {};  // an event recorded in the capture; known by its place
struct WaitMark {
  size_t mark;
};

struct Step {
  StreamId stream;
  std::variant<TaskStep, ExternalWait, ExternalReset, ExternalRecord, Mark, WaitMark> what;
};

// --- the capture -------------------------------------------------------------------------------------------------

enum class CaptureMode { Global, ThreadLocal, Relaxed };

struct TaskGroup {
  uint64_t id = 0;
  std::vector<std::shared_ptr<TaskStep::Operator>> operators;
};

class Capture {
 public:
  Capture(int device, StreamId origin, PoolId pool, CaptureMode mode);
  ~Capture();
  Capture(const Capture&) = delete;

  static bool any() { return Stages::asked(kCaptureStage); }
  static Capture* of(int device, StreamId stream);  // the capture that the stream is part of, or nullptr
  static Capture* of_event(const Event& event);     // the active capture that recorded the event
  // A call that waits for the device: forbidden while a capture is on, as its mode says.
  static void forbid_device_wait(const char* call);
  static void forbid_stream_wait(int device, StreamId stream, const char* call);

  std::vector<Step> finish();    // restores what was written; throws if the capture failed
  void abandon() { restore(); }  // the same for one that nobody wants any more

  void add(StreamId stream, decltype(Step::what) what);
  size_t mark(StreamId stream);                  // Event.record
  void wait_mark(StreamId stream, size_t mark);  // Event.wait: the stream joins the capture
  bool holds(StreamId stream) const;
  void fail(int code, std::string text);  // nothing that follows can mend it
  void check_valid() const;

  void group_begin(StreamId stream);
  std::shared_ptr<TaskGroup> group_end(StreamId stream);
  std::shared_ptr<TaskGroup> group(StreamId stream) const;  // the open one, or nullptr

  // Called before a kernel writes to a tensor.
  void save(const at::Tensor& target);
  std::shared_ptr<GraphRandom> random(const at::Generator& generator);
  std::vector<std::shared_ptr<GraphRandom>> randoms() const { return randoms_; }
  // A tensor for later: on the same bytes; memory of the pool is not kept alive, other memory is.
  at::Tensor keep(const at::Tensor& tensor);
  bool in_pool(const at::Tensor& tensor) const;

  const int device;
  const StreamId origin;
  const PoolId pool;
  const CaptureMode mode;
  const uint64_t id;
  const std::shared_ptr<sanitizer::Footprint> footprint;  // with the sanitizer: what it reads and writes

 private:
  // What memory held: the parts whose pages were touched; the rest is zero and costs nothing, here neither.
  struct Saved {
    c10::Storage storage;
    char* at;
    size_t size;
    std::map<size_t, std::vector<char>> parts;  // by their start
    void put_back() const;
  };
  using Clock = std::map<StreamId, size_t>;  // how far each stream's work is known to come before
  void restore();

  mutable std::mutex mutex_;
  const std::thread::id thread_;
  std::vector<Step> steps_;
  std::array<std::atomic<bool>, 128> streams_{};
  std::map<StreamId, Clock> clocks_;
  std::map<size_t, Clock> marks_;
  std::map<StreamId, size_t> last_;
  std::vector<Saved> saved_;
  std::set<std::pair<char*, size_t>> saved_ranges_;
  std::vector<std::shared_ptr<GraphRandom>> randoms_;
  std::map<StreamId, std::shared_ptr<TaskGroup>> open_groups_;
  int failure_ = 0;
  std::string failure_text_;
};

// --- tensors of a capture ----------------------------------------------------------------------------------------

bool plain(const at::Tensor& tensor);                       // dense, with a storage
const void* base_of(const at::Tensor& tensor);              // the whole allocation that it stands on
std::pair<char*, size_t> extent(const at::Tensor& tensor);  // the bytes from its first to its last element
at::Tensor value_of(const at::Tensor& tensor);              // with the values of now, in memory of its own

// An NPU tensor on the same bytes that does not keep them alive, if a graph's pool does.
at::Tensor pool_ref(const at::Tensor& tensor);

}  // namespace softnpu
