// Reads a job, runs it under each of its seeds, writes what was read and found. Numbers are little-endian; a string is
// its length and its bytes.
//
//   program JOB RESULT             all ranks, in this process
//   program JOB RESULT RANK FILE   one rank of them: the others are in processes of their own, and so is the proxy that carries what
//                                  this one puts. The file has the buffers that rank and proxy share.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include <sys/time.h>
#include <unistd.h>

#include "machine.h"

namespace host {

static Kernel* kernels = nullptr;

// Of the CPU's time. A run takes a second or so: what takes this long never gives its turn away.
static constexpr long most_seconds = 60;

Kernel::Kernel(const char* name, void (*run)(const void*), const u32 args_bytes)
    : name(name), run(run), args_bytes(args_bytes), next(kernels) {
    kernels = this;
}

[[noreturn]] static void refuse(const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(2);
}

static const Kernel* kernel_named(const std::string& name) {
    for (const Kernel* k = kernels; k; k = k->next) {
        if (name == k->name) return k;
    }
    refuse("no kernel is called " + name);
}

class Input {
  public:
    explicit Input(std::string bytes) : bytes_(std::move(bytes)) {}
    u64 number() {
        u64 value;
        need(8);
        std::memcpy(&value, &bytes_[at_], 8);
        at_ += 8;
        return value;
    }
    std::string string() {
        const u64 length = number();
        need(length);
        at_ += length;
        return bytes_.substr(at_ - length, length);
    }
    // A list: its length, and its elements by `element`.
    template <typename Element>
    auto list(Element element) {
        std::vector<decltype(element())> all;
        for (u64 left = number(); left != 0; --left) all.push_back(element());
        return all;
    }

  private:
    std::string bytes_;
    u64 at_ = 0;
    void need(const u64 bytes) const {
        if (bytes > bytes_.size() - at_) refuse("the job is cut short");
    }
};

static Launch read_launch(Input& in) {
    Launch l;
    l.kernel = kernel_named(in.string());
    l.grid = u32(in.number());
    l.threads = u32(in.number());
    l.shared_bytes = u32(in.number());
    l.near = u32(in.number());
    const u64 args_bytes = in.number();
    if (args_bytes != l.kernel->args_bytes) refuse(std::string(l.kernel->name) + "'s arguments have another size");
    l.fields = in.list([&] {
        Field f;
        f.kind = Field::Kind(in.number());
        f.offset = u32(in.number());
        f.buffer = u32(in.number());
        f.value = in.string();
        return f;
    });
    return l;
}

static Job read_job(Input& in) {
    Job job;
    job.warp_size = u32(in.number());
    job.ranks = u32(in.number());
    job.checks = in.number() != 0;
    job.warp_vouches = in.number() != 0;
    job.seeds = in.list([&] { return in.number(); });
    job.buffers = in.list([&] {
        Buffer b;
        b.name = in.string();
        b.bytes = in.number();
        b.fill = int(in.number()) - 1;
        b.in_file = in.number();
        return b;
    });
    job.launches = in.list([&] { return read_launch(in); });
    job.programs = in.list([&] {
        return in.list([&] {
            Step s;
            s.kind = Step::Kind(in.number());
            s.what = u32(in.number());
            s.offset = in.number();
            s.bytes = in.number();
            s.content = in.string();
            return s;
        });
    });
    for (u32* const number : {&job.far.log_slots, &job.far.ring_buffer, &job.far.words_buffer,
                              &job.far.memory_buffer}) {
        *number = u32(in.number());
    }
    job.file_bytes = in.number();
    return job;
}

static void put(std::ostream& out, const u64 value) { out.write(reinterpret_cast<const char*>(&value), 8); }
static void put(std::ostream& out, const std::string& text) {
    put(out, text.size());
    out.write(text.data(), std::streamsize(text.size()));
}

// A wild access ends the process: its place is all that can be told.
static void on_fault(const int signal, siginfo_t* const info, void* const context) {
    (void)context;
    char text[160];
    const int length = std::snprintf(text, sizeof(text), "signal %d at address %p in rank %d block %d thread %d\n", signal,
                                     info->si_addr, me ? int(me->rank) : -1, me ? int(me->block) : -1,
                                     me ? int(me->in_block) : -1);
    if (write(2, text, std::size_t(length)) < 0) _exit(5);
    _exit(4);
}

static void catch_faults() {
    static char stack[64 << 10];
    stack_t alternate{};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof(stack);
    sigaltstack(&alternate, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGPROF}) sigaction(signal, &action, nullptr);
}

}  // namespace host

int main(const int count, char** const args) {
    using namespace host;
    if (count < 3 || count % 2 == 0) refuse("usage: program JOB RESULT [RANK FILE]..");
    std::ifstream file(args[1], std::ios::binary);
    if (!file) refuse(std::string("cannot read ") + args[1]);
    Input in(std::string(std::istreambuf_iterator<char>(file), {}));
    Job job = read_job(in);
    for (int at = 3; at < count; at += 2) job.alone.map(args[at], args[at + 1], job.file_bytes);
    catch_faults();
    static Machine the_machine(job);
    machine = &the_machine;
    std::ofstream out(args[2], std::ios::binary);
    for (const u64 seed : job.seeds) {
        const itimerval limit{{0, 0}, {most_seconds, 0}};
        setitimer(ITIMER_PROF, &limit, nullptr);
        // Each rank by itself has a schedule of its own.
        machine->run(seed + 2 * job.alone.rank);
        put(out, seed);
        put(out, findings.list().size());
        for (const std::string& finding : findings.list()) put(out, finding);
        for (u32 r = 0; r < job.ranks; ++r) put(out, machine->read_by(r));
    }
    out.flush();
    if (!out) refuse(std::string("cannot write ") + args[2]);
}
