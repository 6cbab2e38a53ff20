#include "machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace host {

Machine* machine = nullptr;
Thread* me = nullptr;

static u32 static_shared_bytes = 0;
static constexpr u64 stall_ns = 1'000'000;
static constexpr u32 most_stalls = 24;  // more than any wait's budget
static constexpr u64 most_turns = 16'000'000;  // a wait of 64 lanes that gives up takes more than 4'000'000
static constexpr u64 turns_after_finding = 10'000;
static constexpr u32 named_barriers = 16;
static constexpr u64 descriptor_bytes = 1 << 18;  // descriptors of matrices have so many bytes' addresses
static constexpr u64 adversarial = u64(1) << 32;  // seeds from here on starve a part of the machine
static constexpr unsigned char poison = 0xf5;  // a NaN, and no index

u32 place_shared(const u32 bytes, const u32 align) {
    const u32 at = (static_shared_bytes + align - 1) / align * align;
    static_shared_bytes = at + bytes;
    return at;
}

std::string name_of_agent(const u32 agent) {
    const Actor& a = *actors[agent];
    u32 served;
    if (machine && machine->cards().is_card(agent, served)) return "the card of rank " + std::to_string(served);
    std::string name = "rank " + std::to_string(a.rank);
    if (a.block == ~0u) return "the host of " + name;
    const auto& t = static_cast<const Thread&>(a);
    return name + " block " + std::to_string(t.block) + " thread " + std::to_string(t.in_block);
}

// ---- Set-up

Machine::Machine(Job& job) : job_(job), ranks_(job.ranks) {
    u32 most = 0;
    for (const Launch& l : job.launches) most = std::max(most, l.grid * l.threads);
    const u32 before_cards = job.ranks * (1 + most);
    const bool has_cards = job.far.log_slots != 0 && !job.alone;
    agents = before_cards + (has_cards ? job.ranks : 0);
    if (agents >= 0xfffe) {
        std::fprintf(stderr, "%u threads are more than can be told apart\n", agents);
        std::exit(3);
    }
    warp_vouches = job.warp_vouches;
    actors.resize(agents);
    for (u32 r = 0; r < job.ranks; ++r) {
        Rank& rank = ranks_[r];
        actors[r] = &rank.host;
        for (u32 i = 0; i < most; ++i) {
            rank.threads.push_back(std::make_unique<Thread>());
            actors[job.ranks + r * most + i] = rank.threads.back().get();
        }
    }
    place_memory();
    std::vector<std::vector<char*>> buffers;
    for (const Buffer& b : job.buffers) buffers.push_back(b.of_rank);
    if (has_cards) cards_.place(job.far, job.ranks, before_cards, buffers);
}

void Machine::place_memory() {
    u32 blocks = 0, shared = 0;
    for (const Launch& l : job_.launches) {
        blocks = std::max(blocks, l.grid);
        shared = std::max(shared, l.shared_bytes);
    }
    u64 bytes = 1 << 20;
    for (const Buffer& b : job_.buffers) bytes += job_.ranks * (b.bytes + 1024);
    // Shared memory of a block may have to leave out as much as it has.
    bytes += u64(job_.ranks) * blocks * (static_shared_bytes + 2 * u64(shared) + 2048);
    memory.reserve((bytes + 4095) / 4096 * 4096);
    for (u32 r = 0; r < job_.ranks; ++r) {
        const std::string of_rank = " of rank " + std::to_string(r);
        for (Buffer& b : job_.buffers) {
            char* const file = job_.alone.of(r);
            b.of_rank.push_back(file && b.in_file != 0 ? file + b.in_file - 1
                                       : memory.place("`" + b.name + "`" + of_rank, b.bytes));
        }
        for (u32 i = 0; i < blocks; ++i) {
            const std::string of_block = " of block " + std::to_string(i) + of_rank;
            ranks_[r].blocks.push_back(std::make_unique<Block>());
            Block& block = *ranks_[r].blocks.back();
            block.index = i;
            block.dynamic_shared = memory.place("dynamic shared memory" + of_block, shared, 1024, descriptor_bytes);
            block.static_shared = memory.place("shared variables" + of_block, static_shared_bytes);
        }
    }
}

