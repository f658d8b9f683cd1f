// The sanitizer: who reads and writes which bytes, and which of it is ordered.
//
// Work runs at launch here, so that a race never shows by itself. The sanitizer follows the order that the card would
// keep, by vector clocks: streams (those of communicators too) and the host are actors; a launch is one step of its
// stream and comes after all that the host knew; events, waits and synchronizations carry clocks from one actor to
// another. Two accesses to the same bytes, one of them a write, that no clock orders are a race.
//
// Plain C++: the layer above gives stacks, names and shapes as numbers that it can turn into text again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "device/memory.h"
#include "device/region.h"
#include "device/stages.h"

namespace softnpu::sanitizer {

using ActorId = uint32_t;
using Time = uint32_t;
using StackId = uint32_t;  // 0: none
using Name = uint32_t;     // an interned text

inline bool on() noexcept { return Stages::asked(kSanitizeStage); }

// How far each actor is known: by number of actor; what is missing is 0.
class Clock {
 public:
  Time of(ActorId actor) const { return actor < times_.size() ? times_[actor] : 0; }
  void set(ActorId actor, Time time) {
    if (actor >= times_.size()) times_.resize(actor + 1, 0);
    times_[actor] = time;
  }
  bool join(const Clock& other);  // whether anything was new
  size_t size() const { return times_.size(); }

 private:
  std::vector<Time> times_;
};
using Order = std::shared_ptr<const Clock>;  // what an event, a signal or a collective carries; may be none

// A communicator's work runs on a stream of its own, which has a number past those of programs.
constexpr StreamId kFirstCommunicator = StreamId{1} << 40;

// --- accesses ------------------------------------------------------------------------------------------------------

struct Memory {  // the allocation that a tensor stands on
  enum Kind : uint8_t { kNone, kDevice, kPinned, kPool };
  Kind kind = kNone;
  uintptr_t base = 0;
  size_t bytes = 0;
  PoolId pool{0, 0};  // of a graph
};

struct Recycled {  // the access is to memory that was freed since
  StackId allocated, freed, erased;
};

struct Access {
  Region region;
  ActorId actor = 0;
  Time time = 0;
  bool write = false;
  StackId stack = 0;
  Name op = 0, shape = 0;
  uint64_t step = 0;   // of the history
  uint32_t graph = 0;  // made by the replay of this graph
  std::shared_ptr<const Recycled> recycled;
};

struct Finding {
  char kind = 'a';       // a to h, as the documentation numbers them
  std::string text;      // what happened
  std::string repair;    // the call that is missing
  Access first, second;  // in the order of the program
  std::string first_actor, second_actor;
  std::string first_does, second_does;
  StackId allocated = 0;  // where the memory was allocated
  StackId related = 0;    // another place that matters
  std::string related_text;
  size_t bytes = 0;  // of the allocation
  uint64_t count = 1;
  struct Moment {
    uint64_t step;
    std::string actor, what, detail;
  };
  std::vector<Moment> history;  // of the two actors around it
};

// --- worlds --------------------------------------------------------------------------------------------------------

// The actors, their clocks, and the accesses that are not yet behind everybody. There is one for the program, and one
// for each capture, whose work has an order of its own.
class World {
 public:
  ActorId actor(int device, StreamId stream);
  const std::string& name_of(ActorId actor) const { return actors_[actor].name; }
  Clock& clock(ActorId actor) { return actors_[actor].clock; }
  size_t size() const { return actors_.size(); }
  struct Actor {
    int device = -1;
    StreamId stream = 0;
    std::string name;
    Clock clock;
    Clock nearly;            // what events would have ordered, had they not been recorded again
    uint64_t host_seen = 0;  // the host's version that it has joined
    std::unordered_map<uintptr_t, StackId> lost;
  };
  Actor& of(ActorId actor) { return actors_[actor]; }
  const Actor& of(ActorId actor) const { return actors_[actor]; }

