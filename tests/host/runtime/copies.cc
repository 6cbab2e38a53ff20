#include "copies.h"

#include <cstring>

namespace host {

void Copies::Copy::read(Actor& who) {
    if (!content.empty()) return;
    if (bytes > 0 && memory.holds(from)) memory.read(who, from, bytes, site);
    content.resize(room);
    std::memcpy(content.data(), from, bytes);
}

void Copies::Copy::write(Actor& who) {
    if (memory.holds(to)) memory.write(who, to, room, site);
    std::memcpy(to, content.data(), room);
}

void Copies::finish(Actor& who, std::vector<Copy>& copies) {
    for (Copy& copy : copies) copy.read(who);
    for (Copy& copy : copies) copy.write(who);
    copies.clear();
}

void Copies::group() {
    groups_.push_back(std::move(loads_));
    loads_.clear();
}

void Copies::done_but(Actor& who, const u32 most) {
    while (groups_.size() > most) {
        finish(who, groups_.front());
        groups_.pop_front();
    }
}

void Copies::done(Actor& who) {
    done_but(who, 0);
    finish(who, loads_);
}

bool Copies::waited_for() const {
    for (const std::vector<Copy>& group : groups_) {
        if (!group.empty()) return false;
    }
    return loads_.empty() && open_.empty() && committed_.empty();
}

void Copies::commit() {
    committed_.insert(committed_.end(), open_.begin(), open_.end());
    open_.clear();
}

void Copies::read(Actor& who) {
    for (Copy& copy : committed_) copy.read(who);
}

void Copies::written(Actor& who) {
    read(who);
    for (Copy& copy : committed_) copy.write(who);
    committed_.clear();
}

}  // namespace host
