#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace host {

Memory memory;
Findings findings;
std::vector<Actor*> actors;

// Between parts: an index that is a little off lands in no buffer.
static constexpr u64 gap = 512;

Scope common_scope(const Actor& a, const Actor& b) {
    if (a.rank != b.rank) return Scope::System;
    if (a.block != b.block) return Scope::Gpu;
    return a.warp != b.warp ? Scope::Block : Scope::Warp;
}

bool Actor::within(const Scope scope, const Actor& other) const { return common_scope(*this, other) <= scope; }

bool Findings::is_new(const char* const kind, const Site site, const Site other) {
    return list_.size() < 32 && known_.insert({kind, site, other}).second;
}

void Findings::clear() {
    list_.clear();
    known_.clear();
}

std::string name_of_site(const Site site) {
    if (site == 0) return "the host";
    char text[24];
    std::snprintf(text, sizeof(text), "<@%x>", site);
    return text;
}

static void* map(const u64 bytes) {
    void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        std::perror("the ranks' memory");
        std::exit(3);
    }
    return p;
}

void Memory::reserve(const u64 bytes) {
    size_ = bytes;
    begin_ = next_ = u64(map(bytes));
    cells_ = static_cast<Cell*>(map(bytes / 4 * sizeof(Cell)));
}

char* Memory::place(const std::string& name, const u64 bytes, const u64 align, const u64 within) {
    u64 at = (next_ + align - 1) / align * align;
    if (within != 0 && at / within != (at + bytes) / within) at = (at / within + 1) * within;
    next_ = (at + bytes + gap + 15) / 16 * 16;
    if (next_ > begin_ + size_) {
        std::fprintf(stderr, "no room for %s\n", name.c_str());
        std::exit(3);
    }
    regions_[at + bytes] = {at, at + bytes, name};
    return reinterpret_cast<char*>(at);
}

void Memory::renew(char* const from, const u64 bytes, const unsigned char fill) {
    each_cell(u64(from), (bytes + 3) / 4 * 4, [&](Cell& cell, u64, u64) {
        forget_reads(cell);
        cell = {};
    });
    for (u64 i = 0; i < bytes; i += 4) cells_[(u64(from) + i - begin_) / 4] = {};
    std::memset(from, fill, bytes);
}

void Memory::renew_all() {
    madvise(cells_, size_ / 4 * sizeof(Cell), MADV_DONTNEED);
    madvise(reinterpret_cast<void*>(begin_), size_, MADV_DONTNEED);
    parts_.clear();
    read_sets_.clear();
    spare_sets_.clear();
    atomics_.clear();
}

template <typename Visit>
void Memory::each_cell(u64 at, const u64 bytes, Visit visit) {
    const u64 end = at + bytes;
    while (at < end) {
        Cell& whole = cells_[(at - begin_) / 4];
        const u64 next = at / 4 * 4 + 4;
        const bool all = at % 4 == 0 && next <= end;
        if (all && !(whole.flags & split)) {
            visit(whole, at, 4);
            at = next;
            continue;
        }
        if (!(whole.flags & split)) {
            parts_.emplace_back(4, whole);
            if (whole.flags & used && whole.reader == many) {
                for (u32 i = 1; i < 4; ++i) {
                    read_sets_.push_back(read_sets_[whole.read_time]);
                    parts_.back()[i].read_time = u32(read_sets_.size() - 1);
                }
            }
            whole.flags |= split;
            whole.read_time = u32(parts_.size() - 1);
        }
        for (; at < next && at < end; ++at) visit(parts_[whole.read_time][at % 4], at, 1);
    }
}

void Memory::touch(Actor& who, const u64 at, const u64 bytes, const bool write, const Site site) {
    each_cell(at, bytes, [&](Cell& cell, const u64 from, const u64 count) { check(who, cell, from, count, write, site); });
}

void Memory::read_written(Actor& who, const void* const p, const u64 bytes) {
    each_cell(u64(p), bytes, [&](Cell& cell, const u64 at, const u64 count) {
        const bool known = cell.flags & used;
        if (known ? cell.flags & written : !region_of(at)) check(who, cell, at, count, false, 0);
    });
}

void Memory::written_before(const void* const p, const u64 bytes) {
    each_cell(u64(p), bytes, [&](Cell& cell, u64, u64) {
        if (!(cell.flags & used)) cell.reader = cell.writer = no_agent;
        cell.flags |= used | written;
    });
}

