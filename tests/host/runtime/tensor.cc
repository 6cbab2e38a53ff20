#include "tensor.h"

#include <algorithm>
#include <cstring>

#include "floats.h"
#include "machine.h"

namespace host {

static constexpr u32 poison = 0xf5f5f5f5;  // a NaN

static void wrong(const std::string& text, const Site site) {
    machine->wrong("tensor memory", text + " at " + name_of_site(site), site);
}

// Whether a thread with this knowledge comes after an access of another one.
static bool is_after(const Knowledge& known, const Thread* const who, const TensorAccess& access) {
    if (!machine->checks() || !access.by || (access.by == who && !access.is_product)) return true;
    const std::vector<u32>& times = access.is_product ? access.by->tensor.commits : access.by->tensor.fences;
    return times.size() > access.released && known.reads.of(access.by->agent) >= times[access.released];
}

static bool is_first_lane() { return me->lane == 0; }

// ---- Room

// Instructions of a kernel are all for one block, or all for pairs.
void Tensors::is_group(const u32 group, const Site site) {
    Block& home = *me->home;
    if (group == 2 && !home.other) wrong("an instruction of a pair, and the grid has no pairs", site);
    for (Block* const block : {&home, home.other}) {
        if (!block || (block != &home && group == 1)) continue;
        if (block->tensor.group == 0) block->tensor.group = group;
        if (block->tensor.group != group) wrong("some instructions are for one block, and others for a pair", site);
    }
}

void Tensors::take(const u32 group, void* const to, const u32 columns, const Site site) {
    if (!is_first_lane()) return;
    is_group(group, site);
    TensorBlock& t = me->home->tensor;
    if (!t.may_take) wrong("columns are taken after the permit was given up", site);
    if (columns < 32 || columns > TensorBlock::columns || (columns & (columns - 1)) != 0) {
        wrong(std::to_string(columns) + " columns are taken: a power of two from 32 to 512 is", site);
    }
    if (t.taken != 0) wrong("columns are taken twice", site);
    t.cells = std::make_unique<std::vector<TensorCell>>(TensorBlock::lanes * columns);
    for (TensorCell& cell : *t.cells) cell.bits = poison;
    // The last ones, so that who takes them for the first ones is found.
    t.first = TensorBlock::columns - columns;
    t.taken = columns;
    t.take = {me, u32(me->tensor.fences.size()), false};
    t.site = site;
    if (machine->checks()) memory.write(*me, to, 4, site);
    std::memcpy(to, &t.first, 4);
}

void Tensors::relinquish(const u32 group, const Site site) {
    if (is_first_lane()) is_group(group, site);
    me->home->tensor.may_take = false;
}

void Tensors::give(const u32 group, const u32 first, const u32 columns, const Site site) {
    if (!is_first_lane()) return;
    is_group(group, site);
    TensorBlock& t = me->home->tensor;
    if (first != t.first || columns != t.taken) {
        wrong(std::to_string(columns) + " columns from " + std::to_string(first) + " on are given back, and " +
                  std::to_string(t.taken) + " from " + std::to_string(t.first) + " on are taken", site);
    }
    const auto of_block = [&](const Queue& queue) {
        return queue.block == me->home || (group == 2 && queue.block == me->home->other);
    };
    if (std::any_of(queues_.begin(), queues_.end(), of_block)) wrong("columns are given back while products are made", site);
    const Knowledge& known = me->tensor.known;
    for (const TensorCell& cell : *t.cells) {
        if (!is_after(known, me, cell.write)) wrong("columns are given back, and nothing orders that after a product", site);
        if (!is_after(known, me, cell.read)) wrong("columns are given back, and nothing orders that after a load", site);
    }
    t.cells.reset();
    t.taken = 0;
}

TensorCell& Tensors::cell(Block& block, const u32 lane, const u32 column, const Site site) {
    static TensorCell nowhere;
    TensorBlock& t = block.tensor;
    if (lane >= TensorBlock::lanes || column - t.first >= t.taken) {
        wrong("lane " + std::to_string(lane) + " of column " + std::to_string(column) + " is not the block's", site);
        return nowhere;
    }
    return (*t.cells)[lane * t.taken + column - t.first];
}

// ---- Loads

// Shape 16x256b: register r of lane l has row l / 4 + 8 * (r / 2 % 2) and column r % 2 + 2 * (l % 4) + 8 * (r / 4).
void Tensors::load(const u32 at, float* const* const to, const u32 count, const Site site) {
    const u32 first_lane = at >> 16, first = at & 0xffff, mine = me->warp % 4 * 32;
    if (first_lane % 16 != 0 || first_lane < mine || first_lane >= mine + 32) {
        wrong("warp " + std::to_string(me->warp) + " loads lanes from " + std::to_string(first_lane) + " on, and has those from " +
                  std::to_string(mine) + " on", site);
    }
    TensorLoad load = {{to, to + count}, {}, me->tensor.known, site};
    for (u32 r = 0; r < count; ++r) {
        const u32 row = me->lane / 4 + r / 2 % 2 * 8, column = r % 2 + me->lane % 4 * 2 + r / 4 * 8;
        load.from.push_back(&cell(*me->home, first_lane + row, first + column, site));
        std::memcpy(to[r], &poison, 4);
    }
    me->tensor.loads.push_back(std::move(load));
}

void Tensors::loads_done() {
    for (TensorLoad& load : me->tensor.loads) {
        for (u32 r = 0; r < load.to.size(); ++r) {
            TensorCell& cell = *load.from[r];
            if (cell.has != TensorCell::Sum) wrong("sums are loaded that no product has made", load.site);
            if (!is_after(load.known, me, cell.write)) wrong("sums are loaded, and nothing orders that after their product", load.site);
            std::memcpy(load.to[r], &cell.bits, 4);
            cell.read = {me, u32(me->tensor.fences.size()), false};
        }
    }
    me->tensor.loads.clear();
}

// ---- Order

void Tensors::fence_before() { me->tensor.fences.push_back(me->time); }
void Tensors::fence_after() { me->tensor.known = me->knows; }

void Tensors::ask(const Step& step) {
    const auto of_block = [&](const Queue& queue) { return queue.block == me->home; };
    auto queue = std::find_if(queues_.begin(), queues_.end(), of_block);
    if (queue == queues_.end()) queue = queues_.insert(queues_.end(), Queue{me->home, {}});
    queue->steps.push_back(step);
}

void Tensors::multiply(const u32 group, const ProductKind kind, const u32 sums, const u64 a, const u64 b, const u32 word,
                       const bool add, const Site site) {
    is_group(group, site);
    const Block& home = *me->home;
    if (group == 2 && home.index % 2 != 0) wrong("the second block of a pair multiplies, and the first one does for both", site);
    if (!is_after(me->tensor.known, me, home.tensor.take) || (group == 2 && !is_after(me->tensor.known, me, home.other->tensor.take))) {
        wrong("nothing orders a product after its columns were taken", site);
    }
    Step step = {me, nullptr, kind, sums, a, b, word, add, me->tensor.known, site};
    step.group = group;
    ask(step);
}

void Tensors::multiply_scaled(const ScaledKind kind, const u32 sums, const u64 a, const u64 b, const u32 word, const u32 a_scales,
                              const u32 b_scales, const bool add, const Site site) {
    ask({me, nullptr, ProductKind::F8f6f4, sums, a, b, word, add, me->tensor.known, site, Step::Scaled, a_scales, b_scales, kind});
}

// Copies and products of one thread are done in order.
void Tensors::copy_scales(const u32 to, const u64 from, const Site site) {
    if (!is_after(me->tensor.known, me, me->home->tensor.take)) wrong("nothing orders a copy after its columns were taken", site);
    ask({me, nullptr, ProductKind::F8f6f4, to, from, 0, 0, false, me->tensor.known, site, Step::Copy});
}

// What is committed comes before what waits, as if a fence stood before.
void Tensors::commit(const u32 group, const void* const barrier, const u32 blocks, const Site site) {
    is_group(group, site);
    Step step = {me, barrier, ProductKind::F16, 0, 0, 0, 0, false, {}, site};
    step.group = group;
    step.blocks = blocks;
    ask(step);
}

// What is committed is done: an arrival at the block's barrier, or at those of a pair that have its place.
void Tensors::done(const Block& block, const Step& step) {
    step.by->tensor.commits.push_back(step.by->time);
    if (step.group == 1) return machine->boxes().committed(*step.by, step.barrier, step.site);
    const u64 at = u64(step.barrier) - u64(block.dynamic_shared);
    for (u32 number = 0; number < 2; ++number) {
        const Block& to = block.index % 2 == number ? block : *block.other;
        if (!(step.blocks >> number & 1)) continue;
        if (to.running == 0) wrong("a commit arrives at a block that has ended", step.site);
        machine->boxes().committed(*step.by, to.dynamic_shared + at, step.site);
    }
}

void Tensors::ended(const Block& block) {
    for (const Queue& queue : queues_) {
        const auto of_pair = [&](const Step& step) { return step.group == 2; };
        const bool ours = queue.block == &block || queue.block == block.other;
        if (ours && std::any_of(queue.steps.begin(), queue.steps.end(), of_pair)) {
            wrong("a block ends while products of its pair read what it has", queue.steps.front().site);
        }
    }
}

void Tensors::land(const u64 random) {
    const std::size_t i = random % queues_.size();
    Block& block = *queues_[i].block;
    const Step step = queues_[i].steps.front();
    queues_[i].steps.pop_front();
    if (queues_[i].steps.empty()) {
        std::swap(queues_[i], queues_.back());
        queues_.pop_back();
    }
    if (!step.barrier) {
        step.what == Step::Copy ? copy(block, step) : make(block, step);
        return;
    }
    done(block, step);
}

// ---- Products

namespace {

struct Operand {
    u32 count;            // elements of a row
    std::vector<float> all;  // row by row
};

float to_float(const ElementType type, const char* const p) {
    std::uint16_t half;
    switch (type) {
        case ElementType::E4m3: return fp8_to(std::uint8_t(*p));
        case ElementType::E2m1: return e2m1_to(std::uint8_t(*p));  // the first of two
        case ElementType::Bf16: std::memcpy(&half, p, 2); return bf16_to(half);
        case ElementType::Fp16: std::memcpy(&half, p, 2); return fp16_to(half);
    }
    return 0;
}

// The 32 bytes of so many rows that an instruction multiplies, in a block that has them where the thread's block has what the word names.
Operand operand(Thread& who, const char* const there, const u64 word, const u32 rows, const ElementType type, const Site site) {
    constexpr u32 bytes = 32, unit = 16;
    const OperandWord matrix = operand_word(word);
    const bool packed = type == ElementType::E2m1;
    const u32 each = type == ElementType::E4m3 || packed ? 1 : 2;
    Operand all = {packed ? 2 * bytes : bytes / each, {}};
    if (!matrix.wrong.empty()) {
        wrong(matrix.wrong, site);
        all.all.resize(rows * all.count);
        return all;
    }
    // Where in a row of the pattern they begin is part of the address.
    const u32 byte = matrix.start % matrix.row_bytes;
    const u64 begin = u64(who.home->dynamic_shared);
    u64 first = (begin & ~u64(0x3ffff)) | (matrix.start - byte);
    if (first < begin) first += 0x40000;
    first += u64(there) - begin;
    for (u32 row = 0; row < rows; ++row) {
        for (u32 at = 0; at < bytes; at += unit) {
            const auto* const p = reinterpret_cast<const char*>(matrix.at(first, row, byte + at));
            if (!memory.holds(p)) {
                wrong("an operand lies outside of shared memory", site);
                all.all.resize(rows * all.count);
                return all;
            }
            if (machine->checks()) memory.read(who, p, unit, site);
            for (u32 i = 0; i < unit; i += each) {
                all.all.push_back(to_float(type, p + i));
                if (packed) all.all.push_back(e2m1_to(std::uint8_t(p[i]) >> 4));
            }
        }
    }
    return all;
}

// Where 18 bits of an address are, in the first place from the beginning of shared memory on.
u64 in_shared(const char* const shared, const u32 address) {
    const u64 first = (u64(shared) & ~u64(0x3ffff)) | address;
    return first < u64(shared) ? first + 0x40000 : first;
}

// What the instruction's descriptor says of a product with scales.
ProductWord product_of(const ScaledKind kind, const ScaledWord& word) {
    const ElementType type = kind == ScaledKind::Mxf8f6f4 ? ElementType::E4m3 : ElementType::E2m1;
    return {word.rows, word.columns, type, type, word.wrong};
}

}  // namespace

// 32 rows of 16 bytes go to as many lanes and four columns, and again for the lanes of the other warps.
void Tensors::copy(Block& block, const Step& step) {
    const CopyWord from = copy_word(step.a);
    if (!from.wrong.empty() || step.sums >> 16 != 0) return wrong(from.wrong.empty() ? "a copy to some lanes" : from.wrong, step.site);
    Thread& by = *step.by;
    const Knowledge knows = by.knows;
    by.knows = step.known;
    for (u32 row = 0; row < 32; ++row) {
        const auto* const p = reinterpret_cast<const char*>(in_shared(block.dynamic_shared, from.row(row)));
        if (!memory.holds(p)) {
            wrong("scales lie outside of shared memory", step.site);
            break;
        }
        if (machine->checks()) memory.read(by, p, 16, step.site);
        for (u32 i = 0; i < 16; ++i) {
            TensorCell& to = cell(block, row + i / 4 * 32, step.sums + i % 4, step.site);
            if (!is_after(step.known, &by, to.read)) wrong("scales are copied, and nothing orders that after a load of sums", step.site);
            std::memcpy(&to.bits, p + i % 4 * 4, 4);
            to.has = TensorCell::Scales;
            to.write = {&by, u32(by.tensor.commits.size()), true};
        }
    }
    by.knows = knows;
}

// `each` scales of a row, one row after the other.
std::vector<float> Tensors::scales(Block& block, const Step& step, const u32 from, const u32 rows, const u32 byte, const u32 each) {
    std::vector<float> all;
    for (u32 row = 0; row < rows; ++row) {
        const ScalePlace at = scale_place(row);
        const TensorCell& first = cell(block, at.lane, from + at.column, step.site);
        for (u32 lane = at.lane; lane < TensorBlock::lanes; lane += 32) {
            const TensorCell& same = cell(block, lane, from + at.column, step.site);
            if (same.has != TensorCell::Scales) wrong("scales are read that no copy has brought", step.site);
            else if (same.bits != first.bits) wrong("scales differ between lanes of warps", step.site);
        }
        for (u32 i = 0; i < each; ++i) all.push_back(scale_of(step.scaled, first.bits, byte + i));
    }
    return all;
}

void Tensors::make(Block& block, const Step& step) {
    const bool scaled = step.what == Step::Scaled;
    const ScaledWord word = scaled_word(step.scaled, step.word);
    const ProductWord product = scaled ? product_of(step.scaled, word) : product_word(step.kind, step.word, step.group);
    if (!product.wrong.empty()) {
        wrong(product.wrong, step.site);
        return;
    }
    // Operands are read by what the thread knew when it asked, as far as a fence told the instruction.
    Thread& by = *step.by;
    const Knowledge knows = by.knows;
    by.knows = step.known;
    // Of a pair either block has half of both, at the same place.
    const auto both = [&](const u64 at, const u32 rows, const ElementType type) {
        Operand all = operand(by, block.dynamic_shared, at, rows / step.group, type, step.site);
        if (step.group == 2) {
            const Operand more = operand(by, block.other->dynamic_shared, at, rows / 2, type, step.site);
            all.all.insert(all.all.end(), more.all.begin(), more.all.end());
        }
        return all;
    };
    Operand left = both(step.a, product.rows, product.left);
    Operand right = both(step.b, product.columns, product.right);
    by.knows = knows;
    if (scaled) {
        const auto multiplied = [&](Operand& of, const std::vector<float>& by_scales) {
            const u32 block_of = of.count / word.each;
            for (std::size_t i = 0; i < of.all.size(); ++i) of.all[i] *= by_scales[i / block_of];
        };
        multiplied(left, scales(block, step, step.a_scales, product.rows, word.left_byte, word.each));
        multiplied(right, scales(block, step, step.b_scales, product.columns, word.right_byte, word.each));
    }
    const u32 first_lane = step.sums >> 16, first = step.sums & 0xffff;
    for (u32 row = 0; row < product.rows; ++row) {
        // 128 rows lie in as many lanes, the next 128 in those of a pair's other block; of 64, 16 lie in the first half of each 32 lanes.
        const u32 lane = first_lane + (product.rows >= 128 ? row % 128 : row / 16 * 32 + row % 16);
        Block& home = row < 128 ? block : *block.other;
        for (u32 column = 0; column < product.columns; ++column) {
            TensorCell& sum = cell(home, lane, first + column, step.site);
            if (step.add && sum.has != TensorCell::Sum) wrong("a product is added to sums that no product has made", step.site);
            if (!is_after(step.known, &by, sum.read)) {
                wrong("sums are made anew, and nothing orders that after a load of the old ones", step.site);
            }
            float value = 0;
            if (step.add) std::memcpy(&value, &sum.bits, 4);
            for (u32 k = 0; k < left.count; ++k) value += left.all[row * left.count + k] * right.all[column * left.count + k];
            std::memcpy(&sum.bits, &value, 4);
            sum.has = TensorCell::Sum;
            sum.write = {&by, u32(by.tensor.commits.size()), true};
        }
    }
}

// ---- Launches

std::string Tensors::left(const Block& block) const {
    const TensorBlock& t = block.tensor;
    for (const Queue& queue : queues_) {
        if (queue.block == &block) return "products are still made";
    }
    for (const Thread* thread : block.threads) {
        if (!thread->tensor.loads.empty()) return "loads are not waited for";
    }
    return t.taken == 0 ? "" : std::to_string(t.taken) + " columns are not given back, which were taken at " + name_of_site(t.site);
}

void Tensors::begin(Block& block) {
    block.tensor = {};
    for (Thread* thread : block.threads) thread->tensor = {};
}

void Tensors::clear() { queues_.clear(); }

}  // namespace host
