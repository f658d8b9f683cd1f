// The sanitizer's view of a communicator: whether its ranks agree on what they communicate, and in which order.
//
// Each rank writes into the group's store what it is about to do, and where in its program. The one that comes last
// sees all others: another operation, shape or dtype at the same place is a finding, and an error, since the card would
// hang. Two groups whose collectives two ranks issue in opposite orders wait for each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "device/sanitizer.h"
#include "torch/sanitizer/stage.h"

namespace softnpu::hccl {

class Agreement {
 public:
  Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string group);
  ~Agreement();
  Agreement(const Agreement&) = delete;

  // Before a collective runs: its order on the communicator's stream. Raises if another rank does something else;
  // `detail` is what must be the same beside shape and dtype.
  sanitizer::Order enter(const char* name, int device, const std::vector<std::vector<at::Tensor>>& lists,
                         CollectiveUse use, const std::string& detail);
  // By a rank that has waited for long: whether two groups wait for each other.
  static void look_for_cycles();

 private:
  struct Note {
    std::string who, what, where;
    uint64_t turn = 0;  // of the process, over all groups
  };
  std::string key(uint64_t number, int rank) const;
  bool read(uint64_t number, int rank, Note& note);
  void compare(uint64_t number, const Note& own, sanitizer::StackId stack);
  bool inverted(Agreement& other, int rank, const std::string& who);
  bool has(const std::string& who);  // whether that process is in the group
  void look_at(Agreement& behind, sanitizer::StackId stack);
  void look_back(Agreement& before, sanitizer::StackId stack);
  void tell(const std::string& text, sanitizer::StackId stack);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::string group_;
  const int communicator_;
  std::vector<std::string> members_;
  uint64_t number_ = 0;  // of the last collective
  Note last_;
  bool told_ = false;
};

}  // namespace softnpu::hccl
