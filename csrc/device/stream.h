// Streams and events.
//
// Work launched on a free stream runs at once on the calling thread. A stream is blocked only while it waits for a
// signal that nobody has given yet; then what is launched on it queues, and runs in order, on the thread that gives
// the signal.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/memory.h"
#include "device/sanitizer.h"
#include "device/stages.h"

namespace softnpu {

constexpr int kStreamsPerPriority = 32;
constexpr StreamId kDefaultStream = 0;

class Streams {
 public:
  explicit Streams(int device) : device_(device) {}
  StreamId next(bool high_priority);  // round robin over the pool, as on the card
  static bool high_priority(StreamId id) { return id > kStreamsPerPriority; }
  static bool valid(StreamId id) { return id >= 0 && id <= 2 * kStreamsPerPriority; }

 private:
  [[maybe_unused]] const int device_;
  std::atomic<uint32_t> normal_{0}, high_{0};
};

// The calling thread's current stream of a device.
StreamId current_stream(int device) noexcept;
StreamId exchange_stream(int device, StreamId stream) noexcept;  // returns the one before

// Makes a stream (and its device) the current one while it lives.
class OnStream {
 public:
  OnStream(int device, StreamId stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;

 private:
  int device_, device_before_;
  StreamId before_;
};

// --- waiting -----------------------------------------------------------------------------------------------------

// What a stream can wait for. Made by events; guarded by the queues' lock.
struct Signal {
  explicit Signal(std::string what) : what(std::move(what)) {}
  const std::string what;  // names it in messages
  std::atomic<bool> given{false};
  sanitizer::Order order;  // what comes before it, with the sanitizer
};
using SignalPtr = std::shared_ptr<Signal>;
using AnyOf = std::vector<SignalPtr>;  // a wait that ends with the first of them; empty: no wait
using Work = std::function<AnyOf()>;   // what it returns it waits for, and is called again

class DeadLock : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The queues of blocked streams of all devices.
class Queues {
 public:
  static Queues& all();
  static bool any() { return Stages::asked(kQueueStage); }  // is any stream blocked?

  // A shuffled run: every launch is deferred, and work runs in a random order that its streams and events allow, the
  // same for the same seed, when the host asks for it. 0 ends it.
  void shuffle(uint64_t seed);
  static bool shuffled() noexcept { return seed_ != 0; }
  void pause_shuffle(bool pause);            // while a graph is captured
  void run_some();                           // a random number of jobs that are ready
  bool run_one();                            // a random one; false: none is ready
  std::vector<std::string> waiting() const;  // what blocked streams wait for

  bool blocked(int device, StreamId stream) const;
  bool device_blocked(int device) const;
  bool has_work(int device, StreamId stream) const;  // that has not run
  void wait(int device, StreamId stream, SignalPtr signal);
  void launch(int device, StreamId stream, Work work);  // now, or when the stream is free
  void signal(const SignalPtr& signal);                 // and runs what waited for it
  void reset(const SignalPtr& signal) { signal->given = false; }

  // Blocks the calling thread; DeadLock if nobody can give the signal any more.
  void wait_for_stream(int device, StreamId stream);
  void wait_for_device(int device);
  void wait_for(const SignalPtr& signal, const std::string& who);

  // Whether another thread could still give a signal, and what to do while this one sleeps (drop the GIL); from above.
  static std::function<bool()> others_alive;
  static std::function<void(const std::function<void()>&)> while_waiting;

 private:
  void drain();
  static inline std::atomic<uint64_t> seed_{0};
  void wait_until(const std::function<bool()>& done, const std::function<std::string()>& who);
};

// True on a thread that runs queued work: what it launches is not queued again.
bool draining() noexcept;

struct Event {
  int device = -1;
  StreamId stream = kDefaultStream;
  bool timed = false;
  bool recorded = false;
  int64_t time_ns = 0;
  SignalPtr pending;     // set while the stream that recorded it is blocked
  uint64_t capture = 0;  // recorded in this capture, at this mark of it
  size_t capture_mark = 0;
  sanitizer::Order order,
      overwritten;  // with the sanitizer: what comes before it; before a record that nobody waited for
  sanitizer::StackId recorded_at = 0;
  bool awaited = false;
  bool complete() const { return !pending || pending->given; }
};

void record_event(const std::shared_ptr<Event>& event, int device, StreamId stream, bool timed);

}  // namespace softnpu
