#include "alone.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace host {

void Alone::map(const char* const of, const char* const path, const u64 bytes) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = open(path, O_RDWR);
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        std::perror(path);
        std::exit(2);
    }
    close(file);
    const u32 other = u32(std::strtoul(of, nullptr, 10));
    if (files.empty()) rank = other;
    files.emplace_back(other, static_cast<char*>(mapped));
}

char* Alone::of(const u32 other) const {
    for (const auto& [of, file] : files) {
        if (of == other) return file;
    }
    return nullptr;
}

u64 system_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return u64(time.tv_sec) * 1'000'000'000 + u64(time.tv_nsec);
}

void rest(const u64 ns) {
    const timespec time{time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
    nanosleep(&time, nullptr);
}

// Words that another process may share are read and written in one piece, and in order.
template <typename T>
static void read_whole(void* const to, const void* const from) {
    const T value = __atomic_load_n(static_cast<const T*>(from), __ATOMIC_ACQUIRE);
    std::memcpy(to, &value, sizeof(T));
}

template <typename T>
static void write_whole(void* const to, const void* const from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    __atomic_store_n(static_cast<T*>(to), value, __ATOMIC_RELEASE);
}

void raw_read(void* const to, const void* const from, const u32 bytes) {
    switch (bytes) {
        case 4: read_whole<u32>(to, from); break;
        case 8: read_whole<u64>(to, from); break;
        default: std::memcpy(to, from, bytes);
    }
}

void raw_write(void* const to, const void* const from, const u32 bytes) {
    switch (bytes) {
        case 4: write_whole<u32>(to, from); break;
        case 8: write_whole<u64>(to, from); break;
        default: std::memcpy(to, from, bytes);
    }
}

}  // namespace host