 private:
  std::deque<Actor> actors_;
  std::map<std::pair<int, StreamId>, ActorId> numbers_;
};

struct Shadow {  // of one allocation
  std::vector<Access> accesses;
  size_t bytes = 0;
  StackId allocated = 0;
  ActorId owner = 0;              // the stream it was allocated on
  std::vector<ActorId> recorded;  // record_stream
  std::vector<std::pair<ActorId, StackId>> erased;
  std::vector<std::pair<uintptr_t, uintptr_t>> unwritten;  // with poison: what nobody wrote yet
  std::unordered_set<uint32_t> reported;
};

// What a graph does to memory, in the order of its capture.
struct Footprint {
  uint32_t graph = 0;
  PoolId pool{0, 0};
  StackId captured = 0;
  std::vector<std::pair<Memory, Access>> outside;              // memory that is not the graph's own
  std::vector<std::pair<uintptr_t, uintptr_t>> reads, writes;  // in the pool, sorted and merged
  std::vector<std::pair<Memory, Access>> inside;               // while it is captured
  World world;
  std::unordered_map<uintptr_t, Shadow> shadows;
};

// --- the sanitizer -------------------------------------------------------------------------------------------------

struct Options {
  bool poison = false;
};

struct Launch {  // one step of an actor
  ActorId actor = 0;
  Time time = 0;
  StackId stack = 0;
  Name op = 0;
  uint64_t step = 0;
  Footprint* capture = nullptr;  // it is captured: nothing runs
  bool pinned = false;           // touches pinned memory
  uint32_t graph = 0;
};

// Where a launch comes from: of queued work, taken when it was given to the queue.
struct Origin {
  StackId stack = 0;
  Order host;
};

class Sanitizer {
 public:
  static Sanitizer& get();
  void enable(const Options& options);
  void disable();
  void reset();  // forgets everything, findings too
  const Options& options() const { return options_; }

  // Texts and stacks.
  Name intern(std::string_view text);
  std::string text(Name name);
  static StackId (*capture_stack)();  // from above
  StackId here();                     // of the launch that runs, or of the caller

  // Launches.
  Launch launch(int device, StreamId stream, Name op, Footprint* capture = nullptr);
  Launch launch_communication(int device, StreamId communicator, StreamId current, Name op, Footprint* capture);
  void access(Launch& launch, const Memory& memory, const Region& region, Name shape, bool read, bool write,
              bool some = false);
  void finish(Launch& launch);  // it has run
  void join_streams(int device, StreamId stream, int other_device, StreamId other, Footprint* capture);

  // Order.
  Order record(int device, StreamId stream, Footprint* capture = nullptr);
  void wait(int device, StreamId stream, const Order& order, Footprint* capture = nullptr);
  void lost(int device, StreamId stream, const Order& order, uintptr_t event, StackId again);
  void host_waits(int device, StreamId stream);
  void host_waits_for_device(int device);
  void host_waits(const Order& order);
  Order host_knows();
  Origin origin();

  // Memory.
  void allocated(const Block& block);
  void freed(const Block& block);
  void record_stream(const Block& block, StreamId stream);
  void erase_stream(const Block& block, StreamId stream);
  void resized(uintptr_t from, size_t kept, uintptr_t to);  // the first bytes were copied
  void pinned(uintptr_t base, size_t bytes);                // was allocated
  void forget_pinned(uintptr_t base);
  void everything_ordered(int device);  // memory goes back to the system, for which the card waits

  // Graphs.
  std::shared_ptr<Footprint> begin_capture(PoolId pool);
  void end_capture(const std::shared_ptr<Footprint>& footprint);
  void forget_graph(const std::shared_ptr<Footprint>& footprint);
  void input_lost(uintptr_t at, size_t bytes, bool moved, StackId captured);  // before a replay
  uint32_t last_captured(PoolId pool);                                        // the graph, 0: none
  // A read through a reference that does not keep the memory, to what one graph wrote.
  void check_stale(const Launch& launch, const Region& region, PoolId pool, uint32_t graph, Name shape);
  void replayed(int device, StreamId stream, const std::shared_ptr<Footprint>& footprint);

