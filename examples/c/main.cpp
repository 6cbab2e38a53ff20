// Runs rounds of dispatch, experts and combine on several GPUs from one process, with the emitted sources linked in, and
// compares every result with a plain computation.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "experts.h"
#include "gpu.h"
#include "reference.h"
#include "sizes.h"
#include "variants.h"

// Waits of a kernel give up after this long: much more than a round takes.
static const std::uint64_t wait_budget_ns = 5000000000u;
// The shape in catalogue.toml.
static const std::uint32_t hidden = 7168, experts = 256, topk = 8, tokens = 128;

[[noreturn]] static void fail(const std::string& what) {
    std::fprintf(stderr, "error: %s\n", what.c_str());
    std::exit(2);
}

static void gpu(const int code, const char* const what) {
    if (code != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(code)));
}
#define GPU(call) gpu(call, #call)

enum Kind { LOCAL, SYMMETRIC, FLAGS, PACKETS, LL, EPOCH, COUNTERS, STATUS };

// What an emitted header says about a kernel, as a type.
#define KERNEL(name, NAME)                                                        \
    struct name##_kernel {                                                        \
        using Args = name##_Args;                                                 \
        static constexpr int grid_blocks = NAME##_GRID_BLOCKS;                    \
        static constexpr std::uint64_t id = NAME##_KERNEL_ID;                     \
        static const char* entry() { return NAME##_ENTRY; }                       \
        static int launch(const Args* a, void* s) { return name##_launch(a, s); } \
        static int resident(int* n) { return name##_resident_blocks(n); }         \
        static const char* error(int code) { return name##_error(code); }         \
        static const char* wait(std::uint32_t site) {                             \
            static const char* const places[] = {NAME##_WAITS(PLACE)};            \
            return site < sizeof places / sizeof *places ? places[site] : "?";    \
        }                                                                         \
        template <typename Visit>                                                 \
        static void buffers(Visit&& visit) {                                      \
            NAME##_BUFFERS(VISIT)                                                 \
        }                                                                         \
    };
#define VISIT(member, kind, bytes) visit(#member, &Args::member, kind, std::size_t(bytes));
#define PLACE(site, file, line) file ":" #line,
#define KERNELS(ranks, dispatch, DISPATCH, combine, COMBINE) KERNEL(dispatch, DISPATCH) KERNEL(combine, COMBINE)
FOR_EACH_WORLD(KERNELS)

static void* allocate(const std::size_t bytes, const int value) {
    void* p = nullptr;
    GPU(cudaMalloc(&p, bytes));
    GPU(cudaMemset(p, value, bytes));
    return p;
}

// First values: flags, LL elements, epochs, counters and status records are zero, packets all ones. Other buffers need none, and get what
// would show in the results if it were used.
static int first_value(const Kind kind) {
    return kind == FLAGS || kind == LL || kind == EPOCH || kind == COUNTERS || kind == STATUS ? 0 : 0xff;
}

// A member that is one pointer.
template <typename Args, typename T>
static void set(std::vector<Args>& all, T* Args::* const member, const Kind kind, const std::size_t bytes) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].*member != nullptr) continue;  // another kernel's
        GPU(cudaSetDevice(int(rank)));
        all[rank].*member = static_cast<T*>(allocate(bytes, first_value(kind)));
    }
}

// A member that is a pointer for each rank: every rank's arguments name all ranks' buffers.
template <typename Args, typename T, std::size_t ranks>
static void set(std::vector<Args>& all, T* (Args::* const member)[ranks], const Kind kind, const std::size_t bytes) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        if ((all[rank].*member)[rank] != nullptr) continue;
        GPU(cudaSetDevice(int(rank)));
        T* const here = static_cast<T*>(allocate(bytes, first_value(kind)));
        for (Args& args : all) (args.*member)[rank] = here;
    }
}

template <typename Kernel>
static void allocate_buffers(std::vector<typename Kernel::Args>& all) {
    Kernel::buffers([&](const char*, auto member, const Kind kind, const std::size_t bytes) {
        if (bytes > 0) set(all, member, kind, bytes);
    });
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        all[rank].wait_budget_ns = wait_budget_ns;
        all[rank].rank = std::uint32_t(rank);
    }
}

