// Launches an all-gather over nodes, as `peerwarp generate --far gin` emits it, between processes with a GPU each. Every word is compared.
// Takes the arguments of rounds.cu, but for its kernel, rows and words, and reports as it does: run.py runs it, with the parts each,
// each-delay, each-reorder, each-drop and leaves.
//
//   NAME=$(peerwarp show --family all_gather --ranks 2 --nodes 2 elements=65536 dtype=f32 --json | python3 -c \
//     'import json, sys; print(json.load(sys.stdin)[0]["variant"])')
//   peerwarp show $NAME --far gin > $NAME.cu && peerwarp show $NAME --far gin --header > $NAME.h
//   nvcc -std=c++17 -O3 -arch=sm_90a -I. -DNAME=$NAME -DPREFIX=${NAME^^} -DHEADER="\"$NAME.h\"" -DSOURCE="\"$NAME.cu\"" \
//     -o emitted emitted.cu -lnccl
#include "host.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

// The source includes it for the host side of a compilation alone.
#include HEADER
#include SOURCE

#define JOINED_AGAIN(a, b) a##b
#define JOINED(a, b) JOINED_AGAIN(a, b)
using Args = JOINED(NAME, _Args);

// What checks report.
struct Report {
    unsigned long long rounds, wrong_rounds, wrong_words;
};

__device__ unsigned expected(int from, int round, int place) {
    const unsigned x = (unsigned)round * 0x9e3779b1u ^ (unsigned)(from + 1) * 0x85ebca77u ^ (unsigned)place * 0xc2b2ae3du;
    return x ^ x >> 15;
}

__global__ void fill(unsigned* x, int words, int rank, int round) {
    for (int at = threadIdx.x; at < words; at += blockDim.x) x[at] = expected(rank, round, at);
}

__global__ void check(const unsigned* out, int words, int ranks, int round, const PeerwarpStatus* status, Report* report) {
    if (status->aborted) return;
    unsigned long long wrong = 0;
    for (int at = threadIdx.x; at < words * ranks; at += blockDim.x) wrong += out[at] != expected(at / words, round, at % words);
    if (wrong) atomicAdd(&report->wrong_words, wrong);
    const int is_wrong = __syncthreads_or(wrong != 0);
    if (threadIdx.x == 0) report->wrong_rounds += is_wrong, report->rounds += 1;
}

static void launched(const int code) {
    if (code != PEERWARP_OK) fail("launch", JOINED(NAME, _error)(code));
}

// Zeroed memory of this GPU.
static void* zeroed(const size_t bytes) {
    void* memory;
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemset(memory, 0, bytes));
    return memory;
}

int main(int argc, char** argv) {
    if (argc < 10) {
        fprintf(stderr, "usage: emitted RANK RANKS ID_FILE RESULT_FILE - ROUNDS - - TIMEOUT_MS [LEAVE_AT]\n");
        return 2;
    }
    const int rank = atoi(argv[1]), ranks = atoi(argv[2]), all = atoi(argv[6]);
    const int leave = argc > 10 && rank + 1 == ranks ? atoi(argv[10]) : -1;
    result_file = argv[4];
    if (ranks != JOINED(PREFIX, _NODES) || JOINED(PREFIX, _RANKS) != 1) fail("ranks", "each is a node of the kernel");
    CUDA(cudaSetDevice(rank));
    CUDA(cudaFree(nullptr));
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, rank));
    const ncclComm_t comm = join(rank, ranks, argv[3]);
    const ncclCommProperties_t properties = by_proxy(comm);

    // Inboxes and outboxes stand in one window, behind the bytes of credits.
    std::map<std::string, size_t> sizes, far;
    size_t window_bytes = 256;
    const auto add = [&](const char* name, const std::string& kind, const size_t bytes) {
        sizes[name] = bytes;
        if (kind != "FAR_INBOX" && kind != "FAR_OUTBOX") return;
        far[name] = window_bytes;
        window_bytes += (bytes + 255) / 256 * 256;
    };
