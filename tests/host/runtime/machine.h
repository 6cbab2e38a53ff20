// The machine: ranks with their programs, blocks, warps, and a fiber for every GPU thread, all on one OS thread. A seed
// decides who goes next.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "alone.h"
#include "boxes.h"
#include "cards.h"
#include "copies.h"
#include "products.h"
#include "tensor.h"
#include "turns.h"
#include "fiber.h"
#include "host.h"
#include "memory.h"

namespace host {

// What the lanes of a warp meet for.
enum class Meeting { None, Shuffle, Exchange, Ballot, Sync, WaveBarrier, Fence };

struct Block;

struct Thread : Actor {
    Fiber fiber;
    Block* home = nullptr;
    u32 in_block = 0, lane = 0;
    const char* waits = nullptr;  // what it waits for, in words
    Site site = 0;                // where

    // What it brings to a meeting, and takes from it.
    Meeting meeting = Meeting::None;
    u64 brings = 0;
    u32 asks = 0;
    u64 takes = 0;

    // What a fence released, for the atomics and barriers after it; what relaxed atomics and barriers saw, for the
    // acquiring fence after them, by the narrowest scope that holds both sides.
    Released fenced;
    Knowledge seen[4];

    // What it has had copied and has not waited for.
    Copies copies;
    Products products;
    TensorThread tensor;
    bool met_pair = false;  // it has arrived, and does not wait yet

    // The last atomic load: the same again is a poll.
    const void* polled = nullptr;
    u128 polled_value = 0;
    u32 free_polls = 0;
};

struct Barrier {
    std::vector<Thread*> arrived;
    u32 expected = 0;
};

struct Warp {
    std::vector<Thread*> lanes;
    u32 arrived = 0;
    std::vector<u64> exchanged;  // what the lanes brought to their last exchange
};

struct Block {
    u32 index = 0;
    u32 priority = 0;  // below `Runnable::priorities`; 0 but under an adversarial seed
    std::vector<Thread*> threads;
    std::vector<Warp> warps;
    Barrier barriers[16];
    Barrier plain;  // AMD's
    char* dynamic_shared = nullptr;
    char* static_shared = nullptr;
    TensorBlock tensor;
    Block* other = nullptr;       // of its pair, if the grid has pairs
    u32 running = 0;              // threads that have not ended
    std::vector<Thread*> in_pair; // threads of both that wait for all: the first block's
};

// ---- What is to be run

struct Buffer {
    std::string name;
    u64 bytes = 0;
    int fill = -1;  // the byte that it is filled with, if kernels may read it
    u64 in_file = 0;  // where it is in the file of an engine, plus one; 0 of what is in none
    std::vector<char*> of_rank;
};

struct Field {
    enum Kind : u32 { Local, Symmetric, Value, Rank, Everyone, Map, Node } kind;  // Map: `value` is rows, columns, a box's rows and an element's bytes
    u32 offset;
    u32 buffer;
    std::string value;
};

struct Launch {
    const Kernel* kernel;
    u32 grid, threads, shared_bytes;
    u32 near;  // ranks of a node
    std::vector<Field> fields;
};

struct Step {
    enum Kind : u32 { Write, Read, Run } kind;
    u32 what;  // buffer or launch
    u64 offset, bytes;
    std::string content;
};

struct Job {
    u32 warp_size = 32, ranks = 0;
    bool checks = true, warp_vouches = false;
    std::vector<u64> seeds;
    std::vector<Buffer> buffers;
    std::vector<Launch> launches;
    std::vector<std::vector<Step>> programs;
    FarJob far;
    u64 file_bytes = 0;
    Alone alone;
};

// ---- Running it

// Memory of an argument struct, aligned as its members may ask for.
struct alignas(128) ArgsLine {
    char bytes[128];
};

struct Rank {
    Actor host;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<ArgsLine> args;
    const Launch* launch = nullptr;
    u32 running = 0;
    std::size_t step = 0;
    u32 pace = 1;  // goes once where others go so often
};

class Machine {
  public:
    explicit Machine(Job& job);
    // Runs the programs under one schedule.
    void run(u64 seed);
    // What the programs' reads have read, one after the other.
    const std::string& read_by(u32 rank) const { return read_[rank]; }

    // For the thread that runs.
    u64 meet(Meeting meeting, u64 brings, u32 asks, Site site);
    bool meet_at(u32 number, u32 threads, bool mine, Site site);
    void meet_block(Site site);
    void arrive_in_pair(Site site);
    void meet_pair(Site site);
    u64 in_pair(const void* here, u32 number, Site site);
    void is_in_pair(u64 at, Site site);
    void fence(Order order, Scope scope, Site site);
    void atomic(const void* p, u32 bytes, Access access, Order order, Scope scope, Site site);
    u64 now() const { return job_.alone ? system_ns() : now_; }
    u32 world_ranks() const { return job_.ranks; }
    void* instance(const void* everyone, u32 rank) const;
    const void* arguments() const;
    bool checks() const { return job_.checks; }
    [[noreturn]] void end_thread();
    void end_run();
    Boxes& boxes() { return boxes_; }
    Tensors& tensors() { return tensors_; }
    Cards& cards() { return cards_; }
    // What a card loads and stores of the words that it shares with kernels, in order.
    u64 card_load(Actor& card, const u64* p);
    void card_store(Actor& card, u64* p, u64 value);
    // Sleeps until somebody wakes it.
    void block(const char* waits, Site site);
    void wake(Thread* thread);
    void wrong(const char* kind, const std::string& text, Site site);

  private:
    Job& job_;
    std::vector<Rank> ranks_;
    Random random_;
    u64 seed_ = 0;
    Runnable runnable_;
    std::vector<u32> ready_;  // ranks whose program can go on
    std::unordered_map<const void*, std::vector<Thread*>> parked_;
    std::vector<std::string> read_;
    Boxes boxes_;
    Tensors tensors_;
    Cards cards_;
    Fiber scheduler_;
    u64 now_ = 0, turns_ = 0;
    u32 stalls_ = 0;
    u64 last_turn_ = 0;
    bool over_ = false;

    bool is_aborted() const;
    void place_memory();
    void begin(u64 seed);
    void host_step(u32 rank);
    void start(u32 rank, const Launch& launch);
    void finish(u32 rank);
    void starve();
    Thread* pick();
    bool stall();
    void deadlock();
    void give_turn();
    bool is_status(const void* p) const;
    void poll(const void* p, u32 bytes, Site site);
    void complete(Warp& warp);
    void complete(Block& first);
    void released_by(Thread& thread, Order order, Scope scope);
    void take_seen(Thread& thread, Scope scope);
};

extern Machine* machine;
extern Thread* me;

}  // namespace host