// Loads a kernel onto every device, and says whether its blocks fit.
template <typename Kernel>
static void load(const std::size_t ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        int blocks = 0;
        GPU(cudaSetDevice(int(rank)));
        const int code = Kernel::resident(&blocks);
        if (code != 0) fail(std::string(Kernel::entry()) + ": " + Kernel::error(code));
        if (rank == 0) std::printf("%s\n  %d blocks, of %d that fit\n", Kernel::entry(), Kernel::grid_blocks, blocks);
    }
}

template <typename Dispatch, typename Combine, std::size_t ranks>
class World {
public:
    World() : dispatch_(ranks), combine_(ranks), streams_(ranks) {
        connect();
        load<Dispatch>(ranks);
        load<Combine>(ranks);
        allocate_buffers<Dispatch>(dispatch_);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            dispatch_[rank].rows_there = tokens;  // as many as were allocated; `n` says how many of them are tokens
            dispatch_[rank].empty_id = -1;
            share(dispatch_[rank], combine_[rank]);
        }
        allocate_buffers<Combine>(combine_);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            GPU(cudaSetDevice(int(rank)));
            GPU(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking));
            // The experts' kernel must be loaded too before a kernel waits: its buffers say that there are no rows.
            GPU(cudaDeviceSynchronize());
            work(rank);
        }
        // No rank may launch before every rank's flags are zero.
        finish();
    }

    void give(const std::vector<Input>& inputs) {
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            const Input& in = inputs[rank];
            const auto& to = dispatch_[rank];
            GPU(cudaSetDevice(int(rank)));
            const auto copy = [](const void* device, const void* host, const std::size_t bytes) {
                GPU(cudaMemcpy(const_cast<void*>(device), host, bytes, cudaMemcpyHostToDevice));
            };
            copy(to.n, &in.n, sizeof in.n);
            copy(to.x, in.x.data(), in.x.size() * sizeof in.x[0]);
            copy(to.ids, in.ids.data(), in.ids.size() * sizeof in.ids[0]);
            copy(to.weights, in.weights.data(), in.weights.size() * sizeof in.weights[0]);
            GPU(cudaMemset(combine_[rank].out, 0xff, std::size_t(tokens) * hidden * 2));
        }
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            GPU(cudaSetDevice(int(rank)));
            GPU(cudaDeviceSynchronize());  // the memset was on another stream than the launches will be
        }
    }

    // One thread launches for all ranks: each kernel on every rank before the next one, so that no launch which the
    // runtime holds up keeps a rank from what the others wait for.
    void rounds(const int count) {
        for (int i = 0; i < count; ++i) {
            for (const Step step : {&World::dispatch, &World::work, &World::combine}) {
                for (std::size_t rank = 0; rank < ranks; ++rank) {
                    GPU(cudaSetDevice(int(rank)));
                    (this->*step)(rank);
                }
            }
        }
        finish();
    }

    // Waits until all ranks are done, and fails if a wait of a kernel expired.
    void finish() {
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            GPU(cudaSetDevice(int(rank)));
            GPU(cudaStreamSynchronize(streams_[rank]));
        }
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            PeerwarpStatus s;
            GPU(cudaSetDevice(int(rank)));
            GPU(cudaMemcpy(&s, dispatch_[rank].status[rank], sizeof s, cudaMemcpyDeviceToHost));
            if (s.aborted == 0 || s.filled == 0) continue;
            const bool dispatch = s.kernel == Dispatch::id;
            const char* const place = dispatch ? Dispatch::wait(s.site) : Combine::wait(s.site);
            std::fprintf(
                stderr, "rank %u gave up in %s, role %u, block %u: flag %u[%llu] of rank %u is %u, not %u (%s)\n",
                s.rank, dispatch ? "dispatch" : "combine", s.role, s.block, s.flag,
                static_cast<unsigned long long>(s.index), s.peer, s.seen, s.expected, place);
            std::exit(1);
        }
    }

    // How many elements of all ranks' results are wrong; adds to `compared`.
    std::size_t compare(const std::vector<Input>& inputs, const std::vector<Output>& wanted, std::size_t& compared) {
        std::size_t wrong = 0;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            const Output& want = wanted[rank];
            GPU(cudaSetDevice(int(rank)));
            const auto counts = fetch<std::uint32_t>(dispatch_[rank].expert_rows, want.expert_rows.size());
            const auto rows = fetch<std::uint16_t>(dispatch_[rank].rows, want.rows.size());
            const auto out = fetch<std::uint16_t>(combine_[rank].out, std::size_t(inputs[rank].n) * hidden);
            for (std::size_t i = 0; i < counts.size(); ++i) wrong += counts[i] != want.expert_rows[i];
            for (std::size_t i = 0; i < rows.size(); ++i) wrong += rows[i] != want.rows[i];
            // Each owner's part and then the sum are rounded to bf16: an error of 2^-8 of the magnitude at most, twice.
            for (std::size_t i = 0; i < out.size(); ++i) {
                const double error = std::fabs(double(widen(out[i])) - want.combined[i]);
                wrong += !(error <= want.magnitude[i] * 0.008);
            }
            compared += counts.size() + rows.size() + out.size();
        }
        return wrong;
    }

    // Microseconds a round, the slowest rank's, of `count` rounds in a graph.
    double time(const int count, const bool with_experts) {
        std::vector<cudaGraphExec_t> graphs(ranks);
        std::vector<cudaEvent_t> start(ranks), stop(ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            cudaGraph_t graph;
            GPU(cudaSetDevice(int(rank)));
            GPU(cudaStreamBeginCapture(streams_[rank], cudaStreamCaptureModeThreadLocal));
            for (int i = 0; i < count; ++i) {
                dispatch(rank);
                if (with_experts) work(rank);
                combine(rank);
            }
            GPU(cudaStreamEndCapture(streams_[rank], &graph));
            GPU(cudaGraphInstantiateWithFlags(&graphs[rank], graph, 0));
            GPU(cudaEventCreate(&start[rank]));
            GPU(cudaEventCreate(&stop[rank]));
        }
        double best = 0;
        for (int attempt = 0; attempt < 5; ++attempt) {
            // Rounds before the timed ones: in them the ranks wait for each other, so that all start together.
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                GPU(cudaSetDevice(int(rank)));
                GPU(cudaGraphLaunch(graphs[rank], streams_[rank]));
            }
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                GPU(cudaSetDevice(int(rank)));
                GPU(cudaEventRecord(start[rank], streams_[rank]));
                GPU(cudaGraphLaunch(graphs[rank], streams_[rank]));
                GPU(cudaEventRecord(stop[rank], streams_[rank]));
            }
            finish();
            double slowest = 0;
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                float ms = 0;
                GPU(cudaSetDevice(int(rank)));
                GPU(cudaEventElapsedTime(&ms, start[rank], stop[rank]));
                slowest = std::fmax(slowest, ms * 1000.0 / count);
            }
            best = attempt == 0 ? slowest : std::fmin(best, slowest);
        }
        return best;
    }