const Region* Memory::region_of(const u64 at) const {
    const auto found = regions_.upper_bound(at);
    return found != regions_.end() && found->second.begin <= at ? &found->second : nullptr;
}

std::string Memory::where(const u64 at) const {
    char text[32];
    if (const Region* const region = region_of(at)) {
        std::snprintf(text, sizeof(text), "byte %llu of ", static_cast<unsigned long long>(at - region->begin));
        return text + region->name;
    }
    auto after = regions_.upper_bound(at);
    if (after == regions_.begin()) return "no buffer";
    const Region& before = std::prev(after)->second;
    std::snprintf(text, sizeof(text), "%llu bytes behind ", static_cast<unsigned long long>(at - before.end));
    return text + before.name;
}

bool Memory::fresh(Cell& cell, const u64 at, const u64 bytes, Actor& who, const bool write, const Site site) {
    const Region* const region = region_of(at);
    if (!region || at + bytes > region->end) {
        if (findings.is_new("out of bounds", site, 0)) {
            const char* const what = write ? " writes " : " reads ";
            findings.add("out of bounds", name_of_agent(who.agent) + what + where(at) + " at " + name_of_site(site));
        }
        end_run();
        return false;
    }
    cell = {};
    cell.flags = used;
    cell.writer = cell.reader = no_agent;
    return true;
}

void Memory::race(const char* const mine, Actor& who, const Site site, const char* const theirs, const u32 other,
                  const Site other_site, const u64 at, const char* const note) {
    if (!findings.is_new("race", site, other_site)) return;
    findings.add("race", name_of_agent(who.agent) + " " + mine + " " + where(at) + " at " + name_of_site(site) +
                             ", not ordered after " + name_of_agent(other) + ", which " + theirs + " it at " +
                             name_of_site(other_site) + note);
}

void Memory::check(Actor& who, Cell& cell, const u64 at, const u64 bytes, const bool write, const Site site) {
    if (!(cell.flags & used) && !fresh(cell, at, bytes, who, write, site)) return;
    if (cell.flags & is_atomic) check_atomics(who, at, write, site);
    const bool others = cell.flags & written && cell.writer != no_agent && cell.writer != who.agent;
    if (others && cell.write_time > who.knows.writes.of(cell.writer)) {
        race(write ? "writes" : "reads", who, site, "wrote", cell.writer, cell.write_site, at);
    }
    if (write) {
        check_reads(who, cell, at, site);
        forget_reads(cell);
        cell.flags |= written;
        cell.writer = static_cast<unsigned short>(who.agent);
        cell.write_time = who.time;
        cell.write_site = site;
        return;
    }
    if (!(cell.flags & written)) unwritten(who, at, site);
    note_read(who, cell, site);
}

void Memory::unwritten(Actor& who, const u64 at, const Site site) {
    if (findings.is_new("uninitialised", site, 0)) {
        findings.add("uninitialised", name_of_agent(who.agent) + " reads " + where(at) + " at " + name_of_site(site) +
                                          ", which was never written");
    }
    end_run();
}

void Memory::check_reads(Actor& who, const Cell& cell, const u64 at, const Site site) {
    const auto check_one = [&](const u32 reader, const u32 time) {
        if (reader != who.agent && time > who.knows.reads.of(reader)) {
            race("writes", who, site, "read", reader, cell.read_site, at);
            return true;
        }
        return false;
    };
    if (cell.reader == no_agent) return;
    if (cell.reader != many) {
        check_one(cell.reader, cell.read_time);
        return;
    }
    for (const Read& read : read_sets_[cell.read_time]) {
        if (check_one(read.agent, read.time)) return;
    }
}

void Memory::add_read(Reads& reads, const Read read) {
    if (!reads.empty() && reads.back().agent == read.agent) {
        reads.back().time = read.time;
        return;
    }
    reads.push_back(read);
    if (reads.size() < 2 * agents) return;
    // The last time of each will do.
    std::sort(reads.begin(), reads.end());
    const auto same = [](const Read& a, const Read& b) { return a.agent == b.agent; };
    reads.erase(std::unique(reads.begin(), reads.end(), same), reads.end());
}