  // Limits of the chip; 0: none known.
  void limit(int64_t streams, int64_t events);
  void cannot_capture(std::unordered_set<std::string> operators);
  void captured(std::string_view operation);                                           // in a capture
  std::pair<int64_t, int64_t> held() const { return {graph_streams_, live_events_}; }  // streams of graphs, events
  void streams_in_graphs(int64_t change);
  void events(int64_t change);

  // Findings.
  void report(Finding finding);
  std::vector<Finding> take();
  uint64_t count() const { return found_.load(); }
  void note(int device, StreamId stream, std::string_view what, StackId stack = 0);  // for the history
  size_t tracked();  // accesses that are remembered; for tests

  // Pinned memory (sanitizer_pinned.cpp).
  bool fault(uintptr_t address);  // of a page that was closed; false: not ours
  void open_pinned(const Memory& memory);
  bool open_for_system(uintptr_t begin, size_t bytes);  // before the host's system call; whether any page was closed
  void system_touched(uintptr_t begin, size_t bytes, bool write);  // by a system call that is done

 private:
  struct InFlight {
    uintptr_t block;
    size_t bytes;
    Access access;
    bool closed = false;
  };
  struct Freed {  // memory that other streams still used when it was freed
    uintptr_t begin;
    size_t bytes;
    bool small;
    std::vector<Access> uses;
  };
  struct Replays {
    std::vector<std::pair<std::shared_ptr<Footprint>, Access>> last;
    uint32_t captured = 0;  // the newest graph
    Shadow outside;
  };
  using Lock = std::lock_guard<std::recursive_mutex>;

  ActorId host() const { return 0; }
  Launch step(World& world, ActorId actor, Name op, Footprint* capture);
  void note_step(ActorId actor, std::string_view what, StackId stack, uint64_t step);
  void check(World& world, Shadow& shadow, const Memory& memory, Access access, Footprint* capture);
  void check_poison(Shadow& shadow, const Access& access, bool read, bool write, bool some);
  void check_replays(const Memory& memory, const Access& access);
  void race(World& world, Shadow& shadow, const Memory& memory, const Access& first, const Access& second,
            Footprint* capture);
  void host_learned();
  void host_touched(const std::vector<InFlight>& touched, const char* does);
  void capture_access(Launch& launch, const Memory& memory, Access access);
  void recycled_race(World& world, const Shadow& shadow, const Access& use, const Access& now);
  void history_of(Finding& finding, const World& world);
  bool ordered(const Access& access, ActorId before) const;

  std::recursive_mutex mutex_;
  Options options_;
  World world_;
  uint64_t host_version_ = 1;
  std::unordered_map<uintptr_t, Shadow> shadows_;
  std::map<std::pair<int, StreamId>, std::vector<Freed>> freed_;
  std::map<PoolId, Replays> pools_;
  std::vector<InFlight> in_flight_;
  std::unordered_map<std::string, Name> names_;
  std::deque<std::string> texts_;
  struct Step {
    uint64_t step;
    ActorId actor;
    Name what;
    StackId stack;
  };
  std::vector<Step> history_;
  uint64_t steps_ = 0;
  std::vector<Finding> findings_;
  std::unordered_map<uint64_t, size_t> seen_;
  std::atomic<uint64_t> found_{0};
  uint32_t next_graph_ = 1;
  std::unordered_set<std::string> uncapturable_;
  std::atomic<int64_t> most_streams_{0}, most_events_{0}, graph_streams_{0}, live_events_{0};
};

// While it lives, this thread's launches come from there.
class From {
 public:
  explicit From(const Origin& origin);
  ~From();
  From(const From&) = delete;

 private:
  const Origin* before_;
};

// While it lives, host accesses of this thread are work of the stream: a host function.
class AsStream {
 public:
  AsStream(int device, StreamId stream);
  ~AsStream();
  AsStream(const AsStream&) = delete;

 private:
  bool before_;
};
bool as_stream() noexcept;

// While it lives, `here()` is this stack.
class AtStack {
 public:
  explicit AtStack(StackId stack);
  ~AtStack();
  AtStack(const AtStack&) = delete;

 private:
  StackId before_;
};

}  // namespace softnpu::sanitizer
