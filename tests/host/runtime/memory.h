// The memory of all ranks, and for every byte of it who touched it last: what finds races, reads of what was never written,
// and accesses outside buffers. The compiler's ThreadSanitizer instrumentation calls in for each access.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "host.h"
#include "order.h"

namespace host {

// Where code is; 0 for the host.
using Site = u32;

// Who touches memory: an agent, and where it runs.
struct Actor : Knower {
    u32 rank = 0;
    u32 block = ~0u;  // none for a host
    u32 warp = ~0u;
    bool within(Scope scope, const Actor& other) const;
};

// The narrowest scope that holds both.
Scope common_scope(const Actor& a, const Actor& b);

// Things that are wrong, each kind at each pair of places once.
class Findings {
  public:
    // Whether it is the first of its kind there, and worth its words.
    bool is_new(const char* kind, Site site, Site other);
    void add(const char* kind, const std::string& text) { list_.push_back(std::string(kind) + ": " + text); }
    bool any() const { return !list_.empty(); }
    const std::vector<std::string>& list() const { return list_; }
    void clear();

  private:
    std::vector<std::string> list_;
    std::set<std::tuple<const char*, Site, Site>> known_;
};
extern Findings findings;

// A part of the memory that has a name.
struct Region {
    u64 begin, end;
    std::string name;
};

// What an atomic variable's last release passes on.
struct Released {
    Knowledge knows;
    Scope scope = Scope::System;
    Actor* by = nullptr;
};

struct Reader {
    u32 agent;
    u32 time = 0;
    Scope scope = Scope::System;
    u32 number = 0;  // of its last access to the variable
    u32 update = 0;  // of its last update
};

struct AtomicVar {
    Released released;
    Actor* writer = nullptr;
    u32 write_time = 0;
    u32 write_number = 0;
    Scope write_scope = Scope::System;
    Site write_site = 0;
    Site read_site = 0;
    u32 accesses = 0;
    std::vector<Reader> readers;  // of the agents that read it, in their order

    // What an agent read, as nothing where it did not.
    Reader& reader(u32 agent);
    // The number of an agent's last update.
    u32 update_by(u32 agent) const;
};

class Memory {
  public:
    // Reserves room; `place` gives parts of it away, with a gap after each: in one of the parts that are `within` bytes long, if that
    // is not 0.
    void reserve(u64 bytes);
    char* place(const std::string& name, u64 bytes, u64 align = 16, u64 within = 0);
    // Forgets everything about a part, and fills it.
    void renew(char* from, u64 bytes, unsigned char fill);
    // Forgets everything.
    void renew_all();

    bool holds(const void* p) const { return u64(p) - begin_ < size_; }
    void read(Actor& who, const void* p, u64 bytes, Site site) { touch(who, u64(p), bytes, false, site); }
    void write(Actor& who, const void* p, u64 bytes, Site site) { touch(who, u64(p), bytes, true, site); }
    // A read of those bytes that somebody wrote.
    void read_written(Actor& who, const void* p, u64 bytes);
    // Content that was there before everything.
    void written_before(const void* p, u64 bytes);
    // Checks an atomic access; the variable is the caller's to update.
    AtomicVar& atomic(Actor& who, const void* p, u32 bytes, Access access, Scope scope, Site site);

  private:
    struct Cell {
        u32 write_time;
        u32 read_time;  // or which of `read_sets_`
        unsigned short writer;
        unsigned short reader;
        Site write_site;
        Site read_site;
        u32 flags;
    };
    // Who read a cell, and when. Few agents do, of thousands; one that does so twice may stand there twice.
    struct Read {
        u32 agent, time;
        bool operator<(const Read& other) const {
            return agent != other.agent ? agent < other.agent : other.time < time;
        }
    };
    using Reads = std::vector<Read>;
    static constexpr unsigned short no_agent = 0xffff, many = 0xfffe;
    enum : u32 { used = 1, written = 2, is_atomic = 4, split = 8 };

    u64 begin_ = 0, size_ = 0, next_ = 0;
    Cell* cells_ = nullptr;  // one for each 4 bytes
    std::vector<std::vector<Cell>> parts_;  // of cells whose bytes differ
    std::vector<Reads> read_sets_;
    std::vector<u32> spare_sets_;
    std::map<u64, Region> regions_;  // by end
    std::unordered_map<u64, AtomicVar> atomics_;

    void touch(Actor& who, u64 at, u64 bytes, bool write, Site site);
    template <typename Visit>
    void each_cell(u64 at, u64 bytes, Visit visit);
    void check(Actor& who, Cell& cell, u64 at, u64 bytes, bool write, Site site);
    bool fresh(Cell& cell, u64 at, u64 bytes, Actor& who, bool write, Site site);
    void check_atomics(Actor& who, u64 at, bool write, Site site);  // and ends what a store ends
    void check_reads(Actor& who, const Cell& cell, u64 at, Site site);
    void unwritten(Actor& who, u64 at, Site site);
    void note_read(Actor& who, Cell& cell, Site site);
    static void add_read(Reads& reads, Read read);
    void forget_reads(Cell& cell);
    const Region* region_of(u64 at) const;
    std::string where(u64 at) const;
    void race(const char* mine, Actor& who, Site site, const char* theirs, u32 other, Site other_site, u64 at,
              const char* note = "");
};

extern Memory memory;
extern std::vector<Actor*> actors;  // by agent

// Ends the run when a thread has read what means nothing: who knows what it does with it.
void end_run();

// What an agent is called in findings.
std::string name_of_agent(u32 agent);
std::string name_of_site(Site site);

}  // namespace host
