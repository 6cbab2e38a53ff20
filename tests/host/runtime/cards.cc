#include "cards.h"

#include <algorithm>
#include <cstring>

#include "machine.h"

namespace host {

static constexpr u64 words_before_slots = 32, word_of_taken = 8, word_of_delivered = 16, first_count = 16;
static constexpr u64 unit = 16, put_and_count = 2, most_channels = 64;

void Cards::place(const FarJob& job, const u32 ranks, const u32 first, const std::vector<std::vector<char*>>& buffers) {
    job_ = job;
    ranks_ = ranks;
    first_ = first;
    buffers_ = buffers;
    for (u32 r = 0; r < ranks; ++r) {
        cards_.push_back(std::make_unique<Card>());
        actors[first + r] = &cards_.back()->actor;
    }
}

void Cards::begin() {
    puts_.clear();
    for (u32 r = 0; r < cards_.size(); ++r) {
        // A rank of its own: what orders within a GPU does not reach it.
        cards_[r]->actor.rank = ranks_ + r;
        cards_[r]->rings.assign(job_.rings, {});
    }
}

bool Cards::is_card(const u32 agent, u32& rank) const {
    rank = agent - first_;
    return agent >= first_ && rank < cards_.size();
}

u64* Cards::ring_at(const u32 rank, const u32 ring) const {
    const u64 words = words_before_slots + (u64(2) << job_.log_slots);
    return reinterpret_cast<u64*>(buffers_[job_.ring_buffer][rank]) + ring * words;
}

bool Cards::is_next(const u32 rank, const u32 ring) const {
    const u64 number = cards_[rank]->rings[ring].taken, lap = number >> job_.log_slots;
    const u64 head = ring_at(rank, ring)[words_before_slots + 2 * (number - (lap << job_.log_slots)) + 1];
    return (head & 0xffff) == ((lap + 1) & 0xffff);
}

bool Cards::busy() const {
    if (!puts_.empty()) return true;
    for (u32 r = 0; r < cards_.size(); ++r) {
        for (u32 i = 0; i < job_.rings; ++i) {
            if (is_next(r, i)) return true;
        }
    }
    return false;
}

void Cards::go(const u64 random) {
    std::vector<std::pair<u32, u32>> next;
    for (u32 r = 0; r < cards_.size(); ++r) {
        for (u32 i = 0; i < job_.rings; ++i) {
            if (is_next(r, i)) next.emplace_back(r, i);
        }
    }
    const std::size_t choice = random % (next.size() + puts_.size());
    if (choice < next.size()) {
        take(next[choice].first, next[choice].second);
    } else {
        fly(choice - next.size());
    }
}

void Cards::take(const u32 rank, const u32 ring_number) {
    Card& card = *cards_[rank];
    Ring& ring = card.rings[ring_number];
    u64* const base = ring_at(rank, ring_number);
    const u64 number = ring.taken;
    u64* const slot = base + words_before_slots + 2 * (number & ((u64(1) << job_.log_slots) - 1));
    const u64 head = machine->card_load(card.actor, slot + 1);
    if (machine->checks()) memory.read(card.actor, slot, 8, 0);
    const u64 body = slot[0];
    const u64 op = head >> 16 & 3, channel = head >> 18 & 0x3f, peer = head >> 24 & 0xffff, units = head >> 40;
    if (op != put_and_count || peer >= ranks_ || units == 0 || channel >= most_channels) {
        machine->wrong("card", "rank " + std::to_string(rank) + " has given its card a command that means nothing", 0);
        return;
    }
    puts_.push_back({rank, ring_number, number, unit * (body & 0xffffffff), unit * (body >> 32), unit * units, 0, 0,
                     u32(peer), u32(channel), {}});
    ring.done.push_back(false);
    ++ring.taken;
    machine->card_store(card.actor, base + word_of_taken, ring.taken);
}

// A put reads a piece, or a piece lands, or all of it is there.
void Cards::fly(const std::size_t at) {
    Put& put = puts_[at];
    Actor& card = cards_[put.rank]->actor;
    const u64 piece = std::max(unit, (put.bytes / 3 + unit - 1) / unit * unit);
    if (put.read < put.bytes) {
        const u64 bytes = std::min(piece, put.bytes - put.read);
        const char* const from = memory_of(put.rank) + put.from + put.read;
        // What follows a message up to a whole unit is put with it, whatever it is: credits put it alone.
        if (machine->checks() && put.from != 0) memory.read_written(card, from, bytes);
        put.content.append(from, bytes);
        put.read += bytes;
    } else if (put.written < put.bytes) {
        const u64 bytes = std::min(piece, put.bytes - put.written);
        char* const to = memory_of(put.peer) + put.to + put.written;
        if (machine->checks() && put.to != 0) memory.write(card, to, bytes, 0);
        std::memcpy(to, put.content.data() + put.written, bytes);
        put.written += bytes;
    } else {
        const Put whole = put;
        std::swap(put, puts_.back());
        puts_.pop_back();
        arrive(whole);
    }
}

void Cards::arrive(const Put& put) {
    Card& card = *cards_[put.rank];
    u64* const count = words_of(put.peer) + first_count + u64(put.channel) * ranks_ + put.rank;
    machine->card_store(card.actor, count, *count + 1);
    Ring& ring = card.rings[put.ring];
    ring.done[put.number - ring.delivered] = true;
    const u64 before = ring.delivered;
    for (; !ring.done.empty() && ring.done.front(); ring.done.pop_front()) ++ring.delivered;
    if (ring.delivered != before) {
        machine->card_store(card.actor, ring_at(put.rank, put.ring) + word_of_delivered, ring.delivered);
    }
}

}  // namespace host
