#include "device/stream.h"

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
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
  bool paused = false;          // a shuffled run in which a graph is captured
  std::mt19937_64 random;

  bool defers_all() const { return Queues::shuffled() && !paused; }
  void count(int change) {
    waiting += change;
    Stages::set(kQueueStage, waiting > 0 || defers_all());
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
  if (state().defers_all()) return true;
  const auto found = state().queues.find({device, stream});
  return found != state().queues.end() && found->second.busy();
}

bool Queues::has_work(int device, StreamId stream) const {
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
  if (!queue.busy() && signal->given && !state().defers_all()) {
    if (sanitizer::on()) sanitizer::Sanitizer::get().wait(device, stream, signal->order);
    return;
  }
  queue.jobs.push_back({{std::move(signal)}, {}});
  state().count(1);
}

void Queues::launch(int device, StreamId stream, Work work) {
  const Key key{device, stream};
  const bool inside = draining_stream != nullptr && *draining_stream == key;
  if (any() && !inside) {
    std::unique_lock<std::mutex> lock(state().mutex);
    const auto found = state().queues.find(key);
    const bool deferred = state().defers_all() && draining_stream == nullptr;
    if (deferred || (found != state().queues.end() && found->second.busy())) {
      state().queues[key].jobs.push_back({{}, std::move(work)});
      state().count(1);
      lock.unlock();
      run_some();
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

namespace {

// Runs the first job of a queue, whose turn has come; the lock is held before and after.
void run_first(std::unique_lock<std::mutex>& lock, const Key& key, Queue& queue) {
  State& s = state();
  Job job = std::move(queue.jobs.front());
  queue.jobs.pop_front();
  if (sanitizer::on()) {
    for (const SignalPtr& signal : job.any_of) {
      if (signal->given) sanitizer::Sanitizer::get().wait(key.first, key.second, signal->order);
    }
  }
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
      s.count(1);
    }
    if (failed) {
      s.count(-1);
      s.changed.notify_all();
      std::rethrow_exception(failed);
    }
  }
  s.count(-1);
}

}  // namespace

// Runs every queued job whose turn has come, on this thread, until none is left.
void Queues::drain() {
  if (shuffled() && !state().paused) return;  // when the host asks for it
  State& s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  for (bool progress = true; progress;) {
    progress = false;
    for (auto& [key, queue] : s.queues) {
      if (queue.running || queue.jobs.empty() || !queue.jobs.front().ready()) continue;
      progress = true;
      run_first(lock, key, queue);
      break;
    }
  }
  s.changed.notify_all();
}

// --- a shuffled run ------------------------------------------------------------------------------------------------

void Queues::shuffle(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  seed_ = seed;
  state().random.seed(seed);
  state().count(0);
}

void Queues::pause_shuffle(bool pause) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().paused = pause;
  state().count(0);
}

bool Queues::run_one() {
  State& s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  std::vector<std::pair<const Key, Queue>*> ready;
  for (auto& entry : s.queues) {
    const Queue& queue = entry.second;
    if (!queue.running && !queue.jobs.empty() && queue.jobs.front().ready()) ready.push_back(&entry);
  }
  if (ready.empty()) return false;
  auto& [key, queue] = *ready[s.random() % ready.size()];
  run_first(lock, key, queue);
  s.changed.notify_all();
  return true;
}

void Queues::run_some() {
  if (!shuffled() || draining_stream != nullptr) return;
  uint64_t times = 0;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    times = state().random() % 8 == 0 ? state().random() % 4 : 0;
  }
  while (times-- > 0 && run_one()) {
  }
}

std::vector<std::string> Queues::waiting() const {
  const std::lock_guard<std::mutex> lock(state().mutex);
  std::vector<std::string> found;
  for (const auto& [key, queue] : state().queues) {
    if (queue.busy() && !queue.jobs.empty() && !queue.jobs.front().ready()) found.push_back(describe(key, queue));
  }
  return found;
}

void Queues::wait_until(const std::function<bool()>& done, const std::function<std::string()>& who) {
  using namespace std::chrono_literals;
  State& s = state();
  const auto begun = std::chrono::steady_clock::now();
  auto sleep = [&] {
    std::unique_lock<std::mutex> lock(s.mutex);
    s.changed.wait_for(lock, 100ms, done);
  };
  auto is_done = [&] {
    const std::lock_guard<std::mutex> lock(s.mutex);
    return done();
  };
  while (!is_done()) {
    if (shuffled() && run_one()) continue;
    const bool deadlocked = !others_alive || !others_alive() || std::chrono::steady_clock::now() - begun > 60s;
    if (deadlocked) {
      if (is_done()) return;  // the last of the others did it, and ended
      throw DeadLock(who());
    }
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
  if (sanitizer::on()) {
    auto& all = sanitizer::Sanitizer::get();
    if (event->order && !event->awaited) event->overwritten = event->order;
    event->awaited = false;
    event->recorded_at = all.here();
    event->order = all.record(device, stream);
  }
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
    if (sanitizer::on()) {
      signal->order = sanitizer::Sanitizer::get().record(event->device, event->stream);
      if (event->pending == signal) event->order = signal->order;
    }
    Queues::all().signal(signal);
    return AnyOf{};
  });
}

}  // namespace softnpu
