// Tensor memory of blocks, and the products that are made in it while threads go on. A product is made at a random time after it was
// asked for, in the order of the block's instructions, so that a thread which does not wait finds what was there before. What orders
// an access after another one of another thread is written down in PTX ISA 9.0, 9.7.16.6: a fence before and a fence after what the
// threads meet by, and a commit for what no thread does itself.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "memory.h"
#include "scales.h"
#include "words.h"

namespace host {

struct Thread;
struct Block;

// An access that other threads' accesses come after: by whom, and how many fences or commits that thread had made before.
struct TensorAccess {
    Thread* by = nullptr;
    u32 released = 0;
    bool is_product = false;
};

struct TensorCell {
    u32 bits = 0;
    enum { Nothing, Sum, Scales } has = Nothing;
    TensorAccess write, read;
};

struct TensorLoad {
    std::vector<float*> to;
    std::vector<TensorCell*> from;
    Knowledge known;  // when it was asked for
    Site site;
};

// A thread's own side.
struct TensorThread {
    std::vector<u32> fences, commits;  // when they were
    Knowledge known;                   // of others, by the last fence after
    std::vector<TensorLoad> loads;     // that it has not waited for
};

// What a block has.
struct TensorBlock {
    static constexpr u32 lanes = 128, columns = 512;
    std::unique_ptr<std::vector<TensorCell>> cells;  // lane by lane
    u32 first = 0, taken = 0;                        // columns
    bool may_take = true;
    u32 group = 0;  // blocks that instructions are for
    TensorAccess take;
    Site site = 0;
};

class Tensors {
  public:
    // By a warp.
    void take(u32 group, void* to, u32 columns, Site site);
    void relinquish(u32 group, Site site);
    void give(u32 group, u32 first, u32 columns, Site site);
    void load(u32 at, float* const* to, u32 count, Site site);
    void loads_done();
    // By a thread.
    void multiply(u32 group, ProductKind kind, u32 sums, u64 a, u64 b, u32 word, bool add, Site site);
    void multiply_scaled(ScaledKind kind, u32 sums, u64 a, u64 b, u32 word, u32 a_scales, u32 b_scales, bool add, Site site);
    void copy_scales(u32 to, u64 from, Site site);
    // Of a pair, at the barriers of the blocks that a mask names.
    void commit(u32 group, const void* barrier, u32 blocks, Site site);
    void fence_before();
    void fence_after();

    bool on_their_way() const { return !queues_.empty(); }
    // The first one of a block is made.
    void land(u64 random);
    // All threads of a block have ended: its memory is another's.
    void ended(const Block& block);
    // What a block has not given back, or not waited for; nothing if all is well.
    std::string left(const Block& block) const;
    // A launch begins: nothing is there.
    void begin(Block& block);
    void clear();

  private:
    struct Step {
        Thread* by;
        const void* barrier;  // of a commit; none of a product
        ProductKind kind;
        u32 sums;
        u64 a, b;
        u32 word;
        bool add;
        Knowledge known;
        Site site;
        enum { Product, Scaled, Copy } what = Product;  // a copy: `a` to `sums`
        u32 a_scales = 0, b_scales = 0;
        ScaledKind scaled = ScaledKind::Mxf8f6f4;
        u32 group = 1, blocks = 0;
    };
    struct Queue {
        Block* block;
        std::deque<Step> steps;
    };
    std::vector<Queue> queues_;

    void is_group(u32 group, Site site);
    void ask(const Step& step);
    void done(const Block& block, const Step& step);
    void make(Block& block, const Step& step);
    void copy(Block& block, const Step& step);
    std::vector<float> scales(Block& block, const Step& step, u32 from, u32 rows, u32 byte, u32 each);
    TensorCell& cell(Block& block, u32 lane, u32 column, Site site);
};

}  // namespace host
