#include "device/sanitizer.h"

#include <algorithm>
#include <cstring>

#include "device/sanitizer_runs.h"

namespace softnpu::sanitizer {

namespace {

constexpr size_t kMostSteps = 1 << 13;  // of the history
constexpr size_t kMostFindings = 1000;  // that are kept
constexpr size_t kMostAround = 24;      // steps of the history that a finding shows

thread_local const Origin* origin_of_thread = nullptr;
thread_local StackId stack_of_thread = 0;
thread_local bool is_host_function = false;

}  // namespace

StackId (*Sanitizer::capture_stack)() = nullptr;

From::From(const Origin& origin) : before_(std::exchange(origin_of_thread, &origin)) {}
From::~From() { origin_of_thread = before_; }

AsStream::AsStream(int, StreamId) : before_(std::exchange(is_host_function, true)) {}
AsStream::~AsStream() { is_host_function = before_; }
bool as_stream() noexcept { return is_host_function; }

AtStack::AtStack(StackId stack) : before_(std::exchange(stack_of_thread, stack)) {}
AtStack::~AtStack() { stack_of_thread = before_; }

bool Clock::join(const Clock& other) {
  bool news = false;
  if (other.times_.size() > times_.size()) times_.resize(other.times_.size(), 0);
  for (size_t i = 0; i < other.times_.size(); ++i) {
    if (other.times_[i] <= times_[i]) continue;
    times_[i] = other.times_[i];
    news = true;
  }
  return news;
}

ActorId World::actor(int device, StreamId stream) {
  const auto [at, fresh] = numbers_.try_emplace({device, stream}, static_cast<ActorId>(actors_.size()));
  if (!fresh) return at->second;
  Actor& actor = actors_.emplace_back();
  actor.device = device;
  actor.stream = stream;
  const std::string of = " of npu:" + std::to_string(device);
  if (device < 0) {
    actor.name = "the host";
  } else if (stream >= kFirstCommunicator) {
    actor.name = "the stream of communicator " + std::to_string(stream - kFirstCommunicator) + of;
  } else {
    actor.name = stream == 0 ? "the default stream" + of : "stream " + std::to_string(stream) + of;
  }
  return at->second;
}

// --- on and off ----------------------------------------------------------------------------------------------------

Sanitizer& Sanitizer::get() {
  static auto* one = new Sanitizer;
  return *one;
}

void Sanitizer::enable(const Options& options) {
  {
    const Lock lock(mutex_);
    options_ = options;
    if (world_.size() == 0) world_.actor(-1, 0);
  }
  Stages::set(kSanitizeStage, true);
}

void Sanitizer::disable() {
  Stages::set(kSanitizeStage, false);
  reset();
}

void Sanitizer::reset() {
  const Lock lock(mutex_);
  for (const InFlight& one : in_flight_) {
    if (one.closed) open_pinned({Memory::kPinned, one.block, one.bytes, {}});
  }
  in_flight_.clear();
  world_ = World();
  world_.actor(-1, 0);
  host_version_ = 1;
  shadows_.clear();
  freed_.clear();
  pools_.clear();
  history_.clear();
  findings_.clear();
  seen_.clear();
  found_ = 0;
}

// --- texts ---------------------------------------------------------------------------------------------------------

Name Sanitizer::intern(std::string_view text) {
  const Lock lock(mutex_);
  const auto [at, fresh] = names_.try_emplace(std::string(text), static_cast<Name>(texts_.size() + 1));
  if (fresh) texts_.emplace_back(text);
  return at->second;
}

std::string Sanitizer::text(Name name) {
  const Lock lock(mutex_);
  return name == 0 || name > texts_.size() ? std::string() : texts_[name - 1];
}

StackId Sanitizer::here() {
  if (origin_of_thread != nullptr) return origin_of_thread->stack;
  if (stack_of_thread != 0) return stack_of_thread;
  return capture_stack == nullptr ? 0 : capture_stack();
}

void Sanitizer::note_step(ActorId actor, std::string_view what, StackId stack, uint64_t step) {
  if (history_.size() < kMostSteps) history_.resize(kMostSteps, Step{0, 0, 0, 0});
  history_[step % kMostSteps] = {step, actor, intern(what), stack};
}

void Sanitizer::note(int device, StreamId stream, std::string_view what, StackId stack) {
  const Lock lock(mutex_);
  const ActorId actor = device < 0 ? host() : world_.actor(device, stream);
  note_step(actor, what, stack, ++steps_);
}

// --- launches ------------------------------------------------------------------------------------------------------

Launch Sanitizer::step(World& world, ActorId number, Name op, Footprint* capture) {
  World::Actor& actor = world.of(number);
  if (capture == nullptr) {
    if (origin_of_thread != nullptr && origin_of_thread->host) {
      actor.clock.join(*origin_of_thread->host);
    } else if (actor.host_seen != host_version_) {
      actor.clock.join(world_.clock(host()));
      actor.host_seen = host_version_;
    }
  }
  const Time time = actor.clock.of(number) + 1;
  actor.clock.set(number, time);
  Launch launch;
  launch.actor = number;
  launch.time = time;
  launch.op = op;
  launch.step = ++steps_;
  launch.capture = capture;
  if (history_.size() < kMostSteps) history_.resize(kMostSteps, Step{0, 0, 0, 0});
  return launch;
}

Launch Sanitizer::launch(int device, StreamId stream, Name op, Footprint* capture) {
  const StackId stack = here();
  const Lock lock(mutex_);
  World& world = capture == nullptr ? world_ : capture->world;
  Launch launch = step(world, world.actor(device, stream), op, capture);
  launch.stack = stack;
  if (capture == nullptr) history_[launch.step % kMostSteps] = {launch.step, launch.actor, op, stack};
  return launch;
}

Launch Sanitizer::launch_communication(int device, StreamId communicator, StreamId current, Name op,
                                       Footprint* capture) {
  const StackId stack = here();
  const Lock lock(mutex_);
  World& world = capture == nullptr ? world_ : capture->world;
  const ActorId number = world.actor(device, communicator);
  world.clock(number).join(world.clock(world.actor(device, current)));
  Launch launch = step(world, number, op, capture);
  launch.stack = stack;
  if (capture == nullptr) history_[launch.step % kMostSteps] = {launch.step, launch.actor, op, stack};
  return launch;
}

void Sanitizer::join_streams(int device, StreamId stream, int other_device, StreamId other, Footprint* capture) {
  const Lock lock(mutex_);
  World& world = capture == nullptr ? world_ : capture->world;
  const ActorId one = world.actor(device, stream), two = world.actor(other_device, other);
  world.clock(one).join(world.clock(two));
  world.clock(two).join(world.clock(one));
}

void Sanitizer::access(Launch& launch, const Memory& memory, const Region& region, Name shape, bool read, bool write,
                       bool some) {
  if (memory.kind == Memory::kNone || region.empty()) return;
  const Lock lock(mutex_);
  Access access;
  access.region = region;
  access.actor = launch.actor;
  access.time = launch.time;
  access.write = write;
  access.stack = launch.stack;
  access.op = launch.op;
  access.shape = shape;
  access.step = launch.step;
  access.graph = launch.graph;
  if (launch.capture != nullptr) return capture_access(launch, memory, std::move(access));
  if (memory.kind == Memory::kPool) {
    check_replays(memory, access);
    return check(world_, pools_[memory.pool].outside, memory, std::move(access), nullptr);
  }
  Shadow& shadow = shadows_[memory.base];
  if (shadow.bytes == 0) shadow.bytes = memory.bytes;
  if (options_.poison && !shadow.unwritten.empty()) check_poison(shadow, access, read, write, some);
  if (memory.kind == Memory::kPinned) {
    launch.pinned = true;
    open_pinned(memory);
    in_flight_.push_back({memory.base, memory.bytes, access});
    begin_run(launch.step);
  }
  check(world_, shadow, memory, std::move(access), nullptr);
}

void Sanitizer::finish(Launch& launch) {
  if (!launch.pinned || launch.capture != nullptr) return;
  const Lock lock(mutex_);
  end_runs();
  host_learned();
}

// --- order ---------------------------------------------------------------------------------------------------------

Order Sanitizer::record(int device, StreamId stream, Footprint* capture) {
  const Lock lock(mutex_);
  World& world = capture == nullptr ? world_ : capture->world;
  const ActorId number = world.actor(device, stream);
  if (capture == nullptr) {
    World::Actor& actor = world.of(number);
    if (origin_of_thread == nullptr && actor.host_seen != host_version_) {
      actor.clock.join(world_.clock(host()));
      actor.host_seen = host_version_;
    }
    note_step(number, "record an event", 0, ++steps_);
  }
  return std::make_shared<const Clock>(world.clock(number));
}

void Sanitizer::wait(int device, StreamId stream, const Order& order, Footprint* capture) {
  if (!order) return;
  const Lock lock(mutex_);
  World& world = capture == nullptr ? world_ : capture->world;
  const ActorId number = world.actor(device, stream);
  world.clock(number).join(*order);
  if (capture == nullptr) note_step(number, "wait for an event", 0, ++steps_);
}

void Sanitizer::lost(int device, StreamId stream, const Order& order, uintptr_t event, StackId again) {
  if (!order) return;
  const Lock lock(mutex_);
  World::Actor& actor = world_.of(world_.actor(device, stream));
  actor.nearly.join(*order);
  actor.lost[event] = again;
}

void Sanitizer::host_waits(int device, StreamId stream) {
  const Lock lock(mutex_);
  note_step(host(), "wait for " + world_.name_of(world_.actor(device, stream)), 0, ++steps_);
  if (!world_.clock(host()).join(world_.clock(world_.actor(device, stream)))) return;
  ++host_version_;
  host_learned();
}

void Sanitizer::host_waits_for_device(int device) {
  const Lock lock(mutex_);
  bool news = false;
  for (ActorId i = 1; i < world_.size(); ++i) {
    if (world_.of(i).device == device) news = world_.clock(host()).join(world_.clock(i)) || news;
  }
  note_step(host(), "synchronize npu:" + std::to_string(device), 0, ++steps_);
  if (!news) return;
  ++host_version_;
  host_learned();
}

void Sanitizer::host_waits(const Order& order) {
  if (!order) return;
  const Lock lock(mutex_);
  note_step(host(), "wait for an event", 0, ++steps_);
  if (!world_.clock(host()).join(*order)) return;
  ++host_version_;
  host_learned();
}

Order Sanitizer::host_knows() {
  const Lock lock(mutex_);
  return std::make_shared<const Clock>(world_.clock(host()));
}

Origin Sanitizer::origin() {
  if (origin_of_thread != nullptr) return *origin_of_thread;
  return {here(), host_knows()};
}

// --- limits --------------------------------------------------------------------------------------------------------

void Sanitizer::limit(int64_t streams, int64_t events) {
  most_streams_ = streams;
  most_events_ = events;
}

void Sanitizer::cannot_capture(std::unordered_set<std::string> operators) {
  const Lock lock(mutex_);
  uncapturable_ = std::move(operators);
}

void Sanitizer::captured(std::string_view operation) {
  {
    const Lock lock(mutex_);
    if (uncapturable_.count(std::string(operation.substr(0, operation.find('.')))) == 0) return;
  }
  Finding finding;
  finding.kind = 'h';
  finding.first.stack = here();
  finding.first.op = intern(operation);
  finding.first_actor = "the host";
  finding.first_does = "captures";
  finding.text = std::string(operation) + " cannot be captured on the card: it has no aclnn implementation";
  finding.repair = "move it out of the capture, or use an operator that has one";
  report(std::move(finding));
}

void Sanitizer::streams_in_graphs(int64_t change) {
  const int64_t now = graph_streams_ += change;
  if (!on() || change < 0 || most_streams_ == 0 || now <= most_streams_) return;
  Finding finding;
  finding.kind = 'h';
  finding.first.stack = here();
  finding.first.op = intern("NPUGraph.capture_end");
  finding.first_actor = "the host";
  finding.first_does = "calls";
  finding.text = "captured graphs hold more streams than the " + std::to_string(most_streams_) + " of the chip";
  finding.repair = "capture fewer graphs, or reset() those that are not replayed any more";
  report(std::move(finding));
}

void Sanitizer::events(int64_t change) {
  const int64_t now = live_events_ += change;
  if (!on() || change < 0 || most_events_ == 0 || now <= most_events_) return;
  Finding finding;
  finding.kind = 'h';
  finding.first.stack = here();
  finding.first.op = intern("Event.record");
  finding.first_actor = "the host";
  finding.first_does = "calls";
  finding.text = "more events exist than the " + std::to_string(most_events_) + " of the chip";
  finding.repair = "use events again, or let go of those that nobody waits for any more";
  report(std::move(finding));
}

// --- findings ------------------------------------------------------------------------------------------------------

void Sanitizer::history_of(Finding& finding, const World& world) {
  const uint64_t from = finding.first.step, to = finding.second.step;
  std::vector<Step> shown;
  for (const Step& step : history_) {
    if (step.step == 0 || step.step > to) continue;
    const bool two = step.actor == finding.first.actor || step.actor == finding.second.actor || step.actor == host();
    if (two && step.step + 6 >= from) shown.push_back(step);
  }
  std::sort(shown.begin(), shown.end(), [](const Step& a, const Step& b) { return a.step < b.step; });
  if (shown.size() > kMostAround) {  // those around the first and those before the second
    shown.erase(shown.begin() + kMostAround / 2, shown.end() - kMostAround / 2);
  }
  for (const Step& step : shown) {
    finding.history.push_back({step.step, world.name_of(step.actor), text(step.what), ""});
  }
}

void Sanitizer::report(Finding finding) {
  const Lock lock(mutex_);
  uint64_t key = static_cast<uint64_t>(finding.kind);
  for (const uint64_t part :
       {uint64_t{finding.first.stack}, uint64_t{finding.second.stack}, uint64_t{finding.first.op},
        uint64_t{finding.second.op}, std::hash<std::string>()(finding.kind < 'e' ? "" : finding.text)}) {
    key = (key ^ part) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  const auto [at, fresh] = seen_.try_emplace(key, findings_.size());
  if (!fresh) {
    if (at->second < findings_.size()) ++findings_[at->second].count;
    return;
  }
  ++found_;
  if (findings_.size() >= kMostFindings) return;
  if (finding.history.empty() && finding.first.step != 0) history_of(finding, world_);
  findings_.push_back(std::move(finding));
}

std::vector<Finding> Sanitizer::take() {
  const Lock lock(mutex_);
  return findings_;
}

size_t Sanitizer::tracked() {
  const Lock lock(mutex_);
  size_t total = 0;
  for (const auto& [base, shadow] : shadows_) total += shadow.accesses.size();
  for (const auto& [key, list] : freed_) total += list.size();
  for (const auto& [key, pool] : pools_) total += pool.outside.accesses.size();
  return total + in_flight_.size();
}

}  // namespace softnpu::sanitizer