void Machine::begin(const u64 seed) {
    random_.seed(seed);
    seed_ = seed;
    memory.renew_all();
    findings.clear();
    runnable_.clear();
    ready_.clear();
    parked_.clear();
    boxes_.clear();
    tensors_.clear();
    if (job_.far.log_slots != 0 && !job_.alone) cards_.begin(seed);
    read_.assign(job_.ranks, {});
    now_ = turns_ = last_turn_ = 0;
    stalls_ = 0;
    over_ = false;
    for (u32 agent = 0; agent < agents; ++agent) {
        Actor& a = *actors[agent];
        a.agent = agent;
        a.time = 1;
        a.done_time = 0;
        a.knows = {};
    }
    for (u32 r = 0; r < job_.ranks; ++r) {
        Rank& rank = ranks_[r];
        rank.host.rank = r;
        rank.step = 0;
        rank.running = 0;
        rank.pace = seed % 2 == 0 ? 1 : 1 + u32(random_() % 64);
        for (const auto& block : rank.blocks) block->priority = 0;
        if (job_.alone && !job_.alone.is(r)) continue;
        ready_.push_back(r);
        for (Buffer& b : job_.buffers) {
            // What peers put may be there already.
            if (job_.alone && b.in_file != 0) continue;
            std::memset(b.of_rank[r], b.fill >= 0 ? b.fill : poison, b.bytes);
            if (b.fill >= 0) memory.written_before(b.of_rank[r], b.bytes);
        }
    }
}

// ---- Hosts