#define ADD(name, kind, bytes) add(#name, #kind, bytes);
    JOINED(PREFIX, _BUFFERS)(ADD)
    char* memory;
    NCCL(ncclMemAlloc((void**)&memory, window_bytes));
    CUDA(cudaMemset(memory, 0, window_bytes));
    CUDA(cudaDeviceSynchronize());
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, window_bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    needs.ginSignalCount = JOINED(PREFIX, _FAR_CHANNELS) * ranks;
    needs.ginCounterCount = 1;
    needs.ginStrongSignalsRequired = needs.ginVaSignalsRequired = false;
    ncclDevComm device_comm;
    NCCL(ncclDevCommCreate(comm, &needs, &device_comm));

    Args args = {};
    const auto place = [&](const char* name) { return far.count(name) ? (void*)(memory + far[name]) : zeroed(sizes[name]); };
    args.x = (const float*)place("x");
    args.out = (float*)place("out");
    args.rail = (float*)place("rail");
    args.rail_outbox = (float*)place("rail_outbox");
    args.rail_arrived = (uint32_t*)place("rail_arrived");
    args.rail_ready = (uint32_t*)place("rail_ready");
    args.epoch = (PeerwarpEpochWord*)place("epoch");
    args.status[0] = (PeerwarpStatus*)place("status");
    args.wait_budget_ns = (uint64_t)atoi(argv[9]) * 1000000;
    args.far.comm = zeroed(sizeof device_comm);
    CUDA(cudaMemcpy((void*)args.far.comm, &device_comm, sizeof device_comm, cudaMemcpyHostToDevice));
    args.far.memory = memory;
    args.far.sent = (uint64_t*)zeroed(device_comm.ginContextCount * sizeof(uint64_t));
    args.far.window = window;
    args.far.node = rank;
    Report* const report = (Report*)zeroed(sizeof *report);
    const int words = sizes["x"] / 4;
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int blocks;
    launched(JOINED(NAME, _resident_blocks)(&blocks));

    PeerwarpStatus status = {};
    Report found = {};
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < all && !status.aborted; round++) {
        if (round == leave) _exit(9);
        fill<<<1, 1024, 0, stream>>>((unsigned*)args.x, words, rank, round);
        launched(JOINED(NAME, _launch)(&args, stream));
        // The card copies by CUDA: kernels that wait in line behind this one would keep its copies from running.
        CUDA(cudaStreamSynchronize(stream));
        check<<<1, 1024, 0, stream>>>((const unsigned*)args.out, words, ranks, round, args.status[0], report);
        if ((round + 1) % 100 != 0 && round + 1 != all && round + 1 != leave) continue;
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(&status, args.status[0], sizeof status, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(&found, report, sizeof found, cudaMemcpyDeviceToHost));
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    FILE* file = fopen(result_file, "w");
    if (!file) fail("result file", strerror(errno));
    int version;
    NCCL(ncclGetVersion(&version));
    fprintf(file,
            "{\"rank\": %d, \"kernel\": \"%s\", \"rounds\": %llu, \"wrong_rounds\": %llu, \"wrong_words\": %llu, "
            "\"stopped\": \"%s\", \"peer\": %u, \"site\": %u, \"count\": %u, \"awaited\": %u, \"us_a_round\": %.2f, "
            "\"contexts\": %u, \"gpu\": \"%s\", \"nccl\": %d, \"nodes\": %d}\n",
            rank, JOINED(PREFIX, _ENTRY), found.rounds, found.wrong_rounds, found.wrong_words,
            status.aborted ? "rows did not come" : "", status.peer & ~(1u << 30), status.site, status.seen, status.expected,
            found.rounds ? time.count() / found.rounds : 0.0, device_comm.ginContextCount, device.name, version,
            properties.nLsaTeams);
    fclose(file);
    // After a wait that ended early the peer may be gone, and tearing down waits for it.
    if (status.aborted) _exit(0);
    NCCL(ncclDevCommDestroy(comm, &device_comm));
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommFinalize(comm));
    NCCL(ncclCommDestroy(comm));
    return 0;
}