private:
    // A rank's part of a step, on its stream.
    using Step = void (World::*)(std::size_t);

    void dispatch(const std::size_t rank) {
        const int code = Dispatch::launch(&dispatch_[rank], streams_[rank]);
        if (code != 0) fail(Dispatch::error(code));
    }

    void combine(const std::size_t rank) {
        const int code = Combine::launch(&combine_[rank], streams_[rank]);
        if (code != 0) fail(Combine::error(code));
    }

    // What this rank's experts do with the rows that dispatch delivered.
    void work(const std::size_t rank) {
        const auto& d = dispatch_[rank];
        const auto* const rows = reinterpret_cast<const std::uint16_t*>(d.rows);
        auto* const y = const_cast<std::uint16_t*>(combine_[rank].y);
        const std::uint32_t owned = experts / ranks;
        GPU(run_experts(rows, y, d.expert_start, owned, std::uint32_t(rank) * owned, hidden, streams_[rank]));
    }

    static void connect() {
        for (int rank = 0; rank < int(ranks); ++rank) {
            GPU(cudaSetDevice(rank));
            for (int peer = 0; peer < int(ranks); ++peer) {
                int can = 0;
                if (peer == rank) continue;
                GPU(cudaDeviceCanAccessPeer(&can, rank, peer));
                if (!can) fail("GPU " + std::to_string(rank) + " cannot access GPU " + std::to_string(peer));
                const int code = cudaDeviceEnablePeerAccess(peer, 0);
                if (code == cudaErrorPeerAccessAlreadyEnabled) {
                    (void)cudaGetLastError();
                } else {
                    gpu(code, "cudaDeviceEnablePeerAccess");
                }
            }
        }
    }

    // What combine has of dispatch.
    static void share(const typename Dispatch::Args& d, typename Combine::Args& c) {
        c.n = d.n;
        c.rows_there = d.rows_there;
        c.empty_id = d.empty_id;
        c.ids = d.ids;
        c.weights = d.weights;
        c.n_from = d.n_from;
        c.pos = d.pos;
        c.weight_from = d.weight_from;
        std::memcpy(c.status, d.status, sizeof c.status);
    }

    template <typename T>
    static std::vector<T> fetch(const void* const device, const std::size_t count) {
        std::vector<T> host(count);
        if (count > 0) GPU(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
        return host;
    }

    std::vector<typename Dispatch::Args> dispatch_;
    std::vector<typename Combine::Args> combine_;
    std::vector<cudaStream_t> streams_;
};