void Machine::host_step(const u32 r) {
    Rank& rank = ranks_[r];
    if (rank.step == job_.programs[r].size()) return;
    const Step& step = job_.programs[r][rank.step++];
    char* const at = step.kind == Step::Run ? nullptr : job_.buffers[step.what].of_rank[r] + step.offset;
    switch (step.kind) {
        case Step::Write:
            std::memcpy(at, step.content.data(), step.content.size());
            if (job_.checks) memory.write(rank.host, at, step.content.size(), 0);
            break;
        case Step::Read:
            if (job_.checks) memory.read(rank.host, at, step.bytes, 0);
            read_[r].append(at, step.bytes);
            break;
        case Step::Run:
            if (job_.alone && is_aborted()) break;
            if (job_.alone && random_() % 8 == 0) rest(random_() % 500'000);
            start(r, job_.launches[step.what]);
            return;
    }
    ready_.push_back(r);
}

// What hosts look at between launches: the first word of a status record, which is the first buffer.
bool Machine::is_aborted() const {
    u32 aborted;
    std::memcpy(&aborted, job_.buffers[0].of_rank[job_.alone.rank], sizeof(aborted));
    return aborted != 0;
}

// The arguments of the launch that the running thread is of.
const void* Machine::arguments() const { return ranks_[me->rank].args.data(); }

void* Machine::instance(const void* const everyone, const u32 rank) const {
    const auto at = static_cast<const char*>(everyone);
    for (const Buffer& b : job_.buffers) {
        const char* const first = b.of_rank[0];
        if (at >= first && at < first + b.bytes) return b.of_rank[rank] + (at - first);
    }
    return nullptr;  // which no thread may touch
}

static void run_thread() {
    const Rank& rank = *reinterpret_cast<Rank*>(me->brings);
    rank.launch->kernel->run(rank.args.data());
    machine->end_thread();
}

void Machine::start(const u32 r, const Launch& launch) {
    Rank& rank = ranks_[r];
    rank.launch = &launch;
    rank.args.assign((launch.kernel->args_bytes + sizeof(ArgsLine) - 1) / sizeof(ArgsLine), {});
    const auto put = [&](u32 offset, const void* from, std::size_t bytes) {
        std::memcpy(rank.args.data()->bytes + offset, from, bytes);
    };
    const u32 node = r / launch.near, number = r % launch.near, first = r - number;
    for (const Field& f : launch.fields) {
        switch (f.kind) {
            case Field::Local: put(f.offset, &job_.buffers[f.buffer].of_rank[r], 8); break;
            case Field::Symmetric: put(f.offset, job_.buffers[f.buffer].of_rank.data() + first, 8 * launch.near); break;
            case Field::Value: put(f.offset, f.value.data(), f.value.size()); break;
            case Field::Rank: put(f.offset, &number, 4); break;
            case Field::Node: put(f.offset, &node, 4); break;
            // The first instance stands for all: see instance().
            case Field::Everyone: put(f.offset, &job_.buffers[f.buffer].of_rank[0], 8); break;
            case Field::Map:
                put(f.offset, &job_.buffers[f.buffer].of_rank[r], 8);
                put(f.offset + 8, f.value.data(), f.value.size());
                break;
        }
    }
    const Knowledge before = Knowledge::all(rank.host.told().reads);
    rank.host.tick();
    rank.running = launch.grid * launch.threads;
    for (u32 b = 0; b < launch.grid; ++b) {
        Block& block = *rank.blocks[b];
        memory.renew(block.dynamic_shared, launch.shared_bytes, poison);
        memory.renew(block.static_shared, static_shared_bytes, poison);
        block.other = launch.grid % 2 == 0 ? rank.blocks[b ^ 1].get() : nullptr;
        block.running = launch.threads;
        block.in_pair.clear();
        block.threads.clear();
        block.warps.assign((launch.threads + job_.warp_size - 1) / job_.warp_size, {});
        for (Barrier& barrier : block.barriers) barrier = {};
        block.plain = {};
        for (u32 i = 0; i < launch.threads; ++i) {
            Thread& t = *rank.threads[b * launch.threads + i];
            t.rank = r;
            t.block = b;
            t.warp = i / job_.warp_size;
            t.home = &block;
            t.in_block = i;
            t.lane = i % job_.warp_size;
            t.knows = before;
            t.waits = nullptr;
            t.meeting = Meeting::None;
            t.fenced = {};
            for (Knowledge& seen : t.seen) seen = {};
            t.polled = nullptr;
            t.free_polls = 0;
            t.brings = reinterpret_cast<u64>(&rank);
            t.fiber.start(run_thread);
            block.threads.push_back(&t);
            block.warps[t.warp].lanes.push_back(&t);
            runnable_.add(&t);
        }
        tensors_.begin(block);
    }
}

void Machine::finish(const u32 r) {
    Rank& rank = ranks_[r];
    if (job_.checks) {
        std::vector<const Thread*> all;
        const u32 count = rank.launch->grid * rank.launch->threads;
        for (u32 i = 0; i < count; ++i) all.push_back(rank.threads[i].get());
        rank.host.knows.join(Knowledge::all(Knower::gather(all).reads));
        for (u32 i = 0; i < count; ++i) rank.threads[i]->tick();
    }
    if (boxes_.on_their_way_to(r)) findings.add("copies", "rank " + std::to_string(r) + " ends before its boxes are there");
    for (u32 b = 0; b < rank.launch->grid; ++b) {
        const std::string left = tensors_.left(*rank.blocks[b]);
        if (!left.empty()) findings.add("tensor memory", "block " + std::to_string(b) + " of rank " + std::to_string(r) + " ends: " + left);
    }
    ready_.push_back(r);
}

// ---- Turns

void Machine::run(const u64 seed) {
    begin(seed);
    const u64 card_pace = seed % 2 == 0 ? 16 : 512;  // goes once where threads go so often
    while (!over_) {
        if (!ready_.empty() && (runnable_.empty() || random_() % 8 == 0)) {
            const std::size_t i = random_() % ready_.size();
            const u32 rank = ready_[i];
            ready_[i] = ready_.back();
            ready_.pop_back();
            host_step(rank);
            continue;
        }
        if (boxes_.on_their_way() && (runnable_.empty() || random_() % 32 == 0)) {
            boxes_.land(random_());
            continue;
        }
        if (tensors_.on_their_way() && (runnable_.empty() || random_() % 32 == 0)) {
            tensors_.land(random_());
            continue;
        }
        if ((runnable_.empty() || random_() % card_pace == 0) && cards_.busy()) {
            me = nullptr;
            cards_.go(random_());
            continue;
        }
        if (runnable_.empty()) {
            const auto busy = [](const Rank& rank) { return rank.running != 0; };
            if (std::none_of(ranks_.begin(), ranks_.end(), busy)) return;
            if (!stall()) deadlock();
            continue;
        }
        if (turns_ == most_turns && !job_.alone) wrong("endless", "after " + std::to_string(most_turns) + " turns", 0);
        if (last_turn_ != 0 && turns_ >= last_turn_) return;
        me = pick();
        ++turns_;
        ++now_;
        Fiber::switch_to(scheduler_, me->fiber);
        me = nullptr;
        // What follows from something wrong says little more, and may take long.
        if (last_turn_ == 0 && findings.any()) last_turn_ = turns_ + turns_after_finding;
    }
}

// By what part of the machine a seed starves, and when it thinks again.
static constexpr u64 turns_of_priorities = 4096;

void Machine::starve() {
    const u32 rank = u32(random_() % job_.ranks), block = u32(random_() % ranks_[0].blocks.size());
    for (u32 r = 0; r < job_.ranks; ++r) {
        for (u32 b = 0; b < ranks_[r].blocks.size(); ++b) {
            u32& priority = ranks_[r].blocks[b]->priority;
            switch (seed_ % 4) {
                case 0: priority = b != block; break;
                case 1: priority = r != rank; break;
                case 2: priority = r != rank || b != block; break;
                default: priority = u32(random_() % Runnable::priorities); break;
            }
        }
    }
    runnable_.sort();
}

// Any thread, less often one of a slow rank; under an adversarial seed any of those whose blocks have the highest priority.
Thread* Machine::pick() {
    if (seed_ >= adversarial && turns_ % turns_of_priorities == 0) starve();
    const auto& all = runnable_.first();
    std::size_t i = random_() % all.size();
    for (int tries = 0; tries < 15 && seed_ < adversarial; ++tries) {
        const u32 pace = ranks_[all[i].rank].pace;
        if (pace == 1 || random_() % pace == 0) break;
        i = random_() % all.size();
    }
    return runnable_.take(i);
}

void Machine::end_thread() {
    const u32 rank = me->rank;
    if (!me->copies.waited_for() || !me->products.waited_for()) {
        findings.add("copies", "thread " + std::to_string(me->in_block) + " of block " +
                                   std::to_string(me->home->index) + " of rank " + std::to_string(rank) +
                                   " ends before what it has had copied is there");
    }
    if (--me->home->running == 0) tensors_.ended(*me->home);
    if (me->home->other) complete(*(me->home->index % 2 == 0 ? me->home : me->home->other));
    if (--ranks_[rank].running == 0) finish(rank);
    Fiber::switch_to(me->fiber, scheduler_);
    __builtin_unreachable();
}

void Machine::give_turn() {
    runnable_.add(me);
    Fiber::switch_to(me->fiber, scheduler_);
}

void Machine::block(const char* const waits, const Site site) {
    me->waits = waits;
    me->site = site;
    Fiber::switch_to(me->fiber, scheduler_);
    me->waits = nullptr;
}

void Machine::wake(Thread* const thread) {
    if (thread != me) runnable_.add(thread);
}

// Only polling threads can go on: time passes until their waits expire. Or other processes have their turn, and all look
// again.
bool Machine::stall() {
    std::vector<Thread*> polling;
    for (auto& at : parked_) polling.insert(polling.end(), at.second.begin(), at.second.end());
    parked_.clear();
    std::sort(polling.begin(), polling.end(), [](Thread* a, Thread* b) { return a->agent < b->agent; });
    for (Thread* t : polling) {
        t->free_polls = job_.alone ? 0 : 70;
        runnable_.add(t);
    }
    if (job_.alone) {
        rest(20'000);
        return !polling.empty();
    }
    now_ += stall_ns;
    return !polling.empty() && ++stalls_ < most_stalls;
}

void Machine::deadlock() {
    std::string text;
    u32 told = 0;
    for (const Rank& rank : ranks_) {
        if (rank.running == 0) continue;
        for (u32 i = 0; i < rank.launch->grid * rank.launch->threads; ++i) {
            const Thread& t = *rank.threads[i];
            if (!t.waits) continue;
            if (told++ < 8) {
                text += (text.empty() ? "" : "; ") + name_of_agent(t.agent) + " waits for " + t.waits + " at " +
                        name_of_site(t.site);
            }
        }
    }
    wrong("deadlock", text + (told > 8 ? "; and " + std::to_string(told - 8) + " more" : ""), 0);
}

void Machine::wrong(const char* const kind, const std::string& text, const Site site) {
    if (findings.is_new(kind, site, 0)) findings.add(kind, text);
    end_run();
}

void Machine::end_run() {
    over_ = true;
    if (me) Fiber::switch_to(me->fiber, scheduler_);  // for good
}

// ---- Meetings

u64 Machine::meet(const Meeting meeting, const u64 brings, const u32 asks, const Site site) {
    me->meeting = meeting;
    me->brings = brings;
    me->asks = asks;
    me->site = site;
    Warp& warp = me->home->warps[me->warp];
    if (++warp.arrived == warp.lanes.size()) {
        complete(warp);
    } else {
        block("the other lanes of its warp", site);
    }
    return me->takes;
}

void Machine::complete(Warp& warp) {
    const Meeting meeting = me->meeting;
    for (const Thread* t : warp.lanes) {
        if (t->meeting != meeting || (meeting == Meeting::Fence && t->asks != me->asks)) {
            wrong("divergence", "lanes of a warp meet at different places: " + name_of_agent(t->agent) + " at " +
                                    name_of_site(t->site) + ", " + name_of_agent(me->agent) + " at " +
                                    name_of_site(me->site), me->site);
        }
    }
    u64 votes = 0;
    for (const Thread* t : warp.lanes) votes |= u64(t->brings != 0) << t->lane;
    const bool orders = job_.checks && meeting != Meeting::Shuffle && meeting != Meeting::Exchange &&
                        meeting != Meeting::Ballot;
    if (meeting == Meeting::Exchange) {
        warp.exchanged.clear();
        for (const Thread* t : warp.lanes) {
            const u64* const words = reinterpret_cast<const u64*>(t->brings);
            warp.exchanged.insert(warp.exchanged.end(), words, words + me->asks);
        }
        votes = reinterpret_cast<u64>(warp.exchanged.data());
    }
    if (orders && meeting == Meeting::WaveBarrier) {
        Knowledge all;
        for (const Thread* t : warp.lanes) all.join(t->fenced.knows);
        for (Thread* t : warp.lanes) t->seen[u32(Scope::Warp)].join(all);
    } else if (orders) {
        const Knowledge all = Knower::gather(warp.lanes);
        const auto scope = Scope(me->asks);
        for (Thread* t : warp.lanes) {
            if (meeting == Meeting::Sync) {
                t->knows = all;
                t->tick();
                continue;
            }
            // A fence is the warp's: what it waits for and passes on is what all lanes did before it.
            t->knows.vouched = all.vouched;
            t->fenced = {all.published(scope), scope, t};
            t->tick();
        }
    }
    for (Thread* t : warp.lanes) {
        t->takes = meeting == Meeting::Shuffle ? warp.lanes[t->asks % warp.lanes.size()]->brings : votes;
        t->meeting = Meeting::None;
        wake(t);
    }
    warp.arrived = 0;
}

bool Machine::meet_at(const u32 number, const u32 threads, const bool mine, const Site site) {
    if (number >= named_barriers || threads % job_.warp_size != 0 || threads > me->home->threads.size()) {
        wrong("barrier", "no barrier has number " + std::to_string(number) + " and " + std::to_string(threads) +
                             " threads at " + name_of_site(site), site);
    }
    Barrier& barrier = me->home->barriers[number];
    if (!barrier.arrived.empty() && barrier.expected != threads) {
        wrong("barrier", "threads disagree on how many meet at barrier " + std::to_string(number) + " at " +
                             name_of_site(site), site);
    }
    barrier.expected = threads;
    barrier.arrived.push_back(me);
    me->brings = mine;
    if (barrier.arrived.size() < threads) {
        block("others at a barrier", site);
        return me->takes;
    }
    bool every = true;
    for (const Thread* t : barrier.arrived) every = every && t->brings;
    const Knowledge all = job_.checks ? Knower::gather(barrier.arrived) : Knowledge();
    for (Thread* t : barrier.arrived) {
        if (job_.checks) t->knows = all;
        t->tick();
        t->takes = every;
        wake(t);
    }
    barrier.arrived.clear();
    return every;
}

void Machine::meet_block(const Site site) {
    Barrier& barrier = me->home->plain;
    barrier.arrived.push_back(me);
    if (barrier.arrived.size() < me->home->threads.size()) {
        block("the other threads of its block", site);
        return;
    }
    Knowledge all;
    if (job_.checks) {
        for (const Thread* t : barrier.arrived) {
            if (t->fenced.by && t->fenced.scope >= Scope::Block) all.join(t->fenced.knows);
        }
    }
    for (Thread* t : barrier.arrived) {
        t->seen[u32(Scope::Block)].join(all);
        wake(t);
    }
    barrier.arrived.clear();
}

// Threads that have ended are not waited for.
void Machine::complete(Block& first) {
    if (first.in_pair.empty() || first.in_pair.size() < first.running + first.other->running) return;
    const Knowledge all = job_.checks ? Knower::gather(first.in_pair) : Knowledge();
    for (Thread* t : first.in_pair) {
        if (job_.checks) t->knows = all;
        t->tick();
        wake(t);
    }
    first.in_pair.clear();
}

void Machine::arrive_in_pair(const Site site) {
    if (!me->home->other) wrong("pair", "the grid has no pairs of blocks at " + name_of_site(site), site);
    me->met_pair = true;
}

void Machine::meet_pair(const Site site) {
    if (!me->met_pair) wrong("pair", "a thread waits for its pair where it has not arrived, at " + name_of_site(site), site);
    me->met_pair = false;
    Block& first = *(me->home->index % 2 == 0 ? me->home : me->home->other);
    first.in_pair.push_back(me);
    const bool last = first.in_pair.size() == first.running + first.other->running;
    complete(first);
    if (!last) block("the other threads of its pair", site);
}

u64 Machine::in_pair(const void* const here, const u32 number, const Site site) {
    Block& home = *me->home;
    const bool is_variable = u64(here) - u64(home.static_shared) < static_shared_bytes;
    char* Block::*const shared = is_variable ? &Block::static_shared : &Block::dynamic_shared;
    const u64 at = u64(here) - u64(home.*shared);
    if (!home.other || number > 1 || at >= descriptor_bytes) {
        wrong("pair", "no block of a pair has what is asked for at " + name_of_site(site), site);
    }
    return u64((home.index % 2 == number ? home : *home.other).*shared) + at;
}

void Machine::is_in_pair(const u64 at, const Site site) {
    const Block* const other = me->home->other;
    if (other && other->running == 0 && at - u64(other->static_shared) < static_shared_bytes) {
        wrong("pair", "shared memory is read of a block that has ended, at " + name_of_site(site), site);
    }
}

// ---- Order

void Machine::take_seen(Thread& thread, const Scope scope) {
    for (u32 s = 0; s <= u32(scope); ++s) {
        thread.knows.join(thread.seen[s]);
        thread.seen[s] = {};
    }
}

void Machine::fence(const Order order, const Scope scope, const Site site) {
    const bool releases = order == Order::Release || order == Order::AcqRel;
    const bool acquires = order == Order::Acquire || order == Order::AcqRel;
    if (job_.checks && acquires) take_seen(*me, scope);
    // In the warp and the block all lanes fence together. A wider one is for the lanes that signal.
    if (releases && job_.warp_vouches && scope <= Scope::Block) {
        meet(Meeting::Fence, 0, u32(scope), site);
        return;
    }
    if (!job_.checks || !releases) return;
    me->fenced = {me->told().published(scope), scope, me};
    if (job_.warp_vouches) {
        me->performed();
    } else {
        me->tick();
    }
}

bool Machine::is_status(const void* const p) const {
    const Buffer& status = job_.buffers[0];
    const auto holds = [&](const char* const at) { return p >= at && p < at + status.bytes; };
    return std::any_of(status.of_rank.begin(), status.of_rank.end(), holds);
}

void Machine::poll(const void* const p, const u32 bytes, const Site site) {
    // Waits look at the status now and then. A lane that polls nothing else does not wait for it to change.
    if (is_status(p)) {
        if (random_() % 2 == 0) give_turn();
        return;
    }
    u128 value = 0;
    std::memcpy(&value, p, bytes);
    if (me->polled == p && me->polled_value == value) {
        if (me->free_polls != 0) {
            --me->free_polls;
            give_turn();
        } else {
            parked_[p].push_back(me);
            block("a change of what it polls", site);
        }
    } else if (random_() % 2 == 0) {
        give_turn();
    }
    value = 0;
    std::memcpy(&value, p, bytes);
    me->polled = p;
    me->polled_value = value;
}

void Machine::atomic(const void* const p, const u32 bytes, const Access access, const Order order, const Scope scope,
                     const Site site) {
    if (access == Access::Load) {
        poll(p, bytes, site);
    } else {
        me->polled = nullptr;
        if (random_() % 2 == 0) give_turn();
        const auto waiting = parked_.find(p);
        if (waiting != parked_.end()) {
            for (Thread* const thread : waiting->second) runnable_.add(thread);
            parked_.erase(waiting);
        }
    }
    if (!job_.checks || !memory.holds(p)) return;
    AtomicVar& var = memory.atomic(*me, p, bytes, access, scope, site);
    const Released before = var.released;
    const bool mutual = before.by && me->within(scope, *before.by) && me->within(before.scope, *before.by);
    if (access != Access::Store && mutual) {
        if (order == Order::Acquire || order == Order::AcqRel) {
            me->knows.join(before.knows);
        } else {
            me->seen[u32(common_scope(*me, *before.by))].join(before.knows);
        }
    }
    if (access == Access::Load) return;
    Released now;
    if (order == Order::Release || order == Order::AcqRel) {
        now = {me->told().published(scope), scope, me};
        if (job_.warp_vouches && scope >= Scope::Gpu) {
            me->performed();
        } else {
            me->tick();
        }
    } else if (me->fenced.by) {
        now = {me->fenced.knows, std::min(scope, me->fenced.scope), me};
    }
    // An update goes on with what those before it released.
    if (access == Access::Update && mutual) {
        now.knows.join(before.knows);
        if (!now.by) {
            now.by = before.by;
            now.scope = before.scope;
        }
    }
    var.released = now;
}

u64 Machine::card_load(Actor& card, const u64* const p) {
    if (job_.checks) card.knows.join(memory.atomic(card, p, 8, Access::Load, Scope::System, 0).released.knows);
    return *p;
}

void Machine::card_store(Actor& card, u64* const p, const u64 value) {
    const auto waiting = parked_.find(p);
    if (waiting != parked_.end()) {
        for (Thread* const thread : waiting->second) runnable_.add(thread);
        parked_.erase(waiting);
    }
    if (job_.checks) {
        AtomicVar& var = memory.atomic(card, p, 8, Access::Store, Scope::System, 0);
        var.released = {card.told(), Scope::System, &card};
        card.performed();
    }
    *p = value;
}

}  // namespace host
