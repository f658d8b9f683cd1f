#include "device/stream.h"

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "device/clock.h"
#include "device/device.h"

namespace softnpu {

namespace {
constexpr size_t kMostDevices = 64;
thread_local std::array<StreamId, kMostDevices> thread_streams{};
thread_local const std::pair<int, StreamId>* draining_stream = nullptr;

struct Job {
  AnyOf any_of;  // not empty: the stream waits here
  Work work;
  bool ready() const {
    for (const SignalPtr& signal : any_of) {
      if (signal->given) return true;
    }
    return any_of.empty();
  }
};

struct Queue {
  std::deque<Job> jobs;
  bool running = false;  // some thread runs its first job
  bool busy() const { return running || !jobs.empty(); }
};

using Key = std::pair<int, StreamId>;

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, Queue> queues;  // only of streams that are or were blocked
  int waiting = 0;              // jobs in them

  void count(int change) {
    waiting += change;
    Stages::set(kQueueStage, waiting > 0);
  }
};

State& state() {
  static auto* all = new State;
  return *all;
}

std::string name_of(const Key& key) {
  return "stream " + std::to_string(key.second) + " of npu:" + std::to_string(key.first);
}

std::string describe(const Key& key, const Queue& queue) {
  std::string text = name_of(key) + " waits for ";
  if (queue.jobs.empty() || queue.jobs.front().any_of.empty()) return text + "work of another thread";
  bool first = true;
  for (const SignalPtr& signal : queue.jobs.front().any_of) {
    text += (first ? "" : " or ") + signal->what;
    first = false;
  }
  return text;
}

}  // namespace

std::function<bool()> Queues::others_alive;
std::function<void(const std::function<void()>&)> Queues::while_waiting;

StreamId Streams::next(bool high_priority) {
  std::atomic<uint32_t>& counter = high_priority ? high_ : normal_;
  const StreamId index = counter++ % kStreamsPerPriority;
  return 1 + index + (high_priority ? kStreamsPerPriority : 0);
}

StreamId current_stream(int device) noexcept { return thread_streams[static_cast<size_t>(device) % kMostDevices]; }

StreamId exchange_stream(int device, StreamId stream) noexcept {
  StreamId& slot = thread_streams[static_cast<size_t>(device) % kMostDevices];
  const StreamId before = slot;
  slot = stream;
  return before;
}

OnStream::OnStream(int device, StreamId stream)
    : device_(device), device_before_(exchange_device(device)), before_(exchange_stream(device, stream)) {}

OnStream::~OnStream() {
  exchange_stream(device_, before_);
  exchange_device(device_before_);
}

bool draining() noexcept { return draining_stream != nullptr; }

Queues& Queues::all() {
  static auto* queues = new Queues;
  return *queues;
}

bool Queues::blocked(int device, StreamId stream) const {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = state().queues.find({device, stream});
  return found != state().queues.end() && found->second.busy();
}

bool Queues::device_blocked(int device) const {
  const std::lock_guard<std::mutex> lock(state().mutex);
  for (const auto& [key, queue] : state().queues) {
    if (key.first == device && queue.busy()) return true;
  }
  return false;
}

void Queues::wait(int device, StreamId stream, SignalPtr signal) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  Queue& queue = state().queues[{device, stream}];
  if (!queue.busy() && signal->given) return;
  queue.jobs.push_back({{std::move(signal)}, {}});
  state().count(1);
}

void Queues::launch(int device, StreamId stream, Work work) {
  const Key key{device, stream};
  const bool inside = draining_stream != nullptr && *draining_stream == key;
  if (any() && !inside) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto found = state().queues.find(key);
    if (found != state().queues.end() && found->second.busy()) {
      found->second.jobs.push_back({{}, std::move(work)});
      state().count(1);
      return;
    }
  }
  AnyOf left = work();
  if (left.empty()) return;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().queues[key].jobs.push_front({std::move(left), std::move(work)});
    state().count(1);
  }
  drain();  // a signal may have been given meanwhile
}

