#include "turns.h"

#include "machine.h"

namespace host {

void Runnable::clear() {
    for (std::vector<Entry>& entries : entries_) entries.clear();
    count_ = 0;
}

void Runnable::add(Thread* const thread) {
    entries_[thread->home->priority].push_back({thread, thread->rank});
    ++count_;
}

void Runnable::sort() {
    std::vector<Entry> all;
    for (const std::vector<Entry>& entries : entries_) all.insert(all.end(), entries.begin(), entries.end());
    clear();
    for (const Entry& entry : all) add(entry.thread);
}

std::size_t Runnable::highest() const {
    std::size_t at = priorities - 1;
    while (at != 0 && entries_[at].empty()) --at;
    return at;
}

Thread* Runnable::take(const std::size_t i) {
    std::vector<Entry>& entries = entries_[highest()];
    Thread* const taken = entries[i].thread;
    entries[i] = entries.back();
    entries.pop_back();
    --count_;
    return taken;
}

}  // namespace host
