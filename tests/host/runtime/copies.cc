#include "copies.h"

#include <cstring>

namespace host {

void Copies::Copy::read(Actor& who) {
    if (!content.empty()) return;
    if (memory.holds(from)) memory.read(who, from, bytes, site);
    content.resize(bytes);
    std::memcpy(content.data(), from, bytes);
}

void Copies::Copy::write(Actor& who) {
    if (memory.holds(to)) memory.write(who, to, bytes, site);
    std::memcpy(to, content.data(), bytes);
}

void Copies::done(Actor& who) {
    for (Copy& copy : loads_) copy.read(who);
    for (Copy& copy : loads_) copy.write(who);
    loads_.clear();
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
