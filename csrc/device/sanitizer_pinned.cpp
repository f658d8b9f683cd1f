// Pinned host memory: while a copy is under way, the host must keep away from its bytes.
//
// The host reaches pinned memory in ways that no operator shows (numpy, tolist, C). So the pages of a copy that the
// host has not waited for are closed: all of them while the device writes, against writing while it reads. Whoever
// touches them faults; the handler opens the pages, notes who it was, and the program goes on. The kernel does not
// fault for the program: system_calls.cpp opens the pages for it.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>

#include "device/device.h"
#include "device/sanitizer.h"
#include "device/sanitizer_runs.h"

namespace softnpu::sanitizer {

namespace {

struct sigaction former;
thread_local bool handling = false;

void pass_on(int number, siginfo_t* info, void* context) {
  if ((former.sa_flags & SA_SIGINFO) != 0 && former.sa_sigaction != nullptr) {
    former.sa_sigaction(number, info, context);
  } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN && former.sa_handler != nullptr) {
    former.sa_handler(number);
  } else {
    signal(number, SIG_DFL);  // the access is made again, and ends the process
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (!handling) {
    handling = true;
    const bool ours = Sanitizer::get().fault(reinterpret_cast<uintptr_t>(info->si_addr));
    handling = false;
    if (ours) return;
  }
  pass_on(number, info, context);
}

// Ours, in front of whatever the program has installed meanwhile.
void stand_guard() {
  struct sigaction now{};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_fault) return;
  former = now;
  struct sigaction ours{};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

void protect(uintptr_t begin, uintptr_t end, int how) {
  const uintptr_t from = begin / kPage * kPage, to = (end + kPage - 1) / kPage * kPage;
  mprotect(reinterpret_cast<void*>(from), to - from, how);
}

}  // namespace

namespace {

std::map<uint64_t, std::thread::id>& runs() {
  static auto* all = new std::map<uint64_t, std::thread::id>;
  return *all;
}

}  // namespace

void begin_run(uint64_t step) { runs()[step] = std::this_thread::get_id(); }

void end_runs() {
  std::erase_if(runs(), [](const auto& run) { return run.second == std::this_thread::get_id(); });
}

bool is_running(uint64_t step) { return runs().count(step) > 0; }

void Sanitizer::open_pinned(const Memory& memory) {
  const Lock lock(mutex_);
  bool closed = false;
  for (InFlight& one : in_flight_) {
    if (one.block == memory.base) closed = std::exchange(one.closed, false) || closed;
  }
  if (closed) protect(memory.base, memory.base + memory.bytes, PROT_READ | PROT_WRITE);
}

// Copies that the host knows to be done are forgotten, their pages opened; those of the others are closed.
void Sanitizer::host_learned() {
  if (in_flight_.empty()) return;
  const Clock& known = world_.clock(host());
  auto done = [&](const InFlight& one) { return one.access.time <= known.of(one.access.actor); };
  for (const InFlight& one : in_flight_) {
    if (done(one) && one.closed) open_pinned({Memory::kPinned, one.block, one.bytes, {}});
  }
  std::erase_if(in_flight_, done);
  any_closed = !in_flight_.empty();
  if (in_flight_.empty()) return;
  stand_guard();
  watch_system_calls();
  for (const bool writes : {false, true}) {  // a page of both is closed for both
    for (InFlight& one : in_flight_) {
      if (one.access.write != writes || is_running(one.access.step)) continue;
      protect(one.access.region.begin, one.access.region.end, writes ? PROT_NONE : PROT_READ);
      one.closed = true;
    }
  }
}

void Sanitizer::forget_pinned(uintptr_t base) {
  const Lock lock(mutex_);
  shadows_.erase(base);
  if (in_flight_.empty()) return;
  for (const InFlight& one : in_flight_) {
    if (one.block == base && one.closed) open_pinned({Memory::kPinned, one.block, one.bytes, {}});
  }
  std::erase_if(in_flight_, [&](const InFlight& one) { return one.block == base; });
}

bool Sanitizer::fault(uintptr_t address) {
  std::vector<InFlight> touched;
  bool ours = false;
  {
    const Lock lock(mutex_);
    for (InFlight& one : in_flight_) {
      const uintptr_t from = one.block / kPage * kPage, to = (one.block + one.bytes + kPage - 1) / kPage * kPage;
      if (address < from || address >= to || !one.closed) continue;
      ours = true;
      if (one.access.region.contains(address)) touched.push_back(one);
    }
    if (!ours) return false;
    for (const InFlight& one : touched) open_pinned({Memory::kPinned, one.block, one.bytes, {}});
    for (InFlight& one : in_flight_) {
      if (one.closed && address >= one.block && address < one.block + one.bytes) {
        open_pinned({Memory::kPinned, one.block, one.bytes, {}});
      }
    }
  }
  if (!touched.empty()) host_touched(touched, nullptr);
  return true;
}

bool Sanitizer::open_for_system(uintptr_t begin, size_t bytes) {
  const Lock lock(mutex_);
  bool ours = false;
  for (const InFlight& one : in_flight_) {
    if (begin >= one.block + one.bytes || one.block >= begin + bytes) continue;
    ours = true;
    if (one.closed) open_pinned({Memory::kPinned, one.block, one.bytes, {}});
  }
  return ours;
}

void Sanitizer::system_touched(uintptr_t begin, size_t bytes, bool write) {
  std::vector<InFlight> touched;
  {
    const Lock lock(mutex_);
    const Region region = dense_region(begin, bytes);
    for (const InFlight& one : in_flight_) {
      if ((write || one.access.write) && overlap(one.access.region, region)) touched.push_back(one);
    }
  }
  if (!touched.empty()) host_touched(touched, write ? "writes" : "reads");
}

// The host used what copies use that it has not waited for; `does` is nullptr if nobody knows what it did.
void Sanitizer::host_touched(const std::vector<InFlight>& touched, const char* does) {
  if (in_forked_child() || as_stream() || !on()) return;
  const StackId stack = here();
  const Lock lock(mutex_);
  for (const InFlight& one : touched) {
    Finding finding;
    finding.kind = one.access.graph != 0 ? 'd' : 'c';
    finding.first = one.access;
    finding.second.stack = stack;
    finding.second.actor = host();
    finding.second.step = ++steps_;
    finding.second.region = one.access.region;
    finding.second.shape = one.access.shape;
    finding.second.op = intern("the host");
    finding.first_actor = world_.name_of(one.access.actor);
    finding.second_actor = world_.name_of(host());
    finding.first_does = one.access.write ? "writes" : "reads";
    finding.second_does = does != nullptr ? does : one.access.write ? "reads or writes" : "writes";
    finding.bytes = one.bytes;
    const auto shadow = shadows_.find(one.block);
    if (shadow != shadows_.end()) finding.allocated = shadow->second.allocated;
    const std::string who = one.access.graph != 0 ? "a replayed graph" : "a non_blocking copy";
    finding.text = one.access.write
                       ? "pinned memory is used on the host before " + who + " to it is known to be done"
                       : "pinned memory is changed on the host before " + who + " from it is known to be done";
    finding.repair = "<" + finding.first_actor +
                     ">.synchronize() between the two (or an event: record after the copy, synchronize it)";
    report(std::move(finding));
  }
  std::erase_if(in_flight_, [&](const InFlight& one) {  // told
    return std::any_of(touched.begin(), touched.end(), [&](const InFlight& other) {
      return other.block == one.block && other.access.step == one.access.step;
    });
  });
}

}  // namespace softnpu::sanitizer