template <typename Dispatch, typename Combine, std::size_t ranks>
static int run(const int rounds, const bool bench) {
    static_assert(std::is_standard_layout<typename Dispatch::Args>::value, "C has to understand it");
    for (const sizes* s = sizes_in_c; s->ranks != 0; ++s) {
        const bool same = s->dispatch_args == sizeof(typename Dispatch::Args) &&
                          s->combine_args == sizeof(typename Combine::Args);
        if (s->ranks == int(ranks) && !same) fail("C and C++ disagree about the arguments");
    }
    World<Dispatch, Combine, ranks> world;
    const Shape shape = {std::uint32_t(ranks), hidden, experts, topk, tokens};
    std::size_t wrong = 0, compared = 0;
    for (int i = 0; i < rounds; ++i) {
        const auto inputs = random_inputs(shape, std::uint32_t(i));
        world.give(inputs);
        world.rounds(1 + i % 3 * 20);  // the same once more, and many times without waiting in between
        wrong += world.compare(inputs, reference(shape, inputs), compared);
    }
    std::printf("%d inputs on %d GPUs: %zu values compared, %zu wrong\n", rounds, int(ranks), compared, wrong);
    if (bench) {
        const auto inputs = random_inputs(shape, 0);
        world.give(inputs);
        world.rounds(1);
        std::printf("dispatch + combine:           %7.1f us a round\n", world.time(50, false));
        std::printf("dispatch + experts + combine: %7.1f us a round\n", world.time(50, true));
        wrong += world.compare(inputs, reference(shape, inputs), compared);
        if (wrong > 0) std::printf("%zu wrong after timing\n", wrong);
    }
    return wrong == 0 ? 0 : 1;
}

static int number(const char* const text, const char* const option) {
    char* end = nullptr;
    const long n = text == nullptr ? 0 : std::strtol(text, &end, 10);
    if (n < 1 || n > 1000000 || *end != '\0') fail(std::string(option) + " takes a number from 1 on");
    return int(n);
}

int main(int argc, char** argv) {
    int gpus = 2, rounds = 24, present = 0;
    bool bench = false;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
        if (option == "--gpus") {
            gpus = number(value, "--gpus"), ++i;
        } else if (option == "--inputs") {
            rounds = number(value, "--inputs"), ++i;
        } else if (option == "--bench") {
            bench = true;
        } else {
            fail("usage: example [--gpus N] [--inputs N] [--bench], not `" + option + "`");
        }
    }
    GPU(cudaGetDeviceCount(&present));
    if (present < gpus) fail("this machine has " + std::to_string(present) + " GPUs, not " + std::to_string(gpus));
#define RUN(n, dispatch, DISPATCH, combine, COMBINE) \
    if (gpus == n) return run<dispatch##_kernel, combine##_kernel, n>(rounds, bench);
    FOR_EACH_WORLD(RUN)
    fail("nothing is linked for " + std::to_string(gpus) + " GPUs; see catalogue.toml");
}
