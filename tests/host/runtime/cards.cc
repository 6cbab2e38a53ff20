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

void Cards::begin(const u64 seed) {
    puts_.clear();
    slow_ = seed % 2 == 0 ? ~0u : u32(seed / 2 % ranks_);
    for (u32 r = 0; r < cards_.size(); ++r) {
        // A rank of its own: what orders within a GPU does not reach it.
        cards_[r]->actor.rank = ranks_ + r;
        cards_[r]->taken = cards_[r]->delivered = 0;
        cards_[r]->done.clear();
    }
}

bool Cards::is_card(const u32 agent, u32& rank) const {
    rank = agent - first_;
    return agent >= first_ && rank < cards_.size();
}

bool Cards::is_next(const u32 rank) const {
    const u64 number = cards_[rank]->taken, lap = number >> job_.log_slots;
    const u64 head = ring_of(rank)[words_before_slots + 2 * (number - (lap << job_.log_slots)) + 1];
    return (head & 0xffff) == ((lap + 1) & 0xffff);
}

bool Cards::busy() const {
    if (!puts_.empty()) return true;
    for (u32 r = 0; r < cards_.size(); ++r) {
        if (is_next(r)) return true;
    }
    return false;
}

void Cards::go(const u64 random) {
    std::vector<u32> next;
    for (u32 r = 0; r < cards_.size(); ++r) {
        if (is_next(r)) next.push_back(r);
    }
    std::vector<std::size_t> flying;
    for (std::size_t i = 0; i < puts_.size(); ++i) {
        if (puts_[i].rank != slow_ || puts_[i].peer == slow_) flying.push_back(i);
    }
    if (next.empty() && flying.empty()) {
        fly(random % puts_.size());
        return;
    }
    const std::size_t choice = random % (next.size() + flying.size());
    if (choice < next.size()) {
        take(next[choice]);
    } else {
        fly(flying[choice - next.size()]);
    }
}

void Cards::take(const u32 rank) {
    Card& card = *cards_[rank];
    const u64 number = card.taken;
    u64* const slot = ring_of(rank) + words_before_slots + 2 * (number & ((u64(1) << job_.log_slots) - 1));
    const u64 head = machine->card_load(card.actor, slot + 1);
    if (machine->checks()) memory.read(card.actor, slot, 8, 0);
    const u64 body = slot[0];
    const u64 op = head >> 16 & 3, channel = head >> 18 & 0x3f, peer = head >> 24 & 0xffff, units = head >> 40;
    if (op != put_and_count || peer >= ranks_ || units == 0 || channel >= most_channels) {
        machine->wrong("card", "rank " + std::to_string(rank) + " has given its card a command that means nothing", 0);
        return;
    }
    puts_.push_back({rank, number, unit * (body & 0xffffffff), unit * (body >> 32), unit * units, 0, 0, u32(peer),
                     u32(channel), {}});
    card.done.push_back(false);
    ++card.taken;
    machine->card_store(card.actor, ring_of(rank) + word_of_taken, card.taken);
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
    card.done[put.number - card.delivered] = true;
    const u64 before = card.delivered;
    for (; !card.done.empty() && card.done.front(); card.done.pop_front()) ++card.delivered;
    if (card.delivered != before) {
        machine->card_store(card.actor, ring_of(put.rank) + word_of_delivered, card.delivered);
    }
}

}  // namespace host
