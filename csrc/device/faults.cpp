#include "device/faults.h"

#include <algorithm>

#include "device/stages.h"

namespace softnpu {

namespace {
using Lock = std::lock_guard<std::mutex>;
}

Faults& Faults::all() {
  static auto* faults = new Faults;
  return *faults;
}

bool Faults::State::empty() const {
  return !stopped && message.empty() && memory.empty() && !product_countdown && !allocation_countdown &&
         stress[0] == 0 && stress[1] == 0;
}

void Faults::note_active() {
  std::erase_if(states_, [](const auto& entry) { return entry.second.empty(); });
  active_ = !states_.empty();
  Stages::set(kFaultStage, active_);
}

void Faults::stop(int device) {
  Lock lock(mutex_);
  states_[device].stopped = true;
  note_active();
}

void Faults::restart(int device) {
  Lock lock(mutex_);
  State& state = states_[device];
  state.stopped = false;
  state.message.clear();
  state.memory.clear();
  note_active();
}

void Faults::clear() {
  Lock lock(mutex_);
  states_.clear();
  note_active();
}

void Faults::raise_at_launch(int device, std::string message) {
  Lock lock(mutex_);
  states_[device].message = std::move(message);
  note_active();
}

void Faults::corrupt_memory(int device, MemoryFault fault) {
  Lock lock(mutex_);
  states_[device].memory.push_back(fault);
  note_active();
}

std::vector<MemoryFault> Faults::memory_faults(int device) {
  Lock lock(mutex_);
  const auto found = states_.find(device);
  return found == states_.end() ? std::vector<MemoryFault>{} : found->second.memory;
}

void Faults::keep_memory_faults(int device, std::vector<MemoryFault> left) {
  Lock lock(mutex_);
  states_[device].memory = std::move(left);
  note_active();
}

void Faults::corrupt_products(int device, int64_t skip) {
  Lock lock(mutex_);
  states_[device].product_countdown = skip;
  note_active();
}

bool Faults::product_is_corrupt(int device) {
  Lock lock(mutex_);
  const auto found = states_.find(device);
  if (found == states_.end() || !found->second.product_countdown) return false;
  int64_t& left = *found->second.product_countdown;
  if (left == 0) return true;
  --left;
  return false;
}

void Faults::set_stress_result(int device, int kind, int result) {
  Lock lock(mutex_);
  states_[device].stress[kind] = result;
  note_active();
}

int Faults::stress_result(int device, int kind) {
  Lock lock(mutex_);
  const auto found = states_.find(device);
  return found == states_.end() ? 0 : found->second.stress[kind];
}

void Faults::fail_allocation(int device, int64_t nth) {
  Lock lock(mutex_);
  states_[device].allocation_countdown = nth;
  note_active();
}

bool Faults::allocation_fails(int device) {
  if (!active()) return false;
  Lock lock(mutex_);
  const auto found = states_.find(device);
  if (found == states_.end() || !found->second.allocation_countdown) return false;
  if (--*found->second.allocation_countdown > 0) return false;
  found->second.allocation_countdown.reset();
  note_active();
  return true;
}

std::optional<std::string> Faults::at_launch(int device) {
  Lock lock(mutex_);
  const auto found = states_.find(device);
  if (found == states_.end()) return std::nullopt;
  const State& state = found->second;
  if (state.stopped) return "FORCE STOP";
  if (!state.memory.empty()) return "UCE ERROR";
  if (!state.message.empty()) return state.message;
  return std::nullopt;
}

}  // namespace softnpu
