// Rounds of rows between all ranks by NCCL's GIN, each in a process and on a GPU of its own. Every word is compared.
//
//   rounds RANK RANKS ID_FILE RESULT_FILE KERNEL ROUNDS ROWS WORDS TIMEOUT_MS [LEAVE_AT]
//
// KERNEL: each       a weak increment with each row; a signal for each bank
//         strong     rows without a signal; the last one adds the number of rows, strongly ordered
//         weak       as strong, weakly ordered: wrong
//         onesignal  as each, one signal for both banks: wrong
// Built with the headers of the NCCL that is loaded, 2.32 or newer: nvcc -std=c++17 -O3 -arch=sm_90 -o rounds rounds.cu -lnccl
// Rows have 32-bit WORDS. LEAVE_AT is the round in which the last rank's process ends without a word.
#include "host.h"

#include <cstdlib>
#include <cstring>

enum class Kernel { Each, Strong, Weak, OneSignal };

// What a launch reports. `round` is the round that did not end.
struct Report {
    unsigned long long rounds, wrong_rounds, wrong_words, round, count, awaited, nanoseconds;
    int stopped;  // 0: no, 1: rows did not come, 2: own rows were not read
};

struct Shape {
    int rows, words, first_round, rounds;
    unsigned long long timeout;  // cycles
};

constexpr int THREADS = 512;
constexpr int MOST_ROWS = 256;

__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// The word that a rank sends to another at a place of a round.
__device__ unsigned expected(int from, int to, int round, int place) {
    unsigned x = (unsigned)round * 0x9e3779b1u ^ (unsigned)(from * 64 + to + 1) * 0x85ebca77u ^ (unsigned)place * 0xc2b2ae3du;
    return x ^ x >> 15;
}

// Window: outboxes of two banks, then inboxes of two banks. In a bank, a box of rows x words for each rank.
template <Kernel kernel>
__global__ void __launch_bounds__(THREADS, 1)
rounds(ncclDevComm comm, ncclWindow_t window, unsigned* words, Shape shape, Report* report) {
    ncclGin gin{comm, 0};
    ncclTeam world = ncclTeamWorld(comm);
    const int rank = comm.rank, ranks = comm.nRanks, thread = threadIdx.x;
    const int box = shape.rows * shape.words, bank_words = box * ranks;
    const size_t row_bytes = shape.words * sizeof(unsigned);
    const unsigned long long rows_a_round = (unsigned long long)shape.rows * (ranks - 1);
    const auto ones = ncclGin_WeakCounterInc{0};
    __shared__ int stop;
    if (thread == 0) stop = 0;
    __syncthreads();
    const unsigned long long start = now();
    for (int i = 0; i < shape.rounds; i++) {
        const int round = shape.first_round + i, bank = round & 1;
        const ncclGinSignal_t signal = kernel == Kernel::OneSignal ? 0 : bank;
        const unsigned long long counted = kernel == Kernel::OneSignal ? round + 1 : round / 2 + 1;
        unsigned* outbox = words + bank * bank_words;
        for (int at = thread; at < bank_words; at += THREADS) outbox[at] = expected(rank, at / box, round, at % box);
        __syncthreads();
        for (int put = thread; put < shape.rows * ranks; put += THREADS) {
            const int peer = put / shape.rows, row = put % shape.rows;
            if (peer == rank) continue;
            const size_t from = (size_t)(bank * bank_words + peer * box) * 4 + row * row_bytes;
            const size_t to = (size_t)((2 + bank) * bank_words + rank * box) * 4 + row * row_bytes;
            if (kernel == Kernel::Each || kernel == Kernel::OneSignal)
                gin.put(world, peer, window, to, window, from, row_bytes, ncclGin_WeakSignalInc{signal}, ones);
            else if (row + 1 < shape.rows)
                gin.put(world, peer, window, to, window, from, row_bytes, ncclGin_None{}, ones);
        }
        __syncthreads();
        // The last row of each peer, after the others were asked for.
        if ((kernel == Kernel::Strong || kernel == Kernel::Weak) && thread < ranks && thread != rank) {
            const int row = shape.rows - 1;
            const size_t from = (size_t)(bank * bank_words + thread * box) * 4 + row * row_bytes;
            const size_t to = (size_t)((2 + bank) * bank_words + rank * box) * 4 + row * row_bytes;
            const uint64_t all = shape.rows;
            if (kernel == Kernel::Strong)
                gin.put(world, thread, window, to, window, from, row_bytes, ncclGin_StrongSignalAdd{signal, all}, ones);
            else
                gin.put(world, thread, window, to, window, from, row_bytes, ncclGin_WeakSignalAdd{signal, all}, ones);
        }
        const ncclResult_t came = gin.waitSignal(ncclCoopCta(), signal, counted * rows_a_round, 64,
                                                 cuda::memory_order_acquire, shape.timeout);
        if (came != ncclSuccess && thread == 0) {
            stop = 1;
            report->round = round, report->count = gin.readSignal(signal), report->awaited = counted * rows_a_round;
        }
        __syncthreads();
        if (stop) break;
        const volatile unsigned* inbox = words + (2 + bank) * bank_words;
        unsigned long long wrong = 0;
        for (int at = thread; at < bank_words; at += THREADS)
            if (at / box != rank) wrong += inbox[at] != expected(at / box, rank, round, at % box);
        if (wrong) atomicAdd(&report->wrong_words, wrong);
        const int is_wrong = __syncthreads_or(wrong != 0);
        // The outbox is written again when its rows have been read.
        const unsigned long long read = (unsigned long long)(round + 1) * rows_a_round;
        const ncclResult_t left =
            gin.waitCounter(ncclCoopCta(), 0, read, 56, cuda::memory_order_acquire, shape.timeout);
        if (thread == 0) {
            report->wrong_rounds += is_wrong;
            if (left != ncclSuccess) stop = 2, report->round = round, report->awaited = read;
        }
        __syncthreads();
        if (stop) break;
        if (thread == 0) report->rounds = report->rounds + 1;
    }
    if (thread == 0) report->stopped = stop, report->nanoseconds += now() - start;
}

