#include "hccl/peers.h"

#include <unistd.h>

#include <climits>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "hccl/steady_clock.h"
#include "hccl/store_values.h"
#include "torch/compat.h"

namespace softnpu::hccl {

namespace {

constexpr Milliseconds kInterval{300};

std::string link_target(const char* path) {
  char buffer[PATH_MAX];
  const ssize_t length = readlink(path, buffer, sizeof(buffer));
  return length < 0 ? "" : std::string(buffer, static_cast<size_t>(length));
}

std::string first_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// State and start time of a process; empty if there is none.
std::pair<char, std::string> process_state(long pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {0, ""};
  std::istringstream rest(line.substr(line.rfind(')') + 1));  // the name may contain anything
  std::string field, state;
  rest >> state;
  for (int i = 0; i < 19; ++i) rest >> field;  // field 22 is the start time
  return {state.empty() ? char(0) : state[0], field};
}

std::string list(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

c10::intrusive_ptr<c10d::Store> without_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

}  // namespace

Peers::Peers(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::string group, int generation,
             Milliseconds patience)
    : rank_(rank),
      size_(size),
      generation_(generation),
      patience_(patience),
      group_(std::move(group)),
      store_(compat::clone(store)),
      job_(without_prefix(store_)),
      processes_(static_cast<size_t>(size)) {}

std::string Peers::key(const std::string& what) const { return "softnpu/" + std::to_string(generation_) + "/" + what; }

void Peers::publish() {
  const std::string host = first_word("/proc/sys/kernel/random/boot_id") + link_target("/proc/self/ns/pid");
  const long pid = getpid();
  store_->set(key("process/" + std::to_string(rank_)), to_bytes(host + " " + link_target("/proc/self/ns/net") + " " +
                                                                std::to_string(pid) + " " + process_state(pid).second));
  processes_[rank_] = {host, link_target("/proc/self/ns/net"), pid, process_state(pid).second};
  if (generation_ > 0 && job_->check({process_key(rank_)})) job_->deleteKey(process_key(rank_));
}

void Peers::learn() {
  std::vector<std::string> keys;
  for (int r = 0; r < size_; ++r) keys.push_back(key("process/" + std::to_string(r)));
  store_->wait(keys);
  const auto values = store_->multiGet(keys);
  for (int r = 0; r < size_; ++r) {
    std::istringstream in(std::string(values[r].begin(), values[r].end()));
    in >> processes_[r].host >> processes_[r].network >> processes_[r].pid >> processes_[r].start;
  }
}

bool Peers::on_one_host() const {
  for (int r = 0; r < size_; ++r) {
    if (processes_[r].pid == 0 || elsewhere(r)) return false;
  }
  return !processes_[rank_].host.empty();
}

bool Peers::gone(int rank) const {
  const Process &other = processes_[rank], &own = processes_[rank_];
  if (other.pid == 0 || own.host.empty() || other.host != own.host) return false;
  const auto [state, start] = process_state(other.pid);
  return state == 0 || state == 'Z' || state == 'X' || start != other.start;
}

bool Peers::elsewhere(int rank) const {
  const Process &other = processes_[rank], &own = processes_[rank_];
  return other.pid != 0 && (other.host != own.host || other.network != own.network);
}

std::string Peers::describe(int rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (processes_[rank].pid != 0) text += " (pid " + std::to_string(processes_[rank].pid) + ")";
  return text;
}

// Whom to name when nobody can be asked: the processes of this host can be looked at, the others are out of reach.
std::string Peers::without_store(int peer) const {
  std::vector<std::string> lost, far;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (gone(r)) {
      lost.push_back(describe(r));
    } else if (elsewhere(r)) {
      far.push_back(describe(r));
    }
  }
  std::string text = "the store of the job, which rank 0 or the launcher holds, does not answer";
  if (!lost.empty()) text += ", " + list(lost) + (lost.size() > 1 ? " are gone" : " is gone");
  if (!far.empty()) text += ", " + list(far) + " on other hosts cannot be reached";
  return peer >= 0 ? text + ", the peer is " + describe(peer) : text;
}

std::string Peers::process_key(int r) const {
  const Process& process = processes_[r];
  return "softnpu/failure/" + process.host + "/" + std::to_string(process.pid) + "/" + process.start;
}

Peers::Told Peers::told_by(int r) {
  const std::string mine = key("failed/" + std::to_string(r));
  if (!store_->check({mine})) return {};
  const std::string said = to_text(store_->get(mine));
  return {true, said.substr(std::min(said.size(), said.find('\n') + 1))};
}

std::string Peers::blames_elsewhere(int r) {
  return job_->check({process_key(r)}) ? to_text(job_->get(process_key(r))) : "";
}

void Peers::tell(const std::string& operation, const std::string& blames) {
  store_->set(key("failed/" + std::to_string(rank_)), to_bytes(operation + "\n" + blames));
  store_->set(key("failed"), to_bytes("rank " + std::to_string(rank_) + " in " + operation));
  if (!blames.empty()) {
    job_->set(process_key(rank_), to_bytes("it had failed in " + operation + " of group " + group_ + ": " + blames));
  }
}

std::string Peers::search(const std::string& operation, int peer) {
  const auto until =
      std::chrono::steady_clock::now() + patience_ * 2 / 3;  // for the others to say that they failed too
  std::vector<std::string> lost, silent;
  std::set<std::string> blamed;  // by others, who may know more
  bool store_alive = true;
  const auto ask = [&](const auto& question) {
    try {
      if (store_alive) question();
    } catch (const std::exception&) {
      store_alive = false;  // its host is a rank that died; the processes of this host can still be looked at
    }
  };
  ask([&] { tell(operation, ""); });
  do {
    lost.clear();
    silent.clear();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      Told told;  // a rank that says that it failed too is not the one to blame, even if it has left since
      ask([&] { told = told_by(r); });
      if (!told.blames.empty()) blamed.insert(told.blames);
      if (told.told) continue;
      const bool is_gone = gone(r);
      if (!is_gone && !store_alive) continue;
      std::string before;
      ask([&] { before = blames_elsewhere(r); });
      std::string text = describe(r) + (is_gone ? " is gone" : " does not answer");
      if (!before.empty()) text += " (" + before + ")";
      (is_gone ? lost : silent).push_back(std::move(text));
    }
    if (!lost.empty() || (silent.empty() && store_alive)) break;
    std::this_thread::sleep_for(Milliseconds(100));
  } while (std::chrono::steady_clock::now() < until);
  std::string found;
  if (!lost.empty()) {
    found = list(lost);
  } else if (!blamed.empty()) {
    found = list({blamed.begin(), blamed.end()});
  } else if (peer >= 0) {
    found = "the peer is " + describe(peer);
  } else if (!silent.empty()) {
    found = list(silent);
  } else if (!store_alive) {
    found = without_store(peer);
  } else {
    found = "all ranks of the group report a failure";
  }
  if (!lost.empty() || !silent.empty()) ask([&] { tell(operation, found); });
  return found;
}