void Memory::note_read(Actor& who, Cell& cell, const Site site) {
    cell.read_site = site;
    if (cell.reader == many) {
        add_read(read_sets_[cell.read_time], {who.agent, who.time});
        return;
    }
    const bool alone = cell.reader == no_agent || cell.reader == who.agent ||
                       cell.read_time <= who.knows.reads.of(cell.reader);
    if (alone) {
        cell.reader = static_cast<unsigned short>(who.agent);
        cell.read_time = who.time;
        return;
    }
    u32 set;
    if (spare_sets_.empty()) {
        set = u32(read_sets_.size());
        read_sets_.emplace_back();
    } else {
        set = spare_sets_.back();
        spare_sets_.pop_back();
        read_sets_[set].clear();
    }
    add_read(read_sets_[set], {cell.reader, cell.read_time});
    add_read(read_sets_[set], {who.agent, who.time});
    cell.reader = many;
    cell.read_time = set;
}

void Memory::forget_reads(Cell& cell) {
    if (cell.flags & used && cell.reader == many) spare_sets_.push_back(cell.read_time);
    cell.reader = no_agent;
}

static bool is_before(const Reader& reader, const u32 agent) { return reader.agent < agent; }

Reader& AtomicVar::reader(const u32 agent) {
    const auto at = std::lower_bound(readers.begin(), readers.end(), agent, is_before);
    if (at != readers.end() && at->agent == agent) return *at;
    return *readers.insert(at, Reader{agent});
}

u32 AtomicVar::update_by(const u32 agent) const {
    const auto at = std::lower_bound(readers.begin(), readers.end(), agent, is_before);
    return at != readers.end() && at->agent == agent ? at->update : 0;
}

void Memory::check_atomics(Actor& who, const u64 at, const bool write, const Site site) {
    const auto found = atomics_.find(at / 4 * 4);
    if (found == atomics_.end()) return;
    AtomicVar& var = found->second;
    // Accesses before this thread's own last update are ordered before it by the variable itself.
    const u32 own = var.update_by(who.agent);
    if (var.writer && var.writer != &who && var.write_number > own && var.write_time > who.knows.writes.of(var.writer->agent)) {
        race(write ? "writes" : "reads", who, site, "atomically wrote", var.writer->agent, var.write_site, at);
    }
    if (!write) return;
    var.released = {};
    for (const Reader& reader : var.readers) {
        if (reader.agent != who.agent && reader.number > own && reader.time > who.knows.reads.of(reader.agent)) {
            race("writes", who, site, "atomically read", reader.agent, var.read_site, at);
            return;
        }
    }
}

AtomicVar& Memory::atomic(Actor& who, const void* const p, const u32 bytes, const Access access, const Scope scope,
                          const Site site) {
    const bool writes = access != Access::Load;
    each_cell(u64(p), bytes, [&](Cell& cell, const u64 at, const u64 count) {
        if (!(cell.flags & used) && !fresh(cell, at, count, who, writes, site)) return;
        const bool others = cell.flags & written && cell.writer != no_agent && cell.writer != who.agent;
        if (others && cell.write_time > who.knows.writes.of(cell.writer)) {
            race(writes ? "atomically writes" : "atomically reads", who, site, "wrote", cell.writer, cell.write_site, at);
        }
        if (writes) check_reads(who, cell, at, site);
        if (access != Access::Store && !(cell.flags & written)) unwritten(who, at, site);
        cell.flags |= is_atomic | (writes ? u32(written) : 0);
    });
    AtomicVar& var = atomics_[u64(p) / 4 * 4];
    const auto apart = [&](const Actor& other, const Scope theirs) {
        return !who.within(scope, other) || !who.within(theirs, other);
    };
    constexpr const char* narrow = "; the scope of one of them does not hold both";
    if (var.writer && var.writer != &who && apart(*var.writer, var.write_scope) &&
        var.write_time > who.knows.writes.of(var.writer->agent)) {
        race(writes ? "atomically writes" : "atomically reads", who, site, "atomically wrote", var.writer->agent,
             var.write_site, u64(p), narrow);
    }
    if (writes) {
        for (const Reader& reader : var.readers) {
            if (reader.agent != who.agent && reader.time > who.knows.reads.of(reader.agent) &&
                apart(*actors[reader.agent], reader.scope)) {
                race("atomically writes", who, site, "atomically read", reader.agent, var.read_site, u64(p), narrow);
                break;
            }
        }
    }
    ++var.accesses;
    if (access != Access::Store) {
        Reader& own = var.reader(who.agent);
        own = {who.agent, who.time, scope, var.accesses, access == Access::Update ? var.accesses : own.update};
        var.read_site = site;
    }
    if (writes) {
        var.write_number = var.accesses;
        var.writer = &who;
        var.write_time = who.time;
        var.write_scope = scope;
        var.write_site = site;
    }
    return var;
}

}  // namespace host