template <typename... Arguments>
static void launch(Kernel kernel, cudaStream_t stream, Arguments... arguments) {
    switch (kernel) {
        case Kernel::Each: rounds<Kernel::Each><<<1, THREADS, 0, stream>>>(arguments...); break;
        case Kernel::Strong: rounds<Kernel::Strong><<<1, THREADS, 0, stream>>>(arguments...); break;
        case Kernel::Weak: rounds<Kernel::Weak><<<1, THREADS, 0, stream>>>(arguments...); break;
        case Kernel::OneSignal: rounds<Kernel::OneSignal><<<1, THREADS, 0, stream>>>(arguments...); break;
    }
}

int main(int argc, char** argv) {
    if (argc < 10) {
        fprintf(stderr, "usage: rounds RANK RANKS ID_FILE RESULT_FILE KERNEL ROUNDS ROWS WORDS TIMEOUT_MS [LEAVE_AT]\n");
        return 2;
    }
    const int rank = atoi(argv[1]), ranks = atoi(argv[2]), all = atoi(argv[6]);
    const std::string id_file = argv[3], name = argv[5];
    result_file = argv[4];
    const int leave = argc > 10 && rank + 1 == ranks ? atoi(argv[10]) : -1;
    const Kernel kernel = name == "each" ? Kernel::Each : name == "strong" ? Kernel::Strong
                        : name == "weak" ? Kernel::Weak : Kernel::OneSignal;
    Shape shape{atoi(argv[7]), atoi(argv[8]), 0, 0, 0};
    if (shape.rows < 1 || shape.rows > MOST_ROWS || shape.words < 1 || shape.words % 4 != 0)
        fail("arguments", "1 to 256 rows, and multiples of 4 words are allowed");

    CUDA(cudaSetDevice(rank));
    CUDA(cudaFree(nullptr));
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, rank));
    int kilohertz;
    CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, rank));
    shape.timeout = (unsigned long long)atoi(argv[9]) * kilohertz;

    const ncclComm_t comm = join(rank, ranks, id_file);
    const ncclCommProperties_t properties = by_proxy(comm);

    const size_t bytes = (size_t)4 * ranks * shape.rows * shape.words * sizeof(unsigned);
    void* memory;
    NCCL(ncclMemAlloc(&memory, bytes));
    CUDA(cudaMemset(memory, 0, bytes));
    CUDA(cudaDeviceSynchronize());
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING));
    ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    needs.ginContextCount = 1;
    needs.ginSignalCount = 2;
    needs.ginCounterCount = 1;
    ncclDevComm device_comm;
    NCCL(ncclDevCommCreate(comm, &needs, &device_comm));
    Report *report, *report_on_gpu;
    CUDA(cudaHostAlloc(&report, sizeof *report, cudaHostAllocMapped));
    CUDA(cudaHostGetDevicePointer(&report_on_gpu, report, 0));
    memset(report, 0, sizeof *report);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    // Launches of at most a thousand rounds, so that progress is seen.
    while (shape.first_round < all && !report->stopped) {
        shape.rounds = all - shape.first_round < 1000 ? all - shape.first_round : 1000;
        if (leave >= 0 && shape.first_round + shape.rounds > leave) shape.rounds = leave - shape.first_round;
        if (shape.rounds > 0) launch(kernel, stream, device_comm, window, (unsigned*)memory, shape, report_on_gpu);
        CUDA(cudaGetLastError());
        CUDA(cudaStreamSynchronize(stream));
        shape.first_round += shape.rounds;
        if (shape.first_round == leave) _exit(9);
    }
    FILE* file = fopen(result_file, "w");
    if (!file) fail("result file", strerror(errno));
    int version;
    NCCL(ncclGetVersion(&version));
    fprintf(file,
            "{\"rank\": %d, \"kernel\": \"%s\", \"rounds\": %llu, \"wrong_rounds\": %llu, \"wrong_words\": %llu, "
            "\"stopped\": \"%s\", \"round\": %llu, \"count\": %llu, \"awaited\": %llu, \"us_a_round\": %.2f, "
            "\"gpu\": \"%s\", \"nccl\": %d, \"nodes\": %d}\n",
            rank, name.c_str(), report->rounds, report->wrong_rounds, report->wrong_words,
            report->stopped == 0 ? "" : report->stopped == 1 ? "rows did not come" : "own rows were not read",
            report->round, report->count, report->awaited,
            report->rounds ? report->nanoseconds / 1e3 / report->rounds : 0.0, device.name, version, properties.nLsaTeams);
    fclose(file);
    // After a wait that ended early the peer may be gone, and tearing down waits for it. Wrong kernels leave puts in flight.
    if (report->stopped || kernel == Kernel::Weak || kernel == Kernel::OneSignal) _exit(0);
    NCCL(ncclDevCommDestroy(comm, &device_comm));
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommFinalize(comm));
    NCCL(ncclCommDestroy(comm));
    return 0;
}