std::string Peers::missing(const std::string& operation, int peer) {
  auto promise = std::make_shared<std::promise<std::string>>();
  auto answer = promise->get_future();
  // A lost host may leave the store's socket open and silent, so that only another thread may ask it.
  std::thread([self = shared_from_this(), operation, peer, promise] {
    try {
      promise->set_value(self->search(operation, peer));
    } catch (const std::exception&) {
      promise->set_value("the store of the job does not answer");
    }
  }).detach();
  if (answer.wait_for(patience_) == std::future_status::ready) return answer.get();
  return without_store(peer);
}

void Peers::interrupted(const std::string& operation) {
  const std::string why = describe(rank_) + " was interrupted in " + operation;
  fail("it was aborted: " + why);
  std::thread([self = shared_from_this(), operation, why] {
    try {
      self->tell(operation, why);
    } catch (const std::exception&) {
      // without a store the others have their timeout
    }
  }).detach();
}

void Peers::look_for_failures() {
  asked_ = now_ms();
  if (looking_.exchange(true)) return;
  std::thread([self = shared_from_this()] {
    try {
      std::this_thread::sleep_for(kQuiet);  // most waits are shorter, and then nobody is asked
      while (self->wanted() && !self->failure()) {
        if (self->store_->check({self->key("failed")})) {
          const auto value = self->store_->get(self->key("failed"));
          self->fail("the group failed: " + to_text(value));
        }
        std::this_thread::sleep_for(kInterval);
      }
    } catch (const std::exception&) {
      // Without a store nobody can be asked; each operation still has its timeout.
    }
    self->looking_ = false;
  }).detach();
}

bool Peers::wanted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !waits_.empty() || now_ms() - asked_ < 2000;
}

std::optional<std::string> Peers::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Peers::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_ = why;
  for (c10d::Work* work : waits_) work->abort();
}

void Peers::enter(c10d::Work* work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.insert(work);
}

void Peers::leave(c10d::Work* work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.erase(work);
}

}  // namespace softnpu::hccl
