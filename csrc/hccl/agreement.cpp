#include "hccl/agreement.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "hccl/cycles.h"
#include "hccl/errors.h"
#include "torch/sanitizer/stacks.h"

namespace softnpu::hccl {

namespace {

std::mutex mutex;  // of the list
std::vector<Agreement*>& groups() {
  static auto* all = new std::vector<Agreement*>;
  return *all;
}
std::atomic<uint64_t> turns{0};
std::atomic<int> communicators{0};

std::string this_process() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return std::string(host) + ":" + std::to_string(getpid());
}

// Which list of tensors is the same on all ranks; -1: their shapes may differ.
int common_list(std::string_view name) {
  if (name == "all_reduce" || name == "broadcast" || name == "reduce") return 0;
  if (name == "all_gather" || name == "all_gather_into_tensor") return 0;
  if (name == "reduce_scatter" || name == "reduce_scatter_tensor") return 1;
  return -1;
}

std::string describe(const char* name, const std::vector<std::vector<at::Tensor>>& lists) {
  std::string text = name;
  const int list = common_list(name);
  if (list < 0 || static_cast<size_t>(list) >= lists.size()) {
    for (const auto& tensors : lists) {
      if (tensors.empty()) continue;
      return text + " of " + c10::toString(tensors[0].scalar_type());
    }
    return text;
  }
  for (const at::Tensor& tensor : lists[static_cast<size_t>(list)]) {
    text += " " + std::string(c10::toString(tensor.scalar_type())) + c10::str(tensor.sizes());
  }
  return text;
}

std::string place(sanitizer::StackId stack) {
  const pybind11::gil_scoped_acquire gil;
  std::string text;
  for (const StackFrame& frame : python_stack(stack)) {
    const bool inner = frame.file.find("/torch/") != std::string::npos;
    if (!inner) text += (text.empty() ? "" : " < ") + frame.file + ":" + std::to_string(frame.line);
  }
  return text.substr(0, 600);
}

}  // namespace

Agreement::Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string group)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      group_(std::move(group)),
      communicator_(communicators++),
      members_(static_cast<size_t>(size)) {
  const std::string who = this_process();
  store_->set("softnpu_sanitizer/who/" + std::to_string(rank), std::vector<uint8_t>(who.begin(), who.end()));
  const std::lock_guard<std::mutex> lock(mutex);
  groups().push_back(this);
}

Agreement::~Agreement() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase(groups(), this);
}

std::string Agreement::key(uint64_t number, int rank) const {
  return "softnpu_sanitizer/" + std::to_string(number) + "/" + std::to_string(rank);
}

bool Agreement::read(uint64_t number, int rank, Note& note) {
  if (!store_->check({key(number, rank)})) return false;
  const auto bytes = store_->get(key(number, rank));
  const std::string text(bytes.begin(), bytes.end());
  const size_t a = text.find('\n'), b = text.find('\n', a + 1), c = text.find('\n', b + 1);
  if (c == std::string::npos) return false;
  note = {text.substr(0, a), text.substr(b + 1, c - b - 1), text.substr(c + 1), std::stoull(text.substr(a + 1))};
  return true;
}

sanitizer::Order Agreement::enter(const char* name, int device, const std::vector<std::vector<at::Tensor>>& lists,
                                  CollectiveUse use, const std::string& detail) {
  const sanitizer::Order order = sanitize_collective(name, device, communicator_, lists, use);
  const bool message = std::strcmp(name, "send") == 0 || std::strcmp(name, "recv") == 0;
  if (message || size_ == 1) return order;
  const sanitizer::StackId stack = sanitizer::Sanitizer::get().here();
  const uint64_t number = ++number_;
  last_ = {this_process(), describe(name, lists) + detail, place(stack), ++turns};
  const std::string text = last_.who + "\n" + std::to_string(last_.turn) + "\n" + last_.what + "\n" + last_.where;
  store_->set(key(number, rank_), std::vector<uint8_t>(text.begin(), text.end()));
  if (number > 64) store_->deleteKey(key(number - 64, rank_));
  compare(number, last_, stack);
  return order;
}