void Queues::signal(const SignalPtr& signal) {
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    signal->given = true;
    state().changed.notify_all();
  }
  if (any()) drain();
}

// Runs every queued job whose turn has come, on this thread, until none is left.
void Queues::drain() {
  State& s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  for (bool progress = true; progress;) {
    progress = false;
    for (auto& [key, queue] : s.queues) {
      if (queue.running || queue.jobs.empty() || !queue.jobs.front().ready()) continue;
      Job job = std::move(queue.jobs.front());
      queue.jobs.pop_front();
      progress = true;
      if (job.work) {  // the stream stays busy meanwhile, so that what others launch goes behind
        queue.running = true;
        lock.unlock();
        std::exception_ptr failed;
        AnyOf left;
        const auto* outer = std::exchange(draining_stream, &key);
        try {
          const OnStream here(key.first, key.second);
          left = job.work();
        } catch (...) {
          failed = std::current_exception();
        }
        draining_stream = outer;
        lock.lock();
        queue.running = false;
        if (!left.empty()) {
          queue.jobs.push_front({std::move(left), std::move(job.work)});
          state().count(1);
        }
        if (failed) {
          state().count(-1);
          s.changed.notify_all();
          std::rethrow_exception(failed);
        }
      }
      state().count(-1);
      break;
    }
  }
  s.changed.notify_all();
}

void Queues::wait_until(const std::function<bool()>& done, const std::function<std::string()>& who) {
  using namespace std::chrono_literals;
  State& s = state();
  const auto begun = std::chrono::steady_clock::now();
  auto sleep = [&] {
    std::unique_lock<std::mutex> lock(s.mutex);
    s.changed.wait_for(lock, 100ms, done);
  };
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(s.mutex);
      if (done()) return;
    }
    const bool deadlocked = !others_alive || !others_alive() || std::chrono::steady_clock::now() - begun > 60s;
    if (deadlocked) throw DeadLock(who());
    while_waiting ? while_waiting(sleep) : sleep();
  }
}

void Queues::wait_for_stream(int device, StreamId stream) {
  if (!any()) return;
  const Key key{device, stream};
  wait_until(
      [&] {
        const auto found = state().queues.find(key);
        return found == state().queues.end() || !found->second.busy();
      },
      [&] {
        const std::lock_guard<std::mutex> lock(state().mutex);
        return describe(key, state().queues[key]);
      });
}

void Queues::wait_for_device(int device) {
  if (!any()) return;
  auto busy = [device]() -> const std::pair<const Key, Queue>* {
    for (const auto& entry : state().queues) {
      if (entry.first.first == device && entry.second.busy()) return &entry;
    }
    return nullptr;
  };
  wait_until([&] { return busy() == nullptr; },
             [&] {
               const std::lock_guard<std::mutex> lock(state().mutex);
               const auto* entry = busy();
               return entry == nullptr ? std::string() : describe(entry->first, entry->second);
             });
}

void Queues::wait_for(const SignalPtr& signal, const std::string& who) {
  wait_until([&] { return signal->given.load(); }, [&] { return who + " waits for " + signal->what; });
}

void record_event(const std::shared_ptr<Event>& event, int device, StreamId stream, bool timed) {
  event->device = device;
  event->stream = stream;
  event->timed = timed;
  event->recorded = true;
  event->capture = 0;
  event->pending.reset();
  if (!Queues::any() || !Queues::all().blocked(device, stream)) {
    event->time_ns = device_clock_ns();
    return;
  }
  auto signal = std::make_shared<Signal>("an event recorded on stream " + std::to_string(stream) +
                                         " of npu:" + std::to_string(device));
  event->pending = signal;
  event->time_ns = 0;
  Queues::all().launch(device, stream, [event, signal] {
    if (event->pending == signal) event->time_ns = device_clock_ns();
    Queues::all().signal(signal);
    return AnyOf{};
  });
}

}  // namespace softnpu