void Agreement::compare(uint64_t number, const Note& own, sanitizer::StackId stack) {
  for (int rank = 0; rank < size_; ++rank) {
    Note other;
    if (rank == rank_ || !read(number, rank, other)) continue;
    if (other.what == own.what) continue;
    sanitizer::Finding finding;
    finding.kind = 'e';
    finding.first.stack = stack;
    finding.first_actor = "rank " + std::to_string(rank_);
    finding.first_does = "calls";
    finding.first.op = sanitizer::Sanitizer::get().intern(own.what);
    finding.text = "collective " + std::to_string(number) + " of group " + group_ + " is " + own.what + " on rank " +
                   std::to_string(rank_) + " but " + other.what + " on rank " + std::to_string(rank) + " (" +
                   other.where + ")";
    finding.repair = "call the same collective, with the same shape and dtype, in the same order on every rank";
    sanitizer::Sanitizer::get().report(finding);
    HCCL_CHECK(false, Param, "sanitizer: ", finding.text, "; the card would hang here");
  }
  look_for_cycles();
}

// A rank that is in both groups came to this group's collective, which this process has not issued yet, and did not
// come to the other group's, which this process has issued.
bool Agreement::inverted(Agreement& other, int rank, const std::string& who) {
  Note note;
  if (!read(number_ + 1, rank, note) || note.who != who) return false;
  Note there;
  for (int peer = 0; peer < other.size_; ++peer) {
    if (peer == other.rank_) continue;
    if (other.read(other.number_, peer, there) && there.who == who) return there.turn > note.turn;
  }
  return true;
}

bool Agreement::has(const std::string& who) {
  for (int peer = 0; peer < size_; ++peer) {
    std::string& known = members_[static_cast<size_t>(peer)];
    const std::string name = "softnpu_sanitizer/who/" + std::to_string(peer);
    if (known.empty() && store_->check({name})) {
      const auto bytes = store_->get(name);
      known.assign(bytes.begin(), bytes.end());
    }
    if (known == who) return true;
  }
  return false;
}

void look_for_cycles() { Agreement::look_for_cycles(); }

void Agreement::look_for_cycles() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (groups().size() < 2) return;
  }
  const sanitizer::StackId stack = sanitizer::Sanitizer::get().here();  // asks the interpreter, so without the lock
  const std::lock_guard<std::mutex> lock(mutex);
  for (Agreement* waiting : groups()) {
    for (Agreement* behind : groups()) {
      if (waiting == behind || waiting->number_ == 0) continue;
      waiting->look_at(*behind, stack);
      waiting->look_back(*behind, stack);
    }
  }
}

void Agreement::look_at(Agreement& behind, sanitizer::StackId stack) {
  for (int rank = 0; rank < behind.size_ && !told_; ++rank) {
    Note note;
    if (rank == behind.rank_ || !behind.read(behind.number_ + 1, rank, note)) continue;
    if (!has(note.who) || !behind.inverted(*this, rank, note.who)) continue;
    tell("this rank issued " + last_.what + " of group " + group_ + " (" + last_.where + ") and not yet collective " +
             std::to_string(behind.number_ + 1) + " of group " + behind.group_ + ", which rank " +
             std::to_string(rank) + " of that group issued first: " + note.what + " (" + note.where + ")",
         stack);
  }
}

// Asynchronous collectives do not wait, so both ranks may have issued both by now: the turns tell the order.
void Agreement::look_back(Agreement& before, sanitizer::StackId stack) {
  if (before.number_ == 0 || before.last_.turn > last_.turn) return;
  for (int rank = 0; rank < size_ && !told_; ++rank) {
    Note here, there;
    if (rank == rank_ || !read(number_, rank, here)) continue;
    for (int peer = 0; peer < before.size_ && !told_; ++peer) {
      if (peer == before.rank_ || !before.read(before.number_, peer, there)) continue;
      if (there.who != here.who || there.turn <= here.turn) continue;
      tell("this rank issued " + before.last_.what + " of group " + before.group_ + " (" + before.last_.where +
               ") before " + last_.what + " of group " + group_ + " (" + last_.where + "), rank " +
               std::to_string(rank) + " of that group the other way round (" + here.where + ")",
           stack);
    }
  }
}

void Agreement::tell(const std::string& text, sanitizer::StackId stack) {
  told_ = true;
  sanitizer::Finding finding;
  finding.kind = 'e';
  finding.first.stack = stack;
  finding.first_actor = "rank " + std::to_string(rank_);
  finding.first_does = "calls";
  finding.first.op = sanitizer::Sanitizer::get().intern(last_.what);
  finding.text = "two communicators wait for each other: " + text;
  finding.repair = "issue the collectives of the two groups in the same order on every rank";
  sanitizer::Sanitizer::get().report(std::move(finding));
}

}  // namespace softnpu::hccl
